"""Finds the files in `configs/`, composes them with overrides over the defaults of a configuration
class, and validates the result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from robots.config import key_paths, to_plain, validate
from robots.errors import HandoffError, suggest

MISSING = "???"
"""Hydra's marker for a mandatory value without a default."""

Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Plain values by group and option name; a file or an override chooses one option of a group."""

T = TypeVar("T")


def available(group: str = "") -> list[str]:
    """Names of the files in `configs/<group>/`; without a group, the names of the recipes."""
    return sorted(file.stem for file in _folder(group).glob("*.yaml"))


def compose_file(
    cls: type[T],
    name: str,
    overrides: Sequence[str] = (),
    *,
    group: str = "",
    defaults: Mapping[str, Any] | None = None,
    choices: Choices | None = None,
    groups: Sequence[str] = (),
) -> T:
    """Composes `configs/<group>/<name>.yaml` over the defaults that live in the configuration
    classes.

    Args:
        cls: class of the whole configuration.
        name: a file in the group, without its ending.
        overrides: Hydra overrides, e.g. `pretrain.training.steps=2000`.
        group: a folder of `configs/`; empty for `configs/` itself.
        defaults: plain values to which the file refers as `<group>_defaults` (`defaults` without a
            group); None takes those of the class.
        choices: further groups, in addition to the folders of `configs/`.
        groups: names by which an override may choose from a group, such as `policy`.

    Raises:
        HandoffError: no such file, an unknown key (by its path, with the nearest known one), an
            ill-typed value, or a missing mandatory value.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # Register the defaults and the choices with Hydra.
    label = f"configs/{group}/{name}.yaml" if group else f"configs/{name}.yaml"
    if name not in available(group):
        raise HandoffError(f"{label} does not exist, {suggest(name, available(group))}")
    store = ConfigStore.instance()
    node = dict(to_plain(cls()) if defaults is None else defaults)
    store.store(name=f"{group}_defaults" if group else "defaults", node=node)
    for choice, nodes in (choices or {}).items():
        for option, values in nodes.items():
            store.store(group=choice, name=option, node=dict(values))
    check_overrides(cls, overrides, groups)
    # Compose the file with the overrides; Hydra's errors become one line.
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("configs", version_base="1.3"):
            composed = compose(f"{group}/{name}" if group else name, overrides=list(overrides))
        missing = sorted(OmegaConf.missing_keys(composed))
        values = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        if lost := re.search(r"Could not find '([\w/]+)/(\w+)'", reason):
            options = _options(lost[1], choices or {})
            reason = f"{lost[1]}: no option '{lost[2]}', {suggest(lost[2], options)}"
        if groups and reason.startswith("Could not override"):
            reason += " Does the key belong to another policy family or network?"
        raise HandoffError(f"{label} with {list(overrides)}: {reason}") from None
    if missing:
        raise HandoffError(f"{label} with {list(overrides)}: {', '.join(missing)} must be given.")
    assert isinstance(values, dict)
    try:
        return validate(cls, {str(key): value for key, value in values.items()})
    except HandoffError as error:
        raise HandoffError(f"{label} with {list(overrides)}: {error}") from None


def check_overrides(cls: type, overrides: Sequence[str], groups: Sequence[str] = ()) -> None:
    """Checks that the key of every override exists in the configuration class.

    Hydra alone would report the key, but suggest neither the nearest known key nor a key of another
    option of a group.

    Raises:
        HandoffError: an unknown key, or an override without a value.
    """
    known = [*key_paths(cls), *groups] if overrides else []
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals and not override.startswith("~"):
            raise HandoffError(
                f"override '{override}' has no '='. Write key=value, e.g. pretrain.training.steps=2000."
            )
        if key.lstrip("+~") not in known:
            hint = suggest(key, known, "known keys:")
            raise HandoffError(f"configuration: unknown key '{key}', {hint}")


def read_file(cls: type[T], name: str, *, group: str) -> T:
    """Reads a YAML file that contains the whole configuration of a class.

    Args:
        cls: the class.
        name: a file in `configs/<group>/`, without its ending, or the path of a YAML file.
        group: folder of such files in `configs/`; also used in messages.

    Raises:
        HandoffError: no such file, not YAML, an unknown key, or an invalid value.
    """
    import yaml

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _folder(group) / f"{name}.yaml"
    if not path.is_file():
        hint = suggest(name, available(group))
        raise HandoffError(f"{group} {path} does not exist; {hint}")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HandoffError(f"{group} {path}: not YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(values, dict):
        raise HandoffError(
            f"{group} {path}: holds {type(values).__name__}, expected keys and values."
        )
    return validate(cls, values, path.name)


def _options(group: str, choices: Choices) -> list[str]:
    """Names that can be chosen for a group: the files of its folder, and its registered nodes."""
    return sorted({*available(group), *choices.get(group, {})})


def _folder(group: str) -> Path:
    import configs

    return Path(configs.__path__[0]) / group
