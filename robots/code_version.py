"""Computes the version of a module's code: a digest of it and of all first-party modules it
imports.

Imports, including those inside functions, are read from the syntax tree, so no module is imported.
Comments, docstrings and formatting do not change the version; a data file with the stem of a module
(`robots/franka/fr3.xml` beside `robots/franka/fr3.py`) does.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "robots", "policies", "sim", "real")


@cache
def code_version(module: str) -> str:
    """Digest (hex sha256) of the code of `module` and of all modules that it imports.

    Args:
        module: dotted name of a first-party module, e.g. `flows.stages.pretrain`.
    """
    digest = hashlib.sha256()
    for name in sorted(reachable(module)):
        digest.update(f"{name}:{_file_version(_source(name))}\n".encode())
    return digest.hexdigest()


def reachable(module: str) -> set[str]:
    """First-party modules that `module` imports, directly or not, itself included."""
    modules: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in modules or _source(name) is None:
            continue
        modules.add(name)
        pending.extend(_imports(name))
        pending.extend(name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
    return modules


@cache
def _imports(name: str) -> tuple[str, ...]:
    source = _source(name)
    assert source is not None
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(candidate for candidate in names if candidate.split(".")[0] in PACKAGES)


def _source(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


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
