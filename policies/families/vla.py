"""Flow-matching vision-language-action policy: a vision-language backbone and an action expert.

This follows pi0 (arXiv 2410.24164) and SmolVLA (arXiv 2506.01844); the headers of
`policies.networks.vlm` and `policies.networks.action_expert` say which where they differ. Training
is by flow matching with times that favour noise, sampling by Euler's method. Actions and state have
the robot's number of entries, where both systems pad to 32, and the loss is the mean over actions
without padding.

A policy that starts from a checkpoint of SmolVLA (`policies.families.smolvla`) or pi0
(`policies.families.pi0`) computes as its code: state and actions are padded with zeros, the sampler
moves all entries, the loss is that of the robot's, and actions have standard deviation 1, where
normalised ones have 1/2. Its chunks are a function of the noise of the robot's entries, of which
`padded_noise` makes the other entries'.

Shape suffixes: B batch, H horizon, A action, P padded action.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from policies.card import Shapes
from policies.families.pi0 import Pi0Checkpoint
from policies.families.smolvla import SmolvlaCheckpoint
from policies.families.vision_language import VisionLanguagePolicy
from policies.families.vla_checkpoint import (
    CONFIG,
    check_data,
    check_sizes,
    load_weights,
    padded_noise,
    read_checkpoint,
)
from policies.networks.action_expert import ActionExpert, ExpertContext
from policies.networks.vlm import positions
from policies.policy import (
    Batch,
    DenoisingPolicy,
    EncodedSampler,
    ObservationTensors,
    repeatable_dropout,
)
from policies.policy_config import VlaConfig
from policies.samplers.chain import Denoise, Grid, sample
from policies.samplers.chunk_actor import ChunkRefiner, PolicyFeatures
from policies.samplers.flow_matching import flow_example, ode_grid, sde_grid, training_time
from policies.samplers.noise_actor import NoiseActor
from robots.errors import HandoffError

CHECKPOINTS = (SmolvlaCheckpoint, Pi0Checkpoint)
"""Kinds of checkpoints that a policy can start from."""
_UNIT = 2.0
"""Standard deviation of a checkpoint's normalised actions relative to ours."""


