"""Computes the version of a module's code: a digest of it and of all first-party modules it
imports. For a module of another package, the modules of that package count as well.

Imports, including those inside functions, are read from the syntax tree, so no module is imported.
Comments, docstrings and formatting do not change the version; a data file with the stem of a module
(`robots/franka/fr3.xml` beside `robots/franka/fr3.py`) does.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "robots", "policies", "sim", "real")


@cache
def code_version(module: str) -> str:
    """Digest (hex sha256) of the code of `module` and of all modules that it imports.

    Args:
        module: dotted name of a module, e.g. `flows.stages.learn.pretrain`.
    """
    digest = hashlib.sha256()
    for name in sorted(reachable(module)):
        digest.update(f"{name}:{_file_version(_source(name, _root(module)))}\n".encode())
    return digest.hexdigest()


def reachable(module: str) -> set[str]:
    """First-party modules that `module` imports, directly or not, itself included."""
    own = _root(module)
    modules: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in modules or _source(name, own) is None:
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
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(candidate for candidate in names if _root(candidate) in (*PACKAGES, own))


def _source(name: str, own: str) -> Path | None:
    """The file of a module of Handoff, or of the package `own`; None if there is none."""
    if _root(name) not in PACKAGES:
        return _outside_source(name) if _root(name) == own else None
    base = ROOT.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
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
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)] or [
                ast.Pass()
            ]
    digest = hashlib.sha256(ast.dump(tree).encode())
    for neighbour in sorted(source.parent.glob(f"{source.stem}.*")):
        if neighbour.suffix not in (".py", ".pyc"):
            digest.update(neighbour.read_bytes())
    return digest.hexdigest()


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
