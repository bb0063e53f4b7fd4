"""Evaluates teachers at a student's own decisions and measures how far the student is from them;
see `policies.distillation.on_policy`.

Tokens: the divergence KL(student || teacher) of every token, given those that the student drew
before it. Its gradient is what REINFORCE with the advantage log teacher - log student estimates
from the one token that was drawn (RLinf's form, without normalisation); summed over all bins it
varies less. Chains: the same of every denoising step, see `policies.samplers.chain.on_policy_kl`.

Where this differs from RLinf: its reinforced form is the only one there. What a token does to those
behind it is left out of both forms, as there.

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
from policies.rl.on_policy.observations import observed_of
from policies.rl.on_policy.ppo_loss import surrogate
from policies.samplers.chain import Chain, Denoise, Grid, on_policy_kl, sample_chain
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.distillation.config import OnPolicyDistilConfig

Trace = dict[str, Tensor]
"""What is kept of decisions to look at them again; every entry (B, ...)."""


class Distance(NamedTuple):
    """How far a student is from its teachers."""

    loss: Tensor
    """Scalar, per entry of a chunk, so that its size does not grow with the chunk."""
    kl_B: Tensor
    """Divergence of every decision from its teacher's [nat], without gradient; of ODE steps half a
    squared distance."""


class Lessons(Protocol):
    """A way to act and to be corrected."""

    def decide(self, seen: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """The student's chunk (B, H, A), normalised, and what is kept of it.

        Args:
            seen: see `policies.rl.collection.chunk_env.ChunkWorlds`.
            generator: of all chance.
        """
        ...

    def distance(self, seen: Any, trace: Trace) -> Distance:
        """The student as it is now, against the teachers, at decisions that it made."""
        ...


class Teachers:
    """Frozen policies, and which of them teaches a row.

    Args:
        folders: of one teacher for all, or by sentence.
        student: whom they teach.
        card: the student's.
        config: how.

    Raises:
        HandoffError: nobody, sentences for a student that hears none, or a teacher who answers in
            other units than the student, with other bins, or along another grid.
    """

    def __init__(
        self,
        folders: Path | Mapping[str, Path],
        student: ChunkPolicy,
        card: PolicyCard,
        config: OnPolicyDistilConfig,
    ) -> None:
        by_sentence = {"": folders} if isinstance(folders, Path) else dict(folders)
        if not by_sentence:
            raise HandoffError("teaching: no teachers, expected one for all, or one by sentence.")
        if not isinstance(folders, Path) and not student.reads_language:
            raise HandoffError(
                f"teaching: teachers by sentence, {sorted(by_sentence)}, for a {type(student).__name__}, which hears "
                "none. Give one teacher for all."
            )
        self._student = student
        folders_of = list(dict.fromkeys(by_sentence.values()))
        self._of_sentence: dict[str, int] | None = None
        if not isinstance(folders, Path):
            self._of_sentence = {
                said: folders_of.index(folder) for said, folder in by_sentence.items()
            }
        self._digests = {folder: digest_file(folder / WEIGHTS) for folder in folders_of}
        self.identity = {said: self._digests[folder] for said, folder in by_sentence.items()}
        """Digests of the weights, by sentence."""
        self.policies: list[ChunkPolicy] = []
        """Frozen, in the order in which they are first named."""
        for folder in folders_of:
            policy, theirs = load_module(folder)
            check_agree(folder, (student, card), (policy, theirs), config)
            self.policies.append(policy)

    def of(
        self, observed: ObservationTensors
    ) -> list[tuple[ChunkPolicy, Tensor, ObservationTensors]]:
        """Each teacher that has rows: its numbers (int64), and what is observed in them, as that
        teacher sees it.

        Raises:
            HandoffError: a sentence that nobody teaches.
        """
        rows = len(observed.vector_BTO)
        if self._of_sentence is None:
            whose = torch.zeros(rows, dtype=torch.long)
        else:
            told = observed.instructions or (self._student.said,) * rows
            unknown = sorted({str(one) for one in told} - self._of_sentence.keys())
            if unknown:
                raise HandoffError(
                    f"teaching: nobody teaches {unknown}, only {sorted(self._of_sentence)}. A misspelling?"
                )
            whose = torch.tensor([self._of_sentence[str(one)] for one in told])
        found = []
        for number, policy in enumerate(self.policies):
            mine = torch.nonzero(whose == number)[:, 0]
            if len(mine):
                found.append((policy, mine, self._shown(policy, observed, mine)))
        return found

    def check_unchanged(self) -> None:
        """Raises HandoffError unless every teacher is, in memory and on the disk, what it was at
        the beginning."""
        for (folder, digest), policy in zip(self._digests.items(), self.policies, strict=True):
            same = digest_file(folder / WEIGHTS) == digest
            if same:
                saved, held = read_weights(folder), policy.state_dict()
                same = all(torch.equal(part.float(), saved[name]) for name, part in held.items())
            if not same:
                raise HandoffError(
                    f"{folder}: the teacher's weights are not those with which it began to teach, expected the same "
                    "checksum. Was it trained, or its file replaced, meanwhile?"
                )

    def _shown(
        self, policy: ChunkPolicy, observed: ObservationTensors, rows: Tensor
    ) -> ObservationTensors:
        vector_BTO, own, theirs = (
            observed.vector_BTO[rows],
            self._student.normalize_observation,
            policy.normalize_observation,
        )
        if not all(
            torch.equal(one, other)
            for one, other in zip(own.buffers(), theirs.buffers(), strict=True)
        ):
            vector_BTO = theirs(own.inverse(vector_BTO))
        sensors = {name: part[rows] for name, part in observed.sensors.items()}
        told = observed.instructions
        if policy.said is not None:
            # It always hears the words that it was trained with.
            told = ()
        return ObservationTensors(
            vector_BTO, sensors, tuple(told[row] for row in rows.tolist()) if told else ()
        )


def lessons(config: OnPolicyDistilConfig, student: ChunkPolicy, teachers: Teachers) -> Lessons:
    """How this student acts and is corrected.

    Raises:
        HandoffError: a policy that neither draws tokens nor denoises, or a form that it does not
            have.
    """
    if isinstance(student, TokenVlaPolicy):
        return TokenLessons(config, student, teachers)
    if config.form != "kl":
        raise HandoffError(
            f"teaching: form '{config.form}' is of action tokens, a {type(student).__name__} has 'kl'."
        )
    if isinstance(student, DenoisingPolicy):
        return ChainLessons(config, student, teachers)
    raise HandoffError(
        f"teaching: a {type(student).__name__}, expected a policy of action tokens, or one that denoises or flows."
    )


class TokenLessons:
    """Implements `Lessons`: each token's distribution is compared with the teacher's.

    Args:
        config: how.
        student: learns in place.
        teachers: see there.
    """

    def __init__(
        self, config: OnPolicyDistilConfig, student: TokenVlaPolicy, teachers: Teachers
    ) -> None:
        self._config = config
        self._student = student
        self._teachers = teachers

    @torch.no_grad()
    def decide(self, seen: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `Lessons.decide`."""
        noise_BHA = torch.randn((len(seen), *self._student.chunk_shape), generator=generator)
        drawn = self._student.act(observed_of(seen), noise_BHA, self._config.temperature)
        return self._student.values(drawn.tokens_BHA), {
            "tokens": drawn.tokens_BHA,
            "log_prob": drawn.log_prob_BHA,
        }

    def distance(self, seen: Any, trace: Trace) -> Distance:
        """See `Lessons.distance`."""
        observed, config = observed_of(seen), self._config
        logits_BHAK = self._student.logits(observed, trace["tokens"])
        with torch.no_grad():
            wanted_BHAK = self._wanted(observed, trace["tokens"], logits_BHAK)
        kl_BHA = token_divergence(logits_BHAK, wanted_BHAK, config.temperature)
        loss = kl_BHA.mean()
        if config.form == "reinforce":
            loss = reinforced(config.ppo, logits_BHAK, wanted_BHAK, trace, config.temperature)
        return Distance(loss, kl_BHA.detach().sum(dim=(1, 2)))

    def _wanted(
        self, observed: ObservationTensors, tokens_BHA: Tensor, like_BHAK: Tensor
    ) -> Tensor:
        wanted_BHAK = torch.empty_like(like_BHAK)
        for policy, rows, shown in self._teachers.of(observed):
            assert isinstance(policy, TokenVlaPolicy)
            wanted_BHAK[rows] = policy.logits(shown, tokens_BHA[rows])
        return wanted_BHAK


