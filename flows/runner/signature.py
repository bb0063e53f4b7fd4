"""Finds kinds of stages and reads what they take and make from the signatures of their functions.

A kind of stage is one module with one function:

    def run(config: DistillConfig, out: Path, progress: Progress, *, teacher: Policy,
            demos: Episodes | None = None) -> Output[Policy]: ...

`config` holds the stage's options. Every keyword-only argument is an input: required, optional
(`| None = None`), or a sequence of artifacts (`Sequence[Policy]`).

Some names in the module are optional: `EXCLUSIVE = True` (no other stage runs at the same time),
`FIXED_SEEDS = True` (seeds of the recipe do not change the stage), `TELEMETRY` (patterns of files
that are not part of the artifact's digest, such as logs with times), `GROWS` (the option that
counts what the stage records, if it can go on from an artifact that has less) and two functions,
`external(config, fetch)` (digests of what the stage reads from outside the pipeline, by name;
`fetch` allows a download) and `check(config, sources)` (refuses options before anything runs;
`sources` are the options of the input stages, by the name of the input, and of the inputs of those
by dotted names, as in `teacher.policy`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from flows.artifacts import Output, kind_name
from robots.errors import HandoffError, suggest
from robots.outside import STAGES, entry_targets, import_outside

PACKAGES = ("flows.stages.data", "flows.stages.learn", "flows.stages.release")
"""Packages whose modules are kinds of stages, except `config`."""
FUNCTION = "run"
"""Name of the function in a stage's module, unless the kind names another one after a colon."""


@dataclass(frozen=True)
class StageInput:
    """One input of a kind of stage."""

    name: str
    kind: str
    """Kind of artifact, e.g. `policy`."""
    optional: bool = False
    several: bool = False
    """Whether the input is a sequence of artifacts."""


@dataclass(frozen=True)
class StageKind:
    """A kind of stage, as read from its module."""

    name: str
    """Name under which recipes use it."""
    module: str
    function: str
    config: type
    """Class of the stage's options."""
    inputs: tuple[StageInput, ...]
    makes: str
    """Kind of artifact that the stage writes."""
    exclusive: bool
    fixed_seeds: bool
    telemetry: tuple[str, ...]
    """Patterns of files that are not part of the artifact's digest."""
    about: str
    """First sentence of the function's docstring."""
    grows: str = ""
    """Option that counts what the stage records, where it goes on from an artifact with less."""

    def input(self, name: str) -> StageInput | None:
        """Returns the input of that name, or None."""
        return next((entry for entry in self.inputs if entry.name == name), None)

    def external(self, config: Any, fetch: bool) -> dict[str, str]:
        """Returns the digests of what the stage reads from outside the pipeline, by name; `fetch`
        allows a download."""
        function = getattr(import_module(self.module), "external", None)
        return {} if function is None else function(config, fetch)

    def check(self, config: Any, sources: Mapping[str, Any]) -> None:
        """Checks options against those of the input stages.

        Raises:
            HandoffError: the stage would refuse them when it runs.
        """
        function = getattr(import_module(self.module), "check", None)
        if function is not None:
            function(config, sources)


@cache
def shipped_kinds() -> dict[str, str]:
    """Returns the module of every kind of stage in Handoff, by name."""
    kinds: dict[str, str] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for file in sorted(Path(folder).glob("*.py")):
                if file.stem not in ("__init__", "config"):
                    kinds[file.stem] = f"{package}.{file.stem}"
    return kinds


def stage_kinds() -> dict[str, str]:
    """Returns the target (`module` or `module:function`) of every kind of stage, by name: those of
    Handoff and those of entry points in the group `handoff.stages`."""
    return {**entry_targets(STAGES), **shipped_kinds()}


def find_kind(uses: str) -> StageKind:
    """Returns a kind of stage.

    Args:
        uses: name of a kind, or a dotted path: `my_lab.stages.filter`, `my_lab.stages:filter`.

    Raises:
        HandoffError: no such kind or module, or a signature that cannot be read.
    """
    known = stage_kinds()
    target = known.get(uses, uses)
    if target == uses and "." not in uses and ":" not in uses:
        raise HandoffError(
            f"stage kind '{uses}' does not exist, {suggest(uses, known)} (or a module of your own: "
            f"my_lab.{uses}, or {uses}:{FUNCTION} for a file {uses}.py)"
        )
    return read_kind(uses, target)


@cache
def read_kind(name: str, target: str) -> StageKind:
    """Imports the module of a kind of stage and reads the signature of its function.

    Args:
        name: name of the kind.
        target: `module` or `module:function`.

    Raises:
        HandoffError: the module or the function is missing, or its signature does not declare
            options, inputs and result.
    """
    module_name, _, function_name = target.partition(":")
    function_name = function_name or FUNCTION
    module = import_outside(module_name, f"stage kind '{name}'")
    function = getattr(module, function_name, None)
    if not callable(function):
        raise HandoffError(f"stage kind '{name}': {module_name} has no function {function_name}().")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise HandoffError(
            f"stage kind '{name}': the signature of {module_name}.{function_name} cannot be read: "
            f"{error}. Are the kinds of its artifacts imported at the top of the module?"
        ) from None
    parameters = inspect.signature(function).parameters
    config = hints.get("config")
    if not isinstance(config, type) or not {"out", "progress"} <= set(parameters):
        raise HandoffError(
            f"stage kind '{name}': {module_name}.{function_name}{inspect.signature(function)}, "
            "expected (config: OPTIONS, out: Path, progress: Progress, *, INPUT: KIND, ..) -> "
            "Output[KIND]."
        )
    inputs = tuple(
        _input(name, parameter, hints)
        for parameter in parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )
    about = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return StageKind(
        name=name,
        module=module_name,
        function=function_name,
        config=config,
        inputs=inputs,
        makes=_made(name, hints.get("return")),
        exclusive=bool(getattr(module, "EXCLUSIVE", False)),
        fixed_seeds=bool(getattr(module, "FIXED_SEEDS", False)),
        telemetry=tuple(getattr(module, "TELEMETRY", ())),
        about=about,
        grows=str(getattr(module, "GROWS", "")),
    )


def _input(stage: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> StageInput:
    hint = hints.get(parameter.name)
    optional = several = False
    if get_origin(hint) in (Union, UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        optional = len(options) < len(get_args(hint))
        hint = options[0] if len(options) == 1 else None
    if get_origin(hint) in (Sequence, list, tuple):
        several = True
        hint = get_args(hint)[0]
    if hint is None or not hasattr(hint, "__supertype__"):
        raise HandoffError(
            f"stage kind '{stage}': its input {parameter.name} has the type {hint}, expected a "
            "kind of artifact, such as flows.artifacts.Policy."
        )
    return StageInput(parameter.name, kind_name(hint), optional, several)


def _made(stage: str, hint: Any) -> str:
    kinds = get_args(hint)
    if get_origin(hint) is not Output or not hasattr(kinds[0], "__supertype__"):
        raise HandoffError(
            f"stage kind '{stage}': its result has the type {hint}, expected Output[KIND], such as "
            "Output[Policy]."
        )
    return kind_name(kinds[0])
