"""Computes the version of a module's code: a digest of it and of all first-party modules it
imports. For a module of another package, the modules of that package count as well.

Imports, including those inside functions, are read from the syntax tree, so no module is imported.
Comments, docstrings and formatting do not change the version; a data file with the stem of a module
(`robots/franka/fr3.xml` beside `robots/franka/fr3.py`) does.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from robots.storage.parsed_sources import ParsedSource, ParsedSources, parse_source

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "robots", "policies", "sim", "real")


@cache
def code_version(module: str) -> str:
    """Digest (hex sha256) of the code of `module` and of all modules that it imports.

    Args:
        module: dotted name of a module, e.g. `flows.stages.learn.pretrain`.
    """
    digest = hashlib.sha256()
    for name, version in versions_of(module).items():
        digest.update(f"{name}:{version}\n".encode())
    return digest.hexdigest()


def versions_of(module: str) -> dict[str, str]:
    """Versions of `module` and of all modules that it imports, by name, in alphabetical order."""
    own = _root(module)
    versions = {name: _file_version(_source(name, own)) for name in sorted(reachable(module))}
    _sources(ROOT).save()
    return versions


def module_version(name: str) -> str | None:
    """Version of one module alone, without those that it imports; None if it does not exist."""
    source = module_source(name)
    return None if source is None else _file_version(source)


def module_source(name: str) -> Path | None:
    """The source file of a module of Handoff or of another package; None if there is none."""
    return _source(name, _root(name))


def reachable(module: str) -> set[str]:
    """First-party modules that `module` imports, directly or not, itself included."""
    own = _root(module)
    modules: set[str] = set()
    # Most imported names are those of functions and classes, each of them many times.
    others: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in modules or name in others:
            continue
        if _source(name, own) is None:
            others.add(name)
            continue
        modules.add(name)
        pending.extend(_imports(name, own))
        pending.extend(name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
    return modules


def _root(module: str) -> str:
    return module.split(".")[0]


@cache
def _imports(name: str, own: str) -> tuple[str, ...]:
    source = _source(name, own)
    assert source is not None
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    names = [_absolute(imported, package) for imported in _parsed(source).imports]
    return tuple(candidate for candidate in names if _root(candidate) in (*PACKAGES, own))


def _absolute(imported: str, package: str) -> str:
    """The absolute name of an import; `package` is that of the module that imports."""
    rest = imported.lstrip(".")
    level = len(imported) - len(rest)
    if not level:
        return imported
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([rest] if rest else [])])


def _source(name: str, own: str) -> Path | None:
    """The file of a module of Handoff, or of the package `own`; None if there is none."""
    if _root(name) not in PACKAGES:
        return _outside_source(name) if _root(name) == own else None
    # Thousands of names are looked up for one plan, and paths as text take a third of the time.
    base = os.path.join(ROOT, *name.split("."))
    for candidate in (f"{base}.py", os.path.join(base, "__init__.py")):
        if os.path.isfile(candidate):
            return Path(candidate)
    return None


@cache
def _outside_source(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.suffix == ".py" and file.is_file() else None


@cache
def _file_version(source: Path | None) -> str:
    assert source is not None
    return source_version(source)


def source_version(source: Path) -> str:
    """Version of one source file and of the data files beside it, as they are now."""
    parsed = _parsed(source).digest
    neighbours = _data_files(source)
    if not neighbours:
        return parsed
    digest = hashlib.sha256(parsed.encode())
    for neighbour in neighbours:
        digest.update(neighbour.read_bytes())
    return digest.hexdigest()


def _parsed(source: Path) -> ParsedSource:
    """The parsed file; only those of Handoff are kept on disk."""
    return _sources(ROOT).parsed(source) if source.is_relative_to(ROOT) else parse_source(source)


@cache
def _sources(root: Path) -> ParsedSources:
    return ParsedSources(root)


def has_data_files(source: Path) -> bool:
    """Whether files beside a module belong to its version."""
    return bool(_data_files(source))


def _data_files(source: Path) -> list[Path]:
    """The files beside a module that have its stem and are no source code."""
    names = sorted(os.listdir(source.parent))
    beside = [name for name in names if name.startswith(f"{source.stem}.")]
    return [source.parent / name for name in beside if not name.endswith((".py", ".pyc"))]
