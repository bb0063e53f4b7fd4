"""Keeps the steps of running episodes until they end, for replay buffers of whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from robots.wire.steps import Steps, concatenate_steps, select_steps


class WholeEpisodes:
    """Steps of the running episode of every environment.

    Args:
        num_envs: environments N.
    """

    def __init__(self, num_envs: int) -> None:
        self._running: list[list[Steps]] = [[] for _ in range(num_envs)]

    def add(self, steps: Steps, success_N: np.ndarray) -> list[Steps]:
        """Takes one step of every environment; returns the episodes that it ends, those that ended
        in success marked as demonstrations.

        Args:
            steps: the steps, one row per environment.
            success_N: (N,) bool, whether a step solved the task.
        """
        ended = []
        for number, running in enumerate(self._running):
            running.append(select_steps(steps, np.array([number])))
            if steps.terminated[number] or steps.truncated[number]:
                episode = concatenate_steps(running)
                solved = np.full(episode.rows, success_N[number])
                ended.append(episode._replace(demo=solved))
                running.clear()
        return ended

    def abandon(self, began_N: np.ndarray) -> None:
        """Forgets the running episodes of environments that begin anew.

        Args:
            began_N: (N,) bool.
        """
        for running, began in zip(self._running, began_N, strict=True):
            if began:
                running.clear()

    def state_dict(self) -> list[dict[str, torch.Tensor]]:
        """Steps of every running episode; empty for one without."""
        return [
            {
                name: torch.from_numpy(np.array(value))
                for name, value in concatenate_steps(running)._asdict().items()
                if isinstance(value, np.ndarray)
            }
            if running
            else {}
            for running in self._running
        ]

    def load_state_dict(self, state: list[dict[str, torch.Tensor]]) -> None:
        """Restores a `state_dict`."""
        self._running = [
            [_steps({name: value.numpy() for name, value in columns.items()})] if columns else []
            for columns in state
        ]


def _steps(columns: dict[str, Any]) -> Steps:
    return Steps(**columns)
