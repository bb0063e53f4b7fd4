"""Implements `handoff worst-case` and `handoff evaluate-family`: the environment that is worst for
an agent, and success over a family of environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.config.files import read_yaml
from flows.evaluation.config import EvaluateFamilyConfig, WorstCasePolicyConfig
from flows.evaluation.evaluate import make_entrants, print_line, print_tables
from flows.evaluation.robustness import command_options


def worst_case_command(
    protocol: str,
    overrides: Sequence[str],
    policy: str,
    factors: Path | None,
    family: Path | None,
    out: Path,
) -> None:
    """Runs `handoff worst-case`, whose parameters `flows.commands.evaluation.worst_case` describes.

    Raises:
        HandoffError: no such protocol, option, agent or family, or an error of
            `sim.environment_families.worst_case.find_worst_case`.
    """
    from flows.runner.display import Display
    from sim.environment_families.members import read_family
    from sim.environment_families.worst_case import check_worst_case, find_worst_case
    from sim.environment_families.worst_case_report import (
        REPORT,
        verdict,
        worst_case_tables,
        write_worst_case,
    )

    given = {} if factors is None else read_yaml(factors, "factors")
    config = command_options("worst-case", WorstCasePolicyConfig, protocol, overrides, given)
    known = None if family is None else read_family(family)
    check_worst_case(config.protocol, config.study, known)
    (entrant,) = make_entrants([policy], config.protocol, config.instruction, config.device)
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        progress = display.started("worst-case")
        found = find_worst_case(
            config.protocol,
            config.study,
            entrant.name,
            entrant.load,
            config.execution,
            progress,
            known=known,
        )
        figures = write_worst_case(found, out)
        display.finished("worst-case", f"{len(figures['candidates'])} candidates")
    print_tables([worst_case_tables(figures)["The worst"]])
    print_line(verdict(figures))
    print_line(f"report  {out / REPORT}")


def evaluate_family_command(
    protocol: str, overrides: Sequence[str], policies: Sequence[str], family: Path, out: Path
) -> None:
    """Runs `handoff evaluate-family`, whose parameters
    `flows.commands.evaluation.evaluate_family` describes.

    Raises:
        HandoffError: no such protocol, option, agent or family, or an error of
            `sim.environment_families.evaluation.evaluate_family`.
    """
    from flows.runner.display import Display
    from sim.environment_families.evaluation import evaluate_family
    from sim.environment_families.evaluation_report import (
        REPORT,
        family_tables,
        write_family_evaluation,
    )
    from sim.environment_families.members import read_family
    from sim.sensitivity.factors import check_factors

    config = command_options("evaluate-family", EvaluateFamilyConfig, protocol, overrides)
    members = read_family(family)
    check_factors(config.protocol, members.factors)
    entrants = make_entrants(policies, config.protocol, config.instruction, config.device)
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        progress = display.started("evaluate-family")
        agents = {entrant.name: entrant.load for entrant in entrants}
        measured = evaluate_family(config.protocol, members, agents, config.execution, progress)
        figures = write_family_evaluation(measured, out)
        display.finished("evaluate-family", f"{len(members.members)} members")
    print_tables(list(family_tables(figures).values()))
    print_line(f"report  {out / REPORT}")
