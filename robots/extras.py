"""Finds the pip extra of Handoff that installs a missing package."""

from __future__ import annotations

import re
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


def _smallest_extra(distribution: str) -> str | None:
    """The smallest extra that contains a distribution: an empty string if it is a mandatory
    dependency, None if no extra contains it."""
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
    containing = [extra for extra, names in packages.items() if _normalised(distribution) in names]
    if "" in containing:
        return ""
    return min(containing, key=lambda extra: len(packages[extra]), default=None)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
