"""Records the modules that a process and its children import, and refuses those that were edited
since the code's version was determined.

Modules are imported when they are first needed, perhaps an hour after a stage has begun. A stage
whose code was edited meanwhile would be a mixture of two versions. Edits of modules that are
already imported, or never are, change nothing and disturb nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from robots.code_version import has_data_files, module_source, source_version, versions_of
from robots.errors import HandoffError

LIBRARIES = {
    "cv2": "opencv-python-headless",
    "diffusers": "diffusers",
    "gym_pusht": "gym-pusht",
    "gymnasium": "gymnasium",
    "isaaclab": "isaaclab",
    "mani_skill": "mani-skill",
    "mujoco": "mujoco",
    "mujoco_warp": "mujoco-warp",
    "numpy": "numpy",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "pymunk": "pymunk",
    "sapien": "sapien",
    "scipy": "scipy",
    "timm": "timm",
    "torch": "torch",
    "transformers": "transformers",
    "warp": "warp-lang",
}
"""Distributions that decide numbers, by the module that is imported."""


class CodeGuard(NamedTuple):
    """The code that a stage may import, and the file in which its imports are recorded."""

    versions: Mapping[str, str]
    """Version of every module, by name."""
    sources: Mapping[str, tuple[str, str]]
    """Path of every module's file, and its sha256, by name."""
    record: str
    """Path of a text file with one name per line; every process of the stage appends."""


_guards: list[CodeGuard] = []


def make_guard(modules: Iterable[str], record: Path) -> CodeGuard:
    """Reads the present code of modules and of all first-party modules that they import.

    Args:
        modules: dotted names.
        record: file for the names of what is imported.
    """
    versions: dict[str, str] = {}
    for module in modules:
        versions |= versions_of(module)
    sources = {}
    for name in versions:
        source = module_source(name)
        assert source is not None
        sources[name] = (str(source), _digest(source))
    return CodeGuard(versions, sources, str(record))


def install_guard(guard: CodeGuard | None) -> None:
    """Records and checks what this process has imported and will import; children that
    `robots.processes` starts do the same. None does nothing.

    Raises:
        HandoffError: a module was edited before it was imported.
    """
    if guard is None:
        return
    _guards[:] = [guard]
    sys.meta_path.insert(0, _Finder(guard))
    for name in list(sys.modules):
        _note(guard, name)


def current_guard() -> CodeGuard | None:
    """Returns the guard of this process, for its children; None without one."""
    return _guards[0] if _guards else None


def note_all(module: str) -> None:
    """Records everything that a module could import, for a process on another machine, whose
    imports are not seen. Without a guard it does nothing."""
    for guard in _guards:
        _append(guard, [*(guard.versions.keys() & versions_of(module).keys()), *LIBRARIES])


def read_record(guard: CodeGuard) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the versions of the modules, and the libraries, that were imported so far."""
    names = Path(guard.record).read_text().split() if os.path.exists(guard.record) else []
    modules = {name: guard.versions[name] for name in sorted({*names} & guard.versions.keys())}
    return modules, tuple(sorted({*names} & LIBRARIES.keys()))


def check_data(guard: CodeGuard) -> None:
    """Checks that the data files beside the imported modules, such as the model of a robot, are
    still those of the guard.

    Raises:
        HandoffError: one was edited.
    """
    for name in read_record(guard)[0]:
        source = Path(guard.sources[name][0])
        if has_data_files(source) and source_version(source) != guard.versions[name]:
            raise HandoffError(
                f"code: {name}, or a data file beside it, was edited while the stage ran. Run again: finished stages "
                "are kept."
            )


class _Finder(MetaPathFinder):
    """Sees every import first, and leaves it to the other finders."""

    def __init__(self, guard: CodeGuard) -> None:
        self._guard = guard
        self._roots = {name.partition(".")[0] for name in guard.versions}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        known = fullname in self._guard.versions
        first_party = not known and fullname.partition(".")[0] in self._roots
        if first_party and PathFinder.find_spec(fullname, path) is not None:
            raise HandoffError(
                f"code: the stage imports {fullname}, which is not part of its code's version, because no import "
                "statement names it. Import it by a statement."
            )
        _note(self._guard, fullname)


def _note(guard: CodeGuard, name: str) -> None:
    if name in guard.versions:
        path, digest = guard.sources[name]
        # Comments and formatting change the file and not the version.
        if _digest(Path(path)) != digest and _version(Path(path)) != guard.versions[name]:
            raise HandoffError(
                f"code: {name} was edited after the stage had begun and before it was imported. Run again: finished "
                "stages are kept."
            )
    elif name not in LIBRARIES:
        return
    _append(guard, [name])


def _append(guard: CodeGuard, names: Iterable[str]) -> None:
    descriptor = os.open(guard.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, "".join(f"{name}\n" for name in names).encode())
    finally:
        os.close(descriptor)


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""


def _version(source: Path) -> str:
    return source_version(source) if source.is_file() else ""
