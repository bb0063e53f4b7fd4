"""Bad input at the command line: each ends with an error and one line that names it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from flows.commands.app import main

STEPS = "teacher.training.steps"
HUGE = 10**23


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must be refused; returns its one line."""
    code = main(arguments)
    printed = capsys.readouterr().err
    assert code in (1, 2), printed
    assert "Traceback" not in printed
    assert "unexpected" not in printed
    lines = [line for line in printed.splitlines() if line.startswith("handoff: ")]
    assert len(lines) == 1, printed
    return lines[0]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("teacher.trainin.steps=5", "did you mean 'training'"),
        ("techer.training.steps=5", "techer"),
        (f"{STEPS}=abc", STEPS),
        (f"{STEPS}=1e400", STEPS),
        (f"{STEPS}=-5", STEPS),
        (f"{STEPS}=0", STEPS),
        (f"{STEPS}=1.5", STEPS),
        (f"{STEPS}=null", STEPS),
        (f"{STEPS}=[1, 2]", STEPS),
        (f"{STEPS}={HUGE}", STEPS),
        ("teacher.training.learning_rate=nan", "learning_rate"),
        ("teacher.training.learning_rate=inf", "learning_rate"),
        ("teacher.training.learning_rate=-1", "learning_rate"),
        ("teacher.training.batch_size=0", "batch_size"),
        ("teacher.training.batch_size=-4", "batch_size"),
        ("teacher.policy.network.width=0", "width"),
        ("teacher.policy.horizon=0", "horizon"),
        ("teacher.policy.n_obs_steps=0", "n_obs_steps"),
        ("teacher.policy.kind=diffuson", "diffuson"),
        ("teacher.validation_fraction=1.5", "validation_fraction"),
        ("teacher.validation_fraction=nan", "validation_fraction"),
        ("demos.max_episodes=0", "max_episodes"),
        ("demos.data=/nope/x.zip", "/nope/x.zip"),
        ("scores.protocol.episodes=0", "episodes"),
        ("scores.protocol.max_steps=-1", "max_steps"),
        ("scores.protocol.first_seed=-1", "first_seed"),
        ("scores.evaluate.batch=0", "batch"),
        ("scores.evaluate.videos=-1", "videos"),
        ("scores.evaluate.confidence=2", "confidence"),
        ("gate.tolerance=-1", "tolerance"),
        ("gate.min_success=1.1", "min_success"),
        ("gate.margin=nan", "margin"),
        ("gate.latency.repeats=0", "repeats"),
        ("gate.incumbent=/nope", "/nope"),
        ("twin.table.starts=0", "starts"),
        ("twin.table.loop.max_steps=-3", "max_steps"),
        ("twin.table.loop.stream_hz=-250", "stream_hz"),
        ("twin.table.loop.governor.max_speed=inf", "max_speed"),
        ("twin.table.loop.governor.max_jerk=nan", "max_jerk"),
        ("twin.table.loop.watchdog.fault_seconds=nan", "fault_seconds"),
        ("twin.table.loop.joints.velocity_share=1e12", "velocity_share"),
        ("twin.table.plane.height=-0.5", "height"),
        ("twin.table.twin.host=0.0.0.0", "0.0.0.0"),
        ("bundle.opset=3", "opset"),
        ("bundle.golden=0", "golden"),
        ("seed=-1", "seed"),
        ("twin=3", "twin"),
        (f"seed={HUGE}", "seed"),
        ("=5", "unknown key ''"),
    ],
)
def test_a_bad_option_is_refused_by_the_plan(
    override: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refusal(["plan", "demo", override], capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "demoo"],
        ["plan", "/etc/passwd"],
        ["explain", "/etc/passwd"],
        ["explain", "/nope"],
        ["deploy", "/tmp"],
        ["serve", "/nope"],
        ["verify", "/nope"],
        ["sign", "/nope"],
        ["gate", "/nope", "reach"],
        ["compare", "/nope", "/nope2"],
        ["evaluate", "nothing", "--policy", "random", "--out", "/tmp/x"],
        ["evaluate", "reach", "--policy", "/nope", "--out", "/tmp/x"],
        ["evaluate", "reach", "--policy", "random", "--out", "/tmp/x", "--batch", "-1"],
        ["evaluate", "reach", "--policy", "random", "--out", "/tmp/x", "--workers", "0"],
        ["evaluate", "reach", "--policy", "random", "--out", "/tmp/x", "--videos", "-1"],
        ["evaluate", "reach", "--policy", "random", "--out", "/dev/null"],
        ["console", "pick_cubee"],
        ["console", "reach", "--port", "99999"],
        ["hil", "reach", "--steps", "-1"],
        ["hil", "reach", "--seed", str(HUGE)],
        ["hil", "reachh"],
        ["reproduce", "/nope"],
        ["fetch", "s3://"],
        ["gc", "--runs", "/nope"],
    ],
    ids=" ".join,
)
def test_a_bad_argument_is_refused(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal(arguments, capsys)


def test_damaged_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = tmp_path / "garbage.zip"
    garbage.write_bytes(os.urandom(2000))
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("pusht/data/x", b"0" * 5000)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole.read_bytes()[:2000])
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (garbage, cut, loop, tmp_path):
        assert str(path) in refusal(["plan", "demo", f"demos.data={path}"], capsys)
    refusal(["explain", str(loop)], capsys)


def test_damaged_policies_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(os.urandom(500))
    for path in (empty, junk):
        assert str(path) in refusal(["serve", str(path)], capsys)
        arguments = ["--policy", str(path), "--out", str(tmp_path / "out")]
        assert str(path) in refusal(["evaluate", "push_t_published", *arguments], capsys)


def test_a_server_for_others_wants_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANDOFF_TOKEN", raising=False)
    assert "HANDOFF_TOKEN" in refusal(["console", "reach", "--host", "0.0.0.0"], capsys)
    monkeypatch.setenv("HANDOFF_TOKEN", "short")
    assert "token: 5 characters, expected at least 16" in refusal(["console", "reach"], capsys)


def test_a_protocol_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    protocol = tmp_path / "bad.yaml"
    protocol.write_text(f"name: !!python/object/apply:os.system ['touch {mark}']\n")
    arguments = ["--policy", "random", "--out", str(tmp_path / "out")]
    refusal(["evaluate", str(protocol), *arguments], capsys)
    assert not mark.exists()
