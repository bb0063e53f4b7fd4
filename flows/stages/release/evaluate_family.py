"""Stage `evaluate_family`: evaluates policies in every member of a family of environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Family, FamilyScores, Output, Policy
from flows.evaluation.agents import agents_by_stage
from flows.evaluation.config import EvaluateFamilyConfig
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.evaluation.families import OPTION
from robots.interfaces import Progress
from sim.sensitivity.factors import check_factors

FIXED_SEEDS = True
# Fonts decide some pixels of the chart.
TELEMETRY = ("report.html", "*.png")


def check(config: EvaluateFamilyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses parameters of the family that the environments do not have."""
    check_dynamics_source(config.protocol, sources)
    factors = getattr(sources.get(OPTION), "factors", None)
    if factors is not None:
        check_factors(config.protocol, factors)


def run(
    config: EvaluateFamilyConfig,
    out: Path,
    progress: Progress,
    *,
    policies: Sequence[Policy],
    family: Family,
    dynamics: Dynamics | None = None,
) -> Output[FamilyScores]:
    """Plays the protocol's starts with `policies` in every member of `family`, and as many new
    starts in each policy's worst member; writes `family_scores.json`, a chart and `report.html` to
    `out`. The first policy is the reference.

    With `dynamics`, the simulated arm has the tuned parameters, which are the nominal ones.
    An interrupted attempt goes on with the batches of episodes that are missing.

    Raises:
        HandoffError: the policies, the dynamics or the family do not fit the protocol.
    """
    from robots.storage.durable import remove_tree
    from sim.environment_families.evaluation import evaluate_family
    from sim.environment_families.evaluation_report import write_family_evaluation
    from sim.environment_families.members import read_family

    protocol = with_dynamics(config.protocol, dynamics)
    agents = agents_by_stage(
        policies, protocol, config.denoising_steps, config.instruction, config.device
    )
    journal = out / ".episodes"
    measured = evaluate_family(
        protocol, read_family(family), agents, config.execution, progress, journal=journal
    )
    figures = write_family_evaluation(measured, out)
    remove_tree(journal)
    return Output(figures)
