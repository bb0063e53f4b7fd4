"""Stage `evaluate_*`: evaluates a policy under a protocol, by default the published push-T protocol
in gym-pusht."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.evaluation.agents import checkpoint_agent
from flows.evaluation.config import EvaluatePolicyConfig
from robots.interfaces import Progress


def run(
    config: EvaluatePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Evaluates `inputs["policy"]` and writes the result and `report.html` to `out`."""
    from sim.evaluation.comparison import read_result
    from sim.evaluation.evaluate import evaluate, make_env
    from sim.evaluation.report import write_report

    path, protocol = inputs["policy"], config.protocol
    load, execution = checkpoint_agent(
        path, protocol, config.denoising_steps, config.instruction, config.evaluate.device
    )
    env = partial(make_env, protocol)
    metrics = evaluate(protocol, config.evaluate, load, env, out, progress, execution)
    write_report(out / "report.html", [read_result(out, path.name)])
    return metrics
