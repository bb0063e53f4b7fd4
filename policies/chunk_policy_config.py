"""Options that policy families share, and the properties by which stages treat a family.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal, Self

from policies.language.config import SentenceEncoderConfig, encoder_folder
from policies.networks.config import (
    BackboneConfig,
    FolderEncoderConfig,
    ImageEncoderConfig,
    LoraConfig,
    MemoryConfig,
    PointEncoderConfig,
    ResnetEncoderConfig,
)
from robots.config import Count, config
from robots.errors import HandoffError


@config
class ChunkPolicyConfig:
    """Options of every policy over action chunks, and default properties that a family overrides
    where it differs."""

    pretrained: ClassVar[bool] = True
    """Whether the family is trained from demonstrations, by the stage `pretrain`."""
    on_policy_student: ClassVar[bool] = False
    """Whether the policy can be a student, or a teacher, of on-policy distillation."""
    family: ClassVar[str] = ""
    """Dotted path of the policy class of a family outside Handoff."""

    stream: str = "policy"
    """Stream of the episodes that holds observations and actions."""
    observation_fields: tuple[str, ...] = ("keypoints", "agent")
    """Observation fields that are flattened and concatenated in this order into the O entries of
    one step; in imitation, `*` takes every observed vector of the demonstrations, and a name with a
    `*` those that it matches."""
    image_fields: tuple[str, ...] = ()
    """Camera images (height, width, 3), uint8 RGB; in imitation, `*` takes every camera."""
    point_fields: tuple[str, ...] = ()
    """Point clouds (points, entries), positions first."""
    action_field: str = "action"
    """Action field, A entries."""
    anchor_field: str | None = "agent"
    """Observation field, A entries, to whose newest value the actions are relative; None leaves
    actions absolute."""
    n_obs_steps: Count = 1
    """Number of newest observation steps given to the policy; on push-T two scored no better than
    one, see `docs/results/push_t.md`."""
    observation_stride: Count = 1
    """Steps between two observed steps, the newest being always observed; before an episode's
    beginning stands its first observation. A stride of an episode's length is a memory of the
    beginning: of two observed steps, the older is then the first of the episode."""
    horizon: Count = 16
    """Actions predicted per inference; the action of the newest observed step has the index
    `n_obs_steps - 1`."""
    n_action_steps: Count = 8
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""

    def __post_init__(self) -> None:
        if self.n_obs_steps - 1 + self.n_action_steps > self.horizon:
            raise HandoffError(
                f"policy: {self.n_action_steps} actions executed from index {self.n_obs_steps - 1} of a chunk, whose "
                f"horizon is {self.horizon}; n_obs_steps - 1 + n_action_steps must not exceed horizon."
            )
        for option in ("observation_fields", "image_fields", "point_fields"):
            names: tuple[str, ...] = getattr(self, option)
            if len(set(names)) < len(names):
                raise HandoffError(f"policy: {option} are {list(names)}, expected each name once.")

    @classmethod
    def with_placeholders(cls, missing: str) -> Self:
        """The family's default configuration, with the text `missing` as a placeholder for required
        values."""
        return cls()

    @property
    def window(self) -> tuple[int, int, int, int]:
        """`n_obs_steps`, `horizon`, `n_action_steps` and `observation_stride`, which shape the
        windows of episodes."""
        return self.n_obs_steps, self.horizon, self.n_action_steps, self.observation_stride

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy is conditioned on a language instruction."""
        return False

    @property
    def sensor_fields(self) -> tuple[str, ...]:
        """Names of cameras, then of point clouds; empty for a policy that observes vectors only."""
        return (*self.image_fields, *self.point_fields)

    @property
    def most_decided(self) -> int:
        """Largest number of decided actions with which a chunk can begin; 0 for policies that take
        none."""
        return 0

    @property
    def decided_field(self) -> str | None:
        """Field of which decided actions are shown in training; None for `action_field`."""
        return None

    @property
    def sampler(self) -> str:
        """Name of the multi-step sampler, such as `ddim`."""
        return "sampler"

    @property
    def sampler_steps(self) -> int | None:
        """Configured number of sampler steps; None for policies that predict in one pass."""
        return None

    def with_sampler_steps(self, steps: int) -> Self:
        """A copy with `steps` sampler steps; unchanged for policies that predict in one pass."""
        return self

    def sampler_name(self, steps: int | None) -> str:
        """Name of the sampler with `steps` steps, such as `ddim-10`; `one-step` for 1 and None."""
        return "one-step" if steps is None or steps == 1 else f"{self.sampler}-{steps}"

    @property
    def ensemble(self) -> float | None:
        """Coefficient of temporal ensembling; None executes `n_action_steps` of each chunk."""
        return None

    @property
    def default_instruction(self) -> str | None:
        """Instruction used where none is given; None without one."""
        return None

    @property
    def uses_future_goal(self) -> bool:
        """Whether the goal is a future observation; in training, one of the same episode."""
        return False

    @property
    def external_folders(self) -> Mapping[str, str]:
        """Folders that training reads in addition to the demonstrations, by name."""
        return {}

    @property
    def one_step_methods(self) -> tuple[str, ...]:
        """Algorithms (`policies.distillation.config`) that can distil the policy to one step."""
        return ()

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """Kinds of fine-tuning (`policies.rl.finetuning.config`) that support the family."""
        return ()


