"""Finds the pip extra of Handoff that installs a missing package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTIONS = {
    "PIL": "pillow",
    "franky": "franky-control",
    "mlflow": "mlflow-skinny",
    "rerun": "rerun-sdk",
    "warp": "mujoco-warp",
    "yaml": "pyyaml",
}
"""Names of distributions that differ from those of their modules, by module."""
FIRST_PARTY = ("flows", "policies", "real", "robots", "sim", "configs", "tests")
"""Top-level packages of Handoff."""


def pip_install(extra: str) -> str:
    """The pip command that installs an extra, with the versions that Handoff is tested with; an
    empty string stands for the mandatory packages."""
    requirement = f".[{extra}]" if extra else "."
    return f"pip install -c constraints.txt -e '{requirement}'"


def install_hint(module: str) -> str | None:
    """The message with the pip command that installs `module`; None for a module of Handoff.

    Args:
        module: name of the module, such as `mani_skill.envs`, or of its distribution.
    """
    name = module.partition(".")[0]
    if name in FIRST_PARTY:
        return None
    extra = _smallest_extra(DISTRIBUTIONS.get(name, name))
    if extra is None:
        return f"{name} is not installed, and Handoff does not depend on it."
    return f"{name} is not installed. Install it in the checkout: {pip_install(extra)}."


def install_hints(modules: Sequence[str]) -> list[str]:
    """The messages of `install_hint` for several missing modules that one thing needs: a single one
    where an extra contains them all.

    Args:
        modules: names of modules or distributions, none of Handoff's own.
    """
    if len(modules) < 2:
        return [install_hint(name) or f"{name} is not installed." for name in modules]
    extra = _smallest_extra(*(DISTRIBUTIONS.get(name, name) for name in modules))
    if extra is None:
        return [install_hint(name) or f"{name} is not installed." for name in modules]
    named = f"{', '.join(modules[:-1])} and {modules[-1]}"
    return [f"{named} are not installed. Install them in the checkout: {pip_install(extra)}."]


def _smallest_extra(*distributions: str) -> str | None:
    """The smallest extra that contains distributions: an empty string if they are mandatory
    dependencies, None if no extra contains them all."""
    try:
        lines = requires("handoff") or []
    except PackageNotFoundError:
        return None
    packages: dict[str, list[str]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"""extra == ["']([\w-]+)["']""", marker)
        name = re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]
        packages.setdefault(extra[1] if extra else "", []).append(_normalised(name))
    wanted = {_normalised(distribution) for distribution in distributions}
    containing = [extra for extra, names in packages.items() if wanted <= set(names)]
    if "" in containing:
        return ""
    return min(containing, key=lambda extra: len(packages[extra]), default=None)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
