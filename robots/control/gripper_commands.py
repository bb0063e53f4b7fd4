"""Converts gripper commands (close, hold, open) to the gripper's entry of an action and back.

The last entry of an environment's action is an opening, -1 closed and 1 open
(`robots.control.actions.GRIPPER_SPEC`). HIL-SERL (arXiv 2410.21845) learns three commands instead:
-1 close, 0 hold, 1 open. Hold repeats the last target, which is the observation `width_target`;
therefore the entry is a function of command and observation alone.
"""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation

SLACK = 0.001
"""Difference below which two openings count as equal [m]."""


def entry_from_command(
    command: np.ndarray, width_target: np.ndarray, width_max: float
) -> np.ndarray:
    """(...) entries of actions in [-1, 1] for commands -1, 0 or 1 (...), given the present target
    openings `width_target` (...) [m] and the largest opening `width_max` [m]."""
    hold = np.clip(2.0 * width_target / width_max - 1.0, -1.0, 1.0)
    return np.where(command > 0.5, 1.0, np.where(command < -0.5, -1.0, hold))


def command_from_entry(entry: np.ndarray, width_target: np.ndarray, width_max: float) -> np.ndarray:
    """(...) commands -1, 0 or 1 nearest to entries of actions (...), given the present target
    openings `width_target` (...) [m] and the largest opening `width_max` [m].

    An entry within `SLACK` of the present target becomes hold, except at both ends: a fully closed
    or open entry becomes close or open, even if that is the present target.
    """
    goal = 0.5 * width_max * (1.0 + np.clip(entry, -1.0, 1.0))
    command = np.where(
        goal > width_target + SLACK, 1.0, np.where(goal < width_target - SLACK, -1.0, 0.0)
    )
    command = np.where(goal < SLACK, -1.0, command)
    return np.where(goal > width_max - SLACK, 1.0, command)


def reverses_gripper(
    command: np.ndarray, width: np.ndarray, width_target: np.ndarray
) -> np.ndarray:
    """(...) bool: the command reverses the gripper, which HIL-SERL penalises.

    Close reverses a gripper that is at rest or opening (its target is not below its opening) and
    not closed; open reverses one that is closing, grasping or closed.

    Args:
        command: (...) commands -1, 0 or 1.
        width: (...) present openings [m].
        width_target: (...) present target openings [m].
    """
    closing = width_target < width - SLACK
    closed = width < SLACK
    return np.where(command < -0.5, ~closing & ~closed, (command > 0.5) & (closing | closed))


class CommandedGripper:
    """Action mapping of a learner whose last entry is a gripper command, for environments that
    observe `width` and `width_target`.

    Args:
        size: number of entries A; all entries before the last are the same for learner and
            environment.
        width_max: largest opening of the gripper [m].
    """

    def __init__(self, size: int, width_max: float) -> None:
        self.size = size
        self.width_max = width_max

    def to_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) actions of the environment, given the learner's (N, A).

        Raises:
            HandoffError: the environment does not observe `width_target`.
        """
        entry = entry_from_command(
            action[:, -1], _observed_field(observation, "width_target"), self.width_max
        )
        return np.concatenate([action[:, :-1], entry[:, None]], axis=1)

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) actions of the learner in [-1, 1], given the environment's (N, A), such as a
        person's."""
        command = command_from_entry(
            action[:, -1], _observed_field(observation, "width_target"), self.width_max
        )
        return np.concatenate([np.clip(action[:, :-1], -1.0, 1.0), command[:, None]], axis=1)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: the learner's action (N, A) reverses the gripper, see `reverses_gripper`."""
        return reverses_gripper(
            action[:, -1],
            _observed_field(observation, "width"),
            _observed_field(observation, "width_target"),
        )


def _observed_field(observation: Observation, name: str) -> np.ndarray:
    if name not in observation:
        raise HandoffError(
            f"gripper: no field '{name}' is observed, only {sorted(observation)}. Commands need `width` and "
            "`width_target`; does the task have a gripper?"
        )
    return np.asarray(observation[name], dtype=np.float64).reshape(len(observation[name]))
