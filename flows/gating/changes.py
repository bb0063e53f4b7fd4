"""Lists what changed between the release that is replaced and this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runner.artifact import MANIFEST, read_manifest
from robots.config import to_plain

if TYPE_CHECKING:
    from flows.gating.outcome import Gated

LONGEST = 60
"""Longest shown value [characters]."""
UNCHANGED = "no difference"


def changes_since(gated: Gated) -> list[tuple[str, str, str]]:
    """Returns the entries of contracts and of the options of all stages above the bundles in which
    they differ: name, value of the incumbent, value of this bundle."""
    from flows.gating.outcome import incumbent_bundle

    assert gated.incumbent is not None
    rows = [
        *_differences(
            "contract", to_plain(gated.incumbent.contract), to_plain(gated.policy.contract)
        )
    ]
    old, new = (
        dict(_options(folder))
        for folder in (incumbent_bundle(gated.settings.incumbent), gated.bundle)
    )
    if old and new:
        rows += _differences("", old, new)
    return rows or [(UNCHANGED, "", "")]


def _options(folder: Path) -> Iterator[tuple[str, Any]]:
    """Options and commit of every stage above a bundle, by the name of the stage."""
    pending, visited = [folder.resolve()], set()
    while pending:
        path = pending.pop()
        if path in visited or not (path / MANIFEST).is_file():
            continue
        visited.add(path)
        manifest = read_manifest(path)
        commit = manifest.get("environment", {}).get("commit", "")
        yield manifest["stage"], {"options": manifest.get("config", {}), "commit": commit}
        pending += [(path / link).resolve() for link in manifest.get("input_paths", {}).values()]


def _differences(prefix: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            name = f"{prefix}.{key}" if prefix else str(key)
            yield from _differences(name, old.get(key), new.get(key))
    elif old != new:
        yield prefix, _short(old), _short(new)


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + ".."
