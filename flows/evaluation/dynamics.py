"""Puts tuned dynamics of the arm into the environments of a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from robots.config import to_plain
from robots.errors import HandoffError
from sim.evaluation.protocol import Protocol
from sim.identification.config import TuneStoreConfig

ENGINES = ("mujoco", "warp")
"""Engines whose arm is tuned."""
OPTION = "dynamics"
"""Option of the protocol's environments, and input of stages."""


def with_dynamics(protocol: Protocol, dynamics: Path | None) -> Protocol:
    """Returns the protocol with the dynamics of an artifact, which enter its digest: results with
    other dynamics are not comparable.

    Args:
        protocol: protocol of an evaluation or of training.
        dynamics: folder of tuned dynamics; None returns the protocol unchanged.

    Raises:
        HandoffError: environments that cannot have them, or dynamics of another robot.
    """
    if dynamics is None:
        return protocol
    from sim.identification.fit_store import read_dynamics

    tuned = read_dynamics(dynamics)
    _check(protocol, tuned.robot)
    return replace(protocol, options={**protocol.options, OPTION: to_plain(tuned)})


def check_dynamics_source(protocol: Protocol, sources: Mapping[str, Any]) -> None:
    """Checks before anything runs that the dynamics of a stage's input suit its environments.

    Args:
        protocol: protocol of the stage.
        sources: options of the input stages by the name of the input.

    Raises:
        HandoffError: environments that cannot have them, another robot, or gains of single joints
            for a controller without any.
    """
    if OPTION not in sources:
        return
    tuning = sources[OPTION]
    if not isinstance(tuning, TuneStoreConfig):
        _check(protocol, None)
        return
    _check(protocol, tuning.tracking.robot)
    from robots.franka import find_robot
    from sim.identification.parameters import parameters_of

    gains = [
        item.name
        for item in parameters_of(tuning.parameters, find_robot(tuning.tracking.robot))
        if item.what in ("stiffness", "damping") and item.joints
    ]
    if gains and "actions" not in protocol.options:
        raise HandoffError(
            f"protocol {protocol.name}: its Cartesian controller has no gains of single joints, but the tuning has "
            f"{gains[0]}. Tune with `parameters: {{kind: shared}}`, or evaluate joint actions."
        )


def _check(protocol: Protocol, robot: str | None) -> None:
    if protocol.engine not in ENGINES:
        raise HandoffError(
            f"protocol {protocol.name}: the engine {protocol.engine} cannot take tuned dynamics, "
            f"{' and '.join(ENGINES)} can."
        )
    if OPTION in protocol.options:
        raise HandoffError(
            f"protocol {protocol.name}: has options.dynamics, and the stage an input 'dynamics'. Remove one of them."
        )
    if robot is not None and robot != protocol.robot:
        raise HandoffError(
            f"protocol {protocol.name}: its environments have the robot '{protocol.robot}', the dynamics were tuned "
            f"for '{robot}'."
        )
