"""Rewards a step by how much the episode so far meets specifications in signal temporal logic.

The reward is the sum of the robustnesses of the observations from the episode's start to now, as if
the episode ended here, with a bonus for each that is satisfied. Its increases add up to that of the
whole episode less that of its start, so a learner that is paid for them (`progress` of its reward
shaping) maximises the robustness.

Shape suffixes: N environments, M of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import EnvState
from robots.spec import ActionSpec, FieldSpec
from robots.specifications.formula import observed_fields
from robots.specifications.parser import check_syntax, parse
from robots.specifications.quantities import resolve
from robots.specifications.robustness import robustness
from sim.engine import Engine, EngineState

_PREFIX = "specified "
"""Prefix of the names of arrays in a saved state."""


@config
class SpecifiedRewardConfig:
    """A reward from specifications."""

    specifications: Annotated[dict[str, str], Field(min_length=1)]
    """Formulas of signal temporal logic over the observed fields, by name."""
    bound: Annotated[float, Field(gt=0.0)] = 1.0
    """Largest absolute robustness of each that counts, in the unit of what the formula compares;
    that of an interval that has not begun is infinite."""
    bonus: Annotated[float, Field(ge=0.0)] = 0.0
    """Added for each that is satisfied so far. Robustness alone pays as much for a millimetre past
    the limit as for the one that reaches it."""

    def __post_init__(self) -> None:
        """Checks the formulas.

        Raises:
            HandoffError: one cannot be read.
        """
        check_syntax(self.specifications)


class SpecifiedReward:
    """Implements `sim.engine.Engine` over another one, whose reward it replaces.

    The fields that formulas read are kept from the start of the episode on, so a step late in a
    long episode takes longer.

    Args:
        engine: environments that observe the fields.
        config: the specifications.
        max_steps: largest number of actions of an episode; None takes the engine's own.

    Raises:
        HandoffError: a formula that does not fit the fields or the rate.
    """

    def __init__(
        self, engine: Engine, config: SpecifiedRewardConfig, max_steps: int | None = None
    ) -> None:
        self.inner = engine
        self.name = engine.name
        self.num_envs = engine.num_envs
        self.rate_hz = engine.rate_hz
        self.max_steps = engine.max_steps
        self.observation_spec: Mapping[str, FieldSpec] = engine.observation_spec
        self.action_spec: ActionSpec = engine.action_spec
        self._config = config
        spec = self.observation_spec
        self._formulas = [
            resolve(parse(text, name), spec, self.rate_hz, name)
            for name, text in config.specifications.items()
        ]
        observations = (self.max_steps if max_steps is None else max_steps) + 1
        read = {name for formula in self._formulas for name in observed_fields(formula)}
        self._history = {
            name: np.zeros((self.num_envs, observations, *spec[name].shape))
            for name in sorted(read)
        }
        self._length_N = np.zeros(self.num_envs, np.int64)
        self._reward_N = np.zeros(self.num_envs)
        self._unread_N = np.zeros(self.num_envs, bool)
        """Environments with an observation that is not in the history yet."""

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        self.inner.reset(env_ids, seeds)
        self._length_N[env_ids] = 0
        self._unread_N[env_ids] = True

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        self.inner.step(action, running)
        self._unread_N |= running

    def read(self) -> EngineState:
        """See `Engine.read`; the reward is NaN where that of the engine is."""
        state = self.inner.read()
        rows_M = np.flatnonzero(self._unread_N)
        for name, values in self._history.items():
            values[rows_M, self._length_N[rows_M]] = state.observation[name][rows_M]
        self._length_N[rows_M] += 1
        self._unread_N[:] = False
        for row in rows_M:
            self._reward_N[row] = self._robustness(int(row))
        return state._replace(reward=np.where(np.isnan(state.reward), np.nan, self._reward_N))

    def save(self) -> EnvState:
        """See `Engine.save`; the state holds the episodes so far."""
        own = {name: array.copy() for name, array in self._own_arrays().items()}
        return {**self.inner.save(), **own}

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`.

        Raises:
            HandoffError: the state is of environments with another reward or time limit.
        """
        kept = {name: array for name, array in state.items() if name.startswith(_PREFIX)}
        own = self._own_arrays()
        shapes = {name: array.shape[1:] for name, array in kept.items()}
        if shapes != {name: array.shape[1:] for name, array in own.items()}:
            raise HandoffError(
                f"{self.name}: the state has the arrays {sorted(kept)} of a specified reward, expected {sorted(own)} "
                "with as many steps. Was it saved with other specifications or another time limit?"
            )
        inner = {name: array for name, array in state.items() if name not in kept}
        self.inner.restore(env_ids, inner)
        for name, array in kept.items():
            own[name][env_ids] = array
        self._unread_N[env_ids] = False

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        return self.inner.dump(env_id)

    def close(self) -> None:
        """See `Engine.close`."""
        self.inner.close()

    def _robustness(self, row: int) -> float:
        """Sum of the robustnesses of an episode so far, each within the bound, and the bonuses."""
        length = self._length_N[row]
        so_far = {name: values[row, :length] for name, values in self._history.items()}
        each = np.array([robustness(one, so_far, self.rate_hz)[0] for one in self._formulas])
        bound, bonus = self._config.bound, self._config.bonus
        return float(np.clip(each, -bound, bound).sum() + bonus * np.count_nonzero(each >= 0.0))

    def _own_arrays(self) -> dict[str, np.ndarray]:
        """What the next reward depends on, by its name in a saved state."""
        history = {f"{_PREFIX}field {name}": values for name, values in self._history.items()}
        return {
            f"{_PREFIX}length": self._length_N,
            f"{_PREFIX}reward": self._reward_N,
            **history,
        }
