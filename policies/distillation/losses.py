"""Computes the distillation loss: the divergence of a student from its teachers at its own
decisions; see `policies.distillation.on_policy`.

Tokens: the divergence KL(student || teacher) of every token, given the student's previous tokens.
Its gradient is what REINFORCE with the advantage log teacher - log student estimates from the
sampled token (RLinf's form, without normalisation); summed over all bins it has less variance.
Chains: the same divergence for every denoising step, see `policies.samplers.chain.on_policy_kl`; or
the distance of both ends from one initial noise, which is what a student of fewer steps can match.
Several teachers of one row: the mean of their divergences. Its minimum is the normalised geometric
mean of the teachers, so teachers that act in different modes do not combine well; give each its
instruction then.

RLinf has the REINFORCE form alone. Both forms ignore the effect of a token on later ones, as there.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K bins or steps, L
samples of a chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from policies.distillation.teachers import Teachers, sampler_grid
from policies.families.action_tokens import token_log_prob
from policies.families.token_vla import TokenVlaPolicy
from policies.policy import ChunkPolicy, DenoisingPolicy, ObservationTensors
from policies.rl.on_policy.config import PpoConfig
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo_loss import surrogate
from policies.samplers.chain import Chain, Denoise, on_policy_kl, sample, sample_chain
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


def distillation_loss(
    config: OnPolicyDistilConfig, student: ChunkPolicy, teachers: Teachers
) -> DistillationLoss:
    """The distillation loss for this student.

    Raises:
        HandoffError: a policy that neither samples tokens nor denoises, or a `form` that its family
            does not have.
    """
    if isinstance(student, TokenVlaPolicy):
        if config.form == "chunk":
            raise HandoffError(
                "distillation: form is 'chunk', which needs a diffusion or flow policy; action tokens have 'kl' and "
                "'reinforce'."
            )
        return TokenDistillationLoss(config, student, teachers)
    if config.form == "reinforce":
        raise HandoffError(
            f"distillation: form is 'reinforce', which needs action tokens; a {type(student).__name__} has 'kl' and "
            "'chunk'."
        )
    if isinstance(student, DenoisingPolicy):
        loss = ChunkDistillationLoss if config.form == "chunk" else DenoisingDistillationLoss
        return loss(config, student, teachers)
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
        # The weighted sum of the teachers' divergences is that from their mean log-probabilities,
        # up to a constant.
        teacher_BHAK = torch.zeros_like(like_BHAK)
        for policy, rows_R, inputs, weight in self._teachers.assign(observed):
            assert isinstance(policy, TokenVlaPolicy)
            teacher_BHAK[rows_R] += weight * policy.logits(inputs, tokens_BHA[rows_R])
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


class _SamplerLoss:
    """A student that samples, and its teachers.

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


class DenoisingDistillationLoss(_SamplerLoss):
    """Implements `DistillationLoss` by the divergence of every sampler step from the same sample.

    Args:
        config: options of the distillation.
        student: policy that is trained in place.
        teachers: teachers of the rows.
    """

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `DistillationLoss.decide`."""
        steps, shape = len(self._grid), (len(obs), *self._student.chunk_shape)
        noise_LBHA = torch.randn((steps + 1, *shape), generator=generator)
        own = observation_tensors(self._teachers.student_part(obs))
        denoise = self._student.velocity(own)
        chain = sample_chain(denoise, noise_LBHA[0], noise_LBHA[1:], self._grid, self._config.chain)
        trace = {"sample": chain.sample_LBHA.transpose(0, 1), "std": chain.std_KB.T}
        return self._student.clip_chunk(chain.clean_BHA), trace

    def divergence(self, obs: Any, trace: Trace) -> StudentDivergence:
        """See `DistillationLoss.divergence`."""
        own = observation_tensors(self._teachers.student_part(obs))
        observed, sample_LBHA = observation_tensors(obs), trace["sample"].transpose(0, 1)
        # The divergence of a stored chain needs only its samples and standard deviations.
        chain = Chain(
            sample_LBHA, sample_LBHA[1:], trace["std"].T, torch.zeros_like(trace["std"].T)
        )
        kl_KB = on_policy_kl(
            self._student.velocity(own), self._teacher_velocity(observed), chain, self._grid
        )
        entries = self._student.chunk_shape[0] * self._student.chunk_shape[1]
        return StudentDivergence(kl_KB.mean() / entries, kl_KB.detach().sum(dim=0))

    def _teacher_velocity(self, observed: ObservationTensors) -> Denoise:
        """One denoiser that applies each row's teacher, or the mean of several."""
        velocities = []
        with torch.no_grad():
            for policy, rows_R, inputs, weight in self._teachers.assign(observed):
                assert isinstance(policy, DenoisingPolicy)
                velocities.append((rows_R, policy.velocity(inputs), weight))

        def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
            velocity_BHA = torch.zeros_like(noisy_BHA)
            for rows_R, velocity, weight in velocities:
                velocity_BHA[rows_R] += weight * velocity(noisy_BHA[rows_R], level_B[rows_R])
            return velocity_BHA

        return denoise


class ChunkDistillationLoss(_SamplerLoss):
    """Implements `DistillationLoss` by the squared distance of the student's chunk, before it is
    clipped, from the teacher's, both from the same initial noise without noise in the steps.

    Args:
        config: options of the distillation.
        student: policy that is trained in place.
        teachers: teachers of the rows, each with its own sampler.
    """

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `DistillationLoss.decide`; the trace has the teacher's chunk, which is computed once
        however often it is learned from."""
        noise_BHA = torch.randn((len(obs), *self._student.chunk_shape), generator=generator)
        target_BHA = torch.zeros_like(noise_BHA)
        for policy, rows_R, inputs, weight in self._teachers.assign(observation_tensors(obs)):
            target_BHA[rows_R] += weight * policy.sample(inputs, noise_BHA[rows_R])
        chunk_BHA = self._student.clip_chunk(self._chunk(obs, noise_BHA))
        return chunk_BHA, {"noise": noise_BHA, "target": target_BHA}

    def divergence(self, obs: Any, trace: Trace) -> StudentDivergence:
        """See `DistillationLoss.divergence`."""
        error_BHA = self._chunk(obs, trace["noise"]) - trace["target"]
        half_BHA = 0.5 * error_BHA.square()
        return StudentDivergence(half_BHA.mean(), half_BHA.detach().sum(dim=(1, 2)))

    def _chunk(self, obs: Any, noise_BHA: Tensor) -> Tensor:
        own = observation_tensors(self._teachers.student_part(obs))
        return sample(self._student.velocity(own), noise_BHA, self._grid)
