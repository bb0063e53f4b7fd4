"""Compares two revisions by the bodies of their functions and classes, wherever those stand.

    python -m tests.bodies BEFORE AFTER [--renames TABLE.json]

Docstrings and imports do not count, nor does the file that holds a definition, so a move of modules
leaves the multiset of bodies as it was; what is printed is what did change. A table maps old
identifiers to new ones, for a change that also renames.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("flows", "robots", "policies", "sim", "real")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def sources(revision: str) -> dict[str, str]:
    """Text of every module of the packages at a revision, by path."""
    listed = _git("ls-tree", "-r", "--name-only", revision, "--", *PACKAGES).splitlines()
    return {path: _git("show", f"{revision}:{path}") for path in listed if path.endswith(".py")}


def bodies(files: Mapping[str, str], renames: Mapping[str, str] | None = None) -> Counter[str]:
    """Counts the top-level functions and classes and the methods, each as its syntax tree's
    dump."""
    found: Counter[str] = Counter()
    for text in files.values():
        tree = ast.parse(text)
        _Bare(renames or {}).visit(tree)
        for node in tree.body:
            if isinstance(node, Definition):
                found[f"{node.name}: {ast.dump(node)}"] += 1
    return found


class _Bare(ast.NodeTransformer):
    """Drops docstrings and imports and renames identifiers."""

    def __init__(self, renames: Mapping[str, str]) -> None:
        self.renames = renames

    def visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "name", "attr", "arg"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self.renames.get(value, value))
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [statement for statement in body if not _says_nothing(statement)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        return self.generic_visit(node)


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _git(*command: str) -> str:
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run(["git", *command], capture_output=True, text=True, check=True, cwd=root)
    return result.stdout


def main() -> None:
    """Prints the definitions that only one of the two revisions has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--renames", type=Path)
    options = parser.parse_args()
    renames = json.loads(options.renames.read_text()) if options.renames else {}
    before = bodies(sources(options.before), renames)
    after = bodies(sources(options.after))
    for sign, only in (("-", before - after), ("+", after - before)):
        for body in sorted(only.elements()):
            print(sign, body.split(":")[0])
    print(
        f"{before.total()} bodies before, {after.total()} after, {(before & after).total()} alike"
    )


if __name__ == "__main__":
    main()
