"""JSRL: a guide acts first, the learner afterwards, and the guide less and less (Uchendu et al.,
arXiv 2204.02372).

Two ways to make it less: a curriculum, whose stages advance while the evaluated return holds, or a
length drawn anew for every episode. All steps are data for the learner, whoever acted.

Followed is the paper: the guide acts for the first H steps. A widely used code lets it act for H +
1. That code's rule for the curriculum is kept: the first evaluation sets what is to be held, and
   every later one that holds it, within the
tolerance, advances by one stage.

Shape suffixes: N worlds, A action.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError


@config
class JsrlConfig:
    """How long the guide acts."""

    max_horizon: int = 60
    """H at the start: steps in which the guide can solve the task [C: 60 of 150 in PointMaze]."""
    variant: Literal["curriculum", "random"] = "curriculum"
    """`random` draws H of every episode uniformly from 0 to `max_horizon`."""
    stages: int = 10
    """Stages in which H goes from `max_horizon` to 0 [C]."""
    tolerance: float = 0.0
    """Share of the best moving return by which a stage's return may lie below it, and advance [C:
    0]."""
    window: int = 1
    """Evaluations in the moving return [C: 1]."""
    episodes: int = 20
    """Episodes of an evaluation [C]."""


class GuideSchedule:
    """Where the guide's share stands.

    Args:
        config: see there.
        seed: of the lengths of `random`; the length of an episode depends on nothing but it and the
            episode's number.

    Raises:
        HandoffError: no stages, no window, or a negative horizon.
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
        """(stages + 1,) H of every stage, the last 0."""
        self.stage = 0
        self.best = -np.inf
        """The largest moving return so far."""
        self.returns: list[float] = []
        """Of the last evaluations, `window` at most."""

    def horizon(self, episode_N: np.ndarray) -> np.ndarray:
        """(N,) steps for which the guide acts in the episodes of the given numbers."""
        if self.config.variant == "curriculum":
            return np.full(len(episode_N), self.horizons[self.stage])
        high = self.config.max_horizon + 1
        return np.array(
            [np.random.default_rng([self.seed, int(one)]).integers(high) for one in episode_N]
        )

    def act(
        self, episode_N: np.ndarray, number_N: np.ndarray, guide_NA: np.ndarray, own_NA: np.ndarray
    ) -> np.ndarray:
        """(N, A) the guide's actions in the first H steps of an episode, the learner's own after
        them.

        Args:
            episode_N: numbers of the episodes.
            number_N: of the step within its episode, from 0.
            guide_NA: what the guide would do.
            own_NA: what the learner would do.
        """
        return np.where((number_N < self.horizon(episode_N))[:, None], guide_NA, own_NA)

    def evaluated(self, mean_return: float) -> bool:
        """Takes note of an evaluation of guide and learner together, and says whether the
        curriculum advanced.

        Args:
            mean_return: over `episodes` episodes of the present stage.
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
        """Where it stands, for `load_state_dict`."""
        return {"stage": self.stage, "best": float(self.best), "returns": list(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.stage = state["stage"]
        self.best = state["best"]
        self.returns = list(state["returns"])
