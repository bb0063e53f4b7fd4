"""Stage `sensitivity`: measures which parameters of the environments decide whether policies
succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Output, Policy, Sensitivity
from flows.evaluation.agents import agents_by_stage
from flows.evaluation.config import SensitivityPoliciesConfig
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from robots.interfaces import Progress
from sim.sensitivity.measure import check_study

FIXED_SEEDS = True
# Fonts decide some pixels of the chart.
TELEMETRY = ("report.html", "*.png")


def check(config: SensitivityPoliciesConfig, sources: Mapping[str, Any]) -> None:
    """Refuses factors that the environments do not have."""
    check_dynamics_source(config.protocol, sources)
    check_study(config.protocol, config.study)


def run(
    config: SensitivityPoliciesConfig,
    out: Path,
    progress: Progress,
    *,
    policies: Sequence[Policy],
    dynamics: Dynamics | None = None,
) -> Output[Sensitivity]:
    """Plays the protocol's starts with `policies` at every value of every factor, and one episode
    at each point of the design; writes `sensitivity.json`, a chart and `report.html` to `out`. The
    first policy is the reference.

    With `dynamics`, the simulated arm has the tuned parameters, which are the nominal ones.
    An interrupted attempt goes on with the batches of episodes that are missing.

    Raises:
        HandoffError: the policies, the dynamics or the factors do not fit the protocol.
    """
    from robots.storage.durable import remove_tree
    from sim.sensitivity.measure import measure_sensitivity
    from sim.sensitivity.report import write_sensitivity

    protocol = with_dynamics(config.protocol, dynamics)
    agents = agents_by_stage(
        policies, protocol, config.denoising_steps, config.instruction, config.device
    )
    journal = out / ".episodes"
    measured = measure_sensitivity(
        protocol, config.study, agents, config.execution, progress, journal=journal
    )
    figures = write_sensitivity(measured, out)
    remove_tree(journal)
    return Output(figures)
