"""Implements `handoff sensitivity`: success of agents as a function of parameters of the
environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.config.files import read_yaml
from flows.evaluation.config import SensitivityPoliciesConfig
from flows.evaluation.evaluate import make_entrants, print_line, print_tables
from flows.evaluation.robustness import command_options


def sensitivity_command(
    protocol: str,
    overrides: Sequence[str],
    policies: Sequence[str],
    factors: Path | None,
    out: Path,
) -> None:
    """Runs `handoff sensitivity`, whose parameters `flows.commands.evaluation.sensitivity`
    describes.

    Raises:
        HandoffError: no such protocol, option or agent, or an error of
            `sim.sensitivity.measure.measure_sensitivity`.
    """
    from flows.runner.display import Display
    from sim.sensitivity.measure import check_study, measure_sensitivity
    from sim.sensitivity.report import REPORT, sensitivity_tables, write_sensitivity

    given = {} if factors is None else read_yaml(factors, "factors")
    config = command_options("sensitivity", SensitivityPoliciesConfig, protocol, overrides, given)
    check_study(config.protocol, config.study)
    entrants = make_entrants(policies, config.protocol, config.instruction, config.device)
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        progress = display.started("sensitivity")
        measured = measure_sensitivity(
            config.protocol,
            config.study,
            {entrant.name: entrant.load for entrant in entrants},
            config.execution,
            progress,
        )
        figures = write_sensitivity(measured, out)
        display.finished("sensitivity", f"{len(figures['conditions'])} conditions")
    print_tables(list(sensitivity_tables(figures).values()))
    print_line(f"report  {out / REPORT}")
