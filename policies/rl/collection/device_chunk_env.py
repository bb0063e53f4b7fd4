"""Adapts environments whose data stay on a device to chunk policies; a rollout never copies to the
host.

It does the work of `policies.rl.collection.chunk_env.ChunkEnv` with tensors of the device, pictures
among them. Every distinct instruction is tokenised once, before it is needed.

Shape suffixes: N environments, T observed steps, O observation, F features, H horizon, A action, D
entries of the executed part, S sentences, L tokens, C characters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.data.stored_maps import FrozenTrunks
from policies.data.visited_states import most_states
from policies.policy import ChunkPolicy, InstructionTokens, ObservationTensors
from policies.rl.collection.chunk_env import check_fits, extra_fields
from policies.rl.collection.device_episodes import DeviceEnv, DeviceEpisodes
from policies.rl.collection.interfaces import StepResult
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.on_policy.observations import MASK, TOKENS, VECTOR
from policies.rl.on_policy.returns import chunk_reward
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, decode


class DeviceChunkEnv:
    """Implements `policies.rl.collection.interfaces.DecisionEnv`.

    Args:
        env: N environments that were not reset yet.
        policy: policy on the same device, whose fields and normalisers are used.
        n_action_steps, discount, reward_shaping: see `ChunkEnv`.
        seeds: seeds of the initial states, in the order in which they are drawn.

    Raises:
        HandoffError: see `ChunkEnv`; or a policy on another device.
    """

    auto_reset = True

    def __init__(
        self,
        env: DeviceEnv,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        reward_shaping: RewardShaping | None = None,
    ) -> None:
        extra = extra_fields(policy)
        longest = getattr(env, "max_steps", None)
        check_fits(env.observation_spec, policy, n_action_steps, extra, longest)
        if policy.device.type != env.device.type:
            raise HandoffError(
                f"finetune: the policy is on {policy.device}, the environments are on {env.device}. Set resident: "
                "false."
            )
        history = policy.observation_shape[0]
        self._first = history > 1 and policy.config.observation_stride > 1
        """Whether the older of two observed steps is the first of the episode."""
        self._encodes = policy.encoded_shape != policy.observation_shape
        # Features stand for the sensors of a policy that encodes them.
        sensors = () if self._encodes else policy.shapes.sensors
        self._sensors = tuple(name for name in extra if name in sensors)
        self._trunks = FrozenTrunks(policy)
        self.env = env
        self.num_envs = env.num_envs
        self.device = env.device
        self._policy = policy
        self._execute = slice(history - 1, history - 1 + n_action_steps)
        self.entries = n_action_steps * policy.chunk_shape[1]
        """D, entries of the executed part of a chunk."""
        self._instructed = INSTRUCTION in extra
        self._episodes = DeviceEpisodes(env, seeds, reward_shaping or RewardShaping())
        self._discount = discount
        self._executed_actions = torch.zeros((), dtype=torch.int64, device=env.device)
        self._history: list[Tensor] = []
        self._features: list[Tensor] = []
        self._sentences: dict[str, np.ndarray] = {}
        self._text_SC = torch.zeros(0)
        self._tokens = InstructionTokens(torch.zeros(0), torch.zeros(0))
        self.begin()
        kept = most_states(self._without_tokens(self.observation()))
        self._visited: deque[Any] = deque(maxlen=-(-kept // env.num_envs))

    def take_executed(self) -> int:
        """See `ChunkEnv.take_executed`; waits for the device."""
        executed = int(self._executed_actions)
        self._executed_actions.zero_()
        return executed

    def prepare(self) -> None:
        """Checks the simulation and refills the pool of initial states, before a rollout.

        Raises:
            HandoffError: the simulation failed, see `DeviceEnv.check`.
        """
        self._tokenize(self._episodes.prepare())

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self._begin(1, auto_reset=True)

    def begin_groups(self, size: int) -> None:
        """See `DecisionEnv.begin_groups`.

        Raises:
            HandoffError: the number of environments is no multiple of `size`.
        """
        if self.num_envs % size:
            raise HandoffError(
                f"finetune: {self.num_envs} environments cannot be split into groups of {size}."
            )
        self._begin(size, auto_reset=False)

    def observation(self) -> Any:
        """(N, T, O) normalised history, or a TensorDict that holds the instruction's tokens, too;
        see `ChunkEnv`."""
        return self._normalised(self._history, self._features, self.env.observation())

    def visited_states(self) -> Any:
        """(R, T, O) the most recent observations with a decision, normalised, on the host; see
        `ChunkEnv`."""
        return (
            torch.cat([*self._visited]).cpu()
            if self._visited
            else self._without_tokens(self.observation())[:0].cpu()
        )

    def state_dict(self) -> dict[str, Any]:
        """See `ChunkEnv.state_dict`."""
        return {"visited_states": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ChunkEnv.load_state_dict`."""
        self._visited.clear()
        self._visited.extend(state["visited_states"].to(self.device).split(self.num_envs))

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): the part of a chunk that is executed, flattened."""
        return chunk[..., self._execute, :].flatten(-2)

    def with_executed_part(self, chunk: Tensor, part: Tensor) -> Tensor:
        """See `DecisionEnv.with_executed_part`."""
        replaced = chunk.clone()
        replaced[..., self._execute, :] = part.unflatten(-1, (-1, chunk.shape[-1]))
        return replaced

    def step(self, decision: Tensor) -> StepResult:
        """Executes a normalised chunk (N, H, A); environments whose episode ends are reset to the
        next initial states."""
        self._visited.append(self._without_tokens(self.observation()))
        policy = self._policy
        previous_NO = self._history[-1]
        # Physical actions of the executed part.
        chunk_NHA = policy.normalize_action.inverse(decision)
        if policy.anchor is not None:
            chunk_NHA = (
                chunk_NHA
                + previous_NO[:, None, policy.anchor : policy.anchor + policy.chunk_shape[1]]
            )
        actions_NHA = chunk_NHA[:, self._execute]
        # A history of the two newest steps needs the observation before the last action, too.
        if actions_NHA.shape[1] == 1 or len(self._history) == 1 or self._first:
            return self._step_result([self.env.step(actions_NHA)])
        return self._step_result(
            [self.env.step(actions_NHA[:, :-1]), self.env.step(actions_NHA[:, -1:])]
        )

    def _step_result(self, results: Sequence[Any]) -> StepResult:
        # Combines the results of the env steps.
        fields = results[-1].observation
        length_N = torch.stack([one.executed_N for one in results]).sum(dim=0)
        success_N, terminated_N, truncated_N = (
            torch.stack([getattr(one, name) for one in results]).any(dim=0)
            for name in ("success_N", "terminated_N", "truncated_N")
        )
        ended_N = terminated_N | truncated_N
        # Rewards of the executed actions.
        task_reward_NH = torch.cat([one.reward_NH for one in results], dim=1)
        reward_NH = self._episodes.shaped_reward(
            task_reward_NH, length_N, success_N, terminated_N, truncated_N
        )
        self._executed_actions += length_N.sum()
        # Final observation, then the reset.
        history = self._followed(self._history, [self._vector(one.observation) for one in results])
        features = self._features
        if self._encodes:
            features = self._followed(features, [self._encoded(one.observation) for one in results])
        final_obs = self._normalised(history, features, fields)
        self._history = history
        self._features = features
        if self.auto_reset:
            self.env.reset_ended(ended_N)
            fresh = self.env.observation()
            self._history = _replaced(history, ended_N, self._vector(fresh))
            if self._encodes:
                self._features = _replaced(features, ended_N, self._encoded(fresh))
        return StepResult(
            reward_N=chunk_reward(reward_NH, length_N, self._discount),
            discount_N=(self._discount**length_N).float(),
            terminated_N=terminated_N,
            truncated_N=truncated_N,
            final_obs=final_obs,
            success_N=success_N,
            largest_N=task_reward_NH.amax(dim=1).float(),
            reward_NH=reward_NH,
            length_N=length_N,
        )

    def _begin(self, size: int, auto_reset: bool) -> None:
        self.prepare()
        self._episodes.begin(size)
        self.auto_reset = auto_reset
        first, length = self.env.observation(), self._policy.observation_shape[0]
        self._history = [self._vector(first)] * length
        self._features = [self._encoded(first)] * length if self._encodes else []

    def _followed(self, before: list[Tensor], newest: list[Tensor]) -> list[Tensor]:
        """The history after a decision, of the steps that were observed during it, one or two."""
        if len(before) == 1:
            return newest[-1:]
        older = before[0] if self._first else [*before, *newest][-2]
        return [older, newest[-1]]

    def _tokenize(self, fields: dict[str, np.ndarray]) -> None:
        """Tokenises the instructions of new initial states that were not tokenised yet."""
        if not self._instructed or not fields:
            return
        texts = np.unique(fields[INSTRUCTION], axis=0)
        fresh = dict(zip(decode(texts), texts, strict=True))
        if fresh.keys() <= self._sentences.keys():
            return
        self._sentences |= fresh
        self._text_SC = torch.from_numpy(np.stack([*self._sentences.values()])).to(self.device)
        self._tokens = self._policy.tokens([*self._sentences])

    def _vector(self, fields: dict[str, Tensor]) -> Tensor:
        entries = self._policy.shapes.entries
        names = sorted(entries, key=lambda name: entries[name][0])
        return torch.cat([fields[name].float().reshape(self.num_envs, -1) for name in names], dim=1)

    @torch.no_grad()
    def _encoded(self, fields: dict[str, Tensor]) -> Tensor:
        """(N, F) features of the pictures."""
        policy = self._policy
        sensors = {
            name: self._trunks(name, fields[name][:, None]) for name in policy.shapes.sensors
        }
        entries = policy.observation_shape[1]
        vector = torch.zeros(self.num_envs, 1, entries, device=self.device)
        encoded = policy.encode(ObservationTensors(vector, sensors))
        assert encoded is not None
        return encoded[:, 0, entries:]

    def _normalised(
        self, history: Sequence[Tensor], features: Sequence[Tensor], fields: dict[str, Tensor]
    ) -> Any:
        vector = self._policy.normalize_observation(torch.stack([*history], dim=1))
        if features:
            vector = torch.cat([vector, torch.stack([*features], dim=1)], dim=-1)
        extra = {name: fields[name] for name in self._sensors}
        if self._instructed:
            text_NC = fields[INSTRUCTION]
            row_N = (text_NC[:, None] == self._text_SC).all(dim=2).int().argmax(dim=1)
            tokens = {TOKENS: self._tokens.token_BL[row_N], MASK: self._tokens.mask_BL[row_N]}
            extra |= {INSTRUCTION: text_NC, **tokens}
        if not extra:
            return vector
        from tensordict import TensorDict

        return TensorDict({VECTOR: vector, **extra}, batch_size=[self.num_envs])

    def _without_tokens(self, obs: Any) -> Any:
        """An observation with the instruction's text but without its tokens."""
        return obs if isinstance(obs, Tensor) else obs.exclude(TOKENS, MASK)


def _replaced(history: Sequence[Tensor], ended_N: Tensor, fresh: Tensor) -> list[Tensor]:
    """A history in which environments that ended have the observation after their reset."""
    return [torch.where(ended_N[:, None], fresh, row) for row in history]
