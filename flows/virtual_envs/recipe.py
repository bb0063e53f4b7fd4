"""Reads the files of `configs/envs`: pinned packages of a virtual environment, and its trial."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from pathlib import Path
from typing import Any

from flows.config.files import CONFIGS, ENDINGS, available, read_options
from robots.config import Count, config, to_plain, validate
from robots.errors import HandoffError
from sim.make import EnvConfig

GROUP = "envs"
"""Folder of such files."""
SERVER_PACKAGES = ("numpy", "msgpack")
"""Packages that every environment server needs."""


@config
class InstallStep:
    """One call of pip."""

    packages: tuple[str, ...]
    """Requirements, pinned by `==`."""
    dependencies: bool = True
    """Whether pip also installs what the packages ask for."""
    any_python: bool = False
    """Whether packages are installed that state other versions of Python."""


@config
class VenvRecipe:
    """A virtual environment for an environment server."""

    python: str
    """Versions of Python that it was tested with, as a requirement such as `>=3.11,<3.12`."""
    megabytes: Count
    """Size on the disk [MB]."""
    install: tuple[InstallStep, ...]
    """Calls of pip, in order."""
    imports: tuple[str, ...]
    """Modules that must be importable."""
    trial: dict[str, Any] = field(default_factory=dict)
    """Environments of the trial, under the names of `sim.make.EnvConfig`; empty for none."""

    def __post_init__(self) -> None:
        """Checks the requirements.

        Raises:
            HandoffError: none, or one that is not pinned.
        """
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(self.python)
            requirements = [Requirement(text) for step in self.install for text in step.packages]
        except (InvalidSpecifier, InvalidRequirement) as error:
            raise HandoffError(f"virtual environment: {error}.") from None
        loose = [
            each.name for each in requirements if [s.operator for s in each.specifier] != ["=="]
        ]
        names = {each.name.lower() for each in requirements}
        missing = [name for name in SERVER_PACKAGES if name not in names]
        if loose or missing:
            raise HandoffError(
                f"virtual environment: not pinned by ==: {loose}; missing: {missing}, which every server needs."
            )


def recipe_names() -> list[str]:
    """Names of the virtual environments that Handoff can make."""
    return available(GROUP)


def read_venv_recipe(name: str) -> VenvRecipe:
    """Reads the file of a virtual environment.

    Args:
        name: a file in `configs/envs/` without its ending, or the path of a YAML file.

    Raises:
        HandoffError: no such file, or an invalid one.
    """
    values = read_options(GROUP, name, [CONFIGS], "name")
    return validate(VenvRecipe, values, f"virtual environment {venv_name(name)}")


def venv_name(name: str) -> str:
    """Name of the virtual environment of a recipe, which may be a path."""
    return Path(name).stem if name.endswith(ENDINGS) else name


def recipe_digest(recipe: VenvRecipe) -> str:
    """Digest (hex sha256) of what is installed."""
    plain = to_plain(recipe)
    return hashlib.sha256(json.dumps(plain["install"], sort_keys=True).encode()).hexdigest()


def trial_config(recipe: VenvRecipe, folder: Path) -> EnvConfig:
    """The environments of the trial, in the virtual environment at `folder`.

    Raises:
        HandoffError: an unknown option.
    """
    server = {**recipe.trial.get("server", {}), "venv": str(folder)}
    values = {**recipe.trial, "engine": "server", "server": server}
    return validate(EnvConfig, values, f"virtual environment {folder.name}: trial")
