"""The families of policies and their sizes. Imports without torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from policies.networks.config import ImageEncoderConfig, MlpConfig, NetworkConfig, PointEncoderConfig
from robots.config import config


@config
class ChunkPolicyConfig:
    """What every policy over action chunks reads and answers."""

    stream: str = "policy"
    """Stream of the episodes that holds observations and actions."""
    observation_fields: tuple[str, ...] = ("keypoints", "agent")
    """Concatenated, each flattened, in this order into the O entries of one step."""
    image_fields: tuple[str, ...] = ()
    """Cameras: pictures (height, width, 3), uint8 RGB."""
    point_fields: tuple[str, ...] = ()
    """Point clouds (points, entries), positions first."""
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


@config
class EncodedPolicyConfig(ChunkPolicyConfig):
    """What every policy has that learns encoders of pictures and point clouds of its own."""

    image_encoder: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    """One such encoder per camera."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """One such encoder per point cloud."""


@config
class DiffusionPolicyConfig(EncodedPolicyConfig):
    """A diffusion or flow policy over action chunks (Chi et al., RSS 2023; Lipman et al. 2023)."""

    kind: Literal["diffusion"] = "diffusion"
    objective: Literal["diffusion", "flow"] = "diffusion"
    """`diffusion` learns the velocity of a squared-cosine schedule and samples with DDIM; `flow` learns that of the
    straight path from noise to data and samples with Euler's method."""
    train_timesteps: int = 100
    """Noise levels of the squared-cosine schedule; for `flow` the levels at which times are told to the network."""
    inference_steps: int = 10
    """Steps when sampling; for `diffusion` a divisor of `train_timesteps`."""
    clip: float = 3.0
    """Bound on every clean sample that the sampler works out [normalised units]."""
    network: NetworkConfig = field(default_factory=MlpConfig)
    """The denoiser."""


@config
class BesoConfig(ChunkPolicyConfig):
    """Goal-conditioned score matching (BESO, Reuss et al., RSS 2023)."""

    kind: Literal["beso"] = "beso"


@config
class ActConfig(EncodedPolicyConfig):
    """Action chunking transformer (ACT, Zhao et al., RSS 2023)."""

    kind: Literal["act"] = "act"


@config
class BehaviourCloningConfig(EncodedPolicyConfig):
    """Behaviour cloning with a Gaussian mixture, or by plain regression (robomimic, Mandlekar et al., CoRL 2021)."""

    kind: Literal["bc"] = "bc"


@config
class VlaConfig(ChunkPolicyConfig):
    """A vision-language backbone with a flow-matching action expert (pi0, SmolVLA)."""

    kind: Literal["vla"] = "vla"


@config
class TokenVlaConfig(ChunkPolicyConfig):
    """A vision-language backbone that answers with action tokens (OpenVLA), decoded in parallel (OpenVLA-OFT)."""

    kind: Literal["token_vla"] = "token_vla"


PolicyConfig = Annotated[
    DiffusionPolicyConfig | BesoConfig | ActConfig | BehaviourCloningConfig | VlaConfig | TokenVlaConfig,
    Discriminator("kind"),
]
"""A policy family with its sizes, told apart by `kind`."""
