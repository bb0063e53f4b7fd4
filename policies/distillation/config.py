"""Options of distillation; imports no torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from policies.rl.on_policy.config import PpoConfig
from policies.samplers.chain import ChainConfig
from policies.training.config import LoggingConfig, TrainingConfig
from robots.config import (
    Count,
    LearningRate,
    NonNegative,
    Positive,
    Repetitions,
    Seed,
    Share,
    config,
)
from robots.errors import HandoffError
from robots.seed_ranges import TRAINING


@config
class DistilConfig:
    """Options of a one-step student of a diffusion or flow policy by regression."""

    kind: Literal["one_step"] = "one_step"
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=8_000, learning_rate=1e-3, decay_fraction=0.7)
    )
    """Updates, learning rate, batch size and logging of the student's training."""
    targets: Count = 262_144
    """Pairs of noise and teacher's chunk in the table, spread evenly over the windows of the
    demonstrations and the teacher's visited states."""
    teacher_batch: Count = 1024
    """Pairs per forward pass of the teacher."""


@config
class ShortcutConfig:
    """Options of a one-step student of a flow policy by self-distillation."""

    kind: Literal["shortcut"] = "shortcut"
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=8_000, learning_rate=1e-3, decay_fraction=0.7)
    )
    """Updates, learning rate, batch size, moving average of the targets, and logging."""
    halvings: Count = 4
    """Times that the way from noise to chunk is halved. A step learns to be two steps of half its
    length; the shortest ones learn from the velocity, so that a single step stands for
    2^(halvings + 1) steps of Euler's method."""
    flow_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of a batch that learns the velocity; the rest learns steps."""
    whole_share: Share = 0.5
    """Share of the steps that are the whole way from noise to chunk, as in inference; the others
    are drawn evenly from the shorter lengths."""
    velocity: Literal["teacher", "own"] = "teacher"
    """Velocity that is learned: `teacher` is that of the frozen teacher, from which the shortest
    steps learn too; `own` is that of flow matching on the demonstrated chunks, and the shortest
    steps learn from the moving average, as in the papers."""


def check_halvings(halvings: int, timesteps: int) -> None:
    """Raises HandoffError if the shortest step cannot be halved once more."""
    if 2 ** (halvings + 1) > timesteps:
        raise HandoffError(
            f"distill: {halvings} halvings of {timesteps} training timesteps leave steps of less than two, expected "
            f"at most {timesteps.bit_length() - 2} halvings."
        )


@config
class OnPolicyDistilConfig(LoggingConfig):
    """Options of on-policy distillation."""

    instructions: tuple[str, ...] = ()
    """Instruction of each teacher, in the order of the teachers, which selects the teacher of a
    row. Empty: all teachers teach every row, by the mean of their divergences."""
    form: Literal["kl", "reinforce", "chunk"] = "kl"
    """Loss: `kl` is the closed-form divergence from the teacher, of action tokens over all bins, of
    diffusion and flow policies over every sampler step; `reinforce`, of action tokens, RLinf's
    advantage of the sampled token; `chunk`, of diffusion and flow policies, half the squared
    distance from the chunk that the teacher samples in its own steps from the same noise, so that
    the student may have fewer, such as one."""
    temperature: Positive = 1.0
    """Temperature of the tokens of teacher and student in training; inference keeps its own."""
    steps: Count | None = None
    """Sampler steps of teacher and student in training, and of the student afterwards; with the
    form `chunk` of the student alone. None keeps each policy's own, which must match unless the
    form is `chunk`."""
    noise: NonNegative = 0.0
    """Noise of the sampler's steps: eta of DDIM, or the noise level of the flow-SDE. 0 follows the
    ODE, as inference does, and matches means."""
    chain: ChainConfig = field(default_factory=ChainConfig)
    """Bounds on that noise."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    """Clipping of the ratios of `reinforce`, when a rollout is used for several updates."""
    learning_rate: LearningRate = 1e-4
    """Learning rate of Adam; RLinf uses 2e-6 for models with billions of weights."""
    max_grad_norm: Positive | None = 1.0
    """Norm to which the student's gradient is clipped; None does not clip."""
    epochs: Count = 1
    """Passes over a rollout; each evaluates the teacher again."""
    batch_size: Count = 640
    """Decisions per update."""
    rollouts: Repetitions = 40
    """Rollouts, each followed by updates on it."""
    decisions: Repetitions = 40
    """Decisions per environment and rollout."""
    first_seed: Seed = TRAINING.start
    """Seed of the first episode; seeds below are reserved for evaluation protocols."""
    seed: Seed = 0
    """Seed of noise and minibatches."""
    save_every: Count = 5
    """Rollouts between two saved states; after each, all environments are reset."""
    threads: Count = 1
    """CPU threads of torch."""

    def __post_init__(self) -> None:
        smallest = min(self.epochs, self.batch_size, self.rollouts, self.decisions, self.save_every)
        if smallest < 1 or not self.temperature > 0.0:
            raise HandoffError(
                f"distillation: the smallest of epochs, batch_size, rollouts, decisions and save_every is "
                f"{smallest} and the temperature {self.temperature:g}; expected 1 or more, and a temperature above 0."
            )
        if self.form == "chunk" and self.noise > 0.0:
            raise HandoffError(
                f"distillation: noise is {self.noise:g} with the form 'chunk', which compares chunks that the initial "
                "noise alone decides; expected 0."
            )
