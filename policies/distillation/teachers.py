"""Loads teachers, checks that they suit a student, and assigns them to rows; see
`policies.distillation.on_policy`.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K sampler steps, R
rows of one teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from policies.card import PolicyCard
from policies.checkpoint import WEIGHTS, digest_file, read_weights
from policies.load import load_module
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ChunkPolicy, DenoisingPolicy, ObservationTensors, refuse_actors
from policies.rl.on_policy.observations import VECTOR
from policies.samplers.chain import Grid
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.distillation.config import OnPolicyDistilConfig

TeacherFolders = Path | Mapping[str, Path] | Sequence[Path]
"""Folder of one teacher, teachers by instruction, or several teachers of all rows."""


class AssignedRows(NamedTuple):
    """Rows that a teacher has a part in."""

    policy: ChunkPolicy
    rows_R: Tensor
    """Indices of the rows, int64."""
    inputs: ObservationTensors
    """The teacher's inputs for these rows."""
    weight: float
    """Weight of this teacher; those of a row's teachers add up to 1."""


class Teachers:
    """Frozen teachers, and their assignment to rows.

    Args:
        folders: folder of one teacher for all rows, teachers by instruction, or several teachers
            whose mean teaches all rows.
        student: policy that is trained.
        card: card of the student.
        config: options of the distillation.

    Raises:
        HandoffError: no teacher, teachers by instruction for a student without language, a teacher
            given twice, or a teacher with other units, bins or sampler steps than the student.
    """

    def __init__(
        self,
        folders: TeacherFolders,
        student: ChunkPolicy,
        card: PolicyCard,
        config: OnPolicyDistilConfig,
    ) -> None:
        by_instruction = _by_instruction(folders)
        if isinstance(folders, Mapping) and not student.language_conditioned:
            raise HandoffError(
                f"distillation: teachers are given for the instructions {sorted(by_instruction)}, but the student, a "
                f"{type(student).__name__}, reads none. Give one teacher for all."
            )
        self._student = student
        unique_folders = list(dict.fromkeys(by_instruction.values()))
        self._teacher_of_instruction: dict[str, int] | None = None
        if isinstance(folders, Mapping):
            self._teacher_of_instruction = {
                instruction: unique_folders.index(folder)
                for instruction, folder in by_instruction.items()
            }
        self._digests = {folder: digest_file(folder / WEIGHTS) for folder in unique_folders}
        self.identity = {
            instruction: self._digests[folder] for instruction, folder in by_instruction.items()
        }
        """SHA-256 of the weights by instruction, or by number for teachers of all rows."""
        self.policies: list[ChunkPolicy] = []
        """Frozen teachers in the order in which they are first named."""
        for folder in unique_folders:
            policy, teacher_card = load_module(folder)
            check_compatible(folder, (student, card), (policy, teacher_card), config)
            self.policies.append(policy)
        self._others = [policy for policy in self.policies if not same_encoder(policy, student)]
        """Teachers whose encoders of pictures and point clouds differ from the student's."""

    @torch.no_grad()
    def encode(self, observed: ObservationTensors) -> Tensor | None:
        """(B, T, O + F) vector and features by the student's encoder, followed by those of each
        teacher with another encoder; None for families that do not encode. An observation is
        encoded once, and serves the student and its teachers."""
        encoded_BTF = self._student.encode(observed)
        if encoded_BTF is None:
            return None
        parts = [encoded_BTF]
        for policy in self._others:
            other_BTF = policy.encode(observed)
            assert other_BTF is not None, "teachers are of the student's family"
            parts.append(other_BTF[..., policy.observation_shape[1] :])
        return torch.cat(parts, dim=-1)

    def student_part(self, observation: Any) -> Any:
        """The student's own part of an observation of `encode`, or of the vectors of a
        TensorDict."""
        entries = self._student.encoded_shape[1]
        if isinstance(observation, Tensor):
            return observation[..., :entries]
        part = observation.copy()
        part[VECTOR] = observation[VECTOR][..., :entries]
        return part

    def assign(self, observed: ObservationTensors) -> list[AssignedRows]:
        """Every teacher that has rows, with its inputs for them.

        Without instructions each teacher has all rows, with equal weights that add up to 1.

        Raises:
            HandoffError: an instruction without a teacher.
        """
        rows = len(observed.vector_BTO)
        if self._teacher_of_instruction is None:
            every = torch.arange(rows)
            weight = 1.0 / len(self.policies)
            return [
                AssignedRows(policy, every, self._teacher_inputs(policy, observed, every), weight)
                for policy in self.policies
            ]
        instructions = observed.instructions or (self._student.default_instruction,) * rows
        unknown = sorted(
            {str(instruction) for instruction in instructions} - self._teacher_of_instruction.keys()
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
                inputs = self._teacher_inputs(policy, observed, teacher_rows)
                assigned.append(AssignedRows(policy, teacher_rows, inputs, 1.0))
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
        entries = self._student.observation_shape[1]
        vector_BTO = observed.vector_BTO[rows, :, :entries]
        student_normalizer = self._student.normalize_observation
        teacher_normalizer = policy.normalize_observation
        if not all(
            torch.equal(one, other)
            for one, other in zip(
                student_normalizer.buffers(), teacher_normalizer.buffers(), strict=True
            )
        ):
            vector_BTO = teacher_normalizer(student_normalizer.inverse(vector_BTO))
        features_BTF = observed.vector_BTO[rows, :, self._features_of(policy)]
        vector_BTO = torch.cat([vector_BTO, features_BTF], dim=-1)
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

    def _features_of(self, policy: ChunkPolicy) -> slice:
        """Entries of an encoded observation that are the features of this teacher."""
        begin, end = self._student.observation_shape[1], self._student.encoded_shape[1]
        for other in self._others:
            if policy not in self._others:
                break
            begin = end
            end += other.encoded_shape[1] - other.observation_shape[1]
            if other is policy:
                break
        return slice(begin, end)


def same_encoder(one: ChunkPolicy, other: ChunkPolicy) -> bool:
    """Whether the encoders of pictures and point clouds of two policies are equal, also where
    there are none."""
    encoders, others = _encoders(one), _encoders(other)
    if len(encoders) != len(others):
        return False
    return all(
        mine.sizes == theirs.sizes and _same_weights(mine.state_dict(), theirs.state_dict())
        for mine, theirs in zip(encoders, others, strict=True)
    )


def _encoders(policy: ChunkPolicy) -> list[ObservationEncoder]:
    return [module for module in policy.modules() if isinstance(module, ObservationEncoder)]


def _same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(weight, other[name]) for name, weight in one.items()
    )


