"""Environment variables that nothing reads."""

from __future__ import annotations

import re

from flows.doctor.variables import KNOWN, variables
from tests import house


def test_a_misspelt_variable_is_a_warning_with_the_nearest_known_one() -> None:
    check = variables({"HANDOFF_TOKNE": "x", "HANDOFF_DATA": "y", "HOME": "z"})
    assert (check.status, check.found) == ("warning", "nothing reads HANDOFF_TOKNE")
    assert check.advice == "HANDOFF_TOKNE: did you mean 'HANDOFF_TOKEN'?"


def test_known_variables_and_those_of_others_are_ok() -> None:
    assert variables({"HANDOFF_DATA": "y", "HAND_OFF": "x"}).found == "HANDOFF_DATA"
    assert variables({}).found == "no HANDOFF_*"


def test_the_known_variables_are_those_that_the_sources_name() -> None:
    sources = [file for name, file in house.modules().items() if name != "flows.doctor.variables"]
    sources += sorted((house.ROOT / "tests").glob("*.py"))
    named = {name for file in sources for name in re.findall(r"HANDOFF_[A-Z_]+", file.read_text())}
    assert set(KNOWN) == named
