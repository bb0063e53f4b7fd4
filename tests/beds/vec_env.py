"""A bed as a `robots.interfaces.VecEnv`, so that what acts in simulated worlds and on arms can act
in it.

Shape suffixes: N worlds, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason, Requests, Step, WorldState
from robots.spec import ActionSpec, FieldSpec
from tests.beds.bed import Bed


class BedEnv:
    """N worlds with one field, `state` (O,).

    Args:
        make: the bed for a number of worlds and a seed.
        num_envs: N.
        rate_hz: actions per second of simulated time.
    """

    def __init__(
        self, make: Callable[[int, int], Bed], num_envs: int = 1, rate_hz: float = 10.0
    ) -> None:
        self.bed = make(num_envs, 0)
        self.num_envs, self.rate_hz = num_envs, rate_hz
        self.observation_spec: Mapping[str, FieldSpec] = {
            "state": FieldSpec(shape=(self.bed.observation_size,), about="what the bed observes")
        }
        size = self.bed.action_size
        self.action_spec = ActionSpec(low=(-1.0,) * size, high=(1.0,) * size)

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`."""
        rows = range(self.num_envs) if worlds is None else worlds
        for row, seed in zip(rows, seeds, strict=True):
            self.bed.rngs[row] = np.random.default_rng(seed)
            self.bed.steps[row] = 0
            self.bed.start(row, self.bed.rngs[row])
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`; one action at a time."""
        outcome = self.bed.step(action)
        return Step(
            observation={"state": outcome.observation},
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            final_observation={"state": outcome.final_observation},
            info={"success": outcome.success},
            executed=np.ones(self.num_envs, np.int64),
        )

    def save(self) -> WorldState:
        """See `VecEnv.save`; a bed cannot."""
        raise HandoffError("bed: its state cannot be saved.")

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`; a bed cannot."""
        raise HandoffError("bed: its state cannot be restored.")

    def close(self) -> None:
        """See `VecEnv.close`; there is nothing to free."""

    def _observation(self) -> Observation:
        return {"state": self.bed.observe()}


class BedActions:
    """A bed's actions are a learner's, and it knows itself when its hand turns round; a
    `real.corrections` `Actions`.

    Args:
        bed: of the worlds.
    """

    def __init__(self, bed: Bed) -> None:
        self.size, self._bed = bed.action_size, bed

    def to_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """The same (N, A)."""
        return action

    def from_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """The same (N, A), within the bounds."""
        return np.clip(action, -1.0, 1.0)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool."""
        return self._bed.toggled(action)


class ExpertOperator:
    """Takes over for whole stretches of steps, acting as the bed's expert does; implements
    `robots.interfaces.Operator`.

    Args:
        bed: of the worlds that are watched.
        every: steps of a round.
        hold: of those, the last ones, at which they act.
    """

    def __init__(self, bed: Bed, every: int = 20, hold: int = 0) -> None:
        self._bed, self._every, self._hold = bed, every, hold
        self._steps = 0

    def reset(
        self, seeds: Sequence[int] | np.ndarray, worlds: Sequence[int] | np.ndarray | None = None
    ) -> None:
        """See `Operator`; nothing hangs on episodes."""

    def intervene(
        self, proposed: np.ndarray, observation: Observation | None = None
    ) -> Intervention:
        """See `Operator`."""
        acts = self._steps % self._every >= self._every - self._hold
        segment = self._steps // self._every if acts else -1
        self._steps += 1
        n = len(proposed)
        return Intervention(
            proposed=proposed,
            executed=self._bed.expert() if acts else proposed,
            intervening=np.full(n, acts),
            segment=np.full(n, segment),
            reason=np.full(n, int(Reason.ALWAYS if acts else Reason.NONE)),
            operator="expert",
            device="simulated",
        )

    def requests(self) -> Requests:
        """See `Operator`; there are none."""
        return Requests()

    def status(self) -> str:
        """See `Operator`."""
        return "expert"

    def close(self) -> None:
        """See `Operator`; there is no device."""
