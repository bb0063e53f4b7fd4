"""Flow-matching vision-language-action policy: a vision-language backbone and an action expert.

This follows pi0 (arXiv 2410.24164) and SmolVLA (arXiv 2506.01844); the headers of
`policies.networks.vlm` and `policies.networks.action_expert` say which where they differ. Training
is by flow matching with times that favour noise, sampling by Euler's method. Actions and state have
the robot's number of entries, where both systems pad to 32, and the loss is the mean over actions
without padding, where SmolVLA's code counts padded ones as 0.

Shape suffixes: B batch, H horizon, A action.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from policies.card import Shapes
from policies.families.vision_language import VisionLanguagePolicy
from policies.networks.action_expert import ActionExpert, ExpertContext
from policies.networks.vlm import positions
from policies.policy import Batch, DenoisingPolicy, ObservationTensors, repeatable_dropout
from policies.policy_config import VlaConfig
from policies.samplers.chain import Denoise, Grid, sample
from policies.samplers.flow_matching import flow_example, ode_grid, sde_grid, training_time


class VlaPolicy(VisionLanguagePolicy, DenoisingPolicy):
    """Samples a chunk by flow matching, conditioned on images, an instruction and the state; see
    `VisionLanguagePolicy`."""

    def __init__(self, config: VlaConfig, shapes: Shapes, saved: Path | None = None) -> None:
        super().__init__(config, shapes, saved)
        self.config = config
        self.expert = ActionExpert(
            self.backbone,
            shapes.action,
            config.expert_width,
            config.expert_layers,
            config.self_attention_every,
        )
        self._freeze_unused()
        self.set_sampler_steps(config.inference_steps)

    def set_sampler_steps(self, steps: int) -> None:
        """Sets the number of sampler steps.

        Raises:
            HandoffError: fewer than one step.
        """
        self.grid = ode_grid(steps)

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicy.sampler_steps`."""
        return len(self.grid)

    def chain_grid(
        self, steps: int | None, *, eta: float, flow_noise: float, renoise: bool = False
    ) -> Grid:
        """See `DenoisingPolicy.chain_grid`."""
        return sde_grid(steps or len(self.grid), flow_noise)

    def velocity(self, obs: ObservationTensors) -> Denoise:
        """See `DenoisingPolicy.velocity`."""
        return self.denoise(self.expert_context(obs))

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""
        return sample(
            self.denoise(self.expert_context(obs)), noise_BHA, self.grid.to(noise_BHA.device)
        )

    def expert_context(self, obs: ObservationTensors) -> ExpertContext:
        """Encodes the observation: the backbone's keys and values, computed once per inference and
        used by every sampler step."""
        prefix = self.prefix(obs)
        key_values = self.backbone.forward_prefix(prefix)
        order_BH = torch.arange(self.chunk_shape[0], device=prefix.mask_BL.device).expand(
            len(prefix.mask_BL), -1
        )
        last_B = positions(prefix.mask_BL)[:, -1:]
        return ExpertContext(
            tuple(key_values[number] for number in self.expert.source_layers),
            prefix.mask_BL,
            self.backbone.rotary(last_B + 1 + order_BH),
            self.backbone.rotary(order_BH),
        )

    def denoise(self, context: ExpertContext) -> Denoise:
        """The action expert, conditioned on an encoded observation: (noisy (B, H, A), time (B,)) to
        velocity."""

        def denoise(noisy_BHA: Tensor, time_B: Tensor) -> Tensor:
            return self.expert(noisy_BHA, time_B, context)

        return denoise

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean squared error of the predicted velocity, without padded actions."""
        clean_BHA, device = batch.chunk_BHA, batch.chunk_BHA.device
        uniform_B = torch.from_numpy(generator.random(len(clean_BHA), dtype=np.float32)).to(device)
        noise_BHA = torch.from_numpy(
            generator.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        time_B = training_time(uniform_B, "beta")
        noisy_BHA, velocity_BHA = flow_example(clean_BHA, noise_BHA, time_B)
        with repeatable_dropout(generator, device):
            predicted_BHA = self.denoise(self.expert_context(batch.obs))(noisy_BHA, time_B)
        error_BH = (predicted_BHA - velocity_BHA).square().mean(dim=-1)
        inside_BH = (~batch.padded_BH).float()
        return (error_BH * inside_BH).sum() / inside_BH.sum().clamp(min=1.0)

    def _freeze_unused(self) -> None:
        """Freezes the parameters of the last layer that follow its keys and values: the expert
        reads keys and values only, so they would get no gradient."""
        last = self.backbone.text_layers()[-1]
        for part in (self.backbone.text.norm, last.mlp, last.post_attention_layernorm):
            part.requires_grad_(False)
        last.self_attn.q_proj.requires_grad_(False)  # type: ignore[union-attr]
        last.self_attn.o_proj.requires_grad_(False)  # type: ignore[union-attr]
