"""The command `handoff sensitivity`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.evaluation.sensitivity import sensitivity_command
from robots.errors import HandoffError

FACTORS = """
factors:
  payload: {kind: arm, what: payload, values: [0.5], low: 0.0, high: 1.0}
design: {points: 16}
"""
SHORT = ("protocol.episodes=2", "protocol.max_steps=3", "design.points=4")


def test_agents_are_measured_at_the_factors_of_a_file_and_of_overrides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "factors.yaml"
    file.write_text(FACTORS)
    overrides = (
        *SHORT,
        "factors.late.kind=physics",
        "factors.late.what=delay",
        "factors.late.values=[0.03]",
    )
    sensitivity_command("reach", overrides, ["expert", "random"], file, tmp_path)
    found = json.loads((tmp_path / "sensitivity.json").read_text())
    names = [row["name"] for row in found["conditions"]]
    assert names == ["nominal", "payload=0.5", "late=0.03"]
    assert (found["design"]["points"], found["protocol"]["episodes"]) == (4, 2)
    printed = capsys.readouterr().out
    assert "against expert" in printed
    assert "dummy" in printed
    assert "report.html" in printed


def test_what_the_command_cannot_do_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(HandoffError, match="factors: 0 are given"):
        sensitivity_command("reach", (), ["expert"], None, out)
    with pytest.raises(HandoffError, match=r"factors .*missing\.yaml: no such file"):
        sensitivity_command("reach", (), ["expert"], tmp_path / "missing.yaml", out)
    with pytest.raises(HandoffError, match=r"sensitivity: denoising_steps is an option"):
        sensitivity_command("reach", ["denoising_steps=2"], ["expert"], None, out)
    assert not out.exists()
