"""Decides whether an artifact is of the present code.

A stage's key holds the version of all code that the stage could import. The artifact records what
its processes did import, and the libraries that decide numbers; an artifact whose recorded modules
and libraries are the present ones is still valid after an edit of other code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from robots.code_version import code_version, module_version
from robots.errors import HandoffError
from robots.imported_code import LIBRARIES, CodeGuard, make_guard, read_record

SOURCES, LIBRARY_VERSIONS = "sources", "libraries"
"""Manifest entries: versions of the imported modules, and of the imported libraries."""
NOT_INSTALLED = "not installed"


class StageCode(NamedTuple):
    """Code of one attempt at a stage."""

    versions: Mapping[str, str]
    """Version of the code of the stage's module, and of the modules outside Handoff that its
    options name."""
    record: Path
    """File in which the processes of the stage record what they import."""

    def checked(self) -> CodeGuard:
        """Returns a guard for the present code; called in the stage's own process.

        Raises:
            HandoffError: the code is no longer that of the key.
        """
        guard = make_guard(self.versions, self.record)
        for module, expected in self.versions.items():
            if code_version(module) != expected:
                raise HandoffError(
                    f"code: {module}, or a module that it imports, was edited after the run had begun. Run again: "
                    "finished stages are kept."
                )
        return guard

    def used(self) -> dict[str, Any]:
        """Manifest entries of what was imported; all that could have been imported if no process
        recorded it."""
        guard = make_guard(self.versions, self.record)
        modules, libraries = read_record(guard)
        if not modules:
            modules, libraries = dict(guard.versions), tuple(LIBRARIES)
        return {
            SOURCES: modules,
            LIBRARY_VERSIONS: {name: library_version(name) for name in libraries},
        }


@cache
def library_version(module: str) -> str:
    """Version of the library that has a module of `LIBRARIES`."""
    try:
        return version(LIBRARIES[module])
    except PackageNotFoundError:
        return NOT_INSTALLED


def library_versions() -> dict[str, str]:
    """Versions of all libraries that decide numbers."""
    return {name: library_version(name) for name in LIBRARIES}


def changed_modules(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields the modules of an artifact that are other ones now; see `changes`."""
    if SOURCES not in manifest:
        yield "code"
        return
    for module, recorded in manifest[SOURCES].items():
        if module_version(module) != recorded:
            yield module


def changes(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields the modules and libraries of an artifact that are other ones now; an artifact that
    records none may differ in any."""
    yield from changed_modules(manifest)
    for name, recorded in manifest.get(LIBRARY_VERSIONS, {}).items():
        present = library_version(name) if name in LIBRARIES else NOT_INSTALLED
        if present != recorded:
            yield f"{LIBRARIES.get(name, name)} {recorded} → {present}"