def token_divergence(logits_BHAK: Tensor, wanted_BHAK: Tensor, temperature: float) -> Tensor:
    """KL(student || teacher) (B, H, A) [nat] of every token's distribution, from both logits."""
    own_BHAK = log_softmax(logits_BHAK.float() / temperature, dim=-1)
    wanted_BHAK = log_softmax(wanted_BHAK.float() / temperature, dim=-1)
    return (own_BHAK.exp() * (own_BHAK - wanted_BHAK)).sum(dim=-1)


def reinforced(
    ppo: PpoConfig, logits_BHAK: Tensor, wanted_BHAK: Tensor, trace: Trace, temperature: float
) -> Tensor:
    """PPO's loss with the advantage log teacher - log student of every token; at ratio 1, REINFORCE
    (RLinf).

    Args:
        ppo: bounds on the ratio.
        logits_BHAK: of the student as it is now.
        wanted_BHAK: of the teacher.
        trace: `tokens` (B, H, A) that the student drew, and their `log_prob` as it then was.
        temperature: of both.
    """
    log_prob_BHA = token_log_prob(logits_BHAK, trace["tokens"], temperature)
    advantage_BHA = token_log_prob(wanted_BHAK, trace["tokens"], temperature) - trace["log_prob"]
    return surrogate(ppo, log_prob_BHA, trace["log_prob"], advantage_BHA).loss


