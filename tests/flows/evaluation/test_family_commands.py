"""The commands `handoff worst-case` and `handoff evaluate-family`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.evaluation.family_commands import evaluate_family_command, worst_case_command
from robots.errors import HandoffError
from sim.environment_families.members import read_family

FACTORS = """
protocol: {max_steps: 45}
factors:
  stiffness: {kind: arm, what: stiffness, low: 0.05, high: 1.0}
search: {design: {points: 2}, rounds: 0, episodes: 2, finalists: 1, final_episodes: 2}
"""


def test_the_worst_environment_is_found_added_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first, second = tmp_path / "factors.yaml", tmp_path / "first", tmp_path / "second"
    file.write_text(FACTORS)
    overrides = ["search.episodes=3"]
    worst_case_command("reach", overrides, "expert", file, None, first)
    found = json.loads((first / "worst_case.json").read_text())
    assert (found["agent"], found["search"]["episodes"]) == ("expert", 3)
    assert [member.name for member in read_family(first).members] == ["nominal", "worst 1"]
    printed = capsys.readouterr().out
    assert "stiffness=0.05" in printed
    assert "added as worst 1" in printed
    worst_case_command("reach", (), "expert", file, first, second)
    assert read_family(second) == read_family(first)
    options = ["protocol.episodes=2", "protocol.max_steps=45"]
    evaluate_family_command("reach", options, ["expert", "random"], second, tmp_path)
    scores = json.loads((tmp_path / "family_scores.json").read_text())
    assert list(scores["agents"]) == ["expert", "random"]
    assert scores["agents"]["expert"]["worst"]["member"] == "worst 1"
    printed = capsys.readouterr().out
    assert "again" in printed
    assert "report.html" in printed


def test_what_the_commands_cannot_do_is_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "factors.yaml", tmp_path / "out"
    file.write_text(FACTORS)
    with pytest.raises(HandoffError, match="factors: 0 are given"):
        worst_case_command("reach", (), "expert", None, None, out)
    with pytest.raises(HandoffError, match=r"family: cannot read .*Is it an output of"):
        worst_case_command("reach", (), "expert", file, tmp_path / "none", out)
    with pytest.raises(HandoffError, match="worst-case: denoising_steps is an option"):
        worst_case_command("reach", ["denoising_steps=2"], "expert", file, None, out)
    with pytest.raises(HandoffError, match=r"family: cannot read .*Is it an output of"):
        evaluate_family_command("reach", (), ["expert"], tmp_path / "none", out)
    assert not out.exists()
