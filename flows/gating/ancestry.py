"""Finds the policy that a bundle was exported from, its teachers, and evaluations of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.results import DISTILL, TEACHERS
from flows.runner.artifact import MANIFEST, read_manifest, write_json

if TYPE_CHECKING:
    from robots.contract import Contract
    from sim.evaluation.comparison import Result

NOTE = "policy.json"
"""File of an evaluation that is no artifact: its name, and the digest of its policy."""


@dataclass(frozen=True)
class Ancestry:
    """Where an exported policy comes from."""

    policy: str
    """Digest of the policy that was exported."""
    teachers: tuple[str, ...] | None
    """Digests of the policies that it was distilled from; empty if it was distilled from none, None
    if that is not known."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of these policies, by digest, as far as they are known."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation, and the digest of the policy that was evaluated."""

    policy: str
    result: Result

    @property
    def denoising_steps(self) -> int:
        """Number of sampler steps of the evaluated policy."""
        return int(self.result.table["execution"].get("denoising_steps") or 1)


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of the policies that an exported one is compared with; None where there is
    none."""

    policy: Evaluated | None
    """The policy that was exported."""
    teacher: Evaluated | None
    """Its only teacher, with most sampler steps."""
    teacher_in_one_step: Evaluated | None
    """Another evaluation of the teacher, in one step."""


def find_ancestry(bundle: Path, contract: Contract) -> Ancestry:
    """Returns the ancestry of an exported policy; the manifests of the artifacts above the bundle
    say what its policy was distilled from.

    Args:
        bundle: folder of the bundle; if it is no artifact, its teachers are not known.
        contract: contract of the exported policy.
    """
    policy = _input(bundle, "policy")
    manifest = None if policy is None else _manifest(policy)
    if policy is None or manifest is None or "uses" not in manifest:
        return Ancestry(contract.policy, None)
    folders = {contract.policy: policy}
    if manifest["uses"] != DISTILL:
        return Ancestry(contract.policy, (), folders)
    names = [name for name in manifest["inputs"] if name.partition(".")[0] in TEACHERS]
    for name in names:
        source = _input(policy, name)
        if source is not None:
            folders[manifest["inputs"][name]] = source
    teachers = tuple(manifest["inputs"][name] for name in names)
    return Ancestry(contract.policy, teachers, folders)


def read_evaluations(folders: Iterable[Path]) -> list[Evaluated]:
    """Reads the evaluations of policies: artifacts of a stage `evaluate`, or folders of `handoff
    gate`; those of no policy are left out.

    Raises:
        HandoffError: a folder holds no evaluation, or a damaged one.
    """
    from sim.evaluation.comparison import read_result

    found = []
    for folder in folders:
        manifest = _manifest(folder) or _noted(folder)
        if manifest is not None and "policy" in manifest["inputs"]:
            result = read_result(folder, manifest["stage"])
            if result.table["execution"].get("blind"):
                # A negative control says nothing about the policy with its cameras.
                continue
            found.append(Evaluated(manifest["inputs"]["policy"], result))
    return found


def compared_with(ancestry: Ancestry, evaluated: Sequence[Evaluated]) -> Evaluations:
    """Picks the evaluations of the policy that was exported and of its teacher; a policy with
    several teachers is compared with none of them."""
    own = _most_steps_first(ancestry.policy, evaluated)
    teachers = ancestry.teachers or ()
    teacher = teachers[0] if len(teachers) == 1 else None
    of_teacher = [] if teacher is None else _most_steps_first(teacher, evaluated)
    in_one_step = [each for each in of_teacher[1:] if each.denoising_steps == 1]
    return Evaluations(_first(own), _first(of_teacher), _first(in_one_step))


def _most_steps_first(policy: str, evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    own = [each for each in evaluated if each.policy == policy]
    return sorted(own, key=lambda each: -each.denoising_steps)


def _first(evaluated: Sequence[Evaluated]) -> Evaluated | None:
    return evaluated[0] if evaluated else None


def _input(folder: Path, name: str) -> Path | None:
    manifest = _manifest(folder)
    link = None if manifest is None else manifest.get("input_paths", {}).get(name)
    return None if link is None else (folder.resolve() / link).resolve()


def note_policy(folder: Path, name: str, policy: str) -> None:
    """Notes in the folder of an evaluation that is no artifact which policy was evaluated."""
    write_json(folder / NOTE, {"stage": name, "inputs": {"policy": policy}})


def _noted(folder: Path) -> dict[str, Any] | None:
    note = folder / NOTE
    return json.loads(note.read_bytes()) if note.is_file() else None


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an artifact; None for a folder that is none."""
    return read_manifest(folder) if (folder / MANIFEST).is_file() else None
