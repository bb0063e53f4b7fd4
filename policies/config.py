"""Configuration that the learning stages share, and what a saved policy says of itself. Imports without torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from robots.config import config
from robots.errors import HandoffError
from robots.spec import FieldSpec


@config
class MlpConfig:
    """A residual MLP over chunk, observation and noise level, all concatenated: the quickest on one processor core."""

    kind: Literal["mlp"] = "mlp"
    width: int = 512
    """Hidden units of every layer."""
    blocks: int = 4
    """Residual blocks of two layers each."""
    time_embedding: int = 64
    """Entries of the sinusoidal embedding of the noise level; even."""


@config
class UnetConfig:
    """The paper's conditional U-Net over the steps of the chunk; the values are those of its state policies."""

    kind: Literal["unet"] = "unet"
    widths: tuple[int, ...] = (256, 512, 1024)
    """Channels of every level, finest first; the horizon is halved between two levels. Image policies of the paper have
    twice as many."""
    kernel: int = 5
    """Steps that a convolution sees; odd."""
    groups: int = 8
    """Of every GroupNorm; divides all widths."""
    time_embedding: int = 256
    """Entries of the embedding of the noise level; even."""


@config
class TransformerConfig:
    """The paper's transformer: a causal decoder over the chunk that reads noise level and observations."""

    kind: Literal["transformer"] = "transformer"
    layers: int = 8
    """Decoder layers."""
    heads: int = 4
    """Attention heads; divides `width`."""
    width: int = 256
    """Entries of a token, and of the embedding of the noise level; even."""
    dropout: float = 0.01
    """Share that is dropped in attention, feed-forward and residual branches while training."""


NetworkConfig = Annotated[MlpConfig | UnetConfig | TransformerConfig, Discriminator("kind")]
"""The denoiser, told apart by `kind`."""


@config
class DiffusionPolicyConfig:
    """A diffusion policy over action chunks (Chi et al., RSS 2023)."""

    stream: str = "policy"
    """Stream of the episodes that holds observations and actions."""
    observation_fields: tuple[str, ...] = ("keypoints", "agent")
    """Concatenated, each flattened, in this order into the O entries of one step."""
    action_field: str = "action"
    """The action, A entries."""
    anchor_field: str | None = "agent"
    """Observation field, A entries, to whose newest value the actions are relative; None takes them as they are."""
    n_obs_steps: int = 1
    """Newest steps that the policy sees; on push-T two scored no better than one, see `docs/results.md`."""
    horizon: int = 16
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    n_action_steps: int = 8
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""
    train_timesteps: int = 100
    """Noise levels of the squared-cosine schedule."""
    inference_steps: int = 10
    """DDIM steps when sampling; divides `train_timesteps`."""
    clip: float = 3.0
    """Bound on every clean sample that the sampler works out [normalised units]."""
    network: NetworkConfig = field(default_factory=MlpConfig)
    """The denoiser."""


@config
class TrainingConfig:
    """Gradient descent, bounded by steps so that it is repeatable."""

    steps: int
    """Updates."""
    learning_rate: float
    """Peak of the schedule: linear warm-up, plateau, linear decay to 0."""
    batch_size: int = 256
    """Windows per update."""
    warmup_steps: int = 200
    """Updates of linear warm-up."""
    decay_fraction: float = 1 / 3
    """Last share of the updates, over which the rate falls linearly to 0."""
    weight_decay: float = 1e-6
    """Of AdamW."""
    ema_power: float = 0.75
    """Averaging keeps 1 - (1 + step)^-power of the old weights."""
    ema_max: float = 0.9999
    """Upper bound of that share."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Of the matrix products; weights stay float32. `auto` takes bf16 where the processor multiplies it natively."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA when there is a device."""
    threads: int = 1
    """Processor threads of torch."""
    log_every: int = 100
    """Updates per entry of the loss curve; a checkpoint falls on such a step."""
    checkpoint_seconds: float = 20.0
    """Wall-clock seconds between checkpoints, rounded up to the next entry of the loss curve."""
    seed: int = 0
    """Of initial weights, order of the data, noise and noise levels."""


@config
class PolicyCard:
    """What a saved policy says of itself, in `config.json` beside its weights."""

    version: int = 2
    """2 has the sizes of the network under `model.network`; 1 had those of the only one, the MLP, in `model`."""
    task: str
    """Name of the task, from the schema of the demonstrations."""
    rate_hz: float
    """Policy steps per second of robot time."""
    observation: dict[str, FieldSpec]
    """Fields of one step in the order of the observation vector."""
    action: FieldSpec
    model: DiffusionPolicyConfig

    @property
    def observation_size(self) -> int:
        """O, entries of the observation vector of one step."""
        from math import prod

        return sum(prod(spec.shape) for spec in self.observation.values())

    @property
    def anchor(self) -> int | None:
        """Entry of the observation vector at which the field begins that actions are relative to; None without one.

        Raises:
            HandoffError: there is no such field, or it has not the entries of an action.
        """
        from math import prod

        name = self.model.anchor_field
        if name is None:
            return None
        if name not in self.observation or prod(self.observation[name].shape) != self.action_size:
            raise HandoffError(
                f"policy: anchor_field '{name}' must be an observed field with the {self.action_size} entries of an "
                f"action; observed are {sorted(self.observation)}."
            )
        before = list(self.observation)[: list(self.observation).index(name)]
        return sum(prod(self.observation[field].shape) for field in before)

    @property
    def action_size(self) -> int:
        """A, entries of one action."""
        from math import prod

        return prod(self.action.shape)
