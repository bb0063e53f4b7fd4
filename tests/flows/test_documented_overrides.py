"""Commands and overrides in help texts, hints, docstrings and documents are accepted by the real
program, and their overrides compose."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.commands import app
from flows.config.files import hil_recipe, recipes
from flows.config.options import build, build_session
from flows.config.overrides import parse_overrides, set_value
from flows.deployment.demonstrations.config import DemonstrationSession
from flows.deployment.session import session_of
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.signature import find_kind, shipped_kinds
from robots.errors import HandoffError
from tests.documents import name_of, pages

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = pages()


def plan_recipe(name: str, overrides: Sequence[str]) -> Any:
    """The stages of a recipe with overrides; downloads nothing."""
    return stages(read_recipe(name, overrides), fetch=None)


def task_named(release: str) -> str:
    """Task of a documented release: those of the recipe `demo` are of push-T."""
    return "push_t" if "demo" in release else "any other"


COMPOSERS: dict[str, Callable[[str, Sequence[str]], Any]] = {
    "run": plan_recipe,
    "plan": plan_recipe,
    "profile": plan_recipe,
    "hil": lambda task, overrides: plan_recipe(hil_recipe(task), overrides),
    "deploy": lambda release, overrides: session_of(task_named(release), overrides),
    "record": lambda _, overrides: build_session(DemonstrationSession, "record", overrides),
}
"""Composers of the commands with overrides; `deploy` has a gate instead of a name; `record` is
documented with overrides at an arm."""
NAMES = ("recipe", "task", "release")
"""Parameters that name what the overrides change."""
KEY = r"[a-z_]+(?:[.@][a-z_]+)*"
DOTTED = r"[a-z_]+(?:\.[a-z_]+)+"
COMMAND = re.compile(
    rf"(?:^|`|\.venv/bin/)handoff ((?:{'|'.join(COMPOSERS)}) [^`\n]*)", re.MULTILINE
)
DEPLOYMENT_RUN = re.compile(
    r"prefect deployment run handoff/(\w+)[^`\n]*--param overrides='([^']*)'"
)
EXAMPLE = re.compile(rf"(?:e\.g\.|such as) `?({DOTTED}=[\w.]*\w)")
INLINE = re.compile(rf"`({DOTTED}=[^`\s]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]+\b")
"""A placeholder such as NAME."""


def composed(words: Sequence[str]) -> Any:
    """What the command and its overrides compose to.

    Raises:
        HandoffError: the program refuses the words, or the configuration an override.
    """
    values = app.parse(words).values
    name = next(str(values[key]) for key in NAMES if key in values)
    return COMPOSERS[words[0]](name, values.get("overrides", ()))


def documented_commands() -> list[tuple[str, str]]:
    """Document and words behind `handoff` of every command; those with a placeholder are left
    out."""
    found: dict[tuple[str, str], None] = {}
    for document in DOCUMENTS:
        for line in COMMAND.findall(document.read_text()):
            command = line.partition("  ")[0].partition(" #")[0].strip()
            if not PLACEHOLDER.search(command):
                found[(name_of(document), command)] = None
    return list(found)


def refused_on_purpose() -> set[str]:
    """Commands whose error the documentation shows (`tests/test_documented_errors.py`)."""
    shown = re.compile(r"^    \$ handoff (.+)\n    handoff: ", re.MULTILINE)
    return {words for document in DOCUMENTS for words in shown.findall(document.read_text())}


def of_own_recipe(command: str) -> bool:
    """Whether a command names a recipe that a document tells a reader to write."""
    words = shlex.split(command)
    if any(word.endswith((".yaml", ".yml")) for word in words):
        return True
    written = {
        found
        for file in DOCUMENTS
        for found in re.findall(r"configs/(?:hil/)?(\w+)\.yaml", file.read_text())
    }
    known = {name.rpartition("/")[2] for name in recipes()}
    return bool((written - known).intersection(words))


def shipped_commands() -> list[str]:
    """Commands on what is here, each once."""
    commands = dict.fromkeys(command for _, command in documented_commands())
    return [
        command
        for command in commands
        if not of_own_recipe(command)
        and command not in refused_on_purpose()
        and "--help" not in command
    ]


def documented_runs() -> list[tuple[str, str, str]]:
    """Document, recipe and overrides as JSON of every run of a deployment with overrides."""
    return [
        (file.name, *found)
        for file in DOCUMENTS
        for found in DEPLOYMENT_RUN.findall(file.read_text())
    ]


def documented_targets() -> Iterator[tuple[str, str]]:
    """The recipe and the overrides of each make target that is documented with ARGS."""
    makefile = (ROOT / "Makefile").read_text()
    for target, arguments in re.findall(r'^## make (\S+) .*ARGS="([^"]+)"', makefile, re.MULTILINE):
        (recipe,) = re.findall(
            rf"^{target}:.*\n\t@\$\(BIN\)/handoff run (\S+) \$\(ARGS\)", makefile, re.MULTILINE
        )
        yield recipe, arguments


def help_examples() -> Iterator[str]:
    """The words of every example in a help text whose command has overrides and whose recipe is
    here."""
    for name, function in app.named_commands().items():
        if name in COMPOSERS:
            for line in app.examples(function).splitlines()[1:]:
                command = line.strip().removeprefix("handoff ")
                if not of_own_recipe(command):
                    yield command


def examples() -> Iterator[tuple[str, str]]:
    """Overrides outside of commands: in docstrings and errors of `flows`, and in sentences of the
    documents.

    Reports of results name what was run at an earlier commit, and are left out.
    """
    for file in sorted((ROOT / "flows").rglob("*.py")):
        yield from ((file.name, found) for found in EXAMPLE.findall(file.read_text()))
    for document in DOCUMENTS:
        if "results" not in document.as_posix():
            for found in INLINE.findall(document.read_text()):
                if not PLACEHOLDER.search(found):
                    yield document.name, found


def configuration_examples() -> Iterator[tuple[str, str]]:
    """A recipe and an override out of the comments in `configs/`, or all overrides of a command
    there."""
    for name in recipes():
        lines = (ROOT / "configs" / f"{name}.yaml").read_text().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in comments if line.startswith("#   handoff ")]
        for command in commands:
            yield name, " ".join(re.findall(rf"{DOTTED}=\w+", command))
        others = " ".join(line for line in comments if line not in commands)
        for found in re.findall(rf"{DOTTED}=\w+", others):
            yield name, found


def test_examples_are_found_where_they_stand() -> None:
    assert len(shipped_commands()) > 20
    assert {Path(where).suffix for where, _, _ in documented_runs()} == {".md"}
    assert {command.split()[0] for command in help_examples()} == set(COMPOSERS)
    assert {"overrides.py", "files.py", "parameters.py"} & {where for where, _ in examples()}
    assert list(documented_targets())


def test_documented_commands_are_understood() -> None:
    for document, command in documented_commands():
        assert app.parse(shlex.split(command)).values, document


@pytest.mark.parametrize("command", shipped_commands())
def test_documented_command_composes(command: str) -> None:
    composed(shlex.split(command))


@pytest.mark.parametrize("command", list(help_examples()))
def test_example_in_a_commands_help_composes(command: str) -> None:
    composed(shlex.split(command))


@pytest.mark.parametrize(("where", "recipe", "overrides"), documented_runs())
def test_overrides_of_a_documented_run_of_a_deployment_compose(
    where: str, recipe: str, overrides: str
) -> None:
    plan_recipe(recipe, json.loads(overrides))


@pytest.mark.parametrize(("recipe", "overrides"), list(documented_targets()))
def test_documented_arguments_of_make_compose(recipe: str, overrides: str) -> None:
    plan_recipe(recipe, shlex.split(overrides))


@cache
def stage_names(recipe: str) -> frozenset[str]:
    """Names of the stages of a recipe, and its shared keys."""
    read = read_recipe(recipe)
    return frozenset([*read.stages, *read.shared, "shared"])


def compose_example(override: str) -> None:
    """Composes an override with whatever it belongs to: a recipe with such a stage, a session at an
    arm, or the options of a kind of stage; a sentence may speak of any of them."""
    refused: list[str] = []
    for recipe in recipes():
        if override.partition(".")[0] in stage_names(recipe):
            try:
                plan_recipe(recipe, [override])
                return
            except HandoffError as error:
                refused.append(str(error))
    for task in ("push_t", "any other"):
        try:
            session_of(task, [override])
            return
        except HandoffError as error:
            refused.append(str(error))
    (parsed,) = parse_overrides([override])
    for kind in shipped_kinds():
        values: dict[str, Any] = {}
        set_value(values, parsed.keys, parsed.value)
        try:
            build(find_kind(kind).config, values, "")
            return
        except HandoffError as error:
            refused.append(str(error))
    raise AssertionError(f"'{override}' fits no recipe and no stage; the first says: {refused[0]}")


@pytest.mark.parametrize(("where", "override"), list(dict.fromkeys(examples())))
def test_example_in_a_docstring_an_error_or_a_sentence_composes(where: str, override: str) -> None:
    compose_example(override)


def test_example_that_fits_nothing_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"fits no recipe and no stage; .*teacher\.seeed"):
        compose_example("teacher.seeed=1")


@pytest.mark.parametrize(("recipe", "overrides"), list(configuration_examples()))
def test_example_in_a_configurations_comment_composes(recipe: str, overrides: str) -> None:
    plan_recipe(recipe, overrides.split())


def test_hint_about_a_missing_equals_sign_composes() -> None:
    with pytest.raises(HandoffError) as caught:
        read_recipe("demo", ["teacher.training.steps"])
    (override,) = EXAMPLE.findall(str(caught.value))
    assert read_recipe("demo", [override]) != read_recipe("demo")
