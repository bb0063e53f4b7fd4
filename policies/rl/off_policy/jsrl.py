"""Implements jump-start RL (JSRL): a guide policy acts first, then the learner, and the guide's
part shrinks over training (Uchendu et al., arXiv 2204.02372).

The guide's part is set by a curriculum, whose stages advance while the success rate is maintained,
or sampled for each episode. The learner trains on all steps, of guide and learner.

As in the paper, the guide acts for the first H steps; a widely used implementation lets it act for
H + 1. The curriculum rule is that of this implementation [C]: the first evaluation sets the
reference, and each later evaluation that reaches it, within the tolerance, advances by one stage.
In two points this differs. A success rate of 0 reaches no reference, also not one of 0, so a guide
that solves nothing does not hand over. And the first evaluation, in which the guide acts for its
longest part, must reach `min_guide_success`: JSRL's advantage rests on a guide that visits good
states.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field

from robots.config import config
from robots.errors import HandoffError


@config
class JsrlRandom:
    """JSRL whose guide acts for a random number of steps."""

    kind: Literal["random"] = "random"
    max_horizon: Annotated[int, Field(ge=0)] = 60
    """Largest number of guide steps H; H of each episode is uniform from 0 to it. The guide should
    be able to solve the task in them [C: 60 of 150 in PointMaze]."""
    episodes: Annotated[int, Field(ge=1)] = 20
    """Episodes of the first evaluation, in which H is `max_horizon`."""
    min_guide_success: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Success rate of the first evaluation below which training stops with an error."""


@config
class JsrlCurriculum:
    """JSRL whose guide acts for fewer steps whenever the success rate is maintained."""

    kind: Literal["curriculum"] = "curriculum"
    max_horizon: Annotated[int, Field(ge=0)] = 60
    """Initial number of guide steps H; the guide should be able to solve the task in them [C: 60 of
    150 in PointMaze]."""
    stages: Annotated[int, Field(ge=1)] = 10
    """Stages over which H decreases from `max_horizon` to 0 [C]."""
    tolerance: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of the best moving average by which a success rate may be below it and still advance
    the curriculum [C: 0]."""
    window: Annotated[int, Field(ge=1)] = 1
    """Evaluations in the moving average of the success rate [C: 1]."""
    episodes: Annotated[int, Field(ge=1)] = 20
    """Episodes per evaluation [C]."""
    min_guide_success: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Success rate of the first evaluation below which training stops with an error."""


JsrlSchedule = Annotated[JsrlCurriculum | JsrlRandom, Discriminator("kind")]
"""Union of the schedules of the guide's part, discriminated by `kind`."""


class GuideSchedule:
    """Schedule of the number of guide steps.

    Args:
        config: options.
        seed: seed of a `JsrlRandom`; H of an episode depends only on the seed and the episode
            number.
    """

    def __init__(self, config: JsrlCurriculum | JsrlRandom, seed: int = 0) -> None:
        self.config = config
        self.seed = seed
        stages = config.stages if isinstance(config, JsrlCurriculum) else 1
        self.horizons = np.linspace(config.max_horizon, 0, stages + 1).round().astype(np.int64)
        """H of each stage, (stages + 1,); the last is 0."""
        self.stage = 0
        self.evaluations = 0
        """Number of evaluations so far; the first one is the guide's."""
        self.guide_success: float | None = None
        """Success rate of the first evaluation; None before it."""
        self.best = -np.inf
        """Best moving average of the success rate so far."""
        self.recent: list[float] = []
        """Success rates of the last evaluations, at most `window`."""
        self._solved: list[bool] = []
        """Outcomes of the episodes of the running evaluation."""

    def horizon(self, episode_N: np.ndarray) -> np.ndarray:
        """(N,) number of guide steps H in the given episodes."""
        if isinstance(self.config, JsrlCurriculum) or self.guide_success is None:
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

    def record_episode(self, solved: bool) -> bool:
        """Records the outcome of an episode at the current stage; `episodes` of them are an
        evaluation. Returns whether the curriculum advanced.

        Raises:
            HandoffError: the guide solved too few episodes of the first evaluation.
        """
        self._solved.append(bool(solved))
        if len(self._solved) < self.config.episodes:
            return False
        outcomes = self._solved
        self._solved = []
        return self.record_evaluation(float(np.mean(outcomes)))

    def record_evaluation(self, success: float) -> bool:
        """Records an evaluation of guide and learner together; returns whether the curriculum
        advanced.

        Args:
            success: success rate at the current stage.

        Raises:
            HandoffError: the guide solved too few episodes of the first evaluation.
        """
        config = self.config
        self.evaluations += 1
        if self.guide_success is None:
            self.guide_success = float(success)
        if self.guide_success < config.min_guide_success:
            raise HandoffError(
                f"jsrl: with the guide in the first {config.max_horizon} steps, {self.guide_success:.2f} of the "
                f"episodes were solved, min_guide_success is {config.min_guide_success}. Was the guide trained on this "
                "task and its rate, and can it solve it in these steps?"
            )
        if not isinstance(config, JsrlCurriculum):
            return False
        self.recent = [*self.recent, float(success)][-config.window :]
        if len(self.recent) < config.window or self.stage == len(self.horizons) - 1:
            return False
        moving = float(np.mean(self.recent))
        maintained = moving >= self.best * (1.0 - config.tolerance)
        advances = bool(np.isfinite(self.best) and moving > 0.0 and maintained)
        self.best = max(self.best, moving)
        self.stage += int(advances)
        return advances

    def state_dict(self) -> dict[str, Any]:
        """State of the schedule, for `load_state_dict`."""
        return {
            "stage": self.stage,
            "evaluations": self.evaluations,
            "guide_success": self.guide_success,
            "best": float(self.best),
            "recent": list(self.recent),
            "solved": list(self._solved),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.stage = state["stage"]
        self.evaluations = state["evaluations"]
        self.guide_success = state["guide_success"]
        self.best = state["best"]
        self.recent = list(state["recent"])
        self._solved = list(state["solved"])
