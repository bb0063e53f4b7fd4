"""Reads a recipe: a YAML file with a graph of stages.

    name: drawer
    shared: {protocol: open_drawer}
    stages:
      demos:   {uses: scripted, with: {task: open_drawer}}
      teacher: {uses: pretrain, inputs: {demos: demos}, matrix: {seed: [0, 1]}}
      scores:  {uses: evaluate, inputs: {policy: teacher}}

`defaults` lists files that a recipe extends, recipes or parts of them such as `world/pick_cube`:
their stages are merged with its own, a stage that `uses` another kind is replaced, and a stage that
is `null` is removed. `shared` gives options to
every stage whose options have the key. `${stages.teacher.with.policy}` refers to another value of
the file, `${matrix:task}` to the value of a copy of the stage in a matrix. A stage's `pool` names
the work pool of a Prefect server in which it runs, or is `ray` for a Ray cluster; its `resources`
are what it needs of the computer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.config.files import CONFIGS, find_file, read_yaml
from flows.config.options import build, merge
from flows.config.overrides import Override, parse_overrides, set_value
from flows.config.resources import Resources
from flows.storage.address import storage_address
from robots.errors import HandoffError, suggest
from robots.outside import add_place

KEYS = ("defaults", "name", "about", "runs", "seed", "shared", "stages")
STAGE_KEYS = ("uses", "inputs", "with", "matrix", "pool", "resources")
MATRIX_MARK = "\x00"
"""Encloses the key of `${matrix:KEY}` until the copies of a stage are known."""


@dataclass(frozen=True)
class StageEntry:
    """One entry of `stages:`."""

    uses: str
    """Kind of stage."""
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the stages whose artifacts the input takes, by the name of the input."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain values under `with`."""
    matrix: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values by label, by the option (dotted) that they set; `seed` shifts all seeds of the
    stage."""
    pool: str = ""
    """Work pool of the Prefect server to which the stage is sent, or `ray` for a Ray cluster; empty
    runs it with the others."""
    resources: Resources = field(default_factory=Resources)
    """What the stage needs of the computer."""


@dataclass(frozen=True)
class Recipe:
    """A recipe with its overrides applied."""

    name: str
    """Folder of the results under `runs`."""
    stages: Mapping[str, StageEntry]
    runs: str = "runs"
    """Folder of artifacts and results, or storage of them as `s3://BUCKET/PREFIX`."""
    seed: int = 0
    """Seed of the whole recipe, added to the seeds of its stages; starts of evaluations and
    deployments do not depend on it."""
    about: str = ""
    """Description, a sentence or two."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Options for every stage that has them."""
    folders: Sequence[Path] = ()
    """Folders in which named options are looked for, besides those of Handoff."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Recipe and overrides as they were given; sha256 of the text of the recipe's file, and of
    those that it extends, by path."""


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Args:
        name: a file in `configs/` without its ending, e.g. `demo`, or the path of a YAML file.
        overrides: `STAGE.KEY=value`, e.g. `teacher.training.steps=2000`; `shared.KEY=value`,
            `name=value`, `runs=value`, `seed=value`; `~STAGE` removes a stage.

    Raises:
        HandoffError: no such file, a file that is no recipe, or an override of an unknown stage.
    """
    path = find_file(name)
    if CONFIGS not in path.resolve().parents:
        # Stages and tasks of one's own may lie beside the recipe.
        add_place(path.parent)
    files: dict[str, str] = {}
    values = _load(path, (), files)
    values.setdefault("name", path.stem)
    if not isinstance(values.get("stages"), dict):
        raise HandoffError(f"recipe {path}: no stages. A recipe is a graph under the key 'stages'.")
    for override in parse_overrides(overrides):
        _apply(values, override)
    values = _resolved(values, path)
    folders = tuple(dict.fromkeys([path.parent, path.parent.parent]))
    stages = _mapping(values.get("stages"), f"recipe {path}: stages")
    return Recipe(
        name=_name(values["name"]),
        stages={
            key: _entry(key, value, path) for key, value in stages.items() if value is not None
        },
        runs=_runs(values.get("runs", "runs")),
        seed=_seed(values.get("seed", 0)),
        about=str(values.get("about", "")),
        shared=_mapping(values.get("shared") or {}, f"recipe {path}: shared"),
        folders=folders,
        request={
            "recipe": name,
            "overrides": list(overrides),
            "folder": str(path.parent.resolve()),
            "files": files,
        },
    )


def _load(path: Path, extended_by: tuple[Path, ...], files: dict[str, str]) -> dict[str, Any]:
    """Reads a file and merges it over those that it extends; `files` receives their sha256."""
    if path in extended_by:
        raise HandoffError(f"recipe {path}: it extends itself.")
    values = read_yaml(path, "recipe")
    files[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    for key in values:
        if key not in KEYS:
            raise HandoffError(f"recipe {path}: unknown key '{key}', {suggest(key, KEYS)}")
    bases = values.pop("defaults", [])
    if isinstance(bases, str):
        bases = [bases]
    merged: dict[str, Any] = {}
    for base in bases:
        found = find_file(str(base), [path.parent])
        inherited = _load(found, (*extended_by, path), files)
        # A name and a description are a recipe's own.
        for key in ("name", "about"):
            inherited.pop(key, None)
        merged = merge(merged, inherited)
    return merge(merged, values)


def _apply(values: dict[str, Any], override: Override) -> None:
    """Applies one override in place."""
    stages, (first, *rest) = values["stages"], override.keys
    if first == "stages" and rest:
        first, *rest = rest
    if first in stages and not rest and (override.deletes or override.value is None):
        stages[first] = None
        return
    if first in stages and rest:
        entry = stages[first]
        if not isinstance(entry, dict):
            raise HandoffError(f"override '{override.text}': the stage {first} was removed.")
        if rest[0] not in STAGE_KEYS:
            rest = ["with", *rest]
        _copy_references(values, ["stages", first, *rest])
        _set(entry, rest, override)
        return
    if first in ("name", "runs", "seed") and not rest:
        values[first] = override.value
        return
    shared = values.setdefault("shared", {})
    if first == "shared" and rest:
        _set(shared, rest, override)
        return
    if first in shared:
        _set(shared, [first, *rest], override)
        return
    known = [*stages, *shared, "name", "runs", "seed"]
    raise HandoffError(
        f"unknown key '{'.'.join(override.keys)}': '{first}' is no stage of the recipe, "
        f"{suggest(first, known)}"
    )


def _copy_references(values: dict[str, Any], keys: Sequence[str]) -> None:
    """Replaces the references on the way to a key by copies of what they refer to, so that an
    override below one changes nothing else. Values of a matrix are names of options, which
    `set_value` keeps."""
    from omegaconf import OmegaConf

    inner: Any = values
    for i, key in enumerate(keys[:-1]):
        reference = inner.get(key)
        if isinstance(reference, str) and re.match(r"\$\{(?!matrix:)", reference):
            found = OmegaConf.select(OmegaConf.create(values), ".".join(keys[: i + 1]))
            inner[key] = OmegaConf.to_container(found, resolve=False)
        inner = inner.get(key)
        if not isinstance(inner, dict):
            return


def _set(values: dict[str, Any], keys: Sequence[str], override: Override) -> None:
    if not override.deletes:
        set_value(values, keys, override.value)
        return
    for key in keys[:-1]:
        values = values.get(key) or {}
    if keys[-1] not in values:
        raise HandoffError(f"override '{override.text}': the recipe does not set this key.")
    del values[keys[-1]]


def _resolved(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values with all references (`${..}`) replaced."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.has_resolver("matrix"):
        OmegaConf.register_new_resolver("matrix", lambda key: f"{MATRIX_MARK}{key}{MATRIX_MARK}")
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise HandoffError(f"recipe {path}: {str(error).splitlines()[0]}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _entry(name: str, value: Any, path: Path) -> StageEntry:
    where = f"recipe {path}: stage {name}"
    entry = _mapping(value, where)
    for key in entry:
        if key not in STAGE_KEYS:
            raise HandoffError(f"{where}: unknown key '{key}', {suggest(key, STAGE_KEYS)}")
    if not isinstance(entry.get("uses"), str):
        raise HandoffError(f"{where}: no 'uses', the kind of stage.")
    inputs = _mapping(entry.get("inputs") or {}, f"{where}: inputs")
    options = entry.get("with") or {}
    if isinstance(options, str):
        options = {"uses": options}
    matrix = _mapping(entry.get("matrix") or {}, f"{where}: matrix")
    return StageEntry(
        uses=entry["uses"],
        inputs={
            key: _names(f"{where}: input {key}", given)
            for key, given in inputs.items()
            if given is not None
        },
        options=_mapping(options, f"{where}: with"),
        matrix={key: _labelled(f"{where}: matrix {key}", given) for key, given in matrix.items()},
        pool=_pool(where, entry["uses"], entry.get("pool")),
        resources=build(
            Resources,
            _mapping(entry.get("resources") or {}, f"{where}: resources"),
            f"{name}.resources",
        ),
    )


def _pool(where: str, uses: str, given: Any) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise HandoffError(f"{where}: pool is {given!r}, expected the name of a work pool.")
    if uses == "approve" and given == "ray":
        raise HandoffError(
            f"{where}: an approval waits where the run is, not on a node of a Ray cluster. Remove its pool."
        )
    return given


def _names(where: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise HandoffError(
            f"{where} is {given!r}, expected the name of a stage or a list of names."
        )
    return tuple(names)


def _labelled(where: str, given: Any) -> dict[str, Any]:
    """Values of a matrix by label: a mapping has its own labels, scalars of a list are theirs."""
    if isinstance(given, Mapping) and given:
        return {str(label): value for label, value in given.items()}
    if not isinstance(given, list) or not given:
        raise HandoffError(f"{where} is {given!r}, expected a list of values, or values by label.")
    labels = [str(_label(value, i)) for i, value in enumerate(given)]
    if len(set(labels)) < len(labels):
        raise HandoffError(f"{where}: the values {labels} are not distinct.")
    return dict(zip(labels, given, strict=True))


def _label(value: Any, index: int) -> Any:
    if isinstance(value, Mapping):
        return value.get("kind", value.get("uses", index))
    return value if not isinstance(value, list) else index


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise HandoffError(f"{where} is {value!r:.60}, expected keys and values.")
    return {str(key): entry for key, entry in value.items()}


def _name(value: Any) -> str:
    name = str(value)
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise HandoffError(
            f"recipe: name is {name!r}, expected the name of a folder below `runs`, such as demo or hil/reach."
        )
    return name


MOST_SEEDS = 2**32
"""Number of seeds of a recipe."""


def _runs(value: Any) -> str:
    storage_address(str(value))
    return str(value)


def _seed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST_SEEDS:
        raise HandoffError(f"recipe: seed is {value!r}, expected 0 to {MOST_SEEDS - 1}.")
    return value
