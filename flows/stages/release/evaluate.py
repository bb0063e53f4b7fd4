"""Stage `evaluate`: evaluates a policy under a protocol, by default the published push-T protocol
in gym-pusht."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flows.artifacts import Evaluation, Output, Policy
from flows.evaluation.agents import checkpoint_agent
from flows.evaluation.config import EvaluatePolicyConfig
from robots.interfaces import Progress

FIXED_SEEDS = True


def run(
    config: EvaluatePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
) -> Output[Evaluation]:
    """Evaluates `policy` and writes the result and `report.html` to `out`."""
    from sim.evaluation.comparison import read_result
    from sim.evaluation.evaluate import evaluate, make_env
    from sim.evaluation.report import write_report

    protocol = config.protocol
    load, execution = checkpoint_agent(
        policy, protocol, config.denoising_steps, config.instruction, config.evaluate.device
    )
    env = partial(make_env, protocol)
    metrics = evaluate(protocol, config.evaluate, load, env, out, progress, execution)
    write_report(out / "report.html", [read_result(out, policy.name)])
    return Output(metrics)
