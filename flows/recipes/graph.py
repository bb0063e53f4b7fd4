"""Builds the stages of a recipe: checks the wiring, expands matrices and builds the options.

A stage with a `matrix` becomes one copy per combination of values, named `teacher@seed=0`. A stage
that takes such a stage, or one of a list of stages, as a single input becomes one copy per
artifact: `scores@teacher`. Copies whose matrices share a key are paired by its value. An input that
takes several artifacts takes those of all copies, or of those with the value of the stage's own
matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from flows.config.options import build, merge
from flows.config.overrides import kind_hint
from flows.recipes.environments import check_options
from flows.recipes.formulas import check_formulas
from flows.recipes.matrix import Binding, Choice, check_entries, refers, substituted
from flows.recipes.observed import check_observed
from flows.recipes.pictures import check_crops, check_sizes
from flows.recipes.recipe import Recipe, StageEntry
from flows.recipes.seeds import reseeded
from flows.runner.signature import StageInput, StageKind, find_kind
from flows.runner.stage import Stage
from robots.config import classes_of
from robots.errors import HandoffError, suggest

SEED = "seed"
"""Key of a matrix that shifts all seeds of a stage, and of the stages that depend on it."""
ALGORITHM = "algorithm"
"""Block whose options may be shared as well as those of the stage."""


@dataclass(frozen=True)
class _Copy:
    stage: Stage
    binding: Binding


def stages(recipe: Recipe, *, fetch: bool | None = True) -> list[Stage]:
    """Returns the stages of a recipe in an executable order.

    Args:
        recipe: the recipe.
        fetch: allows downloading demonstrations; None looks for nothing outside the recipe, such as
            data that its user has to name or that lie on another computer.

    Raises:
        HandoffError: an unknown kind of stage, a missing, unknown or wrong input, a cycle, unknown
            or invalid options, or shared options that no stage has.
    """
    kinds = {name: find_kind(entry.uses) for name, entry in recipe.stages.items()}
    for name, entry in recipe.stages.items():
        _check_inputs(name, entry, kinds)
    _check_shared(recipe, kinds)
    options = [entry.options for entry in recipe.stages.values()]
    for name, entry in recipe.stages.items():
        for key, values in entry.matrix.items():
            if key.partition(".")[0] not in _keys(kinds[name]):
                check_entries(name, key, values, options)
    copies: dict[str, list[_Copy]] = {}
    for name in _ordered(recipe.stages):
        copies[name] = list(_copies(name, recipe, kinds[name], copies, fetch))
    return [copy.stage for made in copies.values() for copy in made]


def _ordered(entries: Mapping[str, StageEntry]) -> list[str]:
    """Names of the stages, each after its inputs, otherwise in the order of the file."""
    ordered: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            cycle = " -> ".join([*above[above.index(name) :], name])
            raise HandoffError(f"recipe: the stages {cycle} need each other.")
        if name in ordered:
            return
        for sources in entries[name].inputs.values():
            for source in sources:
                visit(_base(source, entries), (*above, name))
        ordered.append(name)

    for name in entries:
        visit(name, ())
    return ordered


def _base(reference: str, names: Container[str]) -> str:
    """The stage of a reference; in a resolved recipe, copies are stages themselves."""
    return reference if reference in names else reference.partition("@")[0]


def _check_inputs(name: str, entry: StageEntry, kinds: Mapping[str, StageKind]) -> None:
    kind = kinds[name]
    for given, sources in entry.inputs.items():
        expected = kind.input(given)
        if expected is None:
            known = [item.name for item in kind.inputs]
            takes = suggest(given, known, "it takes") if known else "it takes none"
            raise HandoffError(f"stage {name} ({kind.name}): unknown input '{given}', {takes}")
        for source in sources:
            _check_source(name, expected, source, kinds)
    for expected in kind.inputs:
        if not entry.inputs.get(expected.name) and not expected.optional:
            raise HandoffError(
                f"stage {name} ({kind.name}): its input '{expected.name}' ({expected.kind}) is "
                f"missing; {_candidates(name, expected.kind, kinds)}"
            )


def _check_source(
    name: str, expected: StageInput, source: str, kinds: Mapping[str, StageKind]
) -> None:
    made = kinds.get(_base(source, kinds))
    if made is None:
        raise HandoffError(
            f"stage {name}: its input '{expected.name}' is '{source}', which is no stage of the "
            f"recipe, {suggest(source, kinds)}"
        )
    if made.makes != expected.kind:
        raise HandoffError(
            f"stage {name}: its input '{expected.name}' takes {expected.kind}, '{source}' "
            f"({made.name}) makes {made.makes}; {_candidates(name, expected.kind, kinds)}"
        )


def _candidates(name: str, kind: str, kinds: Mapping[str, StageKind]) -> str:
    makers = [other for other, made in kinds.items() if made.makes == kind and other != name]
    if makers:
        return f"candidates: {', '.join(makers)}."
    return f"no stage of the recipe makes {kind}."


def _check_shared(recipe: Recipe, kinds: Mapping[str, StageKind]) -> None:
    for key, value in recipe.shared.items():
        # A recipe withdraws an option of the file that it extends, whose stages it removed.
        if value is None:
            continue
        readers = [
            name
            for name, kind in kinds.items()
            if key in _keys(kind) or key in _algorithm_keys(kind, recipe.stages[name].options)
        ]
        if not readers:
            raise HandoffError(f"shared.{key}: no stage of the recipe has an option '{key}'.")


def _keys(kind: StageKind) -> set[str]:
    return {entry.name for entry in fields(kind.config)}


def _algorithm_keys(kind: StageKind, options: Mapping[str, Any]) -> set[str]:
    """Keys of the block `algorithm`, of the class that the options choose by its `kind`; those of a
    named option are its own."""
    given = options.get(ALGORITHM) or {}
    if ALGORITHM not in _keys(kind) or not isinstance(given, Mapping) or "uses" in given:
        return set()
    chosen = given.get("kind", _default_algorithm(kind))
    classes = classes_of(get_type_hints(kind.config, include_extras=True)[ALGORITHM])
    for cls in classes:
        if getattr(cls, "kind", None) == chosen:
            return {entry.name for entry in fields(cls)}
    return set()


def _default_algorithm(kind: StageKind) -> Any:
    for entry in fields(kind.config):
        if entry.name == ALGORITHM and callable(entry.default_factory):
            return getattr(entry.default_factory(), "kind", None)
    return None


def _copies(
    name: str,
    recipe: Recipe,
    kind: StageKind,
    above: Mapping[str, Sequence[_Copy]],
    fetch: bool | None,
) -> Iterator[_Copy]:
    """Yields the copies of a stage."""
    entry = recipe.stages[name]
    combinations = _combinations(name, entry, kind, above)
    for binding, single in combinations:
        inputs = dict(single)
        for expected in kind.inputs:
            if expected.several:
                sources = _all_sources(entry, expected, binding, above)
                inputs |= {f"{expected.name}.{i}": source for i, source in enumerate(sources)}
        label = ",".join(choice.label for choice in binding.values())
        copy = f"{name}@{label}".replace("/", "-") if label else name
        config = _options(name, recipe, kind, entry, binding, _keys_above(kind, entry, above))
        kind.check(config, _source_options(kind, inputs))
        stage = Stage(
            name=copy,
            kind=kind.makes,
            module=kind.module,
            config=config,
            inputs=inputs,
            external={} if fetch is None else kind.external(config, fetch),
            exclusive=kind.exclusive,
            telemetry=kind.telemetry,
            function=kind.function,
            uses=kind.name,
            grows=kind.grows,
            pool=entry.pool,
            resources=entry.resources,
        )
        check_observed(stage, data=fetch is not None)
        check_crops(stage, data=fetch is not None)
        check_sizes(stage, data=fetch is not None)
        check_options(stage)
        check_formulas(stage)
        yield _Copy(stage, binding)


def _combinations(
    name: str, entry: StageEntry, kind: StageKind, above: Mapping[str, Sequence[_Copy]]
) -> list[tuple[dict[str, Choice], dict[str, Stage]]]:
    """Every consistent choice of single inputs and of values of the matrix."""
    combinations: list[tuple[dict[str, Choice], dict[str, Stage]]] = [({}, {})]
    for expected in kind.inputs:
        if expected.several or not entry.inputs.get(expected.name):
            continue
        sources = list(_sources(entry.inputs[expected.name], above))
        several = len(entry.inputs[expected.name]) > 1
        joined = []
        for binding, chosen in combinations:
            for reference, copy in sources:
                axis = {f"{name}.{expected.name}": Choice(_base(reference, above), None)}
                extra = {**(axis if several else {}), **copy.binding}
                if _agree(binding, extra):
                    joined.append(({**binding, **extra}, {**chosen, expected.name: copy.stage}))
        if not joined:
            raise HandoffError(
                f"stage {name}: no copy of {', '.join(entry.inputs[expected.name])} fits its other "
                "inputs; their matrices have no value in common."
            )
        combinations = joined
    for key, values in entry.matrix.items():
        choices = {label: Choice(f"{key}={label}", value) for label, value in values.items()}
        combinations = [
            ({**binding, key: choice}, chosen)
            for binding, chosen in combinations
            for choice in choices.values()
            if _agree(binding, {key: choice})
        ]
    return combinations


def _agree(first: Binding, second: Binding) -> bool:
    return all(first[key].label == second[key].label for key in first.keys() & second.keys())


def _sources(
    references: Sequence[str], above: Mapping[str, Sequence[_Copy]]
) -> Iterator[tuple[str, _Copy]]:
    """Yields the copies to which the names refer; `teacher@seed=0` is one copy of `teacher`."""
    for reference in references:
        base = _base(reference, above)
        copies = above[base]
        if reference != base:
            copies = [copy for copy in copies if copy.stage.name == reference]
            if not copies:
                names = [copy.stage.name for copy in above[base]]
                raise HandoffError(
                    f"recipe: there is no stage '{reference}', {suggest(reference, names)}"
                )
        for copy in copies:
            yield reference, copy


def _all_sources(
    entry: StageEntry,
    expected: StageInput,
    binding: Binding,
    above: Mapping[str, Sequence[_Copy]],
) -> list[Stage]:
    """The artifacts of an input that takes several: those of all copies that fit the choices of the
    other inputs."""
    return [
        copy.stage
        for _, copy in _sources(entry.inputs.get(expected.name, ()), above)
        if _agree(binding, copy.binding)
    ]


def _keys_above(
    kind: StageKind, entry: StageEntry, above: Mapping[str, Sequence[_Copy]]
) -> set[str]:
    """Keys of the matrices above the inputs that take several artifacts, of which a key of the
    stage's own matrix chooses some."""
    references = [
        reference
        for expected in kind.inputs
        if expected.several
        for reference in entry.inputs.get(expected.name, ())
    ]
    return {key for _, copy in _sources(references, above) for key in copy.binding}


