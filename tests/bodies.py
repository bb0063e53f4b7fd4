"""Compares two revisions by the bodies of their functions and classes, wherever those stand.

    python -m tests.bodies BEFORE AFTER [--renames TABLE.json] [--names | --shape]

Docstrings and imports do not count, nor does the file that holds a definition, so a move of modules
leaves the multiset of bodies as it was; what is printed is what did change. A table maps old
identifiers to new ones, for a change that also renames. With `--names`, functions and methods are
compared with their identifiers numbered in the order of appearance and without the text of strings:
a change of names and messages alone leaves them alike. Names of Python's builtins, NumPy and torch
keep their meaning; with `--shape`, no name counts. `a, b = x, y` counts as two assignments.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
import json
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
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


def named_bodies(files: Mapping[str, str], shape: bool = False) -> Counter[str]:
    """Counts functions and methods as dumps in which only the names of libraries are left; with
    `shape`, no name at all."""
    return Counter(dump for dump, _ in _functions(files, shape))


def _functions(files: Mapping[str, str], shape: bool) -> Iterator[tuple[str, str]]:
    """Dump and place of every function and method."""
    for path, text in files.items():
        tree = ast.parse(text)
        _Bare({}).visit(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                bare = copy.deepcopy(node)
                _Numbered(() if shape else _library_names(), shape).visit(bare)
                yield ast.dump(bare), f"{path} {node.name}"


@cache
def _library_names() -> frozenset[str]:
    import numpy as np
    import torch

    members = (dir(owner) for owner in (builtins, np, np.ndarray, torch, torch.Tensor))
    return frozenset(name for names in members for name in names)


class _Numbered(ast.NodeTransformer):
    """Numbers identifiers in the order of appearance (with `shape`, all alike), empties strings,
    unpacks assignments."""

    def __init__(self, kept: Collection[str], shape: bool) -> None:
        self.kept = kept
        self.shape = shape
        self.numbers: dict[str, str] = {}

    def visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "name", "attr", "arg"):
            value = getattr(node, field, None)
            if isinstance(value, str) and value not in self.kept:
                number = self.numbers.setdefault(
                    "" if self.shape else value, f"n{len(self.numbers)}"
                )
                setattr(node, field, number)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        if isinstance(node, ast.JoinedStr):
            node.values = [one for one in node.values if not isinstance(one, ast.Constant)]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for statement in body for one in _unpacked(statement)]  # type: ignore[attr-defined]
        return self.generic_visit(node)


def _unpacked(node: ast.stmt) -> list[ast.stmt]:
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
        return [node]
    targets, values = node.targets[0], node.value
    if not (isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple)):
        return [node]
    if len(targets.elts) != len(values.elts):
        return [node]
    pairs = zip(targets.elts, values.elts, strict=True)
    return [ast.Assign(targets=[target], value=value) for target, value in pairs]


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
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--shape", action="store_true")
    options = parser.parse_args()
    if options.names or options.shape:
        _print_names(sources(options.before), sources(options.after), options.shape)
        return
    renames = json.loads(options.renames.read_text()) if options.renames else {}
    before = bodies(sources(options.before), renames)
    after = bodies(sources(options.after))
    for sign, only in (("-", before - after), ("+", after - before)):
        for body in sorted(only.elements()):
            print(sign, body.split(":")[0])
    print(
        f"{before.total()} bodies before, {after.total()} after, {(before & after).total()} alike"
    )


def _print_names(before: Mapping[str, str], after: Mapping[str, str], shape: bool) -> None:
    old, new = named_bodies(before, shape), named_bodies(after, shape)
    for sign, only, files in (("-", old - new, before), ("+", new - old, after)):
        places = dict(_functions(files, shape))
        for place in sorted(places[body] for body in only):
            print(sign, place)
    print(f"{old.total()} functions before, {new.total()} after, {(old & new).total()} alike")


if __name__ == "__main__":
    main()
