"""Reads the structure of the packages from their syntax trees: modules, imports, classes,
options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "robots", "policies", "sim", "real")


@cache
def modules() -> Mapping[str, Path]:
    """Every module and package of the project: dotted name to file."""
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def tree(module: str) -> ast.Module:
    """Syntax tree of a module."""
    return ast.parse(modules()[module].read_text())


def packages() -> Mapping[str, list[str]]:
    """Dotted names of the packages, each with the names of the modules right inside it."""
    found: dict[str, list[str]] = {}
    for name, file in modules().items():
        if file.name == "__init__.py":
            found.setdefault(name, [])
        else:
            found.setdefault(name.rpartition(".")[0], []).append(name.rpartition(".")[2])
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a module imports anywhere: inside functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules() else node.module)
    return frozenset(names & modules().keys() - {module})


def circles() -> list[list[str]]:
    """Groups of modules that import one another (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports(name)):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in modules():
        if name not in index:
            visit(name)
    return found


def reachable(roots: tuple[str, ...]) -> set[str]:
    """Modules that are reached from the roots by imports or by their dotted name in a string."""
    found: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        pending += imports(name)
        pending += [
            node.value
            for node in ast.walk(tree(name))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in modules()
        ]
        parents = name.split(".")
        pending += [".".join(parents[:depth]) for depth in range(1, len(parents))]
    return found


def public_classes() -> Mapping[str, list[str]]:
    """Modules that define a public top-level class, by the class's name."""
    found: dict[str, list[str]] = {}
    for name in modules():
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return found


def options() -> Iterator[tuple[str, str, str | None]]:
    """Every field of every configuration class: module and class, field, docstring."""
    for name in modules():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef) and any(
                _is_config(one) for one in node.decorator_list
            ):
                yield from _fields(f"{name}.{node.name}", node)


def packed_assignments(module: str) -> list[int]:
    """Lines that assign several attributes, or three names and more, from as many values."""
    found: list[int] = []
    for node in ast.walk(tree(module)):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Tuple):
                continue
            attributes = any(isinstance(one, ast.Attribute) for one in target.elts)
            if attributes or len(target.elts) > 2:
                found.append(node.lineno)
    return found


def identifiers(module: str) -> frozenset[str]:
    """Names that a module defines: of functions, classes, parameters, attributes and variables."""
    names: set[str] = set()
    for node in ast.walk(tree(module)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
    return frozenset(names)


def wide_lines(module: str, limit: int) -> list[int]:
    """Lines beyond `limit` columns, but those that end inside a string that is no docstring."""
    text = modules()[module].read_text()
    docs = _docstring_lines(tree(module))
    strings = {
        line
        for node in ast.walk(tree(module))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > limit
        and (number in docs or number not in strings)
        and "://" not in line
        and "| " not in line
        and not re.search(r"#.*(noqa|type: ignore)", line)
    ]


def _is_config(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "config"


def _fields(where: str, node: ast.ClassDef) -> Iterator[tuple[str, str, str | None]]:
    following = [*node.body[1:], None]
    for statement, after in zip(node.body, following, strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = str(after.value.value)
            yield where, statement.target.id, text


def _docstring_lines(module: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                lines |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines
