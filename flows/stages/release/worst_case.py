"""Stage `worst_case`: searches for the environment that is worst for a policy, and adds it to a
family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Family, Output, Policy
from flows.evaluation.agents import agents_by_stage
from flows.evaluation.config import WorstCasePolicyConfig
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.evaluation.families import OPTION
from robots.interfaces import Progress
from sim.environment_families.worst_case import check_same_factors, check_worst_case

# Fonts decide some pixels of the chart.
TELEMETRY = ("report.html", "*.png")


def check(config: WorstCasePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses parameters that the environments do not have, that have no range, or that are not
    those of the family."""
    check_dynamics_source(config.protocol, sources)
    check_worst_case(config.protocol, config.study)
    given = getattr(sources.get(OPTION), "factors", None)
    if given is not None:
        check_same_factors(config.factors, given)


def run(
    config: WorstCasePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
    family: Family | None = None,
    dynamics: Dynamics | None = None,
) -> Output[Family]:
    """Searches for the environment that is worst for `policy`, and adds it to `family`, or to the
    environments as they are; writes `family.json`, `worst_case.json`, a chart and `report.html` to
    `out`.

    With `dynamics`, the simulated arm has the tuned parameters, which are the nominal ones. If no
    environment is worse than the members by more than the tolerance, the family stays as it is.
    An interrupted attempt goes on with the batches of episodes that are missing.

    Raises:
        HandoffError: the policy, the dynamics or the parameters do not fit the protocol.
    """
    from robots.storage.durable import remove_tree
    from sim.environment_families.members import read_family
    from sim.environment_families.worst_case import find_worst_case
    from sim.environment_families.worst_case_report import write_worst_case

    protocol = with_dynamics(config.protocol, dynamics)
    agents = agents_by_stage(
        [policy], protocol, config.denoising_steps, config.instruction, config.device
    )
    ((agent, load),) = agents.items()
    journal = out / ".episodes"
    found = find_worst_case(
        protocol,
        config.study,
        agent,
        load,
        config.execution,
        progress,
        known=None if family is None else read_family(family),
        journal=journal,
    )
    figures = write_worst_case(found, out)
    remove_tree(journal)
    return Output(figures)
