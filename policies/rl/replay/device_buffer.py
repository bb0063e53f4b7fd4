"""Stores the steps of environments that stay on a device as tensors of that device, and samples
n-step transitions there.

The environments step together, so the step after one of environment i is that of environment i in
the next collection. With the same steps the columns have the values of
`policies.rl.replay.buffer.Replay`, in the same slots, and so have the transitions.

Shape suffixes: N environments, B batch, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Observations, Transitions, without_person
from robots.errors import HandoffError


class DeviceSteps(NamedTuple):
    """One step of each of N environments, as tensors of their device."""

    observation: Tensor
    """(N, O) float32, before the step."""
    next_observation: Tensor
    """(N, O) float32, after the step and before any reset."""
    action: Tensor
    """(N, A) float32, executed."""
    reward: Tensor
    """(N,) float32."""
    terminated: Tensor
    """(N,) bool, the task ended the episode."""
    truncated: Tensor
    """(N,) bool, the time limit ended the episode."""
    number: Tensor
    """(N,) int64, number of the step in its episode, from 0."""


class DeviceReplay:
    """Ring buffer of the steps of N environments, on their device.

    Appending, sampling and the computation of n-step returns copy nothing to the host; `rows` does,
    for checkpoints.

    Args:
        config: capacity in steps of all environments, a multiple of N; discount and n-step returns.
        num_envs: N.
        observation: entries O of an observation.
        action: entries A of an action.
        device: device of the steps.

    Raises:
        HandoffError: chunks, Monte-Carlo returns or another capacity are configured, or the device
            has no room for it.
    """

    def __init__(
        self,
        config: ReplayConfig,
        num_envs: int,
        observation: int,
        action: int,
        device: torch.device,
    ) -> None:
        if config.horizon != 1 or config.mc_return or config.capacity % num_envs:
            raise HandoffError(
                f"replay: capacity {config.capacity}, horizon {config.horizon} and mc_return {config.mc_return}; on a "
                f"device expected a multiple of {num_envs}, the number of environments, 1 and False."
            )
        self.config = config
        self._num_envs = num_envs
        n = config.capacity
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "observation": ((n, observation), torch.float32),
            "next_observation": ((n, observation), torch.float32),
            "action": ((n, action), torch.float32),
            "reward": ((n,), torch.float32),
            "terminated": ((n,), torch.bool),
            "truncated": ((n,), torch.bool),
            "number": ((n,), torch.int64),
        }
        self.columns = _allocated(shapes, device)
        self.added = 0
        """Number of steps ever appended, a multiple of N."""

    def __len__(self) -> int:
        return min(self.added, self.config.capacity)

    def append(self, steps: DeviceSteps) -> None:
        """Appends the next step of every environment, over the oldest ones if the buffer is
        full."""
        begin = self.added % self.config.capacity
        for name, value in steps._asdict().items():
            self.columns[name][begin : begin + self._num_envs] = value
        self.added += self._num_envs

    def sample(self, size: int, generator: torch.Generator) -> Transitions:
        """Samples transitions with replacement, uniformly over all steps.

        Args:
            size: number of transitions B.
            generator: random number generator of the device.

        Raises:
            HandoffError: the buffer is empty.
        """
        if not len(self):
            raise HandoffError("replay: 0 steps are stored, and none can be sampled.")
        device = self.columns["reward"].device
        return self.transitions(
            torch.randint(len(self), (size,), generator=generator, device=device)
        )

    def transitions(self, slot_B: Tensor) -> Transitions:
        """Transitions that begin at the given slots, int64. An n-step return ends with its episode,
        or at the newest step, and bootstraps from the observation there unless the task ended."""
        columns, config = self.columns, self.config
        newest = (self.added - 1) % config.capacity // self._num_envs
        current_B = last_B = slot_B
        running_B = torch.ones_like(slot_B, dtype=torch.bool)
        discount_B = torch.ones_like(slot_B, dtype=torch.float64)
        reward_B = torch.zeros_like(columns["reward"][slot_B])
        for _ in range(config.n_step):
            reward_B = reward_B + (discount_B * running_B).float() * columns["reward"][current_B]
            last_B = torch.where(running_B, current_B, last_B)
            ended_B = columns["terminated"][current_B]
            if config.timeouts_end:
                ended_B = ended_B | columns["truncated"][current_B]
            discounted_B = discount_B * config.discount * ~ended_B
            discount_B = torch.where(running_B, discounted_B, discount_B)
            # After an end, and where the environments began anew, numbers restart.
            next_B = (current_B + self._num_envs) % config.capacity
            follows_B = columns["number"][next_B] == columns["number"][current_B] + 1
            newest_B = current_B // self._num_envs == newest
            running_B = running_B & ~ended_B & follows_B & ~newest_B
            current_B = torch.where(running_B, next_B, current_B)
        return without_person(
            obs=Observations(columns["observation"][slot_B]),
            action_BA=columns["action"][slot_B],
            reward_B=reward_B,
            discount_B=discount_B.float(),
            next_obs=Observations(columns["next_observation"][last_B]),
        )

    def rows(self, begin: int, end: int | None = None) -> dict[str, np.ndarray]:
        """Columns of the steps with serial numbers from `begin` to `end` - 1, copied to the
        host."""
        serials = torch.arange(begin, self.added if end is None else end)
        slots = (serials % self.config.capacity).to(self.columns["reward"].device)
        return {name: column[slots].cpu().numpy() for name, column in self.columns.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the content by `columns` of `rows`, whose newest step is the `added`-th.

        Raises:
            HandoffError: columns or shapes differ, as in the state of another task.
        """
        columns: dict[str, np.ndarray] = state["columns"]
        expected = {name: tuple(column.shape[1:]) for name, column in self.columns.items()}
        stored = {name: column.shape[1:] for name, column in columns.items()}
        rows = len(columns["reward"]) if "reward" in columns else 0
        if stored != expected or rows > self.config.capacity or state["added"] % self._num_envs:
            raise HandoffError(
                f"replay: {rows} of {state['added']} steps with columns {stored}, expected at most "
                f"{self.config.capacity} of {self._num_envs} environments with {expected}. Is it the state of another "
                "task?"
            )
        self.added = state["added"]
        serials = torch.arange(self.added - rows, self.added)
        slots = (serials % self.config.capacity).to(self.columns["reward"].device)
        for name, column in self.columns.items():
            column[slots] = torch.from_numpy(columns[name]).to(column.device)


def _allocated(
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device
) -> dict[str, Tensor]:
    try:
        return {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in shapes.items()
        }
    except RuntimeError as error:
        # Both devices report memory that they do not have by this error or a subclass of it.
        needed = sum(np.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
        raise HandoffError(
            f"replay: {needed / 2**30:.1f} GiB for {shapes['reward'][0][0]} steps, which the device {device} does not "
            f"have ({str(error).splitlines()[0]}). Lower the algorithm's capacity, or the number of environments."
        ) from None
