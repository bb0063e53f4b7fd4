"""The release gate: what it measures, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.deployment.config import DeployConfig
from flows.evaluation.config import EvaluatePolicyConfig
from flows.gating.checks import check_inputs
from flows.gating.config import GateConfig, SpecificationLimit, TwinLimits, looser
from flows.stages.release.config import DeployBundleConfig
from real.deploy.loop import LoopConfig
from robots.errors import GateError, HandoffError
from robots.spec import FieldSpec
from tests.flows.gating.bundles import (
    LENIENT,
    PULLED,
    STRICT_TWIN,
    Run,
    write_bundle,
    write_evaluation,
    write_manifest,
)
from tests.real.fakes import contract


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "artifacts"
    Run(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    """A copy of the finished run that a test may damage."""
    copy = Run.__new__(Run)
    copy.folder = shutil.copytree(finished, tmp_path / "artifacts")
    copy.bundle = copy.folder / "bundle"
    names = ("scores@student", "scores@teacher", "control")
    copy.evaluations = [copy.folder / name for name in names]
    copy.out = copy.folder / "gate"
    return copy


def refused(run: Run, message: str, settings: GateConfig = LENIENT, **evidence: Any) -> None:
    with pytest.raises(GateError, match=message):
        run.gate(settings, **evidence)


def raise_scores(evaluation: Path) -> None:
    """Makes the policy of an evaluation half a point better than it was."""
    table = json.loads((evaluation / "episodes.json").read_text())
    for episode in table["episodes"]:
        episode["score"] += 0.5
    (evaluation / "episodes.json").write_text(json.dumps(table))


def states(run: Run) -> dict[str, str]:
    return {name: condition["state"] for name, condition in run.verdict().items()}


def test_a_policy_that_does_what_was_trained_is_released(run: Run) -> None:
    metrics = run.gate()
    assert metrics["passed"] is True
    assert metrics["failed"] == []
    assert metrics["success"]["n"] == 4
    assert states(run) == {
        "difference between ONNX Runtime and training": "passed",
        "order of the observation": "passed",
        "rate": "passed",
        "p99 latency": "passed",
        "difference between the evaluation and the robot's process": "passed",
        "equal repetitions": "passed",
        "success of the exported policy": "passed",
        "loss by export": "passed",
        "loss to the teacher": "passed",
        "loss to the teacher in one step": "passed",
        "loss to the incumbent": "not applicable",
        "twin": "waived",
    }
    # The exported file plays the very episodes of the evaluation of its policy.
    assert run.verdict()["loss by export"]["details"]["mean"] == pytest.approx(0.0, abs=1e-6)
    page = (run.out / "release.html").read_text()
    assert "Released for simulated arms only" in page
    assert "twin is waived" in page


def test_a_policy_that_solves_too_little_is_not_released(run: Run) -> None:
    refused(
        run,
        r"success of the exported policy is 0 at the lower end of its interval, at least 0.5 required \(0 of 4",
        replace(LENIENT, min_success=0.5),
    )
    assert "Not released: 1 conditions are not met" in (run.out / "release.html").read_text()
    assert json.loads((run.out / "gate.json").read_text())["passed"] is False


def test_a_worse_policy_with_perfect_parity_is_not_released(run: Run) -> None:
    # Its own golden examples agree with it, but it acts otherwise than the policy that was trained.
    shutil.rmtree(run.bundle)
    write_bundle(run.bundle, policy="student", **PULLED)
    write_manifest(
        run.bundle,
        kind="bundle",
        inputs={"policy": "student"},
        input_paths={"policy": "../student"},
    )
    raise_scores(run.folder / "scores@student")
    with pytest.raises(
        GateError,
        match=r"not released: loss by export is -0\.\d+ at the lower end of its interval, at least -0.01",
    ) as raised:
        run.gate()
    assert "ONNX Runtime" not in str(raised.value)
    assert states(run)["difference between ONNX Runtime and training"] == "passed"


def test_changed_weights_are_not_released(run: Run) -> None:
    run.replace_policy(scale=0.0101)
    refused(run, r"difference between ONNX Runtime and training is .*were the weights changed")


def test_weights_that_are_not_numbers_are_not_released(run: Run) -> None:
    run.replace_policy(scale=float("nan"))
    refused(run, r"action\[0, 0, 0\] is nan, expected finite")
    assert states(run) == {
        "difference between ONNX Runtime and training": "failed",
        "order of the observation": "passed",
        "rate": "passed",
    }


def test_an_exchanged_order_of_entries_is_named(run: Run) -> None:
    golden = dict(np.load(run.bundle / "golden.npz"))
    golden["action"] = golden["action"][..., ::-1]
    np.savez(run.bundle / "golden.npz", **golden)
    refused(run, r"entries \[0, 1\] of the action look like entries \[1, 0\] of training")


def test_an_exchanged_order_of_fields_is_named(run: Run) -> None:
    from tests.real.fakes import contract

    fields = dict(reversed(contract().observation.items()))
    run.replace_policy(observation=fields)
    refused(
        run, r"come from other fields than in training; the contract's order is agent, keypoint"
    )


def test_a_rate_other_than_that_of_the_environments_is_refused(run: Run) -> None:
    run.replace_policy(rate_hz=20.0)
    with pytest.raises(HandoffError, match=r"contract says 20 Hz, the environments run at 10 Hz"):
        run.gate()


def test_a_policy_that_was_trained_at_another_rate_is_not_released(run: Run) -> None:
    golden = dict(np.load(run.bundle / "golden.npz"))
    np.savez(run.bundle / "golden.npz", **{**golden, "rate_hz": np.array(20.0)})
    refused(run, r"rate is 10 Hz.*trained at 20 Hz, its contract says 10 Hz")


def test_one_flipped_byte_is_refused(run: Run) -> None:
    path = run.bundle / "policy.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(HandoffError, match=r"changed after its export|cannot be loaded|ONNX file"):
        run.gate()


def test_what_was_not_evaluated_is_not_released(run: Run) -> None:
    refused(
        run,
        r"loss by export was not evaluated \(no input 'scores' evaluates the policy that was exported\); "
        r"loss to the teacher was not evaluated .*teacher in one step was not evaluated",
        evaluations=(),
    )


def test_an_evaluation_of_other_starts_is_no_comparison(run: Run) -> None:
    longer = replace(LENIENT, protocol=replace(LENIENT.protocol, episodes=5))
    refused(run, r"has 4 episodes and lacks 1 of the gate's, e.g. seed 100004", longer)
    other = replace(LENIENT, protocol=replace(LENIENT.protocol, max_steps=19))
    refused(run, r"evaluates the teacher under another protocol: max_steps", other)


def test_a_better_control_is_not_ignored(run: Run) -> None:
    shutil.rmtree(run.folder / "control")
    write_bundle(run.folder / "pulled", **PULLED)
    write_evaluation(run.folder / "control", run.folder / "pulled", "teacher")
    raise_scores(run.folder / "control")
    refused(
        run,
        r"in one step is -0\.\d+ at the lower end of its interval, at least -0.01 required",
    )


def test_a_policy_without_a_teacher_is_compared_with_none(run: Run) -> None:
    write_manifest(run.folder / "student", uses="reinforce")
    run.evaluations = run.evaluations[:1]
    run.gate()
    assert states(run)["loss to the teacher"] == "not applicable"


def test_the_policy_that_is_replaced_plays_the_same_starts(run: Run) -> None:
    write_bundle(run.folder / "old", policy="old", **PULLED)
    settings = replace(LENIENT, incumbent=str(run.folder / "old"), margin=1.0)
    run.gate(settings)
    condition = run.verdict()["loss to the incumbent"]
    assert condition["state"] == "passed"
    assert condition["details"]["n"] == 4
    assert "contract.policy" in (run.out / "release.html").read_text()


def test_a_policy_worse_than_the_one_it_replaces_is_not_released(run: Run) -> None:
    write_bundle(run.folder / "old", policy="old", **PULLED)
    settings = replace(LENIENT, incumbent=str(run.folder / "old"), margin=0.0)
    with pytest.raises(GateError, match="loss to the incumbent is"):
        run.gate(settings)


def test_a_folder_without_a_policy_is_no_incumbent(run: Run) -> None:
    with pytest.raises(HandoffError, match=r"holds no policy\.onnx and is no gate"):
        run.gate(replace(LENIENT, incumbent=str(run.folder)))


def test_a_slow_policy_is_not_released(run: Run) -> None:
    refused(run, r"p99 latency is .* ms, at most 1e-06 required", replace(LENIENT, p99_ms=1e-6))


def test_a_required_speed_up_needs_a_reference(run: Run) -> None:
    fast = replace(LENIENT, min_speedup=1e6)
    refused(run, "speed-up over the reference was not evaluated", fast)
    refused(run, r"speed-up over the reference is .*1e\+06 required", fast, reference=run.bundle)


def test_without_the_twin_nothing_is_released(run: Run) -> None:
    refused(run, "twin was not evaluated", replace(LENIENT, twin=STRICT_TWIN))


def test_another_bundle_at_the_twin_is_no_evidence(run: Run) -> None:
    twin = write_manifest(run.folder / "twin", kind="episodes", inputs={"bundle": "other"})
    refused(run, "twin ran another bundle", replace(LENIENT, twin=STRICT_TWIN), twin=twin)


def test_every_missed_condition_is_named(run: Run) -> None:
    settings = replace(LENIENT, min_success=0.5, p99_ms=1e-6)
    with pytest.raises(GateError, match=r"p99 latency .*; success of the exported policy is"):
        run.gate(settings)


def test_looser_limits_are_named() -> None:
    def named(**limits: Any) -> list[str]:
        return looser(GateConfig(**limits), contract())

    assert named() == []
    assert named(min_success=0.9, margin=0.05, p99_ms=1.0) == []
    assert named(min_success=0.3) == ["min_success is 0.3, default 0.5"]
    assert named(tolerance=1e9) == ["tolerance is 1e+09, default 1e-05"]
    assert named(twin=replace(STRICT_TWIN, max_faults=1.0)) == ["twin.max_faults is 1, default 0.1"]
    assert named(twin=None) == ["twin is waived"]


def test_a_tolerance_is_loose_or_not_by_the_precision_of_the_file_and_what_it_sees() -> None:
    half, picture = (
        contract(precision="float16"),
        FieldSpec(shape=(96, 96, 3), dtype="uint8", unit="u8"),
    )
    assert looser(GateConfig(tolerance=1e-2), half) == []
    assert looser(GateConfig(tolerance=0.1), half) == ["tolerance is 0.1, default 0.01"]
    assert looser(GateConfig(tolerance=1e-4), contract()) == ["tolerance is 0.0001, default 1e-05"]
    assert looser(GateConfig(), contract(precision="int8")) == []
    sees = {"sensors": {"image": picture}}
    assert looser(GateConfig(tolerance=1e-4), contract(**sees)) == []
    assert looser(GateConfig(tolerance=1e-3), contract(**sees)) == [
        "tolerance is 0.001, default 0.0001"
    ]
    assert looser(GateConfig(tolerance=1e-2), contract(precision="float16", **sees)) == []


def test_an_interrupted_gate_goes_on_with_the_missing_episodes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.gating.robot_agent import RobotAgent

    settings = replace(LENIENT, evaluate=replace(LENIENT.evaluate, batch=2))
    starts: list[int] = []
    reset = RobotAgent.reset

    def noted(agent: RobotAgent, seeds: list[int]) -> None:
        starts.extend(seeds)
        if len(starts) == 4:
            raise KeyboardInterrupt
        reset(agent, seeds)

    monkeypatch.setattr(RobotAgent, "reset", noted)
    with pytest.raises(KeyboardInterrupt):
        run.gate(settings, resume=True)
    starts.append(0)
    metrics = run.gate(settings, resume=True)
    first = settings.protocol.first_seed
    # The second call plays the last two episodes, and the first two once more for repeatability.
    assert starts[5:] == [first + 2, first + 3, first, first + 1]
    assert metrics["success"]["n"] == 4
    assert not (run.out / "exported" / ".episodes").exists()


def test_a_specification_that_too_few_episodes_satisfy_is_not_released(run: Run) -> None:
    formulas = {"board": "always agent.max < 0.6", "never": "always agent.x > 1"}
    limits = {name: SpecificationLimit(min_share=0.5) for name in formulas}
    evaluate = replace(LENIENT.evaluate, specifications=formulas)
    settings = replace(LENIENT, evaluate=evaluate, specifications=limits)
    refused(
        run, "specification never is 0 at the lower end of its interval, at least 0.5", settings
    )
    # Wilson's interval of 4 of 4 begins at 0.51.
    verdict = run.verdict()
    assert verdict["specification board"]["state"] == "passed"
    assert verdict["specification board"]["value"] == pytest.approx(0.5101, abs=1e-4)
    assert verdict["specification never"]["details"]["k"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            replace(LENIENT, specifications={"soft": SpecificationLimit()}),
            "specification 'soft', but evaluate states no formula of that name",
        ),
        (
            replace(LENIENT, twin=TwinLimits(specifications={"soft": SpecificationLimit()})),
            r"specification 'soft', but table.loop of the input 'twin' states no formula",
        ),
        (
            replace(
                LENIENT, evaluate=replace(LENIENT.evaluate, specifications={"soft": "force < 1"})
            ),
            "specification 'soft', character 1: unknown field 'force'",
        ),
    ],
)
def test_a_limit_that_no_episode_can_meet_is_refused_before_anything_runs(
    settings: GateConfig, message: str
) -> None:
    scores = [EvaluatePolicyConfig(protocol=LENIENT.protocol)]
    with pytest.raises(HandoffError, match=message):
        check_inputs(settings, {"scores": scores, "twin": DeployBundleConfig()})


def test_a_limit_for_a_stated_formula_is_taken() -> None:
    limits = {"soft": SpecificationLimit()}
    formulas = {"soft": "always agent.norm < 2"}
    settings = replace(
        LENIENT,
        evaluate=replace(LENIENT.evaluate, specifications=formulas),
        specifications=limits,
        twin=TwinLimits(specifications=limits),
    )
    table = DeployConfig(loop=LoopConfig(specifications=formulas))
    scores = [EvaluatePolicyConfig(protocol=LENIENT.protocol)]
    check_inputs(settings, {"scores": scores, "twin": DeployBundleConfig(table=table)})
