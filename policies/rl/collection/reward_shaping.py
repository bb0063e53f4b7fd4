"""Shapes the reward of an action on top of the task reward.

Shape suffixes: N worlds, H actions of a chunk.
"""

from __future__ import annotations

import numpy as np

from robots.config import config


@config
class PracticeReward:
    """What practice pays, out of what a task tells."""

    task: float = 1.0
    """Weight of the task's own reward."""
    step: float = 0.0
    """Reward added to every action. Where success ends the episode and a step earns up to r, -r
    makes stalling next to the goal worthless."""
    success: float = 0.0
    """When the task is solved."""
    failure: float = 0.0
    """When the episode ends unsolved, other than by its time limit."""
    progress: float = 0.0
    """Weight of what the task's own reward has risen since the action before: potential-based
    shaping (Ng, Harada and Russell, ICML 1999) without its discount. All of an episode adds up to
    last less first, so waiting earns nothing, and an action is told at once what it was good
    for."""

    def paid(
        self,
        told_NH: np.ndarray,
        length_N: np.ndarray,
        solved_N: np.ndarray,
        failed_N: np.ndarray,
        before_N: np.ndarray,
    ) -> np.ndarray:
        """What the actions of a chunk are paid.

        Args:
            told_NH: the task's own reward of each.
            length_N: of them are executed; the last of those solved the task, or failed, where
                told.
            solved_N: bool.
            failed_N: bool.
            before_N: what the task told before the first of them; NaN where an episode begins, with
                no progress.

        Returns:
            (N, H) float32; nothing is to be read behind the executed ones.
        """
        once_N = self.success * solved_N + self.failure * failed_N
        last_NH = np.arange(told_NH.shape[1]) == length_N[:, None] - 1
        begin_N1 = np.where(np.isnan(before_N), told_NH[:, 0], before_N)[:, None]
        risen_NH = np.diff(told_NH, axis=1, prepend=begin_N1)
        paid_NH = (
            self.task * told_NH + self.progress * risen_NH + self.step + once_N[:, None] * last_NH
        )
        return paid_NH.astype(np.float32)


def told_last(
    told_NH: np.ndarray, length_N: np.ndarray, before_N: np.ndarray, ended_N: np.ndarray
) -> np.ndarray:
    """(N,) what the task told last of the episodes under way, for `PracticeReward.paid`; NaN where
    none has begun.

    Args:
        told_NH: of the actions of a chunk.
        length_N: of them were executed.
        before_N: what was told before them.
        ended_N: bool, where the episode is over.
    """
    last_N = told_NH[np.arange(len(length_N)), np.maximum(length_N - 1, 0)]
    return np.where(ended_N, np.nan, np.where(length_N > 0, last_N, before_N))