def _source_options(kind: StageKind, inputs: Mapping[str, Stage]) -> dict[str, Any]:
    """Options of the input stages by the name of the input; a tuple for several. Those of their own
    inputs follow by dotted names, as in `teacher.policy`."""
    options: dict[str, Any] = {}
    for expected in kind.inputs:
        if expected.several:
            prefix = f"{expected.name}."
            options[expected.name] = tuple(
                stage.config for name, stage in inputs.items() if name.startswith(prefix)
            )
        elif expected.name in inputs:
            options[expected.name] = inputs[expected.name].config
    return options | dict(_options_above("", inputs))


def _options_above(prefix: str, inputs: Mapping[str, Stage]) -> Iterator[tuple[str, Any]]:
    for name, stage in inputs.items():
        for inner, source in stage.inputs.items():
            yield f"{prefix}{name}.{inner}", source.config
        yield from _options_above(f"{prefix}{name}.", stage.inputs)


def _options(
    name: str,
    recipe: Recipe,
    kind: StageKind,
    entry: StageEntry,
    binding: Binding,
    choosing: Collection[str],
) -> Any:
    """Builds the options of a copy: shared ones, the stage's own, values of the matrix, seeds; the
    keys `choosing` may be of the matrix without being options."""
    options = entry.options
    values = {key: value for key, value in recipe.shared.items() if key in _keys(kind)}
    nested = _algorithm_keys(kind, options) - _keys(kind)
    block = {key: value for key, value in recipe.shared.items() if key in nested}
    if block:
        given = options.get(ALGORITHM) or {}
        chosen = {key: given[key] for key in ("kind",) if key in given}
        values[ALGORITHM] = {**chosen, **block}
    merged = merge(values, deepcopy(dict(options)))
    seed = recipe.seed
    for key, choice in binding.items():
        if key == SEED:
            seed += _seed(name, choice)
        elif key in entry.matrix and not _is_reference(name, key, kind, entry, choosing):
            merged = merge(merged, _nested(key.split("."), deepcopy(choice.value)))
    merged = substituted(name, merged, binding)
    try:
        config = build(kind.config, merged, name, recipe.folders)
    except HandoffError as error:
        hint = kind_hint(recipe.request.get("overrides", ()), str(error))
        raise HandoffError(f"{error}{hint}") if hint else error from None
    return config if kind.fixed_seeds else reseeded(config, seed)


def _is_reference(
    name: str, key: str, kind: StageKind, entry: StageEntry, choosing: Collection[str]
) -> bool:
    """Whether a key of a matrix is no option: `${matrix:KEY}` reads it, or it chooses among inputs.

    Raises:
        HandoffError: it is no option, nothing in the stage refers to it, and no input has it.
    """
    if key.split(".")[0] in _keys(kind):
        return False
    if key in choosing:
        return True
    if refers(entry.options, key):
        return True
    raise HandoffError(
        f"stage {name}: its matrix has the key '{key}', which is no option of the stage, and no option refers to "
        f"it by ${{matrix:{key}}}; {suggest(key, sorted(_keys(kind)), 'known keys:')}"
    )


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return value


def _seed(name: str, choice: Choice) -> int:
    if not isinstance(choice.value, int) or choice.value < 0:
        raise HandoffError(f"stage {name}: matrix seed {choice.value!r}, expected 0 or more.")
    return choice.value
