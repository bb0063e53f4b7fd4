"""Implements jump-start RL (JSRL): a guide policy acts first, then the learner, and the guide's
part shrinks over training (Uchendu et al., arXiv 2204.02372).

The guide's part is set by a curriculum, whose stages advance while the evaluated return is
maintained, or sampled for each episode. The learner trains on all steps, of guide and learner.

As in the paper, the guide acts for the first H steps; a widely used implementation lets it act for
H + 1. The curriculum rule is that of this implementation: the first evaluation sets the reference
return, and each later evaluation that reaches it, within the tolerance, advances by one stage.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError


@config
class JsrlConfig:
    """Number of steps for which the guide acts; [C] is a widely used implementation."""

    max_horizon: int = 60
    """Initial number of guide steps H; the guide should be able to solve the task in them [C: 60 of
    150 in PointMaze]."""
    variant: Literal["curriculum", "random"] = "curriculum"
    """Schedule of H: `curriculum`, or `random`, which samples H of each episode uniformly from 0 to
    `max_horizon`."""
    stages: int = 10
    """Stages of the curriculum, over which H decreases from `max_horizon` to 0 [C]."""
    tolerance: float = 0.0
    """Fraction of the best moving average by which a return may be below it and still advance the
    curriculum [C: 0]."""
    window: int = 1
    """Evaluations in the moving average of the return [C: 1]."""
    episodes: int = 20
    """Episodes per evaluation [C]."""


class GuideSchedule:
    """Schedule of the number of guide steps.

    Args:
        config: options.
        seed: seed of the variant `random`; H of an episode depends only on the seed and the episode
            number.

    Raises:
        HandoffError: `stages` or `window` is below 1, or `max_horizon` is negative.
    """

    def __init__(self, config: JsrlConfig, seed: int = 0) -> None:
        if config.stages < 1 or config.window < 1 or config.max_horizon < 0:
            raise HandoffError(
                f"jsrl: stages {config.stages}, window {config.window}, max_horizon {config.max_horizon}; expected at "
                "least 1, 1 and 0."
            )
        self.config = config
        self.seed = seed
        self.horizons = (
            np.linspace(config.max_horizon, 0, config.stages + 1).round().astype(np.int64)
        )
        """H of each stage, (stages + 1,); the last is 0."""
        self.stage = 0
        self.best = -np.inf
        """Best moving average of the return so far."""
        self.returns: list[float] = []
        """Returns of the last evaluations, at most `window`."""

    def horizon(self, episode_N: np.ndarray) -> np.ndarray:
        """(N,) number of guide steps H in the given episodes."""
        if self.config.variant == "curriculum":
            return np.full(len(episode_N), self.horizons[self.stage])
        high = self.config.max_horizon + 1
        return np.array(
            [
                np.random.default_rng([self.seed, int(episode)]).integers(high)
                for episode in episode_N
            ]
        )

    def act(
        self,
        episode_N: np.ndarray,
        number_N: np.ndarray,
        guide_NA: np.ndarray,
        learner_NA: np.ndarray,
    ) -> np.ndarray:
        """(N, A) actions: those of the guide in the first H steps of an episode, then the
        learner's.

        Args:
            episode_N: episode numbers.
            number_N: step numbers within the episodes, from 0.
            guide_NA: actions of the guide.
            learner_NA: actions of the learner.
        """
        return np.where((number_N < self.horizon(episode_N))[:, None], guide_NA, learner_NA)

    def record_evaluation(self, mean_return: float) -> bool:
        """Records an evaluation of guide and learner together; returns whether the curriculum
        advanced.

        Args:
            mean_return: mean return over `episodes` episodes at the current stage.
        """
        if self.config.variant == "random":
            return False
        self.returns = [*self.returns, float(mean_return)][-self.config.window :]
        if len(self.returns) < self.config.window or self.stage == len(self.horizons) - 1:
            return False
        moving = float(np.mean(self.returns))
        advances = np.isfinite(self.best) and moving >= self.best - self.config.tolerance * abs(
            self.best
        )
        self.best = max(self.best, moving)
        self.stage += int(advances)
        return bool(advances)

    def state_dict(self) -> dict[str, Any]:
        """State of the curriculum, for `load_state_dict`."""
        return {"stage": self.stage, "best": float(self.best), "returns": list(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.stage = state["stage"]
        self.best = state["best"]
        self.returns = list(state["returns"])
