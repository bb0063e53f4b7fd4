"""Evaluates teachers at a student's own decisions and computes the distillation loss; see
`policies.distillation.on_policy`.

Tokens: the divergence KL(student || teacher) of every token, given the student's previous tokens.
Its gradient is what REINFORCE with the advantage log teacher - log student estimates from the
sampled token (RLinf's form, without normalisation); summed over all bins it has less variance.
Chains: the same divergence for every denoising step, see `policies.samplers.chain.on_policy_kl`.

RLinf has the REINFORCE form alone. Both forms ignore the effect of a token on later ones, as there.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K bins or steps, L
samples of a chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from policies.card import PolicyCard
from policies.checkpoint import WEIGHTS, digest_file, read_weights
from policies.families.action_tokens import token_log_prob
from policies.families.token_vla import TokenVlaPolicy
from policies.load import load_module
from policies.policy import ChunkPolicy, DenoisingPolicy, ObservationTensors
from policies.rl.on_policy.config import PpoConfig
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo_loss import surrogate
from policies.samplers.chain import Chain, Denoise, Grid, on_policy_kl, sample_chain
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.distillation.config import OnPolicyDistilConfig

Trace = dict[str, Tensor]
"""Tensors from which the loss of decisions is recomputed; every entry is (B, ...)."""


class StudentDivergence(NamedTuple):
    """Divergence of a student from its teachers."""

    loss: Tensor
    """Scalar loss per entry of a chunk, so that it does not grow with the chunk."""
    kl_B: Tensor
    """Divergence of every decision from its teacher's [nat], without gradient; half the squared
    distance for ODE steps."""


class DistillationLoss(Protocol):
    """Samples decisions of a student and computes its loss against the teachers."""

    def decide(self, obs: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """Samples the student's chunks (B, H, A), normalised, and their trace.

        Args:
            obs: see `policies.rl.collection.chunk_env.ChunkEnv`.
            generator: supplies all randomness.
        """
        ...

    def divergence(self, obs: Any, trace: Trace) -> StudentDivergence:
        """Divergence of the current student from the teachers at decisions that it made."""
        ...


class Teachers:
    """Frozen teachers, and their assignment to rows.

    Args:
        folders: folder of one teacher for all rows, or teachers by instruction.
        student: policy that is trained.
        card: card of the student.
        config: options of the distillation.

    Raises:
        HandoffError: no teacher, teachers by instruction for a student without language, or a
            teacher with other units, bins or sampler steps than the student.
    """

    def __init__(
        self,
        folders: Path | Mapping[str, Path],
        student: ChunkPolicy,
        card: PolicyCard,
        config: OnPolicyDistilConfig,
    ) -> None:
        by_instruction = {"": folders} if isinstance(folders, Path) else dict(folders)
        if not by_instruction:
            raise HandoffError(
                "distillation: there are no teachers, expected one folder, or one per instruction."
            )
        if not isinstance(folders, Path) and not student.language_conditioned:
            raise HandoffError(
                f"distillation: teachers are given for the instructions {sorted(by_instruction)}, but the student, a "
                f"{type(student).__name__}, reads none. Give one teacher for all."
            )
        self._student = student
        unique_folders = list(dict.fromkeys(by_instruction.values()))
        self._teacher_of_instruction: dict[str, int] | None = None
        if not isinstance(folders, Path):
            self._teacher_of_instruction = {
                instruction: unique_folders.index(folder)
                for instruction, folder in by_instruction.items()
            }
        self._digests = {folder: digest_file(folder / WEIGHTS) for folder in unique_folders}
        self.identity = {
            instruction: self._digests[folder] for instruction, folder in by_instruction.items()
        }
        """SHA-256 of the weights by instruction."""
        self.policies: list[ChunkPolicy] = []
        """Frozen teachers in the order in which they are first named."""
        for folder in unique_folders:
            policy, teacher_card = load_module(folder)
            check_compatible(folder, (student, card), (policy, teacher_card), config)
            self.policies.append(policy)

    def assign(
        self, observed: ObservationTensors
    ) -> list[tuple[ChunkPolicy, Tensor, ObservationTensors]]:
        """Every teacher that has rows, with their indices (int64) and its inputs for them.

        Raises:
            HandoffError: an instruction without a teacher.
        """
        rows = len(observed.vector_BTO)
        if self._teacher_of_instruction is None:
            teacher_R = torch.zeros(rows, dtype=torch.long)
        else:
            instructions = observed.instructions or (self._student.default_instruction,) * rows
            unknown = sorted(
                {str(instruction) for instruction in instructions}
                - self._teacher_of_instruction.keys()
            )
            if unknown:
                raise HandoffError(
                    f"distillation: no teacher for the instructions {unknown}, available are "
                    f"{sorted(self._teacher_of_instruction)}. A misspelling?"
                )
            teacher_R = torch.tensor(
                [self._teacher_of_instruction[str(instruction)] for instruction in instructions]
            )
        assigned = []
        for number, policy in enumerate(self.policies):
            teacher_rows = torch.nonzero(teacher_R == number)[:, 0]
            if len(teacher_rows):
                assigned.append(
                    (policy, teacher_rows, self._teacher_inputs(policy, observed, teacher_rows))
                )
        return assigned

    def check_unchanged(self) -> None:
        """Raises HandoffError if a teacher's weights changed in memory or on disk."""
        for (folder, digest), policy in zip(self._digests.items(), self.policies, strict=True):
            unchanged = digest_file(folder / WEIGHTS) == digest
            if unchanged:
                saved, weights = read_weights(folder), policy.state_dict()
                unchanged = all(
                    torch.equal(tensor.float(), saved[name]) for name, tensor in weights.items()
                )
            if not unchanged:
                raise HandoffError(
                    f"{folder}: the teacher's weights have changed during the distillation, expected the same "
                    "checksum. Was it trained, or its file replaced?"
                )

    def _teacher_inputs(
        self, policy: ChunkPolicy, observed: ObservationTensors, rows: Tensor
    ) -> ObservationTensors:
        vector_BTO = observed.vector_BTO[rows]
        student_normalizer = self._student.normalize_observation
        teacher_normalizer = policy.normalize_observation
        if not all(
            torch.equal(one, other)
            for one, other in zip(
                student_normalizer.buffers(), teacher_normalizer.buffers(), strict=True
            )
        ):
            vector_BTO = teacher_normalizer(student_normalizer.inverse(vector_BTO))
        sensors = {name: part[rows] for name, part in observed.sensors.items()}
        instructions = observed.instructions
        if policy.default_instruction is not None:
            # The teacher uses its fixed instruction.
            instructions = ()
        return ObservationTensors(
            vector_BTO,
            sensors,
            tuple(instructions[row] for row in rows.tolist()) if instructions else (),
        )


