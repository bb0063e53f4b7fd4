"""Defines the command `list`: tables of what there is, each entry with a phrase.

Nothing is listed by hand: names and phrases come from the recipes, the signatures of the stages,
the unions of the configuration classes and the docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from flows.commands.parameters import NARROWEST, Debug

Topic = Literal[
    "recipes", "stages", "tasks", "policies", "algorithms", "protocols", "formats", "robots"
]
Rows = Iterable[tuple[str, ...]]


class Listing(NamedTuple):
    """One table."""

    headings: tuple[str, ...]
    rows: Callable[[], Rows]
    usage: str
    """How an entry is used, one line."""


def list_known(topic: Topic = "recipes", /, *, debug: Debug = False) -> None:
    """List recipes, kinds of stages, tasks, policies, algorithms, protocols, formats of data sets
    or robots, each with a phrase.

    Args:
        topic: What to list.

    Examples:
        handoff list
        handoff list stages
        handoff list algorithms
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listing = listings()[topic]
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in listing.headings:
        grid.add_column(heading, no_wrap=heading is listing.headings[0])
    for row in listing.rows():
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    others = ", ".join(name for name in get_args(Topic) if name != topic)
    console.print(f"\n{listing.usage}", style="dim", highlight=False)
    if topic == "recipes":
        console.print(f"'handoff list TOPIC' lists {others}.", style="dim", highlight=False)


def listings() -> Mapping[str, Listing]:
    """Returns every table, by topic."""
    return {
        "recipes": Listing(
            ("recipe", "about"), recipe_rows, "'handoff run RECIPE' runs one, 'plan' plans it."
        ),
        "stages": Listing(
            ("stage", "inputs", "makes", "about"),
            stage_rows,
            "A recipe names one by 'uses'; '?' marks an optional input, '..' a list.",
        ),
        "tasks": Listing(
            ("task", "about"), task_rows, "Tasks of an arm, by the key 'task' of an environment."
        ),
        "policies": Listing(
            ("policy", "about"),
            policy_rows,
            "'policy: {kind: POLICY}' of a stage; configs/policy has named settings.",
        ),
        "algorithms": Listing(
            ("stage", "algorithm", "about"),
            algorithm_rows,
            "'algorithm: {kind: ALGORITHM}' of the stage.",
        ),
        "protocols": Listing(
            ("protocol", "about"),
            protocol_rows,
            "'handoff evaluate PROTOCOL', or the key 'protocol'.",
        ),
        "formats": Listing(
            ("format", "about"), format_rows, "The stage 'ingest' recognises the format by itself."
        ),
        "robots": Listing(("robot", "about"), robot_rows, "The key 'robot' of a stage."),
    }


def recipe_rows() -> Rows:
    """Yields the recipes with the first sentence of their comments."""
    from flows.config.files import CONFIGS, recipes

    for name in recipes():
        yield name, first_comment(CONFIGS / f"{name}.yaml")


def stage_rows() -> Rows:
    """Yields the kinds of stages: inputs, result and first sentence."""
    from flows.runner.signature import find_kind, stage_kinds

    for name in sorted(stage_kinds()):
        kind = find_kind(name)
        inputs = [
            f"{item.name}{'..' if item.several else ''}{'?' if item.optional else ''}"
            for item in kind.inputs
        ]
        yield name, ", ".join(inputs), kind.makes, first_sentence(kind.about)


def task_rows() -> Rows:
    """Yields the tasks with the first sentence of their modules."""
    from sim.make import TASKS, task_module

    for name in TASKS:
        about = first_sentence(module_docstring(task_module(name)))
        yield name, re.sub(r"^Defines [\w -]+: ", "", about)


def policy_rows() -> Rows:
    """Yields the policy families."""
    from policies.policy_config import PolicyConfig

    yield from kind_rows(PolicyConfig)


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


def format_rows() -> Rows:
    """Yields the formats of data sets with the first sentence of their modules."""
    package = "robots.episodes.formats"
    for name in _modules(package):
        yield name, first_sentence(module_docstring(f"{package}.{name}"))


def robot_rows() -> Rows:
    """Yields the robots with their makers' names."""
    from robots.franka.catalog import ROBOTS, find_robot

    for name in ROBOTS:
        yield name, find_robot(name).title


def kind_rows(union: Any) -> Rows:
    """Yields `kind` and first sentence of every configuration class in a union."""
    from robots.config import classes_of

    for cls in classes_of(union):
        about = first_sentence(inspect.getdoc(cls) or "").removeprefix("Options of ")
        yield str(getattr(cls, "kind", cls.__name__)), about


def first_comment(file: Path) -> str:
    """Returns the first sentence of the comment at the top of a file."""
    lines: list[str] = []
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return first_sentence(" ".join(lines))


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text, without its full stop."""
    plain = " ".join(text.split("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<=[^.][^.])\.(?= [A-Z]|$)", plain, maxsplit=1)[0]


def module_docstring(module: str) -> str:
    """Returns the docstring of a module, which is not imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""


def _modules(package: str) -> list[str]:
    spec = find_spec(package)
    assert spec is not None
    folders = spec.submodule_search_locations or ()
    return sorted(
        file.stem
        for folder in folders
        for file in Path(folder).glob("*.py")
        if not file.stem.startswith("_")
    )
