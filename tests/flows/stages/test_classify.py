"""Stage `classify`: success states by the labels of a person at the console."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.session.config import HilEnvConfig, HilOperator
from flows.session.environment import make_session_env, session_schema
from flows.stages.learn import classify
from flows.stages.learn.config import ClassifyConfig
from real.console.control.arbiter import ArbiterConfig
from real.console.process import open_console
from real.console.server import ConsoleConfig
from robots.episodes.corrections import open_corrections
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.console_session import STARTS, Session, labelled, stepped
from tests.real.console.pages import logged

CONFIG = ClassifyConfig(
    env=HilEnvConfig(task="reach"),
    operator=HilOperator(kind="console", person="login"),
    positives=15,
    linger=5,
)


def collect(out: Path, config: ClassifyConfig) -> dict[str, int]:
    """Records demonstrations, as the stage does first; returns their numbers."""
    env, _ = make_session_env(config.env, on_end="freeze", ignore_success=True)
    with contextlib.closing(env):
        schema = session_schema(config.env, env)
    with open_corrections(out / "solved.zarr", schema) as store:
        number = classify._success_states(config, store, no_progress)
        return {
            "positives": number,
            "stored": classify._positives(store),
            "labelled": classify._labelled(store),
            "contradicted": classify._contradicted(store),
        }


def _attended(out: Path, here: Any) -> None:
    limits = ArbiterConfig(watchdog=2.0)
    config = ConsoleConfig(port=0, picture_seconds=None, arbiter=limits)
    with open_console(config, out / "console") as opened:
        here.send(opened.url)
        numbers = collect(out, CONFIG)
        (out / "numbers").write_text(json.dumps(numbers))


def test_labels_of_a_person_are_success_states_and_contradictions_are_asked_about(
    tmp_path: Path,
) -> None:
    session = Session(_attended, tmp_path)
    page = session.page()
    with contextlib.closing(page.socket):
        facts: set[str] = set()
        for episode in range(3):
            page.go()
            state = stepped(page, 3)
            facts.add(state["facts"]["success states"])
            assert state["facts"]["what counts"].endswith("or your label: 5 states each")
            # Pressed twice, it counts at once; the simulator sees no success.
            for codes in (("KeyS",), (), ("KeyS",), ()):
                page.keys(*codes)
            limit = time.monotonic() + STARTS
            while "The simulator sees no success" not in (state := page.newest())["why"]:
                page.keys()
                assert time.monotonic() < limit, state
            labelled(page, "KeyS", episode + 1)
        session.ended()
    assert facts == {f"{n} of 15, {n} from labels" for n in (0, 5, 10)}
    numbers = json.loads((tmp_path / "numbers").read_text())
    assert numbers == {"positives": 15, "stored": 15, "labelled": 15, "contradicted": 3}
    assert len(logged(tmp_path / "console", "label counts")) == 6


def test_without_a_person_the_simulators_success_counts_alone(tmp_path: Path) -> None:
    config = replace(CONFIG, operator=HilOperator(), positives=6)
    numbers = collect(tmp_path, config)
    assert numbers["positives"] == numbers["stored"] >= 6
    assert numbers["labelled"] == numbers["contradicted"] == 0
    # What was recorded before counts.
    assert collect(tmp_path, config) == numbers


def test_a_success_that_never_comes_ends_with_an_error_that_names_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify, "MAX_EPISODES", 1)
    config = replace(CONFIG, operator=HilOperator(), positives=1000)
    with pytest.raises(HandoffError, match=r"after 1 episodes, expected 1000.*Lower `positives`"):
        collect(tmp_path, config)
    assert np.isfinite(collect(tmp_path, replace(config, positives=1))["positives"])
