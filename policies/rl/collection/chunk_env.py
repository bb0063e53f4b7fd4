"""Adapts simulated environments to chunk policies: observation histories, normalised units and
action chunks, with instructions and images beside the vector.

Shape suffixes: N environments, T observed steps, O observation, H horizon, A action, D entries of
the executed part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.data.stored_maps import FrozenTrunks
from policies.data.visited_states import most_states
from policies.policy import ChunkPolicy, ObservationTensors
from policies.rl.collection.interfaces import StepResult
from policies.rl.collection.reward_shaping import RewardShaping, last_task_reward
from policies.rl.on_policy.observations import VECTOR
from policies.rl.on_policy.returns import chunk_reward
from robots.errors import HandoffError
from robots.interfaces import Observation, Step, VecEnv
from robots.language.text import INSTRUCTION


class ChunkEnv:
    """Environments that take normalised action chunks and return normalised observation histories;
    implements `policies.rl.collection.interfaces.DecisionEnv`.

    An observation is the history of the observation vector, with the features of pictures and point
    clouds for policies that encode them (`ChunkPolicy.encode`): the encoders are not trained. For
    language-conditioned policies and other policies with sensors it is a TensorDict of that history
    (`vector`), the instruction (`instruction`, UTF-8) and, for policies that do not encode it, the
    newest sensor data.

    Args:
        env: N environments that freeze when their episode ends.
        policy: policy whose fields and normalisers are used.
        n_action_steps: actions executed of every chunk, from the newest observed step on.
        seeds: episode seeds, in the order in which episodes begin.
        discount: discount per action.
        reward_shaping: shaping on top of the task reward; None uses the task reward alone.
        encode: encoding of observations that replaces the policy's `encode`; None uses that.

    Raises:
        HandoffError: fields that the environments do not have, more actions than a chunk holds, or
            a history of more than two steps.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        reward_shaping: RewardShaping | None = None,
        encode: Callable[[ObservationTensors], Tensor | None] | None = None,
    ) -> None:
        # A given encoding has trunks of its own.
        self._trunks = FrozenTrunks(policy) if encode is None else None
        self._encode = encode or policy.encode
        self._extra_fields = extra_fields(policy)
        longest = getattr(env, "max_steps", None)
        check_fits(env.observation_spec, policy, n_action_steps, self._extra_fields, longest)
        history = policy.observation_shape[0]
        self._first = history > 1 and policy.config.observation_stride > 1
        """Whether the older of two observed steps is the first of the episode."""
        self._encodes = policy.encoded_shape != policy.observation_shape
        if self._encodes:
            # The features stand for the sensors.
            self._extra_fields = tuple(
                name for name in self._extra_fields if name not in policy.shapes.sensors
            )
        self.env = env
        self.num_envs = env.num_envs
        self._policy = policy
        self.device = torch.device("cpu")
        """Device of the observations."""
        self._execute = slice(history - 1, history - 1 + n_action_steps)
        self.entries = n_action_steps * policy.chunk_shape[1]
        """D, entries of the executed part of a chunk."""
        self._seeds = seeds
        self._discount = discount
        self._reward_shaping = reward_shaping or RewardShaping()
        self._executed = 0
        self._last_reward_N = np.full(env.num_envs, np.nan)
        """Latest task reward of the running episodes; NaN before their first action."""
        self._history: list[np.ndarray] = []
        self._features: list[Tensor] = []
        """(N, F) features of each step of the history; empty for a policy that does not encode."""
        self._extra: dict[str, np.ndarray] = {}
        self._auto_reset = True
        self.begin()
        kept = most_states(self.observation())
        self._visited: deque[Any] = deque(maxlen=-(-kept // env.num_envs))

    def prepare(self) -> None:
        """Does nothing: initial states are drawn when an episode begins."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self.begin_from([next(self._seeds) for _ in range(self.num_envs)])

    def begin_groups(self, size: int) -> None:
        """See `DecisionEnv.begin_groups`.

        Raises:
            HandoffError: the number of environments is no multiple of `size`.
        """
        self.begin_from(group_seeds(self._seeds, self.num_envs, size), auto_reset=False)

    def begin_from(self, seeds: Sequence[int], auto_reset: bool = True) -> None:
        """Resets all environments with these seeds; `auto_reset` says whether environments whose
        episode ends are reset with the next seeds."""
        first = self.env.reset(seeds)
        self._history = [self._vector(first)] * self._policy.observation_shape[0]
        self._features = [self._encoded(first)] * len(self._history) if self._encodes else []
        self._extra = {name: first[name] for name in self._extra_fields}
        self._auto_reset = auto_reset
        self._last_reward_N = np.full(self.num_envs, np.nan)

    def observation(self) -> Any:
        """(N, T, O) normalised history, or a TensorDict; see the class."""
        return self._normalised(self._history, self._features, self._extra)

    def visited_states(self) -> Any:
        """(R, T, O) the most recent observations with a decision, normalised; see the class."""
        return torch.cat([*self._visited]) if self._visited else self.observation()[:0]

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run; the running episodes are not part of it."""
        return {"visited_states": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`; ignores other entries of `state`."""
        self._visited.clear()
        self._visited.extend(state["visited_states"].split(self.num_envs))

    def take_executed(self) -> int:
        """Actions executed since the last call, summed over all environments."""
        executed = self._executed
        self._executed = 0
        return executed

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): the part of a chunk that is executed, flattened."""
        return chunk[..., self._execute, :].flatten(-2)

    def with_executed_part(self, chunk: Tensor, part: Tensor) -> Tensor:
        """See `DecisionEnv.with_executed_part`."""
        replaced = chunk.clone()
        replaced[..., self._execute, :] = part.unflatten(-1, (-1, chunk.shape[-1]))
        return replaced

    def step(self, decision: Tensor) -> StepResult:
        """Executes a normalised chunk (N, H, A); environments whose episode ends are reset with the
        next seeds.

        Raises:
            HandoffError: environments that do not freeze when their episode ends.
        """
        return self.step_result([self.env.step(actions) for actions in self.actions(decision)])

    def actions(self, decision: Tensor) -> list[np.ndarray]:
        """Physical actions for a normalised chunk (N, H, A), as one env step or, for a policy that
        observes two steps, two: all executed actions but the last, to obtain the second newest
        observation, then the last."""
        newest_NO, policy = self._history[-1], self._policy
        chunk_NHA = policy.normalize_action.inverse(decision)
        if policy.anchor is not None:
            anchored = newest_NO[:, None, policy.anchor : policy.anchor + policy.chunk_shape[1]]
            chunk_NHA = chunk_NHA + torch.from_numpy(anchored)
        actions_NHA = chunk_NHA[:, self._execute].double().numpy()
        return (
            [actions_NHA[:, :-1], actions_NHA[:, -1:]]
            if actions_NHA.shape[1] > 1 and len(self._history) > 1 and not self._first
            else [actions_NHA]
        )

    @property
    def auto_reset(self) -> bool:
        """Whether environments whose episode ends are reset."""
        return self._auto_reset

    def step_result(
        self, steps: Sequence[Step], reset_observation: Observation | None = None
    ) -> StepResult:
        """Result of a decision; resets environments whose episode ended.

        Args:
            steps: the environments' results, one per entry of `actions`.
            reset_observation: observation of all environments where they have already reset
                themselves, with the next seeds; None resets them here.
        """
        self._visited.append(self.observation())
        newest = steps[-1]
        # A history of two needs the second newest observation, too. In environments that ended
        # before it, the observation is not used any more.
        previous_NO = self._vector(steps[-2].observation) if len(steps) > 1 else self._history[-1]
        if self._first:
            previous_NO = self._history[0]
        length = np.stack([step.executed for step in steps]).sum(axis=0, dtype=np.int64)
        # A frozen environment repeats its end flags, so only executed steps count.
        terminated, truncated = newest.terminated & (length > 0), newest.truncated & (length > 0)
        self._executed += int(length.sum())
        # Final observation, before any reset.
        history = [previous_NO, self._vector(newest.observation)][-len(self._history) :]
        features = self._next_features(steps)
        extra = {name: newest.observation[name] for name in self._extra_fields}
        final_obs = self._normalised(history, features, extra)
        self._history = history
        self._features = features
        self._extra = extra
        if self._auto_reset:
            self._reset_ended(np.flatnonzero(terminated | truncated), reset_observation)
        # Rewards of the executed actions.
        success = np.asarray(newest.info["success"], bool).copy()
        task_reward_NH = np.concatenate([step.reward for step in steps], axis=1)
        reward_NH = self._reward_shaping.shaped_reward(
            task_reward_NH, length, terminated & success, terminated & ~success, self._last_reward_N
        )
        reward_NH *= np.arange(reward_NH.shape[1]) < length[:, None]
        self._last_reward_N = last_task_reward(
            task_reward_NH, length, self._last_reward_N, terminated | truncated
        )
        length_N = torch.from_numpy(length)
        return StepResult(
            reward_N=chunk_reward(torch.from_numpy(reward_NH), length_N, self._discount),
            discount_N=(self._discount**length_N).float(),
            terminated_N=torch.from_numpy(terminated),
            truncated_N=torch.from_numpy(truncated),
            final_obs=final_obs,
            success_N=torch.from_numpy(success),
            largest_N=torch.from_numpy(task_reward_NH.max(axis=1).astype(np.float32)),
            reward_NH=torch.from_numpy(reward_NH),
            length_N=length_N,
        )

    def _reset_ended(self, env_ids: np.ndarray, reset_observation: Observation | None) -> None:
        if not len(env_ids):
            return
        seeds = [next(self._seeds) for _ in env_ids]
        if reset_observation is None:
            reset_observation = self.env.reset(seeds, env_ids.tolist())
        fresh = self._vector(reset_observation)
        # A partial reset returns the observations of the other environments unchanged.
        self._extra = {name: reset_observation[name] for name in self._extra_fields}
        rows = []
        for row_NO in self._history:
            row = row_NO.copy()
            row[env_ids] = fresh[env_ids]
            rows.append(row)
        self._history = rows
        if self._encodes:
            fresh_NF = self._encoded(
                {name: array[env_ids] for name, array in reset_observation.items()}
            )
            self._features = [
                part_NF.index_copy(0, torch.from_numpy(env_ids), fresh_NF)
                for part_NF in self._features
            ]

    def _vector(self, observation: Observation) -> np.ndarray:
        names = sorted(
            self._policy.shapes.entries, key=lambda name: self._policy.shapes.entries[name][0]
        )
        columns = [
            np.asarray(observation[name], np.float32).reshape(self.num_envs, -1) for name in names
        ]
        return np.concatenate(columns, axis=1)

    def _next_features(self, steps: Sequence[Step]) -> list[Tensor]:
        """Features of the history after a decision; empty for a policy that does not encode."""
        if not self._encodes:
            return []
        newest_NF = self._encoded(steps[-1].observation)
        if len(self._features) == 1:
            return [newest_NF]
        if self._first:
            return [self._features[0], newest_NF]
        previous_NF = self._encoded(steps[-2].observation) if len(steps) > 1 else self._features[-1]
        return [previous_NF, newest_NF]

    @torch.no_grad()
    def _encoded(self, observation: Observation) -> Tensor:
        """(N, F) features of the sensors of N observations."""
        policy = self._policy
        sensors = {
            name: torch.from_numpy(observation[name].copy())[:, None]
            for name in policy.shapes.sensors
        }
        if self._trunks is not None:
            sensors = {name: self._trunks(name, frames) for name, frames in sensors.items()}
        (rows,) = {len(frames) for frames in sensors.values()}
        entries = policy.observation_shape[1]
        encoded = self._encode(ObservationTensors(torch.zeros(rows, 1, entries), sensors))
        assert encoded is not None
        return encoded[:, 0, entries:]

    def _normalised(
        self, history: list[np.ndarray], features: list[Tensor], extra: dict[str, np.ndarray]
    ) -> Any:
        vector = self._policy.normalize_observation(torch.from_numpy(np.stack(history, axis=1)))
        if features:
            vector = torch.cat([vector, torch.stack(features, dim=1)], dim=-1)
        if not self._extra_fields:
            return vector
        from tensordict import TensorDict

        extra_tensors = {name: torch.from_numpy(array.copy()) for name, array in extra.items()}
        return TensorDict({VECTOR: vector, **extra_tensors}, batch_size=[self.num_envs])


def group_seeds(seeds: Iterator[int], num_envs: int, size: int) -> list[int]:
    """One seed per environment, equal within each group of `size` neighbours.

    Raises:
        HandoffError: `num_envs` is no multiple of `size`.
    """
    if num_envs % size:
        raise HandoffError(
            f"finetune: {num_envs} environments cannot be split into groups of {size}."
        )
    return [seed for _ in range(num_envs // size) for seed in [next(seeds)] * size]


def check_fits(
    env_fields: Collection[str],
    policy: ChunkPolicy,
    n_action_steps: int,
    extra: Sequence[str],
    longest: int | None = None,
) -> None:
    """Checks that a policy can act in environments with these fields.

    Args:
        env_fields: fields of the environments.
        policy: the policy.
        n_action_steps: executed actions per chunk.
        extra: fields that the policy reads beside its vector.
        longest: longest episode [control periods]; None where it is not known.

    Raises:
        HandoffError: fields that the environments do not have, more actions than a chunk holds, or
            a history of other steps than the two newest, or the first and the newest.
    """
    history, horizon = policy.observation_shape[0], policy.chunk_shape[0]
    missing = sorted({*policy.shapes.entries, *extra} - {*env_fields})
    if missing:
        raise HandoffError(
            f"finetune: the environments lack the fields {missing}, they have {sorted(env_fields)}."
        )
    stride = policy.config.observation_stride
    remembers_first = longest is not None and stride >= longest
    if history > 1 and stride > 1 and not remembers_first:
        raise HandoffError(
            f"finetune: the policy observes steps {stride} apart in episodes of at most {longest}, expected one "
            "observed step, observation_stride 1, or a stride of an episode's length, which remembers its first step."
        )
    if not 1 <= n_action_steps <= horizon - history + 1 or history > 2:
        raise HandoffError(
            f"finetune: n_action_steps is {n_action_steps} with a horizon of {horizon} and {history} observed steps; "
            f"expected 1 to {horizon - history + 1} actions, and one or two observed steps."
        )


def extra_fields(policy: ChunkPolicy) -> tuple[str, ...]:
    """Fields beside the observation vector that the policy reads: sensors, and the instruction
    unless it is fixed."""
    instructed = policy.language_conditioned and policy.default_instruction is None
    return (*policy.shapes.sensors, *((INSTRUCTION,) if instructed else ()))
