"""Completes words at the Tab key: recipes, protocols, tasks, policies, runs, artifacts, stages, and
the options of stages and sessions.

A recipe that cannot be read completes nothing; running the command says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts.completion import CompletionContext

from flows.commands.catalog import (
    Rows,
    claim_rows,
    known_option_rows,
    protocol_rows,
    recipe_rows,
    robot_rows,
    session_rows,
    stage_rows,
    task_rows,
    venv_rows,
)
from flows.config.files import first_comment
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.recipes.recipe import StageEntry
    from flows.runner.stage import Stage

PLACES = ("data", "folder", "runs")
"""Names of options whose values are paths."""
RECORDING = "hil/record"
"""Recipe of `handoff record` in simulation."""
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


def claims(context: CompletionContext) -> Candidates:
    """Yields the claims of the results, and folders and YAML files that begin with the word."""
    yield from _described(claim_rows())
    yield from _files(context.incomplete)


def protocols(context: CompletionContext) -> Candidates:
    """Yields the evaluation protocols, and folders and YAML files that begin with the word."""
    yield from _described(protocol_rows())
    yield from _files(context.incomplete)


def virtual_envs(context: CompletionContext) -> Candidates:
    """Yields the virtual environments that can be made, and folders and YAML files that begin with
    the word."""
    yield from _described(venv_rows())
    yield from _files(context.incomplete)


def tasks(context: CompletionContext) -> Candidates:
    """Yields the tasks of the arm."""
    yield from _described(task_rows())


def robots(context: CompletionContext) -> Candidates:
    """Yields the arms."""
    yield from _described(robot_rows())


def stage_kinds(context: CompletionContext) -> Candidates:
    """Yields the kinds of stages; behind a kind and a dot, its options."""
    kind, dot, _ = context.incomplete.partition(".")
    if dot:
        yield from _described(known_option_rows(kind))
    else:
        yield from ((name, about) for name, _, _, about in stage_rows())


def faulted_arms(context: CompletionContext) -> Candidates:
    """Yields the addresses of the arms whose faults nobody has cleared."""
    from real.franka.kept_faults import arms_with_faults

    yield from ((host, "fault") for host in arms_with_faults())


def finished_runs(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the finished runs by name, with how and when they ended."""
    for pattern in ("*/summary.json", "hil/*/summary.json"):
        for path in sorted(folder.glob(pattern)):
            yield str(path.parent.relative_to(folder)), _run_about(path.parent)


def _run_about(run: Path) -> str:
    """How and when a run ended, and its recipe; empty for what is no record."""
    from flows.reports.run_records.reading import read_run, run_state

    try:
        found = read_run(run)
    except HandoffError:
        return ""
    recipe = str(found.request.get("name", ""))
    # A run of an older version has no record.
    if not found.record:
        return recipe
    when = str(found.record["ended"] or found.record["started"])[:16].replace("T", " ")
    return f"{run_state(found.record)} {when}, {recipe}"


def artifacts(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the artifacts of the runs by their paths, with their kinds of stage, and files and
    folders that begin with the word."""
    yield from _artifacts(folder)
    yield from _paths(context.incomplete)


def policies(context: CompletionContext) -> Candidates:
    """Yields the agents that need no file, then the artifacts that are policies or exported ones,
    and files and folders that begin with the word."""
    yield "random", "uniform within the bounds of the actions"
    yield "expert", "the task's scripted expert"
    yield from _artifacts(Path("runs"), ("policy", "bundle"))
    yield from _paths(context.incomplete)


def console_policies(context: CompletionContext) -> Candidates:
    """Yields the policies of `handoff console`."""
    yield "still", "nobody but the person moves the arm"
    yield from policies(context)


def releases(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields what `handoff deploy` takes: release folders, gates and approvals, and folders that
    begin with the word."""
    from flows.deployment.release_folder import is_release

    for path in sorted((folder / "releases").glob("*")):
        if is_release(path):
            yield str(path), "release"
    yield from ((name, kind) for name, kind in _artifacts(folder) if kind in ("gate", "approve"))
    yield from ((name, about) for name, about in _paths(context.incomplete) if about == "folder")


def recordings(context: CompletionContext, folder: Path = Path("runs")) -> Candidates:
    """Yields the folders of sessions at an arm, and folders that begin with the word."""
    for path in sorted(folder.glob("*/store.zarr")):
        if (path.parent / "console").is_dir():
            yield str(path.parent), "session"
    yield from ((name, about) for name, about in _paths(context.incomplete) if about == "folder")


def _artifacts(folder: Path, kinds: Collection[str] = ()) -> Candidates:
    """Yields the artifacts of the runs, of any kind if `kinds` is empty, with their kinds of
    stage."""
    from flows.runner.artifact import MANIFEST

    for pattern in ("*/*", "hil/*/*"):
        for path in sorted(folder.glob(f"{pattern}/{MANIFEST}")):
            if not path.parent.is_symlink():
                continue
            manifest = json.loads(path.read_text())
            if not kinds or manifest.get("kind") in kinds:
                yield str(path.parent), manifest.get("uses", "")


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
        for path, values, _ in _matrices(_recipe_stages(context)):
            yield from ((f"~{path}.{label}", "remove a copy") for label in values)
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
        *_matrices(recipe.stages),
        *_absent(begun.split("."), copies),
    ]
    yield from _options(context.incomplete, known, values)


