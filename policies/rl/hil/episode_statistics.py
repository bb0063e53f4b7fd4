"""What became of the episodes that a learner was sent: successes and interventions, the newest ones
apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from robots.wire.learner import EPISODES_PER_START
from robots.wire.steps import Steps

RECENT = 20
"""Episodes that count as recent (issue: interventions in the last 20 training episodes)."""


class Ended(NamedTuple):
    """One episode that has come to its end."""

    success: bool
    """It terminated with a reward above 0."""
    steps: int
    interventions: int
    """Steps at which a person acted."""


class Tally:
    """Counts steps as they come; demonstrations do not count."""

    def __init__(self) -> None:
        self.steps = self.interventions = self.episodes = 0
        self.recent: deque[Ended] = deque(maxlen=RECENT)
        self._running: dict[int, tuple[int, int]] = {}

    def add(self, steps: Steps) -> None:
        """Takes steps in, those of an episode in their order."""
        self.steps += steps.rows
        self.interventions += int(steps.intervention.sum())
        for row in range(steps.rows):
            episode = int(steps.episode[row])
            made, persons = self._running.pop(episode, (0, 0))
            made, persons = made + 1, persons + int(steps.intervention[row])
            if steps.terminated[row] or steps.truncated[row]:
                self.episodes += 1
                self.recent.append(
                    Ended(bool(steps.terminated[row] and steps.reward[row] > 0), made, persons)
                )
            else:
                if made == 1:
                    self._forget_before(episode)
                self._running[episode] = (made, persons)

    @property
    def success(self) -> float:
        """Share of the recent episodes that succeeded; 0 before the first."""
        return float(np.mean([one.success for one in self.recent])) if self.recent else 0.0

    @property
    def intervened(self) -> float:
        """Share of the recent episodes' steps at which a person acted; 1 before the first."""
        steps = sum(one.steps for one in self.recent)
        return sum(one.interventions for one in self.recent) / steps if steps else 1.0

    @property
    def length(self) -> float:
        """Mean steps of the recent episodes that succeeded; 0 without any."""
        lengths = [one.steps for one in self.recent if one.success]
        return float(np.mean(lengths)) if lengths else 0.0

    def state_dict(self) -> dict[str, Any]:
        """For `load_state_dict`; plain values."""
        return {
            "counts": [self.steps, self.interventions, self.episodes],
            "recent": [list(one) for one in self.recent],
            "running": [[episode, *counts] for episode, counts in self._running.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.steps, self.interventions, self.episodes = state["counts"]
        self.recent = deque((_ended(one) for one in state["recent"]), maxlen=RECENT)
        self._running = {episode: (made, persons) for episode, made, persons in state["running"]}

    def _forget_before(self, episode: int) -> None:
        """Drops what an earlier start of the same actor left unfinished."""
        begin = episode // EPISODES_PER_START * EPISODES_PER_START
        journal = episode >> 48
        stale = [other for other in self._running if other < begin and other >> 48 == journal]
        for other in stale:
            del self._running[other]


def _ended(values: Sequence[Any]) -> Ended:
    success, steps, interventions = values
    return Ended(bool(success), int(steps), int(interventions))
