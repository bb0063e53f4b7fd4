"""Names what there is, each with a phrase: recipes, stages, tasks, policies, algorithms, protocols,
formats, robots and claims.

Nothing is listed by hand: names and phrases come from the recipes, the signatures of the stages,
the unions of the configuration classes and the docstrings; those of installed packages from their
entry points.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from flows.config.files import first_comment, first_sentence
from robots.errors import HandoffError, error_text, suggest

Rows = Iterable[tuple[str, ...]]
"""A name, what else a table shows, and a phrase."""


def recipe_rows() -> Rows:
    """Yields the recipes with the first sentence of their comments."""
    from flows.config.files import CONFIGS, recipes

    for name in recipes():
        yield name, first_comment(CONFIGS / f"{name}.yaml")


def session_rows() -> Rows:
    """Yields the correction sessions, named as `handoff hil` takes them."""
    for name, about in recipe_rows():
        folder, _, session = name.rpartition("/")
        if folder == "hil":
            yield session, about


def stage_rows() -> Rows:
    """Yields the kinds of stages: inputs, result and first sentence."""
    from flows.runner.signature import find_kind, stage_kinds
    from robots.outside import STAGES, entry_targets

    for name in sorted({*stage_kinds(), *entry_targets(STAGES)}):
        try:
            kind = find_kind(name)
        except HandoffError as error:
            yield name, "", "", error_text(error)
            continue
        inputs = [
            f"{item.name}{'..' if item.several else ''}{'?' if item.optional else ''}"
            for item in kind.inputs
        ]
        yield name, ", ".join(inputs), kind.makes, first_sentence(kind.about)


def option_rows_of(stage: str) -> Rows:
    """Yields the options of a kind of stage: path, type, default and meaning.

    Args:
        stage: a kind, e.g. `pretrain`, or one with a path below it, e.g. `pretrain.training`.

    Raises:
        HandoffError: no such kind, or no option at that path.
    """
    from flows.config.descriptions import nested_option_rows
    from flows.runner.signature import find_kind

    # A kind of one's own is a dotted path itself, `package.module:function`.
    module, colon, behind = stage.rpartition(":")
    name, _, path = behind.partition(".")
    rows = list(nested_option_rows(find_kind(f"{module}{colon}{name}").config))
    found = [row for row in rows if f"{bare(row.name)}.".startswith(f"{path}." if path else "")]
    if not found:
        known = [bare(row.name) for row in rows]
        raise HandoffError(f"unknown option '{stage}', {suggest(path, known, 'known options:')}")
    yield from found


def known_option_rows(stage: str) -> Rows:
    """Yields the options of a kind of stage by their paths, as `handoff list stages` takes them;
    nothing where there is no such kind."""
    try:
        rows = {f"{stage}.{bare(path)}": about for path, *_, about in option_rows_of(stage)}
    except HandoffError:
        return
    yield from rows.items()


def bare(option: str) -> str:
    """Returns the path of an option without the kinds of the classes around it."""
    return re.sub(r" \(kind: \w+\)", "", option)


def task_rows() -> Rows:
    """Yields the tasks with the first sentence of their modules."""
    from robots.outside import TASKS as GROUP
    from sim.make import TASKS, task_module

    for name in TASKS:
        about = first_sentence(module_docstring(task_module(name)))
        yield name, re.sub(r"^Defines [\w -]+: ", "", about)
    yield from outside_rows(GROUP)


def policy_rows() -> Rows:
    """Yields the policy families."""
    from policies.policy_config import PolicyConfig
    from robots.outside import FAMILIES

    yield from kind_rows(PolicyConfig)
    yield from outside_rows(FAMILIES)


def algorithm_rows() -> Rows:
    """Yields the algorithms of every stage that has a choice of them."""
    from flows.runner.signature import find_kind, stage_kinds

    for name in sorted(stage_kinds()):
        hints = get_type_hints(find_kind(name).config, include_extras=True)
        if "algorithm" in hints:
            yield from ((name, *row) for row in kind_rows(hints["algorithm"]))


def protocol_rows() -> Rows:
    """Yields the protocols with the first sentence of their comments."""
    from flows.config.files import CONFIGS, available

    for name in available("protocol"):
        yield name, first_comment(CONFIGS / "protocol" / f"{name}.yaml")


def claim_rows() -> Rows:
    """Yields the claims of the results that `handoff reproduce` repeats with what each says."""
    from flows.config.files import CONFIGS, available

    for name in available("claims"):
        yield name, first_comment(CONFIGS / "claims" / f"{name}.yaml")


def venv_rows() -> Rows:
    """Yields the virtual environments that can be made with the first sentence of their
    comments."""
    from flows.config.files import CONFIGS, available

    for name in available("envs"):
        yield name, first_comment(CONFIGS / "envs" / f"{name}.yaml")


def format_rows() -> Rows:
    """Yields the formats of data sets with the words for them."""
    from robots.episodes.demonstrations import TITLES
    from robots.outside import FORMATS

    yield from TITLES.items()
    yield from outside_rows(FORMATS)


def robot_rows() -> Rows:
    """Yields the robots with their makers' names."""
    from robots.franka.catalog import ROBOTS, find_robot
    from robots.outside import ROBOTS as GROUP

    for name in ROBOTS:
        yield name, find_robot(name).title
    yield from outside_rows(GROUP)


def outside_rows(group: str) -> Rows:
    """Yields what installed packages provide by a group of entry points, with the first sentence of
    each module; nothing but their packages is imported."""
    from robots.outside import entry_targets, split_target

    for name, target in sorted(entry_targets(group).items()):
        try:
            about = first_sentence(module_docstring(split_target(target)[0])) or target
        except (ImportError, AssertionError):
            about = f"{target}, which cannot be found"
        yield name, about


def kind_rows(union: Any) -> Rows:
    """Yields `kind` and first sentence of every configuration class in a union."""
    from robots.config import classes_of

    for cls in classes_of(union):
        about = first_sentence(inspect.getdoc(cls) or "").removeprefix("Options of ")
        yield str(getattr(cls, "kind", cls.__name__)), about


def module_docstring(module: str) -> str:
    """Returns the docstring of a module, which is not imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