def _matrices(entries: Mapping[str, StageEntry]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yields the path of every key of a matrix with its values by label."""
    for name, entry in entries.items():
        for key, values in entry.matrix.items():
            yield f"{name}.matrix.{key}", values, "matrix"


def recording_overrides(context: CompletionContext) -> Candidates:
    """Yields the options of `handoff record`: those of the recipe hil/record, and with --arm those
    of a session at an arm."""
    from flows.config.options import build_session
    from flows.deployment.demonstrations.config import DemonstrationSession

    if _given(context, "--arm"):
        yield from _session_options(
            context, lambda given: build_session(DemonstrationSession, "record", given)
        )
    else:
        yield from overrides(context)


def deployment_overrides(context: CompletionContext) -> Candidates:
    """Yields the options of a session at an arm with the policy of the release on the command
    line."""
    from flows.deployment.session import session_of
    from flows.deployment.verified_policy import task_of_release

    task = task_of_release(Path(_given(context, "RELEASE")))
    yield from _session_options(context, lambda given: session_of(task, given))


def options_of(target: str) -> Callable[[CompletionContext], Candidates]:
    """Returns a completer of the options of a command that are those of one configuration class.

    Args:
        target: the class, as `module:name`; it is imported at the Tab key.
    """

    def complete(context: CompletionContext) -> Candidates:
        from flows.config.options import build
        from flows.config.overrides import parse_overrides, set_value

        module, _, name = target.partition(":")
        cls = getattr(import_module(module), name)
        protocol = _given(context, "PROTOCOL")

        def built(given: Sequence[str]) -> Any:
            values: dict[str, Any] = {"protocol": {"uses": protocol}} if protocol else {}
            for override in parse_overrides(given):
                set_value(values, override.keys, override.value)
            return build(cls, values, "")

        yield from _session_options(context, built)

    return complete


def _session_options(
    context: CompletionContext, options_of: Callable[[Sequence[str]], Any]
) -> Candidates:
    """Yields the options of one object of a configuration class that begin with the word.

    Args:
        context: what is on the command line.
        options_of: returns the object with overrides.
    """
    from flows.config.choices import choices
    from robots.config import to_plain

    given = [token.value for token in context.argument.tokens]
    try:
        options = options_of(given)
    except HandoffError:
        try:
            options = options_of(())
        except HandoffError:
            return
    begun, equals, value_begun = context.incomplete.partition("=")
    if equals and begun.rpartition(".")[2] in PLACES:
        yield from ((f"{begun}={path}", about) for path, about in _paths(value_begun))
    values = choices(options, begun.split(".")) if equals else []
    yield from _options(context.incomplete, [("", to_plain(options), "")], values)


def _options(word: str, known: Iterable[tuple[str, Any, str]], values: Sequence[str]) -> Candidates:
    """Yields the options that begin with a word, each with its value, and then the values that the
    option in the word can have.

    Args:
        word: what has been typed of an override.
        known: path of a block of options, its plain values, and words for it.
        values: values of the option before the equals sign of `word`.
    """
    begun, equals, _ = word.partition("=")
    left = list(values)
    for name, value, about in known:
        for key, leaf in _leaves(name, value):
            text = "" if leaf == REQUIRED else leaf
            if text == "" and equals:
                continue
            if f"{key}={text}".startswith(word):
                yield f"{key}={text}", about
                left = [other for other in left if other != text]
    for value in left:
        if f"{begun}={value}".startswith(word):
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
    and of `hil`, where a correction session is meant; that of `record` is always the same."""
    from flows.config.files import hil_recipe

    if context.get("RECIPE") is not None:
        return _given(context, "RECIPE")
    # Of the commands that take a task, `record` alone has an arm.
    return RECORDING if context.get("--arm") is not None else hil_recipe(_given(context, "TASK"))


def _given(context: CompletionContext, name: str) -> str:
    """What has been typed for an argument; empty for none."""
    argument = context.get(name)
    return "" if argument is None else str(argument.raw or "")


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the dotted keys below `key`, with their values in Hydra's grammar."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}" if key else name, inner)
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
