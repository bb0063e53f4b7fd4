"""Completes words at the Tab key: recipes, protocols, tasks, runs, artifacts, stages, and their
options.

A recipe that cannot be read completes nothing; running the command says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts.completion import CompletionContext

from flows.commands.catalog import (
    Rows,
    protocol_rows,
    recipe_rows,
    session_rows,
    stage_rows,
    task_rows,
)
from flows.config.files import first_comment
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.runner.stage import Stage

PLACES = ("data", "folder", "runs")
"""Names of options whose values are paths."""
REQUIRED = "???"
"""Value of an option that a recipe leaves to its user."""
Candidates = Iterator[tuple[str, str]]
"""Words with their descriptions."""


def recipes(context: CompletionContext) -> Candidates:
    """Yields the recipes, and folders and YAML files that begin with the word."""
    yield from _described(recipe_rows())
    yield from _files(context.incomplete)


def sessions(context: CompletionContext) -> Candidates:
    """Yields the correction sessions, and folders and YAML files that begin with the word."""
    yield from _described(session_rows())
    yield from _files(context.incomplete)


def protocols(context: CompletionContext) -> Candidates:
    """Yields the evaluation protocols, and folders and YAML files that begin with the word."""
    yield from _described(protocol_rows())
    yield from _files(context.incomplete)


def tasks(context: CompletionContext) -> Candidates:
    """Yields the tasks of the arm."""
    yield from _described(task_rows())


def stage_kinds(context: CompletionContext) -> Candidates:
    """Yields the kinds of stages."""
    yield from ((name, about) for name, _, _, about in stage_rows())


def finished_runs(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the finished runs, by name."""
    for pattern in ("*/summary.json", "hil/*/summary.json"):
        for path in sorted(folder.glob(pattern)):
            run = path.parent
            recipe = run / "recipe.yaml"
            yield str(run.relative_to(folder)), first_comment(recipe) if recipe.exists() else ""


def artifacts(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the artifacts of the runs by their paths, with their kinds of stage, and files and
    folders that begin with the word."""
    yield from _artifacts(folder)
    yield from _paths(context.incomplete)


def _artifacts(folder: Path) -> Candidates:
    from flows.runner.artifact import MANIFEST

    for pattern in ("*/*", "hil/*/*"):
        for path in sorted(folder.glob(f"{pattern}/{MANIFEST}")):
            if path.parent.is_symlink():
                yield str(path.parent), json.loads(path.read_text()).get("uses", "")


def runs_and_artifacts(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the finished runs by name, and the artifacts by their paths."""
    yield from finished_runs(context, folder)
    yield from artifacts(context, folder)


def stage_names(context: CompletionContext) -> Candidates:
    """Yields the stages of the recipe on the command line."""
    for name, entry in _recipe_stages(context).items():
        yield name, entry.uses


def overrides(context: CompletionContext) -> Candidates:
    """Yields the options of the recipe on the command line that begin with the word, each with its
    value; behind an equals sign, the values that the option can have."""
    from flows.recipes.graph import stages
    from flows.recipes.recipe import read_recipe
    from robots.config import to_plain

    if context.incomplete.startswith("~"):
        yield from ((f"~{name}", "remove") for name, _ in stage_names(context))
        return
    # What is on the command line before the word decides which options there are.
    given = [token.value for token in context.argument.tokens]
    for before in (given, ()) if given else ((),):
        try:
            recipe = read_recipe(_recipe_name(context), before)
            declared = stages(recipe, fetch=None)
            break
        except HandoffError:
            continue
    else:
        return
    # Copies of a stage share its options.
    copies = {stage.name.partition("@")[0]: stage for stage in reversed(declared)}
    begun, equals, value_begun = context.incomplete.partition("=")
    if equals and begun.rpartition(".")[2] in PLACES:
        yield from ((f"{begun}={path}", about) for path, about in _paths(value_begun))
    values = _values(begun.split("."), list(copies.values()), recipe.folders) if equals else []
    known = [
        ("seed", recipe.seed, "seed of the recipe"),
        ("name", recipe.name, "name of the run"),
        ("runs", recipe.runs, "folder of the runs"),
        *(("shared." + key, value, "several stages") for key, value in recipe.shared.items()),
        *((name, to_plain(copy.config), copy.uses) for name, copy in copies.items()),
        *_absent(begun.split("."), copies),
    ]
    for name, value, about in known:
        for key, leaf in _leaves(name, value):
            text = "" if leaf == REQUIRED else leaf
            if text == "" and equals:
                continue
            if f"{key}={text}".startswith(context.incomplete):
                yield f"{key}={text}", about
                values = [value for value in values if value != text]
    for value in values:
        if f"{begun}={value}".startswith(context.incomplete):
            yield f"{begun}={value}", ""


def _absent(keys: list[str], stages: Mapping[str, Stage]) -> Iterator[tuple[str, Any, str]]:
    """Yields the options of an absent block that the word begins to name."""
    from flows.config.choices import absent_block
    from robots.config import to_plain

    stage, path = stages.get(keys[0]), keys[1:-1]
    block = absent_block(stage.config, path) if stage is not None and path else None
    if stage is not None and block is not None:
        yield ".".join(keys[:-1]), to_plain(block()), stage.uses


def _values(keys: list[str], stages: Sequence[Stage], folders: Sequence[Path]) -> list[str]:
    """The values that the option of a stage, or one shared by several, can have."""
    from flows.config.choices import choices

    first, *rest = keys
    # `policy.uses=flow` names the block as `policy=flow` does, and leaves room for other options.
    rest = rest[:-1] if rest[-1:] == ["uses"] else rest
    for stage in stages:
        if rest and (first == stage.name.partition("@")[0] or first == "shared"):
            found = choices(stage.config, rest, folders)
            if found:
                return found
    return []


def _recipe_stages(context: CompletionContext) -> Mapping[str, Any]:
    from flows.recipes.recipe import read_recipe

    try:
        return read_recipe(_recipe_name(context)).stages
    except HandoffError:
        return {}


def _recipe_name(context: CompletionContext) -> str:
    """Name of the recipe on the command line: the first argument of `run`, `plan` and `profile`,
    and of `hil`, where a correction session is meant."""
    from flows.config.files import hil_recipe

    recipe = context.get("RECIPE")
    if recipe is not None:
        return str(recipe.raw or "")
    session = context.get("TASK")
    return "" if session is None else hil_recipe(str(session.raw or ""))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the dotted keys below `key`, with their values in Hydra's grammar."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        yield key, text


def _described(rows: Rows) -> Candidates:
    for name, *_, about in rows:
        yield name, about


def _files(begun: str) -> Candidates:
    """Yields the folders and the YAML files that begin with a word."""
    for name, about in _paths(begun):
        if name.endswith("/"):
            yield name, about
        elif name.endswith((".yaml", ".yml")):
            yield name, first_comment(Path(name).expanduser())


def _paths(begun: str) -> Candidates:
    """Yields the folders and files that begin with a word; hidden ones if the word does."""
    folder, _, start = begun.rpartition("/")
    place = Path(f"{folder}/" if begun.startswith("/") else folder or ".").expanduser()
    if not place.is_dir():
        return
    for path in sorted(place.iterdir()):
        if path.name.startswith(start) and (start or not path.name.startswith(".")):
            name = f"{folder}/{path.name}" if folder or begun.startswith("/") else path.name
            yield (f"{name}/", "folder") if path.is_dir() else (name, "")
