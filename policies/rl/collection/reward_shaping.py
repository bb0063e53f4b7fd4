"""Shapes the reward of an action on top of the task reward.

Shape suffixes: N environments, H actions of a chunk.
"""

from __future__ import annotations

import numpy as np

from robots.config import Finite, config


@config
class RewardShaping:
    """Reward shaping on top of the task reward."""

    task: Finite = 1.0
    """Weight of the task reward."""
    step: Finite = 0.0
    """Reward added to every action. If success ends the episode and an action earns up to r, set
    -r; otherwise stalling next to the goal is optimal."""
    success: Finite = 0.0
    """Reward of the action that solves the task."""
    failure: Finite = 0.0
    """Reward of the action that ends the episode unsolved before its time limit."""
    progress: Finite = 0.0
    """Weight of the increase of the task reward since the previous action: potential-based shaping
    (Ng, Harada and Russell, ICML 1999) without its discount. Over an episode it adds up to the last
    minus the first task reward, so stalling earns nothing and credit is immediate."""

    def shaped_reward(
        self,
        task_reward_NH: np.ndarray,
        length_N: np.ndarray,
        solved_N: np.ndarray,
        failed_N: np.ndarray,
        previous_N: np.ndarray,
    ) -> np.ndarray:
        """Rewards of the actions of a chunk.

        Args:
            task_reward_NH: task reward of each action.
            length_N: executed actions of each chunk; the last of them solved the task or failed
                where `solved_N` or `failed_N` is true.
            solved_N: bool.
            failed_N: bool.
            previous_N: task reward of the action before the chunk; NaN where an episode begins,
                which then has no progress term.

        Returns:
            (N, H) float32; entries beyond the executed actions are undefined.
        """
        ending_N = self.success * solved_N + self.failure * failed_N
        last_NH = np.arange(task_reward_NH.shape[1]) == length_N[:, None] - 1
        begin_N1 = np.where(np.isnan(previous_N), task_reward_NH[:, 0], previous_N)[:, None]
        rise_NH = np.diff(task_reward_NH, axis=1, prepend=begin_N1)
        shaped_NH = (
            self.task * task_reward_NH
            + self.progress * rise_NH
            + self.step
            + ending_N[:, None] * last_NH
        )
        return shaped_NH.astype(np.float32)


def last_task_reward(
    task_reward_NH: np.ndarray, length_N: np.ndarray, previous_N: np.ndarray, ended_N: np.ndarray
) -> np.ndarray:
    """(N,) latest task reward of the running episodes, for `RewardShaping.shaped_reward`; NaN where
    an episode begins.

    Args:
        task_reward_NH: task reward of each action of a chunk.
        length_N: executed actions of each chunk.
        previous_N: result of the previous call.
        ended_N: bool, episodes that have ended.
    """
    last_N = task_reward_NH[np.arange(len(length_N)), np.maximum(length_N - 1, 0)]
    return np.where(ended_N, np.nan, np.where(length_N > 0, last_N, previous_N))
