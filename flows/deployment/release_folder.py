"""Assembles and checks release folders: a policy with the evidence for it, to be copied as a whole.

    NAME/
        policy.onnx, ..           the files of the bundle
        artifacts/bundle.json     its manifest
        gate/                     the artifact of the gate that it passed
        approval/                 the artifact of its approval, if there is one
        evaluations/STAGE-DIGEST/ evaluations that gate or approval looked at, without videos
        parents/STAGE-DIGEST.json manifests of all that these were computed from
        release.json              name, commit, people and digests
        model.sig                 the signature, see `robots.signing`

Nothing in it depends on the computer or the time of the signature, so equal content has equal
digests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.deployment.approval import KIND, check_approved
from flows.deployment.release import check_limits, gate_of, released_bundle
from flows.reports.explain import find_artifact
from flows.reports.lineage import LineageNode, lineage_of
from flows.runner.artifact import (
    MANIFEST,
    TELEMETRY,
    make_read_only,
    read_manifest,
    verify_artifact,
    verify_manifest,
    write_json,
)
from robots.contract import ONNX_FILE
from robots.errors import HandoffError
from robots.signing.envelope import SIGNATURE_FILE
from robots.signing.folder import copied_digest, read_files
from robots.storage.durable import sync_tree

RELEASE_FILE = "release.json"
FORMAT = "handoff release"
VERSION = 1
"""Version of the layout; a reader refuses any other."""
BUNDLE_MANIFEST = "artifacts/bundle.json"
GATE = "gate"
APPROVAL = "approval"
EVALUATIONS = "evaluations"
PARENTS = "parents"
RESERVED = ("artifacts", GATE, APPROVAL, EVALUATIONS, PARENTS, RELEASE_FILE, SIGNATURE_FILE)
"""Names at the top that a file of the bundle cannot have."""
VIDEOS = (".mp4",)
EVALUATION = "evaluation"
"""Kind of the artifacts of evaluations."""
_SPOILT = "Was the folder edited? Make it again with `handoff sign`"


@dataclass(frozen=True)
class Release:
    """A release folder whose parts agree with one another."""

    folder: Path
    about: Mapping[str, Any]
    """Content of `release.json`."""
    gate: Mapping[str, Any]
    """Manifest of the gate."""
    approval: Mapping[str, Any] | None
    """Manifest of the approval; None if nobody has approved it."""

    def check_for_arm(self) -> None:
        """Refuses a release for a real arm that nobody has approved, whose approval has expired, or
        whose gate had looser limits than the defaults.

        Raises:
            HandoffError: see above.
        """
        check_limits(f"release {self.folder}", self.gate["metrics"])
        if self.approval is None:
            raise HandoffError(
                f"release {self.folder}: has no approval: no person has released it for an arm. Approve it, then sign "
                "RUN/approval."
            )
        check_approved(f"release {self.folder}", self.approval)


def is_release(path: Path) -> bool:
    """Whether a path is a release folder, signed or not."""
    return path.is_dir() and any((path / name).exists() for name in (RELEASE_FILE, SIGNATURE_FILE))


def assemble(source: Path, name: str, out: Path) -> None:
    """Copies a gate or an approval, the bundle that passed it, and the evidence to a new folder.

    Args:
        source: artifact of a gate or of an approval.
        name: name of the release.
        out: folder to be made, which must not exist.

    Raises:
        HandoffError: the gate was not passed, the approval was withdrawn or has expired, or an
            artifact was altered.
    """
    bundle = released_bundle(source)
    gate = gate_of(source)
    artifact = find_artifact(source)
    approval = artifact if read_manifest(artifact)["kind"] == KIND else None
    _check_names(bundle)
    lineage = lineage_of([artifact])
    evaluations = _evaluations(lineage, {gate, artifact})
    folders = {"": bundle, f"{GATE}/": gate}
    folders |= {f"{APPROVAL}/": approval} if approval is not None else {}
    folders |= {f"{EVALUATIONS}/{_part_name(node)}/": node.path for node in evaluations}
    out.mkdir(parents=True)
    for prefix, folder in folders.items():
        manifest = verify_artifact(folder)
        videos = prefix.startswith(EVALUATIONS)
        target = f"{prefix}{MANIFEST}" if prefix else BUNDLE_MANIFEST
        copied_digest(folder / MANIFEST, out / target)
        for file in manifest["files"]:
            # Videos of evaluations are looked at where the release is made.
            if not (videos and file.endswith(VIDEOS)):
                copied_digest(folder / file, out / prefix / file)
    inside = set(folders.values())
    for node in lineage:
        if node.path not in inside:
            copied_digest(node.path / MANIFEST, out / PARENTS / f"{_part_name(node)}.json")
    parts = _Parts(out, read_files(out)[0])
    write_json(out / RELEASE_FILE, _about(name, parts))
    check_release(out)
    make_read_only(out, list(read_files(out)[0]))
    sync_tree(out)


def check_release(
    folder: Path, files: Mapping[str, str] | None = None, shown: Path | None = None
) -> Release:
    """Checks that a release folder is complete, that nothing in it belongs to no part, that its
    digests agree, and that the policy has passed its gate.

    The signature, and whether the approval is still valid, are not looked at.

    Args:
        folder: the folder.
        files: sha256 of its files, if they are known.
        shown: path that errors name, if `folder` is a copy.

    Raises:
        HandoffError: see above.
    """
    parts = _Parts(folder, read_files(folder)[0] if files is None else files, shown or folder)
    stated = parts.json(RELEASE_FILE)
    if (stated.get("format"), stated.get("version")) != (FORMAT, VERSION):
        raise parts.error(
            f"{RELEASE_FILE} is of the format {stated.get('format')!r:.40}, version {stated.get('version')!r:.20}, "
            f"this build reads '{FORMAT}', version {VERSION}"
        )
    if parts.gate["kind"] != GATE or parts.gate["metrics"].get("passed") is not True:
        raise parts.error("the policy did not pass its gate: an arm runs released policies only")
    parts.check_files()
    parts.check_links()
    if stated != _about(stated.get("name", ""), parts):
        raise parts.error(f"{RELEASE_FILE} does not agree with the artifacts beside it. {_SPOILT}")
    return Release(parts.shown, stated, parts.gate, parts.approval)


class _Parts:
    """The artifacts in a release folder."""

    def __init__(self, folder: Path, files: Mapping[str, str], shown: Path | None = None) -> None:
        self.folder = folder
        self.files = files
        self.shown = shown or folder
        self.bundle = self._manifest(BUNDLE_MANIFEST)
        self.gate = self._manifest(f"{GATE}/{MANIFEST}")
        approval = f"{APPROVAL}/{MANIFEST}"
        self.approval = self._manifest(approval) if approval in files else None
        self.evaluations = {
            name.removesuffix(MANIFEST): self._manifest(name)
            for name in files
            if name.startswith(f"{EVALUATIONS}/")
            and name.count("/") == 2
            and name.endswith(MANIFEST)
        }
        self.parents = {
            name: self._manifest(name)
            for name in files
            if name.startswith(f"{PARENTS}/") and name.count("/") == 1
        }

    def error(self, what: str) -> HandoffError:
        """Returns the error about this folder."""
        return HandoffError(f"release {self.shown}: {what}.")

    def json(self, name: str) -> dict[str, Any]:
        """Reads a map from a file.

        Raises:
            HandoffError: it is missing or no map.
        """
        try:
            value = json.loads(self._bytes(name))
        except (ValueError, RecursionError) as error:
            raise self.error(f"{name} is not JSON ({error!s:.80}). {_SPOILT}") from None
        if not isinstance(value, dict):
            raise self.error(f"{name} is a {type(value).__name__}, expected a map. {_SPOILT}")
        return value

    def check_files(self) -> None:
        """Compares the files with those of the manifests: all of them, and no others."""
        expected = {RELEASE_FILE, BUNDLE_MANIFEST, f"{GATE}/{MANIFEST}", *self.parents}
        expected |= {f"{APPROVAL}/{MANIFEST}"} if self.approval is not None else set()
        expected |= {f"{prefix}{MANIFEST}" for prefix in self.evaluations}
        for prefix, manifest in self._complete().items():
            expected |= self._check_part(prefix, manifest, ())
        for prefix, manifest in self.evaluations.items():
            expected |= self._check_part(prefix, manifest, manifest.get(TELEMETRY, ()))
        surplus = sorted(self.files.keys() - expected)
        if surplus:
            raise self.error(
                f"{len(surplus)} files belong to none of its artifacts, e.g. {surplus[0]!r:.80}. Were they added? "
                "Remove them"
            )

    def check_links(self) -> None:
        """Checks that the gate is the bundle's, the approval the gate's, and that the manifests of
        all inputs are there."""
        self._check_input("the gate", self.gate, "bundle", self.bundle)
        if self.approval is not None:
            self._check_input("the approval", self.approval, "bundle", self.bundle)
            self._check_input("the approval", self.approval, "gate", self.gate)
        known = [*self._complete().values(), *self.evaluations.values(), *self.parents.values()]
        digests = {manifest["digest"] for manifest in known}
        for manifest in known:
            for label in manifest.get("input_paths", {}):
                if manifest["inputs"].get(label) not in digests:
                    raise self.error(
                        f"the manifest of input '{label}' of {manifest['stage']} is missing. {_SPOILT}"
                    )

    def _complete(self) -> dict[str, Mapping[str, Any]]:
        """Manifests of the parts of which every file is there, by folder."""
        whole: dict[str, Mapping[str, Any]] = {"": self.bundle, f"{GATE}/": self.gate}
        return whole if self.approval is None else {**whole, f"{APPROVAL}/": self.approval}

    def _check_part(
        self, prefix: str, manifest: Mapping[str, Any], optional: tuple[str, ...] | list[str]
    ) -> set[str]:
        """Compares the files of one artifact; returns their names."""
        present = set()
        for name, entry in manifest["files"].items():
            digest = self.files.get(f"{prefix}{name}")
            if digest == entry["sha256"]:
                present.add(f"{prefix}{name}")
            elif digest is not None or name not in optional:
                found = "missing" if digest is None else f"another file (sha256 {digest[:12]})"
                raise self.error(
                    f"{prefix}{name} is {found}, the manifest of {manifest['stage']} says sha256 "
                    f"{entry['sha256'][:12]}. {_SPOILT}"
                )
        return present

    def _check_input(
        self, of: str, manifest: Mapping[str, Any], label: str, source: Mapping[str, Any]
    ) -> None:
        if manifest["inputs"].get(label) != source["digest"]:
            raise self.error(f"{of} is of another {label} than the one beside it. {_SPOILT}")

    def _manifest(self, name: str) -> dict[str, Any]:
        return verify_manifest(self.shown / name, self._bytes(name))

    def _bytes(self, name: str) -> bytes:
        if name not in self.files:
            raise self.error(f"{name} is missing. {_SPOILT}")
        return (self.folder / name).read_bytes()


def _about(name: str, parts: _Parts) -> dict[str, Any]:
    """Content of `release.json`."""
    approval = parts.approval
    approved = None
    if approval is not None:
        approved = {key: approval["metrics"].get(key) for key in ("by", "time", "valid_until")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "time": parts.gate.get("finished", ""),
        "person": parts.gate.get("person", ""),
        "commit": parts.bundle.get("environment", {}).get("commit", ""),
        "digests": {
            "bundle": parts.bundle["digest"],
            "gate": parts.gate["digest"],
            "approval": None if approval is None else approval["digest"],
        },
        "approved": approved,
    }


def _evaluations(lineage: list[LineageNode], judges: set[Path]) -> list[LineageNode]:
    """The evaluations that are inputs of a gate or an approval."""
    used = {path for node in lineage if node.path in judges for path in node.inputs.values()}
    return [node for node in lineage if node.path in used and node.manifest["kind"] == EVALUATION]


def _part_name(node: LineageNode) -> str:
    """Name of an artifact in the folder; artifacts of several runs may be of equal stages."""
    return f"{node.name}-{node.manifest['digest'][:12]}"


def _check_names(bundle: Path) -> None:
    """Refuses a bundle whose files would lie over other parts of the release."""
    files = read_manifest(bundle)["files"]
    taken = sorted(name for name in files if name.split("/")[0] in RESERVED)
    if taken:
        raise HandoffError(
            f"{bundle}: has a file {taken[0]}, but {taken[0].split('/')[0]} is a part of every release folder. "
            "Give it another name."
        )
    if ONNX_FILE not in files:
        raise HandoffError(f"{bundle}: has no {ONNX_FILE}. Is it the artifact of an export?")
