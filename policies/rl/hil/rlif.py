"""RLIF: the only reward is that a person steps in, and it is bad (Luo et al., arXiv 2311.12996).

The step just before an intervention begins has reward -1, every other 0; the reward of the task is
not used. Anything that learns from a replay can learn from these; the paper takes RLPD with 10
critics.

Paper and released code differ: the paper stores the person's steps, the code drops them but for the
last of every intervention. Followed is the paper; `keep_expert_steps` = False is the code. The code
also loses the last step of every episode; here it is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from policies.rl.hil.config import RlifConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen, joined


class InterventionReward:
    """Steps in, the same steps with RLIF's reward out: one step later, for the next one tells what
    a step was worth.

    Of every episode one step is held back, until its successor comes or the episode ends. A step
    whose successor is missing (lost on the way) is answered with reward 0.

    Args:
        config: what is punished and what is kept.
    """

    def __init__(self, config: RlifConfig | None = None) -> None:
        self.config = config or RlifConfig()
        self._held: Steps | None = None

    @property
    def held(self) -> int:
        """Number of steps held back, one of every running episode at most."""
        return 0 if self._held is None else self._held.rows

    def __call__(self, steps: Steps) -> Steps:
        """The steps whose reward is known by now, those of one episode in their order."""
        if not steps.rows:
            return steps
        both = steps if self._held is None else joined([self._held, steps])
        following, ended = _following(both), both.terminated | both.truncated
        followed = following >= 0
        next_to = followed & (both.number[following] == both.number + 1) & ~ended
        taken_over = next_to & both.intervention[following]
        begins = taken_over & ~both.intervention
        dropped = taken_over & both.intervention & (not self.config.keep_expert_steps)
        known = followed | ended
        self._held = None if known.all() else chosen(both, ~known)
        reward = np.where(begins, self.config.reward, 0.0).astype(np.float32)
        return chosen(both._replace(reward=reward), known & ~dropped)

    def flush(self) -> Steps | None:
        """What is held back, with reward 0, when no more steps will come; None if that is
        nothing."""
        held, self._held = self._held, None
        return None if held is None else held._replace(reward=np.zeros(held.rows, np.float32))

    def state_dict(self) -> dict[str, Any]:
        """What is held back, for `load_state_dict`."""
        return {"held": None if self._held is None else self._held._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self._held = None if state["held"] is None else Steps(**state["held"])


class RlifReplay(Replay):
    """For learning in lockstep: a replay that gives steps RLIF's reward as they come, each as soon
    as it is known.

    Demonstrations are appended like anything else and have reward 0 [C: pre-filled]. Between
    processes the learner is given an `InterventionReward` (`rewrite` of
    `policies.rl.hil.learner.run_learner`) and a plain replay.

    Args:
        config: of the replay.
        observation: O.
        action: A.
        rlif: what is punished and what is kept.
    """

    def __init__(
        self, config: ReplayConfig, observation: int, action: int, rlif: RlifConfig | None = None
    ) -> None:
        super().__init__(config, observation, action)
        self.reward = InterventionReward(rlif)

    def append(self, steps: Steps) -> None:
        """See `Replay.append`; the newest step of every running episode waits for its successor."""
        super().append(self.reward(steps))

    def state_dict(self) -> dict[str, Any]:
        """See `Replay.state_dict`."""
        return {**super().state_dict(), "reward": self.reward.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Replay.load_state_dict`."""
        super().load_state_dict(state)
        self.reward.load_state_dict(state["reward"])

    def save(self, folder: Path) -> None:
        """Refused: the folder of a replay has no place for what is held back.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            f"{folder}: an RlifReplay cannot be saved to a folder, the steps it holds back would be lost. Save its "
            "state_dict, or give the learner process an InterventionReward and a plain Replay."
        )


def _following(steps: Steps) -> np.ndarray:
    """(N,) row of the next step of the same episode, -1 where there is none."""
    order = np.argsort(steps.episode, kind="stable")
    same = steps.episode[order][1:] == steps.episode[order][:-1]
    following = np.full(steps.rows, -1)
    following[order[:-1][same]] = order[1:][same]
    return following
