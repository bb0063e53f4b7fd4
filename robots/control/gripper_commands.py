"""Converts gripper commands of learners and people (close, hold, open) to the environments' action
entry.

A world's last entry of an action is an opening, -1 closed and 1 open
(`robots.control.actions.GRIPPER_SPEC`). HIL-SERL (arXiv 2410.21845) learns three commands in its
place: -1 close, 0 hold, 1 open. To hold is to be told the last target again, which the observation
`width_target` tells: so a command's meaning is a function of the observation alone.
"""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation

SLACK = 0.001
"""Difference of openings that counts as none [m]."""


def entry_of(command: np.ndarray, width_target: np.ndarray, width_max: float) -> np.ndarray:
    """(...) entries of actions in [-1, 1] for commands -1, 0 or 1 (...), at the present target
    openings (...) [m] of a gripper that opens to `width_max` [m]."""
    hold = np.clip(2.0 * width_target / width_max - 1.0, -1.0, 1.0)
    return np.where(command > 0.5, 1.0, np.where(command < -0.5, -1.0, hold))


def command_of(entry: np.ndarray, width_target: np.ndarray, width_max: float) -> np.ndarray:
    """(...) the command -1, 0 or 1 that comes nearest to entries of actions (...), at target
    openings (...) [m] of a gripper that opens to `width_max` [m].

    An entry within `SLACK` of the present target holds, except at the ends: there a person who asks
    for closed or open means it, whether the hand is there yet or not.
    """
    wanted = 0.5 * width_max * (1.0 + np.clip(entry, -1.0, 1.0))
    command = np.where(
        wanted > width_target + SLACK, 1.0, np.where(wanted < width_target - SLACK, -1.0, 0.0)
    )
    command = np.where(wanted < SLACK, -1.0, command)
    return np.where(wanted > width_max - SLACK, 1.0, command)


def turns_round(command: np.ndarray, width: np.ndarray, width_target: np.ndarray) -> np.ndarray:
    """(...) bool: the command reverses the hand; HIL-SERL charges for it.

    Closing does while the hand stands or opens (its target is not below its opening) and is not
    shut; opening does while it closes or grasps, and when it is shut.

    Args:
        command: (...) -1, 0 or 1.
        width: (...) present opening [m].
        width_target: (...) that it was last told [m].
    """
    closing = width_target < width - SLACK
    shut = width < SLACK
    return np.where(command < -0.5, ~closing & ~shut, (command > 0.5) & (closing | shut))


class CommandedHand:
    """Actions whose last entry is a command of the hand, for worlds that observe `width` and
    `width_target`.

    Args:
        size: A; all entries before the last are the same for learner and world.
        width_max: largest opening of the gripper [m].
    """

    def __init__(self, size: int, width_max: float) -> None:
        self.size = size
        self.width_max = width_max

    def to_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) of a learner to (N, A) of the world.

        Raises:
            HandoffError: the world does not tell what its hand was told.
        """
        entry = entry_of(action[:, -1], _told(observation, "width_target"), self.width_max)
        return np.concatenate([action[:, :-1], entry[:, None]], axis=1)

    def from_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) of the world, such as a person's, to (N, A) of a learner, in [-1, 1]."""
        command = command_of(action[:, -1], _told(observation, "width_target"), self.width_max)
        return np.concatenate([np.clip(action[:, :-1], -1.0, 1.0), command[:, None]], axis=1)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: the learner's action (N, A) tells the hand to turn round."""
        return turns_round(
            action[:, -1], _told(observation, "width"), _told(observation, "width_target")
        )


def _told(observation: Observation, name: str) -> np.ndarray:
    if name not in observation:
        raise HandoffError(
            f"hand: no field '{name}' is observed, only {sorted(observation)}. Commands need `width` and "
            "`width_target`; does the task have a hand?"
        )
    return np.asarray(observation[name], dtype=np.float64).reshape(len(observation[name]))