class VlaPolicy(VisionLanguagePolicy, DenoisingPolicy):
    """Samples a chunk by flow matching, conditioned on images, an instruction and the state; see
    `VisionLanguagePolicy`.

    Raises:
        HandoffError: those of `VisionLanguagePolicy`, or a checkpoint that cannot be read or
            differs from the policy.
    """

    def __init__(self, config: VlaConfig, shapes: Shapes, saved: Path | None = None) -> None:
        checkpoint = read_checkpoint(config, saved, CHECKPOINTS)
        if checkpoint is not None:
            check_data(checkpoint, shapes)
        super().__init__(config, shapes, saved, checkpoint=checkpoint)
        self.config = config
        self.checkpoint = checkpoint
        self.expert = ActionExpert(
            self.backbone,
            shapes.action if checkpoint is None else checkpoint.action,
            config.expert_width,
            config.expert_layers,
            config.self_attention_every,
            None if checkpoint is None else checkpoint.expert_layers,
        )
        if checkpoint is not None:
            check_sizes(checkpoint, config, self.backbone)
            if saved is None:
                load_weights(checkpoint, self)
        self._freeze_unused()
        self.noise_actor = None if config.noise_actor is None else NoiseActor(config.noise_actor)
        self.chunk_actor = None if config.chunk_actor is None else ChunkRefiner(config.chunk_actor)
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
        """See `DenoisingPolicy.velocity`.

        Raises:
            HandoffError: a policy that started from a checkpoint, whose sampler moves more entries
                than the robot's.
        """
        if self.checkpoint is not None:
            raise HandoffError(
                f"policy: {self.config.checkpoint} is a checkpoint with padded actions, which neither "
                "fine-tuning nor on-policy distillation support. Train such a policy by imitation."
            )
        return self.denoise(self.expert_context(obs))

    def encoded_sampler(self, obs: ObservationTensors) -> EncodedSampler:
        """See `DenoisingPolicy.encoded_sampler`; the features are the observation vector, and the
        mean hidden state of the action expert for a noise of 0. The tokens are these hidden states,
        one for every action, which attend to the whole observation."""
        context = self.expert_context(obs)

        def features() -> Tensor:
            vector_BO, hidden_BHW, _ = tokens()
            return torch.cat([vector_BO, hidden_BHW.mean(dim=1)], dim=1)

        def tokens() -> PolicyFeatures:
            hidden_BHW = self._hidden(context)
            mask_BH = torch.ones_like(hidden_BHW[..., 0], dtype=torch.bool)
            return PolicyFeatures(obs.vector_BTO.flatten(1), hidden_BHW, mask_BH)

        return EncodedSampler(
            features, tokens, lambda noise_BHA: self._denoised(context, noise_BHA)
        )

    def _hidden(self, context: ExpertContext) -> Tensor:
        """(B, H, W) hidden states of the action expert for a noise of 0."""
        mask_BL, entries = context.mask_BL, self.chunk_shape[1]
        if self.checkpoint is not None:
            entries = self.checkpoint.action
        rows = mask_BL.shape[0]
        zeros_BHP = torch.zeros(rows, self.chunk_shape[0], entries, device=mask_BL.device)
        time_B = torch.ones(rows, device=mask_BL.device)
        return self.expert.hidden(zeros_BHP, time_B, context)

    def _denoised(self, context: ExpertContext, noise_BHA: Tensor) -> Tensor:
        denoise, grid = self.denoise(context), self.grid.to(noise_BHA.device)
        if self.checkpoint is None:
            return sample(denoise, noise_BHA, grid)
        chunk_BHP = sample(denoise, padded_noise(noise_BHA, self.checkpoint.action), grid)
        return chunk_BHP[..., : self.chunk_shape[1]] / _UNIT

    def expert_context(self, obs: ObservationTensors) -> ExpertContext:
        """Encodes the observation: the backbone's keys and values, computed once per inference and
        used by every sampler step."""
        prefix = self.prefix(obs)
        key_values = self.backbone.forward_prefix(prefix)
        state_BS = self.state(obs)[0] if self.expert.state is not None else None
        tokens = self.chunk_shape[0] + (state_BS is not None)
        order_BH = torch.arange(tokens, device=prefix.mask_BL.device).expand(
            len(prefix.mask_BL), -1
        )
        last_B = positions(prefix.mask_BL)[:, -1:]
        return ExpertContext(
            tuple(key_values[number] for number in self.expert.source_layers),
            prefix.mask_BL,
            self.backbone.rotary(last_B + 1 + order_BH),
            self.backbone.rotary(order_BH),
            state_BS,
        )

    def denoise(self, context: ExpertContext) -> Denoise:
        """The action expert, conditioned on an encoded observation: (noisy (B, H, A), time (B,)) to
        velocity; (B, H, P) in the units of a checkpoint."""

        def denoise(noisy_BHA: Tensor, time_B: Tensor) -> Tensor:
            return self.expert(noisy_BHA, time_B, context)

        return denoise

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean squared error of the predicted velocity, without padded actions and entries."""
        clean_BHA, device = batch.chunk_BHA, batch.chunk_BHA.device
        action = clean_BHA.shape[2]
        if self.checkpoint is not None:
            clean_BHA = pad(_UNIT * clean_BHA, (0, self.checkpoint.action - action))
        uniform_B = torch.from_numpy(generator.random(len(clean_BHA), dtype=np.float32)).to(device)
        noise_BHA = torch.from_numpy(
            generator.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        time_B = training_time(uniform_B, "beta")
        noisy_BHA, velocity_BHA = flow_example(clean_BHA, noise_BHA, time_B)
        with repeatable_dropout(generator, device):
            predicted_BHA = self.denoise(self.expert_context(batch.obs))(noisy_BHA, time_B)
        error_BHA = (predicted_BHA - velocity_BHA)[..., :action]
        error_BH = error_BHA.square().mean(dim=-1)
        inside_BH = (~batch.padded_BH).float()
        return (error_BH * inside_BH).sum() / inside_BH.sum().clamp(min=1.0)

    def extra_files(self) -> dict[str, bytes]:
        """See `ChunkPolicy.extra_files`."""
        files = super().extra_files()
        if self.checkpoint is not None:
            files[f"{self.checkpoint.kind}/{CONFIG}"] = self.checkpoint.file
        return files

    def _freeze_unused(self) -> None:
        """Freezes the parameters of the last layer that follow its keys and values: the expert
        reads keys and values only, so they would get no gradient."""
        last = self.backbone.text_layers()[-1]
        for part in (self.backbone.text.norm, last.mlp, last.post_attention_layernorm):
            part.requires_grad_(False)
        last.self_attn.q_proj.requires_grad_(False)  # type: ignore[union-attr]
        last.self_attn.o_proj.requires_grad_(False)  # type: ignore[union-attr]
