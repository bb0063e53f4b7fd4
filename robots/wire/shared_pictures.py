"""Sends every picture once: the picture before a step is that after the preceding step of its
episode, and is then left out of the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.wire.steps import Steps, select_steps

SENT_EPISODES = 64
"""Number of running episodes of which a sender knows the newest picture."""
RECEIVED_EPISODES = 256
"""The same for a receiver, which may still have episodes of an earlier start of the actor."""


class SharedPictures:
    """The pictures after the newest step of each running episode, as sender and receiver know them.

    Args:
        episodes: number of running episodes that are kept; the oldest are forgotten.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._newest: dict[int, tuple[int, dict[str, np.ndarray]]] = {}
        """Number of the newest step, and the pictures after it, per episode."""

    def own_rows(self, steps: Steps) -> np.ndarray:
        """(M,) int64 rows whose pictures before the step must be sent; the steps are known
        afterwards."""
        own = []
        for row in range(steps.rows):
            before = self._before(steps, row)
            pictures = {name: images[row] for name, images in steps.pictures.items()}
            if before is None or not _equal(before, pictures):
                own.append(row)
            self._advance(steps, row)
        return np.array(own, np.int64)

    def complete(self, steps: Steps, own_rows: np.ndarray) -> Steps:
        """The received steps with all pictures before a step. A step whose picture was lost, with
        the entry before it, is left out.

        Args:
            steps: steps whose `pictures` are those of `own_rows`.
            own_rows: (M,) rows.
        """
        place = {int(row): index for index, row in enumerate(own_rows)}
        kept: list[int] = []
        columns: dict[str, list[np.ndarray]] = {name: [] for name in steps.pictures}
        for row in range(steps.rows):
            if row in place:
                before = {name: images[place[row]] for name, images in steps.pictures.items()}
            else:
                before = self._before(steps, row)
            self._advance(steps, row)
            if before is None:
                continue
            kept.append(row)
            for name, images in columns.items():
                images.append(before[name])
        rows = np.array(kept, np.int64)
        complete = select_steps(steps._replace(pictures={}), rows)
        if not kept:
            return complete._replace(
                pictures={name: images[:0] for name, images in steps.next_pictures.items()}
            )
        return complete._replace(
            pictures={name: np.stack(images) for name, images in columns.items()}
        )

    def state_dict(self) -> dict[str, Any]:
        """State, for `load_state_dict`."""
        return {
            str(episode): {"number": number, "pictures": dict(pictures)}
            for episode, (number, pictures) in self._newest.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._newest = {
            int(episode): (entry["number"], dict(entry["pictures"]))
            for episode, entry in state.items()
        }

    def _before(self, steps: Steps, row: int) -> dict[str, np.ndarray] | None:
        known = self._newest.get(int(steps.episode[row]))
        return known[1] if known is not None and known[0] + 1 == steps.number[row] else None

    def _advance(self, steps: Steps, row: int) -> None:
        episode = int(steps.episode[row])
        self._newest.pop(episode, None)
        if steps.terminated[row] or steps.truncated[row]:
            return
        after = {name: np.array(images[row]) for name, images in steps.next_pictures.items()}
        self._newest[episode] = (int(steps.number[row]), after)
        if len(self._newest) > self._episodes:
            del self._newest[next(iter(self._newest))]


def _equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )
