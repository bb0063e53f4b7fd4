"""Checks Python, the installed packages and the extras of Handoff."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import configs
from flows.doctor.check import Check

if TYPE_CHECKING:
    from packaging.requirements import Requirement

CONSTRAINTS = Path(configs.__path__[0]).parent / "constraints.txt"
"""The tested versions; the file exists in a checkout only."""
MOST_NAMED = 8
"""Largest number of packages that a line names."""
REINSTALL = "Give `pip install -c constraints.txt -e '.[laptop]'` in the checkout."

Installed = Callable[[str], str | None]
"""Returns the version of a distribution, None if it is not installed."""


class DeclaredPackages(NamedTuple):
    """Packages that Handoff asks for."""

    lines: Sequence[str]
    """Requirements with markers, such as `torch>=2.13; extra == 'laptop'`."""
    extras: Sequence[str]
    """Names of the extras."""


def installed_version(distribution: str) -> str | None:
    """Returns the version of a distribution, None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def python_version(running: str | None = None, supported: str | None = None) -> Check:
    """Checks the version of Python.

    Args:
        running: version of Python; None takes that of this process.
        supported: versions that Handoff supports, e.g. `<3.14,>=3.11`; None takes those of the
            installed package.
    """
    from packaging.specifiers import SpecifierSet

    running = running or platform.python_version()
    if supported is None:
        try:
            supported = metadata("handoff")["Requires-Python"]
        except PackageNotFoundError:
            return Check("Python", "failed", f"{running}; handoff is not installed", REINSTALL)
    if SpecifierSet(supported).contains(running, prereleases=True):
        return Check("Python", "ok", running)
    return Check(
        "Python",
        "failed",
        f"{running}, expected {supported}",
        "Make a virtual environment with a supported Python and install Handoff into it.",
    )


def pinned_versions(
    constraints: Path = CONSTRAINTS, installed: Installed = installed_version
) -> Check:
    """Compares the installed versions with the tested ones; local parts, such as `+cpu`, are
    ignored.

    Args:
        constraints: file with lines `name==version`.
        installed: returns the version of a distribution.
    """
    from packaging.requirements import Requirement

    if not constraints.is_file():
        return Check("packages", "not checked", "no constraints.txt: this is not a checkout")
    lines = [line.partition("#")[0].strip() for line in constraints.read_text().splitlines()]
    same = 0
    differing: dict[str, str] = {}
    for requirement in (Requirement(line) for line in lines if line):
        found = installed(requirement.name)
        if found is None:
            continue
        if requirement.specifier.contains(found, prereleases=True):
            same += 1
        else:
            differing[requirement.name] = f"{requirement.name} {found} ({requirement.specifier})"
    if not differing:
        return Check("packages", "ok", f"{same} have the versions of constraints.txt")
    names = " ".join(differing)
    return Check(
        "packages",
        "warning",
        f"{_first(differing.values())}: other versions than the tested ones",
        f"Give `pip install -c constraints.txt {names}`.",
    )


def declared_packages() -> DeclaredPackages:
    """Returns what the metadata of the installed Handoff state; nothing if it is not installed."""
    try:
        extras = metadata("handoff").get_all("Provides-Extra") or []
        return DeclaredPackages(requires("handoff") or [], extras)
    except PackageNotFoundError:
        return DeclaredPackages([], [])


def required_packages(
    declared: DeclaredPackages, installed: Installed = installed_version
) -> Check:
    """Checks the packages that every installation needs.

    Args:
        declared: requirements of Handoff.
        installed: returns the version of a distribution.
    """
    needed = _holding(_parsed(declared), "")
    lacking = [text for one in needed if (text := _lack(one, installed))]
    if not needed:
        return Check("requirements", "not checked", "handoff is not installed")
    if lacking:
        return Check("requirements", "failed", f"lacking {_first(lacking)}", REINSTALL)
    return Check("requirements", "ok", f"all {len(needed)} packages that every install needs")


def extras(declared: DeclaredPackages, installed: Installed = installed_version) -> Check:
    """Names the extras that are installed, and what the others lack; see `required_packages`."""
    parsed = _parsed(declared)
    always = _holding(parsed, "")
    present: list[str] = []
    absent: list[str] = []
    unavailable: list[str] = []
    for extra in sorted(declared.extras):
        needed = [one for one in _holding(parsed, extra) if one not in always]
        lacking = [text for one in needed if (text := _lack(one, installed))]
        if not needed:
            unavailable.append(extra)
        elif lacking:
            absent.append(f"{extra} ({_first(lacking, 3)})")
        else:
            present.append(extra)
    parts = [f"installed: {', '.join(present) or 'none'}"]
    parts += [f"not installed: {', '.join(absent)}"] if absent else []
    parts += [f"not for this machine: {', '.join(unavailable)}"] if unavailable else []
    return Check("extras", "ok", "; ".join(parts))


def _parsed(declared: DeclaredPackages) -> list[Requirement]:
    from packaging.requirements import Requirement

    return [Requirement(line) for line in declared.lines]


def _holding(requirements: Sequence[Requirement], extra: str) -> list[Requirement]:
    """Requirements that hold on this machine with an extra; without one, those of every install."""
    return [
        one for one in requirements if one.marker is None or one.marker.evaluate({"extra": extra})
    ]


def _lack(requirement: Requirement, installed: Installed) -> str | None:
    """Name of a package that is absent or has a version that Handoff does not accept."""
    found = installed(requirement.name)
    if found is None:
        return requirement.name
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} {requirement.specifier}, installed is {found}"


def _first(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """The first names, and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"
