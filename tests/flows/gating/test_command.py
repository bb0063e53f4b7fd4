"""`handoff gate`: the gate outside a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.commands.app import main
from tests.flows.gating.bundles import Run, write_bundle

SHORT = ("protocol.episodes=2", "protocol.max_steps=10", "latency.repeats=20", "repeated=2")
LOOSE = ("period_share=1.0", "min_success=0.0", "margin=1.0", "twin=null", "evaluate.videos=0")


def gate(bundle: Path, out: Path, *more: str) -> int:
    return main(["gate", str(bundle), "push_t_published", *SHORT, *LOOSE, f"--out={out}", *more])


def test_a_bundle_of_a_run_is_gated_with_its_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "artifacts")
    scores = [f"--scores={folder}" for folder in run.evaluations]
    # The evaluations have four episodes of 20 steps.
    protocol = ("protocol.episodes=4", "protocol.max_steps=20")
    assert gate(run.bundle, tmp_path / "out", *protocol, *scores) == 0
    assert (tmp_path / "out" / "release.html").is_file()
    assert "loss to the teacher" in capsys.readouterr().out


def test_a_bundle_of_no_run_says_what_was_not_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    assert gate(bundle, tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "loss by export was not evaluated" in printed.err
    assert "NOT EVALUATED" in printed.out
    verdict = json.loads((tmp_path / "out" / "gate.json").read_text())
    assert verdict["passed"] is False


def test_a_folder_without_a_policy_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(tmp_path, tmp_path / "out") == 1
    assert "holds no policy.onnx" in capsys.readouterr().err


def test_an_unknown_option_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    assert gate(bundle, tmp_path / "out", "min_sucess=1.0") == 1
    assert "did you mean 'min_success'" in capsys.readouterr().err
