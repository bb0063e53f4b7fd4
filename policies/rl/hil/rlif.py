"""Implements RLIF: RL from interventions as the only, negative reward (Luo et al., arXiv
2311.12996).

The step just before an intervention begins has reward -1, all others 0; the task reward is not
used. Any off-policy learner can train on these rewards; the paper uses RLPD with 10 critics.

Where paper and released code differ: the paper stores the person's steps, the code keeps only the
last one of each intervention. This follows the paper; `keep_expert_steps` = False follows the code.
The code also loses the last step of every episode; here it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from policies.rl.hil.config import RlifConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import Steps, concatenate_steps, select_steps


class InterventionReward:
    """Replaces the rewards of steps by those of RLIF, with a delay of one step, since the reward
    depends on the next step.

    One step per episode is pending until its successor arrives or the episode ends. A step whose
    successor was lost gets reward 0.

    Args:
        config: penalty, and whether the person's steps are kept.
    """

    def __init__(self, config: RlifConfig | None = None) -> None:
        self.config = config or RlifConfig()
        self._pending: Steps | None = None

    @property
    def num_pending(self) -> int:
        """Number of pending steps, at most one per running episode."""
        return 0 if self._pending is None else self._pending.rows

    def __call__(self, steps: Steps) -> Steps:
        """Steps whose reward is known, in order within each episode."""
        if not steps.rows:
            return steps
        all_steps = steps if self._pending is None else concatenate_steps([self._pending, steps])
        next_row, ended = _next_rows(all_steps), all_steps.terminated | all_steps.truncated
        has_next = next_row >= 0
        is_consecutive = has_next & (all_steps.number[next_row] == all_steps.number + 1) & ~ended
        next_is_intervention = is_consecutive & all_steps.intervention[next_row]
        begins = next_is_intervention & ~all_steps.intervention
        dropped = (
            next_is_intervention & all_steps.intervention & (not self.config.keep_expert_steps)
        )
        known = has_next | ended
        self._pending = None if known.all() else select_steps(all_steps, ~known)
        reward = np.where(begins, self.config.penalty, 0.0).astype(np.float32)
        return select_steps(all_steps._replace(reward=reward), known & ~dropped)

    def flush(self) -> Steps | None:
        """Pending steps with reward 0, to be called when no more steps arrive; None if there are
        none."""
        pending = self._pending
        self._pending = None
        return (
            None if pending is None else pending._replace(reward=np.zeros(pending.rows, np.float32))
        )

    def revise(self, buffers: Iterable[Replay]) -> None:
        """Changes nothing: what a person did at a step stays."""

    def state_dict(self) -> dict[str, Any]:
        """Pending steps, for `load_state_dict`."""
        return {"held": None if self._pending is None else self._pending._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._pending = None if state["held"] is None else Steps(**state["held"])


class RlifReplay(Replay):
    """Replay buffer that replaces rewards by those of RLIF, for training in lockstep.

    Demonstrations are appended like other steps and have reward 0 [C: pre-filled]. A learner
    process uses an `InterventionReward` (`relabel` of `policies.rl.hil.learner.run_learner`) and a
    `Replay` instead.

    Args:
        config: options of the replay.
        observation: entries O of an observation.
        action: entries A of an action.
        rlif: options of RLIF.
    """

    def __init__(
        self, config: ReplayConfig, observation: int, action: int, rlif: RlifConfig | None = None
    ) -> None:
        super().__init__(config, observation, action)
        self.reward = InterventionReward(rlif)

    def append(self, steps: Steps) -> None:
        """Appends steps, see `Replay.append`; the newest step of each running episode is
        delayed."""
        super().append(self.reward(steps))

    def state_dict(self) -> dict[str, Any]:
        """State of the replay and the pending steps."""
        return {**super().state_dict(), "reward": self.reward.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`, see `Replay.load_state_dict`."""
        super().load_state_dict(state)
        self.reward.load_state_dict(state["reward"])

    def save(self, folder: Path) -> None:
        """Raises an error, because the folder of a replay cannot store the pending steps.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            f"{folder}: an RlifReplay cannot be saved to a folder, because its pending steps would be lost. Save its "
            "state_dict, or use an InterventionReward and a Replay in a learner process."
        )


def _next_rows(steps: Steps) -> np.ndarray:
    """(N,) row of the next step of the same episode, -1 if there is none."""
    order = np.argsort(steps.episode, kind="stable")
    same = steps.episode[order][1:] == steps.episode[order][:-1]
    following = np.full(steps.rows, -1)
    following[order[:-1][same]] = order[1:][same]
    return following