def distillation_loss(
    config: OnPolicyDistilConfig, student: ChunkPolicy, teachers: Teachers
) -> DistillationLoss:
    """The distillation loss for this student.

    Raises:
        HandoffError: a policy that neither samples tokens nor denoises, or a `form` that its family
            does not have.
    """
    if isinstance(student, TokenVlaPolicy):
        return TokenDistillationLoss(config, student, teachers)
    if config.form != "kl":
        raise HandoffError(
            f"distillation: form is '{config.form}', which needs action tokens; a {type(student).__name__} has 'kl'."
        )
    if isinstance(student, DenoisingPolicy):
        return DenoisingDistillationLoss(config, student, teachers)
    raise HandoffError(
        f"distillation: the student is a {type(student).__name__}, expected a policy of action tokens, or a diffusion "
        "or flow policy."
    )


class TokenDistillationLoss:
    """Implements `DistillationLoss` by the divergence of every token's distribution.

    Args:
        config: options of the distillation.
        student: policy that is trained in place.
        teachers: teachers of the rows.
    """

    def __init__(
        self, config: OnPolicyDistilConfig, student: TokenVlaPolicy, teachers: Teachers
    ) -> None:
        self._config = config
        self._student = student
        self._teachers = teachers

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `DistillationLoss.decide`."""
        noise_BHA = torch.randn((len(obs), *self._student.chunk_shape), generator=generator)
        sample = self._student.act(observation_tensors(obs), noise_BHA, self._config.temperature)
        return self._student.values(sample.tokens_BHA), {
            "tokens": sample.tokens_BHA,
            "log_prob": sample.log_prob_BHA,
        }

    def divergence(self, obs: Any, trace: Trace) -> StudentDivergence:
        """See `DistillationLoss.divergence`."""
        observed, config = observation_tensors(obs), self._config
        logits_BHAK = self._student.logits(observed, trace["tokens"])
        with torch.no_grad():
            teacher_BHAK = self._teacher_logits(observed, trace["tokens"], logits_BHAK)
        kl_BHA = token_divergence(logits_BHAK, teacher_BHAK, config.temperature)
        loss = kl_BHA.mean()
        if config.form == "reinforce":
            loss = policy_gradient_loss(
                config.ppo, logits_BHAK, teacher_BHAK, trace, config.temperature
            )
        return StudentDivergence(loss, kl_BHA.detach().sum(dim=(1, 2)))

    def _teacher_logits(
        self, observed: ObservationTensors, tokens_BHA: Tensor, like_BHAK: Tensor
    ) -> Tensor:
        teacher_BHAK = torch.empty_like(like_BHAK)
        for policy, rows, inputs in self._teachers.assign(observed):
            assert isinstance(policy, TokenVlaPolicy)
            teacher_BHAK[rows] = policy.logits(inputs, tokens_BHA[rows])
        return teacher_BHAK


def token_divergence(logits_BHAK: Tensor, teacher_BHAK: Tensor, temperature: float) -> Tensor:
    """KL(student || teacher) (B, H, A) [nat] of every token's distribution, from both logits."""
    student_BHAK = log_softmax(logits_BHAK.float() / temperature, dim=-1)
    teacher_BHAK = log_softmax(teacher_BHAK.float() / temperature, dim=-1)
    return (student_BHAK.exp() * (student_BHAK - teacher_BHAK)).sum(dim=-1)


