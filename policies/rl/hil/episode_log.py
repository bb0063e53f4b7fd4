"""What became of every episode: its length, its success, how much a person acted, how often the
hand turned."""

from __future__ import annotations

from typing import Any, NamedTuple

from robots.wire.steps import Steps


class EpisodeRecord(NamedTuple):
    """One episode that has ended."""

    steps: int
    """It took."""
    interventions: int
    """Steps of it in which a person acted."""
    toggles: int
    """Times that the hand was told to turn round."""
    reward: float
    """Sum over its steps."""
    solved: bool
    """It terminated with a reward above zero at its last step; a time limit or a failure is not."""


EMPTY = EpisodeRecord(0, 0, 0, 0.0, solved=False)


class EpisodeLog:
    """Adds up steps by episode, however they interleave, and keeps those that have ended in the
    order of their ends."""

    def __init__(self) -> None:
        self.ended: list[EpisodeRecord] = []
        self._running: dict[int, EpisodeRecord] = {}

    def add(self, steps: Steps) -> None:
        """Takes steps in, in their order."""
        for row in range(steps.rows):
            episode = int(steps.episode[row])
            before = self._running.pop(episode, EMPTY)
            now = EpisodeRecord(
                steps=before.steps + 1,
                interventions=before.interventions + int(steps.intervention[row]),
                toggles=before.toggles + int(steps.toggle[row]),
                reward=before.reward + float(steps.reward[row]),
                solved=bool(steps.terminated[row]) and float(steps.reward[row]) > 0.0,
            )
            if steps.terminated[row] or steps.truncated[row]:
                self.ended.append(now)
            else:
                self._running[episode] = now

    def intervention_rate(self, last: int = 20) -> float:
        """Share of the steps of the `last` episodes in which a person acted; nan while none has
        ended."""
        recent = self.ended[-last:]
        made = sum(record.steps for record in recent)
        return sum(record.interventions for record in recent) / made if made else float("nan")

    def success_rate(self, last: int = 20) -> float:
        """Share of the `last` episodes that were solved, with whatever help; nan while none has
        ended."""
        recent = self.ended[-last:]
        return sum(record.solved for record in recent) / len(recent) if recent else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """All of it, for `load_state_dict`."""
        return {
            "ended": [tuple(record) for record in self.ended],
            "running": {episode: tuple(record) for episode, record in self._running.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.ended = [EpisodeRecord(*record) for record in state["ended"]]
        self._running = {
            int(episode): EpisodeRecord(*record) for episode, record in state["running"].items()
        }
