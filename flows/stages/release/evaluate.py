"""Stage `evaluate`: evaluates a policy under a protocol, by default the published push-T protocol
in gym-pusht."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Evaluation, Output, Policy
from flows.evaluation.agents import checkpoint_agent
from flows.evaluation.config import EvaluatePolicyConfig
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.evaluation.inference_time import write_inference_time
from flows.reports.speed import INFERENCE
from policies.imitation.config import PretrainConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

FIXED_SEEDS = True
# The same pictures are not always encoded to the same bytes, and times differ from run to run.
TELEMETRY = ("report.html", "*.mp4", INFERENCE)


def check(config: EvaluatePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses dynamics that the protocol's environments cannot have, specifications of other
    fields, and a blind policy that never saw."""
    from sim.evaluation.protocol import check_specifications

    check_dynamics_source(config.protocol, sources)
    check_specifications(config.evaluate.specifications, config.protocol)
    policy = sources.get("policy")
    if config.blind and isinstance(policy, PretrainConfig) and not policy.policy.sensor_fields:
        raise HandoffError(
            "evaluate: blind is set, but the policy has no image_fields or point_fields. Remove it."
        )


def run(
    config: EvaluatePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
    dynamics: Dynamics | None = None,
) -> Output[Evaluation]:
    """Evaluates `policy`, times single observations, and writes the result and `report.html` to
    `out`.

    With `dynamics`, the simulated arm has the tuned parameters, which are part of the recorded
    protocol.

    An interrupted attempt goes on with the batches of episodes that are missing.

    Raises:
        HandoffError: the policy or the dynamics do not fit the protocol.
    """
    from sim.evaluation.comparison import read_result
    from sim.evaluation.evaluate import evaluate, make_env
    from sim.evaluation.report import write_report

    protocol = with_dynamics(config.protocol, dynamics)
    load, execution = checkpoint_agent(
        policy,
        protocol,
        config.denoising_steps,
        config.instruction,
        config.evaluate.device,
        blind=config.blind,
    )
    env = partial(make_env, protocol)
    metrics = evaluate(
        protocol,
        config.evaluate,
        load,
        env,
        out,
        progress,
        execution,
        journal=out / ".episodes",
    )
    write_inference_time(
        policy,
        execution["denoising_steps"],
        execution["instruction"],
        config.evaluate.device,
        out,
    )
    write_report(out / "report.html", [read_result(out, policy.name)])
    return Output(metrics)
