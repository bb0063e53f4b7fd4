"""Worlds that stay on a device as a chunk policy meets them: nothing of a rollout passes through
the host.

What `policies.rl.collection.chunk_env.ChunkWorlds` does in NumPy is done here by tensors of the
device; words are read once for every sentence there is, before they are needed.

Shape suffixes: N worlds, T observed steps, O observation, H horizon, A action, D entries of the
executed part, S sentences, L tokens, C characters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from policies.data.visited_states import MOST
from policies.policy import ChunkPolicy, Words
from policies.rl.collection.chunk_env import check_fits, others_of
from policies.rl.collection.interfaces import Decided
from policies.rl.collection.reward_shaping import PracticeReward
from policies.rl.on_policy.observations import MASK, TOKENS, VECTOR
from policies.rl.on_policy.returns import chunk_reward
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, decode


@runtime_checkable
class StaysOnDevice(Protocol):
    """N worlds whose observations, actions and rewards are tensors of one device;
    `sim.device.arm.ResidentWorlds` is."""

    num_envs: int
    device: torch.device
    observation_spec: Any

    @property
    def waiting(self) -> int:
        """Starts that are drawn before they are needed."""
        ...

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Draws starts in place of those that were taken; what worlds show there."""
        ...

    def taken(self) -> int:
        """Starts taken since they were drawn."""
        ...

    def begin(self, size: int = 1) -> None:
        """Begins in all worlds, `size` of them side by side from one start."""
        ...

    def begin_again(self, over_N: Tensor) -> None:
        """Begins anew where `over_N`, from the next starts."""
        ...

    def observation(self) -> dict[str, Tensor]:
        """(N, ...) per field."""
        ...

    def step(self, action_NHA: Tensor) -> Any:
        """Executes a chunk; see `sim.device.arm.Led`."""
        ...

    def check(self) -> None:
        """Raises HandoffError where something went wrong since the last time."""
        ...

    def close(self) -> None:
        """Frees what was taken."""
        ...


