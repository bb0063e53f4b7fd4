"""Checks that an arm is ready to move: mode, errors, fresh states, joint limits, payload."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from real.arm import ArmState
from robots.errors import SafetyError
from robots.franka.robot import JointLimits
from robots.interfaces import Clock

JOINT_MARGIN = 0.05
"""Least distance of a joint from its limits [rad]."""


def check_ready(
    read: Callable[[], ArmState], clock: Clock, limits: JointLimits, rest_torque: float
) -> ArmState:
    """Checks an arm at rest; returns its newest state.

    Args:
        read: reads the newest state.
        clock: clock of robot time, which passes by 10 ms.
        limits: limits of the robot.
        rest_torque: largest external torque of a joint [Nm].

    Raises:
        SafetyError: the arm is not ready; the message names the figure, its limit and the likely
            cause.
    """
    before = read()
    clock.advance(0.01)
    # Read twice: after an idle gap the first datagram in the socket's buffer may be seconds old.
    state = read()
    state = read()
    if state.mode != "Idle" or state.errors:
        raise SafetyError(
            f"arm: mode is {state.mode}, errors {list(state.errors)}, expected Idle without errors. "
            "Is the user stop released, FCI active, the last fault recovered?"
        )
    if not state.time > before.time:
        raise SafetyError(
            f"arm: its time stopped at {state.time:.3f} s. Does it still send states?"
        )
    margin = np.minimum(state.q - limits.q_min, limits.q_max - state.q)
    if margin.min() < JOINT_MARGIN:
        i = int(np.argmin(margin))
        raise SafetyError(
            f"arm: joint{i + 1} is {margin[i]:.3f} rad from its limit, at least {JOINT_MARGIN} required. "
            "Guide it away."
        )
    if np.abs(state.tau_ext).max() > rest_torque:
        i = int(np.argmax(np.abs(state.tau_ext)))
        raise SafetyError(
            f"arm: joint{i + 1} feels {state.tau_ext[i]:.2f} Nm at rest, limit {rest_torque} Nm. "
            "Is the tool's mass configured in Desk, does something touch the arm?"
        )
    return state
