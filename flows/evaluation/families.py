"""Puts a family of environments into the environments of a training or a recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.evaluation.dynamics import OPTION as DYNAMICS
from robots.config import to_plain, validate
from robots.errors import HandoffError
from sim.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from sim.engines.mujoco import MujocoConfig

OPTION = "family"
"""Input of stages whose episodes are those of a family."""


def with_members(protocol: Protocol, family: Path | None) -> Protocol:
    """Returns the protocol whose episodes are those of all members of a family, in turn.

    Args:
        protocol: protocol of a training.
        family: folder of a family; None returns the protocol unchanged.

    Raises:
        HandoffError: environments that cannot be those of several members.
    """
    if family is None:
        return protocol
    from sim.environment_families.members import read_family
    from sim.environment_families.mixture import with_family

    return with_family(protocol, read_family(family))


def mujoco_with_members(
    options: MujocoConfig, task: str, robot: str, family: Path | None
) -> MujocoConfig:
    """Returns the options of recorded environments whose episodes are those of all members of a
    family, in turn.

    Args:
        options: options of the environments as they are.
        task: name of the task.
        robot: name of the arm.
        family: folder of a family; None returns the options unchanged.

    Raises:
        HandoffError: see `with_members`.
    """
    if family is None:
        return options
    protocol = with_members(_recorded(options, task, robot), family)
    changed = {name: protocol.options.get(name) for name in ("ranges", "dynamics", "places")}
    given = {name: value for name, value in changed.items() if value is not None}
    return validate(type(options), {**to_plain(options), **given}, "family")


def check_family_source(protocol: Protocol, sources: Mapping[str, Any]) -> None:
    """Checks before anything runs that the family of a stage's input suits its environments.

    Args:
        protocol: protocol of the stage.
        sources: options of the input stages by the name of the input.

    Raises:
        HandoffError: environments that lack a parameter of the family, or cannot be those of
            several members.
    """
    factors = getattr(sources.get(OPTION), "factors", None)
    if factors is None:
        return
    from sim.environment_families.mixture import check_mixture

    # Tuned dynamics may tell values that the protocol does not.
    check_mixture(protocol, factors, known=DYNAMICS not in sources)


def check_recorded_family(
    options: MujocoConfig, task: str, robot: str, sources: Mapping[str, Any]
) -> None:
    """Checks the family of a recording's input; see `check_family_source`."""
    check_family_source(_recorded(options, task, robot), sources)


def refuse_imagined(sources: Mapping[str, Any]) -> None:
    """Refuses a family where a world model imagines the environments.

    Raises:
        HandoffError: both are inputs.
    """
    if {OPTION, "world_model"} <= sources.keys():
        raise HandoffError(
            "finetune: in imagination no environment has parameters, so the input 'family' has no effect. Remove it, "
            "or 'world_model'."
        )


def _recorded(options: MujocoConfig, task: str, robot: str) -> Protocol:
    """Environments of a recording as those of a protocol, which has no other use."""
    plain = {name: value for name, value in to_plain(options).items() if value is not None}
    return Protocol(
        name=f"demonstrations of {task}",
        engine="mujoco",
        task=task,
        options={**plain, "robot": robot},
        max_steps=1,
    )
