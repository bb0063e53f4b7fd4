"""Implements `handoff robustness`: success of agents as a function of the appearance of the
scene."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from flows.config.options import build
from flows.config.overrides import parse_overrides, set_value
from flows.config.protocols import read_protocol
from flows.evaluation.config import PlayedConfig, PoliciesConfig, RobustnessConfig
from flows.evaluation.evaluate import make_entrants, print_line, print_tables
from robots.errors import HandoffError

C = TypeVar("C", bound=PoliciesConfig | PlayedConfig)


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

    config = command_options("robustness", RobustnessConfig, protocol, overrides)
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


def command_options(
    command: str,
    cls: type[C],
    protocol: str,
    overrides: Sequence[str],
    given: Mapping[str, Any] = MappingProxyType({}),
) -> C:
    """Options of a command that evaluates in families of environments.

    Args:
        command: name of the command, for messages.
        cls: class of the options.
        protocol: name of the protocol, or path of a YAML file.
        overrides: KEY=VALUE each.
        given: options that the overrides change.

    Raises:
        HandoffError: no such protocol or option, or one that only the stage has.
    """
    values = copy.deepcopy(dict(given))
    for override in parse_overrides(overrides):
        set_value(values, override.keys, override.value)
    if "denoising_steps" in values:
        raise HandoffError(
            f"{command}: denoising_steps is an option of the stage alone; set protocol.sampling.denoising_steps."
        )
    changed = values.get("protocol")
    values["protocol"] = {"uses": protocol, **(changed if isinstance(changed, dict) else {})}
    read_protocol(protocol)
    return build(cls, values, "")
