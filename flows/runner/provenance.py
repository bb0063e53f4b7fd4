"""Collects what a manifest says about a computation: seeds, person, environment and the lock of all
installed packages."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import Any

from flows.runner.artifact import json_digest
from robots.code_version import ROOT
from robots.processes import login

NUMERIC_PACKAGES = (
    "torch",
    "diffusers",
    "zarr",
    "mujoco",
    "onnxruntime",
    "gym-pusht",
    "franky-control",
)
"""Packages whose versions reports show; the lock has all of them."""
DIRTY = "-dirty"
"""Ending of the commit of a checkout that was edited."""


def nested_seeds(options: Any, path: str = "") -> dict[str, int]:
    """Returns every seed in the options of a stage, by dotted path.

    Args:
        options: plain nested options.
        path: dotted path of `options`.
    """
    return {name: value for name, value in leaves(options, path) if _is_seed(name, value)}


def _is_seed(path: str, value: Any) -> bool:
    last = path.rpartition(".")[2]
    return isinstance(value, int) and (last == "seed" or last.endswith("_seed"))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the value of every option that is no block or list.

    Args:
        value: plain nested options.
        path: dotted path of `value`.
    """
    prefix = f"{path}." if path else ""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from leaves(entry, f"{prefix}{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, entry in enumerate(value):
            yield from leaves(entry, f"{prefix}{i}")
    else:
        yield path, value


def person_of(options: Any) -> str:
    """Returns the person behind a stage: the one whom its operator names, else the login that ran
    it.

    Args:
        options: plain nested options of the stage.
    """
    operator = options.get("operator") if isinstance(options, Mapping) else None
    named = operator.get("person") if isinstance(operator, Mapping) else None
    return str(named) if named else login()


def by_person(options: Any) -> bool:
    """Returns whether a person demonstrates or corrects in a stage, so that no computation can make
    its artifact again.

    Args:
        options: plain nested options of the stage.
    """
    operator = options.get("operator") if isinstance(options, Mapping) else None
    return isinstance(operator, Mapping) and operator.get("kind", "simulated") != "simulated"


def environment() -> dict[str, Any]:
    """Returns the Python, the computer, the commit and the versions of packages that decide
    numbers."""
    commit = _commit()
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "commit": commit,
        "dirty": commit.endswith(DIRTY),
        **{name: _installed(name) for name in NUMERIC_PACKAGES},
    }


@cache
def package_lock() -> dict[str, str]:
    """Returns all installed packages as one line, `name==version` separated by spaces, and its
    digest."""
    found = {
        (entry.metadata["Name"] or "").lower().replace("_", "-"): entry.version
        for entry in distributions()
    }
    lines = [f"{name}=={number}" for name, number in sorted(found.items()) if name]
    return {"digest": json_digest(lines), "packages": " ".join(lines)}


def _installed(package: str) -> str:
    """The package's version; some, such as franky-control, are not available on every machine."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown (git is not installed)"
    return result.stdout.strip() or "unknown (not a git checkout)"