def _by_instruction(folders: TeacherFolders) -> dict[str, Path]:
    """Teachers by instruction; those of all rows by number.

    Raises:
        HandoffError: no teacher, or a teacher of all rows given twice.
    """
    if isinstance(folders, Path):
        return {"": folders}
    if not folders:
        raise HandoffError(
            "distillation: there are no teachers, expected one folder, several, or one per instruction."
        )
    if isinstance(folders, Mapping):
        return dict(folders)
    if len(set(folders)) < len(folders):
        raise HandoffError(
            f"distillation: the teachers {[str(folder) for folder in folders]} are not distinct."
        )
    return {str(number): folder for number, folder in enumerate(folders)}


def assign_instructions(folders: Sequence[Path], instructions: Sequence[str]) -> TeacherFolders:
    """Pairs teachers with instructions in their order.

    Args:
        folders: one or more teachers.
        instructions: one per teacher; empty for teachers of all rows.

    Raises:
        HandoffError: as many instructions as teachers are needed, and each one once.
    """
    if not instructions:
        return folders[0] if len(folders) == 1 else folders
    if len(instructions) != len(folders) or len(set(instructions)) < len(instructions):
        raise HandoffError(
            f"distillation: instructions {list(instructions)} for {len(folders)} teachers, expected a different one "
            "for each."
        )
    return dict(zip(instructions, folders, strict=True))


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
    refuse_actors(student_policy, "distillation: the student")
    refuse_actors(teacher_policy, f"{folder}: the teacher")
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
    if config.form == "chunk":
        # The ends of the samplers are compared, not their steps.
        return
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