def policy_gradient_loss(
    ppo: PpoConfig, logits_BHAK: Tensor, teacher_BHAK: Tensor, trace: Trace, temperature: float
) -> Tensor:
    """PPO loss with the advantage log teacher - log student of every token; at ratio 1 it is
    REINFORCE (RLinf).

    Args:
        ppo: options of the clipping.
        logits_BHAK: logits of the current student.
        teacher_BHAK: logits of the teacher.
        trace: sampled `tokens` (B, H, A), and their `log_prob` when they were sampled.
        temperature: temperature of both.
    """
    log_prob_BHA = token_log_prob(logits_BHAK, trace["tokens"], temperature)
    advantage_BHA = token_log_prob(teacher_BHAK, trace["tokens"], temperature) - trace["log_prob"]
    return surrogate(ppo, log_prob_BHA, trace["log_prob"], advantage_BHA).loss


class DenoisingDistillationLoss:
    """Implements `DistillationLoss` by the divergence of every sampler step from the same sample.

    Args:
        config: options of the distillation.
        student: policy that is trained in place.
        teachers: teachers of the rows.
    """

    def __init__(
        self, config: OnPolicyDistilConfig, student: DenoisingPolicy, teachers: Teachers
    ) -> None:
        self._config = config
        self._student = student
        self._teachers = teachers
        if config.steps is not None:
            student.set_sampler_steps(config.steps)
        self._grid = sampler_grid(student, config)

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `DistillationLoss.decide`."""
        steps, shape = len(self._grid), (len(obs), *self._student.chunk_shape)
        noise_LBHA = torch.randn((steps + 1, *shape), generator=generator)
        denoise = self._student.velocity(observation_tensors(obs))
        chain = sample_chain(denoise, noise_LBHA[0], noise_LBHA[1:], self._grid, self._config.chain)
        trace = {"sample": chain.sample_LBHA.transpose(0, 1), "std": chain.std_KB.T}
        return self._student.clip_chunk(chain.clean_BHA), trace

    def divergence(self, obs: Any, trace: Trace) -> StudentDivergence:
        """See `DistillationLoss.divergence`."""
        observed, sample_LBHA = observation_tensors(obs), trace["sample"].transpose(0, 1)
        # The divergence of a stored chain needs only its samples and standard deviations.
        chain = Chain(
            sample_LBHA, sample_LBHA[1:], trace["std"].T, torch.zeros_like(trace["std"].T)
        )
        kl_KB = on_policy_kl(
            self._student.velocity(observed), self._teacher_velocity(observed), chain, self._grid
        )
        entries = self._student.chunk_shape[0] * self._student.chunk_shape[1]
        return StudentDivergence(kl_KB.mean() / entries, kl_KB.detach().sum(dim=0))

    def _teacher_velocity(self, observed: ObservationTensors) -> Denoise:
        """One denoiser that applies each row's teacher."""
        velocities = []
        with torch.no_grad():
            for policy, rows, inputs in self._teachers.assign(observed):
                assert isinstance(policy, DenoisingPolicy)
                velocities.append((rows, policy.velocity(inputs)))

        def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
            velocity_BHA = torch.empty_like(noisy_BHA)
            for rows, velocity in velocities:
                velocity_BHA[rows] = velocity(noisy_BHA[rows], level_B[rows])
            return velocity_BHA

        return denoise


