"""Stage `robustness`: evaluates policies under displaced cameras, other light and distractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Output, Policy, Robustness
from flows.evaluation.agents import agents_by_stage
from flows.evaluation.config import RobustnessConfig
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from robots.interfaces import Progress
from sim.evaluation.robustness import NOMINAL_CONDITION, under_condition

FIXED_SEEDS = True
# Fonts and the graphics driver decide some pixels of the pictures.
TELEMETRY = ("report.html", "*.png")


def check(config: RobustnessConfig, sources: Mapping[str, Any]) -> None:
    """Refuses environments whose appearance cannot vary."""
    check_dynamics_source(config.protocol, sources)
    under_condition(config.protocol, NOMINAL_CONDITION)


def run(
    config: RobustnessConfig,
    out: Path,
    progress: Progress,
    *,
    policies: Sequence[Policy],
    dynamics: Dynamics | None = None,
) -> Output[Robustness]:
    """Plays the protocol's episodes with `policies` under every condition of the sweep, and writes
    `robustness.json`, a chart and `report.html` to `out`; the first policy is the reference.

    With `dynamics`, the simulated arm has the tuned parameters.
    An interrupted attempt goes on with the batches of episodes that are missing.

    Raises:
        HandoffError: the policies or the dynamics do not fit the protocol.
    """
    from robots.storage.durable import remove_tree
    from sim.evaluation.robustness import measure_robustness
    from sim.evaluation.robustness_report import write_robustness

    protocol = with_dynamics(config.protocol, dynamics)
    agents = agents_by_stage(
        policies, protocol, config.denoising_steps, config.instruction, config.device
    )
    journal = out / ".episodes"
    measured = measure_robustness(
        protocol, config.sweep, agents, config.execution, progress, journal=journal
    )
    figures = write_robustness(measured, out)
    remove_tree(journal)
    return Output(figures)