@config
class InstructedPolicyConfig(ChunkPolicyConfig):
    """Options of policies that can be conditioned on an instruction through a sentence encoder."""

    language: SentenceEncoderConfig | None = None
    """Sentence encoder of the instruction; None makes a policy that is not language-conditioned."""
    instruction: str | None = None
    """Default instruction of a language-conditioned policy, used for episodes without one in
    training and for requests without one at inference. None uses the name of the task in training
    and raises an error at inference."""
    memory: MemoryConfig | None = None
    """Summary of the `n_obs_steps` observed steps, at least two; None gives the policy all steps
    side by side. ACT observes several steps by a memory only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_memory(self.memory, self.n_obs_steps)
        if self.instruction is not None and self.language is None:
            raise HandoffError(
                f"policy: the instruction '{self.instruction}' for a policy without a sentence encoder. Set "
                "policy.language.kind to sentence, or leave the instruction out."
            )

    @property
    def language_conditioned(self) -> bool:
        """See `ChunkPolicyConfig.language_conditioned`."""
        return self.language is not None

    @property
    def default_instruction(self) -> str | None:
        """See `ChunkPolicyConfig.default_instruction`."""
        return self.instruction

    @property
    def external_folders(self) -> Mapping[str, str]:
        """See `ChunkPolicyConfig.external_folders`; without the encoder's package, training says
        that it is missing."""
        folder = None if self.language is None else encoder_folder(self.language)
        return {} if folder is None else {"sentence encoder": str(folder)}


@config
class EncodedPolicyConfig(InstructedPolicyConfig):
    """Options of policies that train their own encoders of images and point clouds."""

    image_encoder: ImageEncoderConfig = field(default_factory=ResnetEncoderConfig)
    """Image encoder; one instance per camera, which share a frozen trunk."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """Point-cloud encoder; one instance per point cloud."""
    estimated_fields: tuple[str, ...] = ()
    """Recorded vectors that the policy does not observe but estimates, such as positions of objects
    that only a simulator knows. A small network is trained on them beside the actions
    (`estimate_weight` of the stage `pretrain`), and its estimate is one of the policy's features;
    at inference nobody needs them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        observed = sorted({*self.estimated_fields} & {*self.observation_fields})
        if observed:
            raise HandoffError(
                f"policy: {observed} are observed and estimated. Take them out of observation_fields, or of "
                "estimated_fields."
            )

    @property
    def external_folders(self) -> Mapping[str, str]:
        """See `ChunkPolicyConfig.external_folders`; the folder of an image encoder that no camera
        uses is not read."""
        encoder, folders = self.image_encoder, super().external_folders
        if not (isinstance(encoder, FolderEncoderConfig) and self.image_fields):
            return folders
        return {**folders, "image encoder": encoder.folder}


@config
class VisionLanguagePolicyConfig(ChunkPolicyConfig):
    """Options of policies with a vision-language backbone, which receives the newest image of each
    camera."""

    on_policy_student: ClassVar[bool] = True
    """Whether the policy can be a student, or a teacher, of on-policy distillation."""

    backbone: BackboneConfig
    """Pretrained backbone."""
    train_backbone: Literal["none", "lora", "all"] = "none"
    """Trained part of the backbone: `none` freezes it, `lora` trains adapters, `all` trains the
    whole backbone including the vision tower."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """LoRA options, used with `train_backbone: lora`."""
    state_tokens: Literal["one", "field", "object"] = "one"
    """Tokens of the state: `one` gives the backbone the whole state as a single token, as SmolVLA;
    `field` gives it one token per observation field, so that instructions can refer to a field;
    `object` does so too, but fields of the same size share a projection and differ by a learned
    name embedding, so that what is learned about one cube transfers to the next. Without cameras
    the state tokens are the whole observation."""
    memory: MemoryConfig | None = None
    """Summary of the `n_obs_steps` observed states, at least two, for each state token; None gives
    a token all steps side by side."""
    instruction: str | None = None
    """Default instruction, used for episodes without one in training and for requests without one
    at inference. None uses the name of the task in training and raises an error at inference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_memory(self.memory, self.n_obs_steps)

    @classmethod
    def with_placeholders(cls, missing: str) -> Self:
        """See `ChunkPolicyConfig.with_placeholders`."""
        return cls(backbone=BackboneConfig(folder=missing))

    @property
    def language_conditioned(self) -> bool:
        """See `ChunkPolicyConfig.language_conditioned`."""
        return True

    @property
    def default_instruction(self) -> str | None:
        """See `ChunkPolicyConfig.default_instruction`."""
        return self.instruction

    @property
    def external_folders(self) -> Mapping[str, str]:
        """See `ChunkPolicyConfig.external_folders`."""
        return {} if self.backbone.folder is None else {"backbone": self.backbone.folder}

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.finetuning_methods`."""
        return ("vla",)


def _check_memory(memory: MemoryConfig | None, steps: int) -> None:
    if memory is not None and steps < 2:
        raise HandoffError(
            f"policy: memory is set, but n_obs_steps is {steps}. A memory remembers the steps before the newest."
        )