def sampler_grid(policy: DenoisingPolicy, config: OnPolicyDistilConfig) -> Grid:
    """The sampler steps of a policy during distillation."""
    return policy.chain_grid(config.steps, eta=config.noise, flow_noise=config.noise)


def check_compatible(
    folder: Path,
    student: tuple[ChunkPolicy, PolicyCard],
    teacher: tuple[ChunkPolicy, PolicyCard],
    config: OnPolicyDistilConfig,
) -> None:
    """Raises HandoffError if the teacher in `folder` has other inputs, outputs or units than the
    student."""
    (student_policy, student_card), (teacher_policy, teacher_card) = student, teacher
    pairs: dict[str, tuple[Any, Any]] = {
        "family": (type(student_policy).__name__, type(teacher_policy).__name__),
        "chunk (actions, entries)": (student_policy.chunk_shape, teacher_policy.chunk_shape),
        "rate [Hz]": (student_card.rate_hz, teacher_card.rate_hz),
        "observed steps": (
            student_policy.observation_shape[0],
            teacher_policy.observation_shape[0],
        ),
        "fields": (dict(student_policy.shapes.entries), dict(teacher_policy.shapes.entries)),
        "sensors": (dict(student_policy.shapes.sensors), dict(teacher_policy.shapes.sensors)),
        "anchor": (student_policy.anchor, teacher_policy.anchor),
    }
    others = teacher_policy.shared_settings()
    pairs |= {
        name: (value, others.get(name)) for name, value in student_policy.shared_settings().items()
    }
    for name, (expected, other) in pairs.items():
        if expected != other:
            raise HandoffError(
                f"{folder}: the teacher's {name} is {other}, the student's {expected}; expected the same. Do both "
                "descend from one policy?"
            )
    difference = max(
        float((one - other).abs().max())
        for one, other in zip(
            student_policy.normalize_action.buffers(),
            teacher_policy.normalize_action.buffers(),
            strict=True,
        )
    )
    if difference > 0.0:
        raise HandoffError(
            f"{folder}: the teacher's action normaliser differs from the student's by up to {difference:.3g}, "
            "expected the same units. Do both descend from one policy?"
        )
    if isinstance(student_policy, DenoisingPolicy) and isinstance(teacher_policy, DenoisingPolicy):
        _check_grids(
            folder, sampler_grid(student_policy, config), sampler_grid(teacher_policy, config)
        )


def _check_grids(folder: Path, student: Grid, teacher: Grid) -> None:
    for part in fields(student):
        expected, other = getattr(student, part.name), getattr(teacher, part.name)
        same = torch.equal(expected, other) if isinstance(expected, Tensor) else expected == other
        if not same:
            raise HandoffError(
                f"{folder}: the sampler steps differ: the teacher's {part.name} is {_plain(other)}, the student's "
                f"{_plain(expected)}. Set `steps` for both, or use teachers with the student's schedule."
            )


def _plain(part: Any) -> str:
    return (
        str([round(value, 4) for value in part.tolist()]) if isinstance(part, Tensor) else str(part)
    )
