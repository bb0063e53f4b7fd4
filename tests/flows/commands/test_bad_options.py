"""Options that a plan refuses, each in one line that names it."""

from __future__ import annotations

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
