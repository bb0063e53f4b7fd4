"""Tells which extra of Handoff brings a package that is not installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTIONS = {
    "PIL": "pillow",
    "franky": "franky-control",
    "warp": "mujoco-warp",
    "yaml": "pyyaml",
}
"""Distributions that are not called as the modules in them."""
OWN = ("flows", "policies", "real", "robots", "sim", "configs", "tests")
"""Top-level names of Handoff itself."""


def install_hint(module: str) -> str | None:
    """One line that says how to install what brings `module`; None for a module of Handoff's own.

    Args:
        module: as it is imported, such as `mani_skill.envs`, or the name of its distribution.
    """
    name = module.partition(".")[0]
    if name in OWN:
        return None
    extra = _smallest_extra(DISTRIBUTIONS.get(name, name))
    if extra is None:
        return f"{name} is not installed, and is none of the packages that Handoff asks for."
    wanted = f"handoff[{extra}]" if extra else "handoff"
    return f"{name} is not installed. Install it: pip install '{wanted}'."


def _smallest_extra(distribution: str) -> str | None:
    """The extra of the fewest packages that brings a distribution: an empty string where every
    install does, None where none does."""
    try:
        lines = requires("handoff") or []
    except PackageNotFoundError:
        return None
    packages: dict[str, list[str]] = {}
    for line in lines:
        wanted, _, marker = line.partition(";")
        extra = re.search(r"""extra == ["']([\w-]+)["']""", marker)
        name = re.split(r"[^\w.-]", wanted.strip(), maxsplit=1)[0]
        packages.setdefault(extra[1] if extra else "", []).append(_normalised(name))
    bringing = [extra for extra, names in packages.items() if _normalised(distribution) in names]
    if "" in bringing:
        return ""
    return min(bringing, key=lambda extra: len(packages[extra]), default=None)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
