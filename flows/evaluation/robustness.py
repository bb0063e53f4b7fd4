"""Implements `handoff robustness`: success of agents as a function of the appearance of the
scene."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config.options import build
from flows.config.overrides import parse_overrides, set_value
from flows.config.protocols import read_protocol
from flows.evaluation.config import RobustnessConfig
from flows.evaluation.evaluate import make_entrants, print_line, print_tables
from robots.errors import HandoffError


def robustness_command(
    protocol: str, overrides: Sequence[str], policies: Sequence[str], out: Path
) -> None:
    """Runs `handoff robustness`, whose parameters `flows.commands.evaluation.robustness` describes.

    Raises:
        HandoffError: no such protocol, option or agent, or an error of
            `sim.evaluation.robustness.measure_robustness`.
    """
    from flows.runner.display import Display
    from sim.evaluation.robustness import NOMINAL_CONDITION, measure_robustness, under_condition
    from sim.evaluation.robustness_report import REPORT, robustness_tables, write_robustness

    config = _settings(protocol, overrides)
    under_condition(config.protocol, NOMINAL_CONDITION)
    entrants = make_entrants(policies, config.protocol, config.instruction, config.device)
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        progress = display.started("robustness")
        measured = measure_robustness(
            config.protocol,
            config.sweep,
            {entrant.name: entrant.load for entrant in entrants},
            config.execution,
            progress,
        )
        figures = write_robustness(measured, out)
        display.finished("robustness", f"{len(figures['conditions'])} conditions")
    print_tables(robustness_tables(figures))
    print_line(f"report  {out / REPORT}")


def _settings(protocol: str, overrides: Sequence[str]) -> RobustnessConfig:
    values: dict[str, Any] = {}
    for override in parse_overrides(overrides):
        set_value(values, override.keys, override.value)
    if "denoising_steps" in values:
        raise HandoffError(
            "robustness: denoising_steps is an option of the stage alone; set protocol.sampling.denoising_steps."
        )
    given = values.get("protocol")
    values["protocol"] = {"uses": protocol, **(given if isinstance(given, dict) else {})}
    read_protocol(protocol)
    return build(RobustnessConfig, values, "")
