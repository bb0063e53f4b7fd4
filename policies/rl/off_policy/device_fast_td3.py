"""Acts with FastTD3 on the device of the environments; the updates are those of
`policies.rl.off_policy.fast_td3`.

Observation statistics, exploration noise and actions are tensors of the device, with random numbers
from a generator of the device, and nothing of them is copied to the host except by `check`. The
random numbers differ from those on the host, so the runs do, too.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from policies.normalize import DeviceMoments
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.networks.running_normaliser import NORMALISER_FLOOR
from policies.rl.off_policy.exploration_noise import DeviceNoise
from policies.rl.off_policy.fast_td3 import FastTd3Updates
from policies.rl.off_policy.fast_td3_config import FastTd3Config
from policies.rl.replay.transitions import Sizes


class DeviceFastTd3(FastTd3Updates):
    """FastTD3 learner that acts and learns on one device.

    Args:
        config: options.
        sizes: sizes of observation vectors and actions.
        num_envs: number of environments N.
        seed: seed of initial weights, which are those on the host, and of the updates.
        device: device of the environments.

    Raises:
        HandoffError: `num_envs` is below 1, or an error of `FastTd3Updates`.
    """

    def __init__(
        self,
        config: FastTd3Config,
        sizes: Sizes,
        num_envs: int,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(config, sizes, seed, device)
        self.noise = DeviceNoise(config.noise, num_envs, device)
        self.statistics = DeviceMoments((sizes.observation,), device)

    def observe(self, vector_NO: Tensor, began_N: Tensor, generator: torch.Generator) -> None:
        """Updates observation statistics and exploration noise before a step of all environments;
        see `FastTd3.observe`. Observations that are not finite are reported by `check`."""
        self.noise.begin_episodes(began_N, generator)
        if self.config.normalise:
            self.statistics.update(vector_NO)
            features = self.networks.features
            features.centre.copy_(self.statistics.mean)
            features.half_range.copy_(self.statistics.deviation + NORMALISER_FLOOR)

    @torch.no_grad()
    def act(self, vector_NO: Tensor, generator: torch.Generator) -> Tensor:
        """(N, A) actions in [-1, 1] for observation vectors (N, O), with the exploration noise of
        each environment."""
        action_NA = self.networks.action(self.networks.features(vector_NO))
        return self.noise.add_noise(action_NA, generator)

    def check(self) -> None:
        """Reads on the host whether all observations were finite.

        Raises:
            HandoffError: one was not.
        """
        self.statistics.check()

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers, number of updates, statistics and exploration
        noise."""
        return {
            **learner_state(self.networks, self.optimizers, self.updates),
            "statistics": self.statistics.state_dict(),
            "deviation": self.noise.deviation_N,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`, from any device."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)
        self.statistics.load_state_dict(state["statistics"])
        self.noise.deviation_N = state["deviation"].to(self.noise.deviation_N.device)