class ChainLessons:
    """Implements `Lessons`: each step of the sampler is compared with the teacher's from the same
    sample.

    Args:
        config: how.
        student: learns in place.
        teachers: see there.
    """

    def __init__(
        self, config: OnPolicyDistilConfig, student: DenoisingPolicy, teachers: Teachers
    ) -> None:
        self._config = config
        self._student = student
        self._teachers = teachers
        if config.steps is not None:
            student.set_sampler_steps(config.steps)
        self._grid = grid_of(student, config)

    @torch.no_grad()
    def decide(self, seen: Any, generator: torch.Generator) -> tuple[Tensor, Trace]:
        """See `Lessons.decide`."""
        steps, shape = len(self._grid), (len(seen), *self._student.chunk_shape)
        noise_LBHA = torch.randn((steps + 1, *shape), generator=generator)
        denoise = self._student.velocity(observed_of(seen))
        chain = sample_chain(denoise, noise_LBHA[0], noise_LBHA[1:], self._grid, self._config.chain)
        trace = {"sample": chain.sample_LBHA.transpose(0, 1), "std": chain.std_KB.T}
        return self._student.bounded(chain.clean_BHA), trace

    def distance(self, seen: Any, trace: Trace) -> Distance:
        """See `Lessons.distance`."""
        observed, sample_LBHA = observed_of(seen), trace["sample"].transpose(0, 1)
        # Of a stored chain the divergence reads samples and deviations alone.
        chain = Chain(
            sample_LBHA, sample_LBHA[1:], trace["std"].T, torch.zeros_like(trace["std"].T)
        )
        kl_KB = on_policy_kl(
            self._student.velocity(observed), self._taught(observed), chain, self._grid
        )
        entries = self._student.chunk_shape[0] * self._student.chunk_shape[1]
        return Distance(kl_KB.mean() / entries, kl_KB.detach().sum(dim=0))

    def _taught(self, observed: ObservationTensors) -> Denoise:
        """Each row's own teacher as one denoiser."""
        parts = []
        with torch.no_grad():
            for policy, rows, shown in self._teachers.of(observed):
                assert isinstance(policy, DenoisingPolicy)
                parts.append((rows, policy.velocity(shown)))

        def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
            wanted_BHA = torch.empty_like(noisy_BHA)
            for rows, one in parts:
                wanted_BHA[rows] = one(noisy_BHA[rows], level_B[rows])
            return wanted_BHA

        return denoise


def grid_of(policy: DenoisingPolicy, config: OnPolicyDistilConfig) -> Grid:
    """The steps along which a policy is walked."""
    return policy.chain_grid(config.steps, eta=config.noise, flow_noise=config.noise)


def check_agree(
    folder: Path,
    student: tuple[ChunkPolicy, PolicyCard],
    teacher: tuple[ChunkPolicy, PolicyCard],
    config: OnPolicyDistilConfig,
) -> None:
    """Raises HandoffError where the teacher in `folder` answers other questions than the student,
    or in other units."""
    (own, card), (theirs, told) = student, teacher
    pairs: dict[str, tuple[Any, Any]] = {
        "family": (type(own).__name__, type(theirs).__name__),
        "chunk (actions, entries)": (own.chunk_shape, theirs.chunk_shape),
        "rate [Hz]": (card.rate_hz, told.rate_hz),
        "observed steps": (own.observation_shape[0], theirs.observation_shape[0]),
        "fields": (dict(own.shapes.entries), dict(theirs.shapes.entries)),
        "sensors": (dict(own.shapes.sensors), dict(theirs.shapes.sensors)),
        "anchor": (own.anchor, theirs.anchor),
    }
    others = theirs.shared_settings()
    pairs |= {name: (value, others.get(name)) for name, value in own.shared_settings().items()}
    for name, (ours, other) in pairs.items():
        if ours != other:
            raise HandoffError(
                f"{folder}: the teacher's {name} is {other}, the student's {ours}; expected the same. Did both begin "
                "as one policy?"
            )
    apart = max(
        float((one - other).abs().max())
        for one, other in zip(
            own.normalize_action.buffers(), theirs.normalize_action.buffers(), strict=True
        )
    )
    if apart > 0.0:
        raise HandoffError(
            f"{folder}: the teacher's action normaliser differs from the student's by up to {apart:.3g}, expected the "
            "same: one's units are not the other's. Did both begin as one policy?"
        )
    if isinstance(own, DenoisingPolicy) and isinstance(theirs, DenoisingPolicy):
        _check_grids(folder, grid_of(own, config), grid_of(theirs, config))


def _check_grids(folder: Path, own: Grid, theirs: Grid) -> None:
    for part in fields(own):
        ours, other = getattr(own, part.name), getattr(theirs, part.name)
        same = torch.equal(ours, other) if isinstance(ours, Tensor) else ours == other
        if not same:
            raise HandoffError(
                f"{folder}: the teacher's sampler has another grid than the student's: {part.name} is {_plain(other)}, "
                f"the student's {_plain(ours)}. Give both one number of steps, or teachers of one schedule."
            )


def _plain(part: Any) -> str:
    return (
        str([round(value, 4) for value in part.tolist()]) if isinstance(part, Tensor) else str(part)
    )
