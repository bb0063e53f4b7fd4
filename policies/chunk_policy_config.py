"""Fields that policy families share, and the usual answers to what stages ask of a family. Imports
without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal, Self

from policies.networks.config import (
    BackboneConfig,
    ImageEncoderConfig,
    LoraConfig,
    PointEncoderConfig,
)
from robots.config import config


@config
class ChunkPolicyConfig:
    """Fields of every policy over action chunks, and the usual answers to what stages ask of its
    family; a family overrides an answer where its own differs."""

    pretrained: ClassVar[bool] = True
    """Whether it learns from demonstrations, so that a pipeline may begin with it."""
    reads_language: ClassVar[bool] = False
    """Whether it is told in words what to do."""

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
    """Observation field, A entries, to whose newest value the actions are relative; None takes them
    as they are."""
    n_obs_steps: int = 1
    """Newest steps that the policy sees; on push-T two scored no better than one, see
    `docs/results/push_t.md`."""
    horizon: int = 16
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    n_action_steps: int = 8
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""

    @classmethod
    def with_gaps(cls, missing: str) -> Self:
        """The family's defaults, with the text `missing` in place of values that have no
        default."""
        return cls()

    @property
    def window(self) -> tuple[int, int, int]:
        """`n_obs_steps`, `horizon` and `n_action_steps`, which shape the windows of episodes."""
        return self.n_obs_steps, self.horizon, self.n_action_steps

    @property
    def sensor_fields(self) -> tuple[str, ...]:
        """Cameras, then point clouds; empty for a policy of vectors alone."""
        return (*self.image_fields, *self.point_fields)

    @property
    def sampler(self) -> str:
        """Name of the method by which the family samples in several steps, such as `ddim`."""
        return "sampler"

    @property
    def sampler_steps(self) -> int | None:
        """Steps in which the policy samples by itself; None for one that answers in one pass."""
        return None

    def with_sampler_steps(self, steps: int) -> Self:
        """The same policy that samples in `steps` steps by itself; itself if it answers in one
        pass."""
        return self

    def sampler_name(self, steps: int | None) -> str:
        """Name of the sampler in `steps` steps, such as `ddim-10`; `one-step` for 1 and None."""
        return "one-step" if steps is None or steps == 1 else f"{self.sampler}-{steps}"

    @property
    def ensemble(self) -> float | None:
        """Coefficient of the temporal ensemble by which chunks are executed; None executes
        `n_action_steps` of each."""
        return None

    @property
    def own_instruction(self) -> str | None:
        """Instruction that the policy is told where no other is given; None without one."""
        return None

    @property
    def wants_future_goal(self) -> bool:
        """Whether its goal is an observation of a later state, in training one of the same
        episode."""
        return False

    @property
    def outside_folders(self) -> Mapping[str, str]:
        """Folders that training reads beside the demonstrations, by a name for each."""
        return {}

    @property
    def distils_to_one_step(self) -> bool:
        """Whether a student in one step can be made of it by `policies.distillation.one_step`."""
        return False

    @property
    def reaches_arm(self) -> bool:
        """Whether a pipeline distils, exports and deploys it without a student being named;
        cameras and point clouds end it at its evaluation."""
        return self.distils_to_one_step and not self.sensor_fields

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """Kinds of fine-tuning (`policies.rl.finetuning.config`) that can improve it."""
        return ()


@config
class EncodedPolicyConfig(ChunkPolicyConfig):
    """What every policy has that learns encoders of pictures and point clouds of its own."""

    image_encoder: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    """One such encoder per camera."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """One such encoder per point cloud."""


@config
class VisionLanguagePolicyConfig(ChunkPolicyConfig):
    """What every policy over a vision-language backbone has; it sees the newest picture of each
    camera, if any."""

    reads_language: ClassVar[bool] = True
    """Whether the policy is conditioned on an instruction."""

    backbone: BackboneConfig
    """Which pretrained model."""
    train_backbone: Literal["none", "lora", "all"] = "none"
    """`none` freezes it, `lora` trains adapters in it, `all` trains it whole, with its vision
    tower."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Read for `train_backbone: lora`."""
    state_tokens: Literal["one", "field", "object"] = "one"
    """`one` shows the backbone the whole state as a token, as SmolVLA; `field` every observed field
    as one of its own, so that words can be about one of them; `object` likewise, and fields of as
    many entries share their projection and are told apart by a name that is learned: what is
    learned of one cube holds for the next. Without cameras that is all it sees."""
    instruction: str | None = None
    """Said to the policy where nothing else is: in training by episodes without an instruction,
    which are told the name of their task if this is None, and at inference, which is then
    refused."""

    @classmethod
    def with_gaps(cls, missing: str) -> Self:
        """See `ChunkPolicyConfig.with_gaps`."""
        return cls(backbone=BackboneConfig(folder=missing))

    @property
    def own_instruction(self) -> str | None:
        """See `ChunkPolicyConfig.own_instruction`."""
        return self.instruction

    @property
    def outside_folders(self) -> Mapping[str, str]:
        """See `ChunkPolicyConfig.outside_folders`."""
        return {} if self.backbone.folder is None else {"backbone": self.backbone.folder}

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.finetuning_methods`."""
        return ("vla",)