class ResidentChunkWorlds:
    """Implements `policies.rl.collection.interfaces.DecisionEnv`.

    Args:
        env: N worlds, not begun.
        policy: on their device; whose units and fields these are.
        n_action_steps, discount, pays: see `ChunkWorlds`.
        seeds: of the episodes, in the order in which their starts are drawn.

    Raises:
        HandoffError: see `ChunkWorlds`; a policy elsewhere, or one of pictures.
    """

    begins_again = True

    def __init__(
        self,
        env: StaysOnDevice,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        pays: PracticeReward | None = None,
    ) -> None:
        others = others_of(policy)
        check_fits(env.observation_spec, policy, n_action_steps, others)
        if policy.device.type != env.device.type or set(others) - {INSTRUCTION}:
            raise HandoffError(
                f"practice: a policy on {policy.device} of {list(others)} for worlds on {env.device} without pictures."
            )
        history = policy.observation_shape[0]
        self.env, self.num_envs, self.device, self._policy = env, env.num_envs, env.device, policy
        self._execute = slice(history - 1, history - 1 + n_action_steps)
        self.entries = n_action_steps * policy.chunk_shape[1]
        """D, of the executed part of a chunk."""
        self._reads = INSTRUCTION in others
        self._seeds, self._discount, self._pays = seeds, discount, pays or PracticeReward()
        self._counted = torch.zeros((), dtype=torch.int64, device=env.device)
        self._told_N = torch.full(
            (env.num_envs,), torch.nan, dtype=torch.float64, device=env.device
        )
        self._history: list[Tensor] = []
        self._met: deque[Any] = deque(maxlen=-(-MOST // env.num_envs))
        self._sentences: dict[str, np.ndarray] = {}
        self._text_SC, self._words = torch.zeros(0), Words(torch.zeros(0), torch.zeros(0))
        self._drawn = 0
        self.begin()

    def take_executed(self) -> int:
        """See `ChunkWorlds.take_executed`; waits for the device."""
        executed = int(self._counted)
        self._counted.zero_()
        return executed

    def prepare(self) -> None:
        """Before a rollout: draws starts for those that were taken, and looks whether something
        went wrong.

        Raises:
            HandoffError: it did, see `StaysOnDevice.check`.
        """
        self.env.check()
        count = self.env.taken() if self._drawn else self.env.waiting
        if count:
            self._read(self.env.refill(list(islice(self._seeds, count))))
            self._drawn += count

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self._begin(1, again=True)

    def begin_groups(self, size: int) -> None:
        """See `ChunkWorlds.begin_groups`.

        Raises:
            HandoffError: the worlds make no whole groups.
        """
        if self.num_envs % size:
            raise HandoffError(f"practice: {self.num_envs} worlds make no groups of {size}.")
        self._begin(size, again=False)

    def seen(self) -> Any:
        """(N, T, O) normalised, or a TensorDict; see `ChunkWorlds`. Of words also as the policy
        reads them."""
        return self._shown(self._history, self.env.observation())

    def visited_states(self) -> Any:
        """(R, T, O) the newest states in which was decided, normalised, on the host; see
        `ChunkWorlds`."""
        return torch.cat([*self._met]).cpu() if self._met else self._kept(self.seen())[:0].cpu()

    def state_dict(self) -> dict[str, Any]:
        """See `ChunkWorlds.state_dict`."""
        return {"met": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ChunkWorlds.load_state_dict`."""
        self._met.clear()
        self._met.extend(state["met"].to(self.device).split(self.num_envs))

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): what a world sees of a chunk."""
        return chunk[..., self._execute, :].flatten(-2)

    def step(self, decision: Tensor) -> Decided:
        """Executes a normalised chunk (N, H, A); worlds that end start anew from the next
        starts."""
        self._met.append(self._kept(self.seen()))
        policy, before_NO = self._policy, self._history[-1]
        chunk_NHA = policy.normalize_action.inverse(decision)
        if policy.anchor is not None:
            chunk_NHA = (
                chunk_NHA
                + before_NO[:, None, policy.anchor : policy.anchor + policy.chunk_shape[1]]
            )
        actions_NHA = chunk_NHA[:, self._execute]
        first, last = actions_NHA[:, :-1], actions_NHA[:, -1:]
        # A policy that sees two steps sees that before the last action, too.
        earlier = self.env.step(first) if first.shape[1] else None
        if earlier is not None:
            before_NO = self._vector(earlier.observation)
        led = self.env.step(last)
        return self._led(before_NO, [led] if earlier is None else [earlier, led])

    def _led(self, before_NO: Tensor, parts: Sequence[Any]) -> Decided:
        shown = parts[-1].observation
        length_N = torch.stack([part.executed_N for part in parts]).sum(dim=0)
        success_N, terminated_N, truncated_N = (
            torch.stack([getattr(part, name) for part in parts]).any(dim=0)
            for name in ("success_N", "terminated_N", "truncated_N")
        )
        over_N = terminated_N | truncated_N
        told_NH = torch.cat([part.reward_NH for part in parts], dim=1)
        reward_NH = self._paid(
            told_NH, length_N, terminated_N & success_N, terminated_N & ~success_N
        )
        last_N = told_NH.gather(1, (length_N - 1).clamp(min=0)[:, None])[:, 0]
        self._told_N = torch.where(
            over_N, torch.nan, torch.where(length_N > 0, last_N, self._told_N)
        )
        self._counted += length_N.sum()
        history = [before_NO, self._vector(shown)][-len(self._history) :]
        final_seen = self._shown(history, shown)
        self._history = history
        if self.begins_again:
            self.env.begin_again(over_N)
            fresh_NO = self._vector(self.env.observation())
            self._history = [torch.where(over_N[:, None], fresh_NO, row_NO) for row_NO in history]
        return Decided(
            reward_N=chunk_reward(reward_NH, length_N, self._discount),
            discount_N=(self._discount**length_N).float(),
            terminated_N=terminated_N,
            truncated_N=truncated_N,
            final_seen=final_seen,
            success_N=success_N,
            largest_N=told_NH.amax(dim=1).float(),
            reward_NH=reward_NH,
            length_N=length_N,
        )

    def _paid(
        self, told_NH: Tensor, length_N: Tensor, solved_N: Tensor, failed_N: Tensor
    ) -> Tensor:
        """(N, H) float32; `PracticeReward.paid` on the device, and nothing for what was not
        executed."""
        pays, number_H = self._pays, torch.arange(told_NH.shape[1], device=self.device)
        once_N = pays.success * solved_N + pays.failure * failed_N
        begin_N = torch.where(self._told_N.isnan(), told_NH[:, 0], self._told_N)
        risen_NH = told_NH.diff(dim=1, prepend=begin_N[:, None])
        paid_NH = pays.task * told_NH + pays.progress * risen_NH + pays.step
        paid_NH = paid_NH + once_N[:, None] * (number_H == length_N[:, None] - 1)
        return torch.where(number_H < length_N[:, None], paid_NH, 0.0).float()

    def _begin(self, size: int, again: bool) -> None:
        self.prepare()
        self.env.begin(size)
        self.begins_again = again
        self._told_N.fill_(torch.nan)
        self._history = [self._vector(self.env.observation())] * self._policy.observation_shape[0]

    def _read(self, shown: dict[str, np.ndarray]) -> None:
        """Has the policy read the sentences of new starts, if it has not."""
        if not self._reads:
            return
        texts = np.unique(shown[INSTRUCTION], axis=0)
        fresh = dict(zip(decode(texts), texts, strict=True))
        if fresh.keys() <= self._sentences.keys():
            return
        self._sentences |= fresh
        self._text_SC = torch.from_numpy(np.stack([*self._sentences.values()])).to(self.device)
        self._words = self._policy.tokens([*self._sentences])

    def _vector(self, shown: dict[str, Tensor]) -> Tensor:
        entries = self._policy.shapes.entries
        names = sorted(entries, key=lambda name: entries[name][0])
        return torch.cat([shown[name].float().reshape(self.num_envs, -1) for name in names], dim=1)

    def _shown(self, history: Sequence[Tensor], shown: dict[str, Tensor]) -> Any:
        vector = self._policy.normalize_observation(torch.stack([*history], dim=1))
        if not self._reads:
            return vector
        from tensordict import TensorDict

        text_NC = shown[INSTRUCTION]
        row_N = (text_NC[:, None] == self._text_SC).all(dim=2).int().argmax(dim=1)
        words = {TOKENS: self._words.token_BL[row_N], MASK: self._words.mask_BL[row_N]}
        return TensorDict(
            {VECTOR: vector, INSTRUCTION: text_NC, **words}, batch_size=[self.num_envs]
        )

    def _kept(self, seen: Any) -> Any:
        """What is kept of a state: the words as they were said."""
        return seen if isinstance(seen, Tensor) else seen.select(VECTOR, INSTRUCTION)
