"""Commands and overrides in help texts, hints, docstrings and documents compose."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import _parse, _parser
from flows.config.files import available
from flows.deployment.session import compose_deploy
from flows.hil.compose import compose_hil
from flows.hil.config import HilConfig
from flows.recipes.compose import compose
from flows.recipes.config import PipelineConfig
from robots.errors import HandoffError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "prefect.yaml"])
COMPOSERS: dict[str, Callable[[str, Sequence[str]], Any]] = {
    "run": compose,
    "plan": compose,
    "profile": compose,
    "hil": compose_hil,
    "deploy": lambda _, overrides: compose_deploy("push_t", overrides),
}
"""Composers of the commands with overrides; `deploy` has one configuration, and a gate instead of a
name."""
KEY = r"[a-z_]+(?:[.@][a-z_]+)*"
DOTTED = r"[a-z_]+(?:\.[a-z_]+)+"
COMMAND = re.compile(
    rf"(?:^|`|\.venv/bin/)handoff ((?:{'|'.join(COMPOSERS)}) [^`\n]*)", re.MULTILINE
)
DEPLOYMENT_RUN = re.compile(
    r"prefect deployment run handoff/(\w+)[^`\n]*--param overrides='([^']*)'"
)
EXAMPLE = re.compile(rf"(?:e\.g\.|such as) `?((?:\+{KEY}|{DOTTED})=[\w.]*\w)")
INLINE = re.compile(rf"`((?:\+{KEY}|{DOTTED})=[^`\s]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]+\b|\+group=")
"""A placeholder such as NAME or `group`."""


def documented_commands() -> list[tuple[str, str]]:
    """Document and words behind `handoff` of every command; those with a placeholder are left
    out."""
    found: dict[tuple[str, str], None] = {}
    for document in DOCUMENTS:
        for line in COMMAND.findall(document.read_text()):
            command = line.partition("  ")[0].partition(" #")[0].strip()
            if not PLACEHOLDER.search(command):
                found[(document.relative_to(ROOT).as_posix(), command)] = None
    return list(found)


def documented_overrides() -> list[str]:
    """Commands with overrides, each once, of recipes that are here."""
    commands = dict.fromkeys(command for _, command in documented_commands() if "=" in command)
    return [
        command for command in commands if not _own_recipes().intersection(shlex.split(command))
    ]


def _own_recipes() -> set[str]:
    """Recipes that a document tells a reader to write, in `configs/NAME.yaml`."""
    named = {
        found
        for file in DOCUMENTS
        for found in re.findall(r"configs/(\w+)\.yaml", file.read_text())
    }
    return named - set(available())


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


def help_examples() -> Iterator[tuple[str, str, str]]:
    """Command, name and override that the help of each command gives as its examples."""
    (commands,) = [
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for command, parser in commands.choices.items():
        helped = {action.dest: str(action.help) for action in parser._actions}
        if "overrides" in helped:
            about_name = helped.get("name") or helped.get("task") or helped["gate"]
            (override,) = EXAMPLE.findall(helped["overrides"])
            yield command, about_name.rpartition("e.g. ")[2], override


def examples() -> Iterator[tuple[str, str]]:
    """Overrides outside of commands: in docstrings and errors of `flows`, and in sentences of the
    documents.

    Reports of results name what was run at an earlier commit, and are left out.
    """
    for file in sorted((ROOT / "flows").rglob("*.py")):
        if file.name != "__main__.py":
            yield from ((file.name, found) for found in EXAMPLE.findall(file.read_text()))
    for document in DOCUMENTS:
        if "results" not in document.as_posix():
            for found in INLINE.findall(document.read_text()):
                if not (found.startswith("+") and PLACEHOLDER.search(found)):
                    yield document.name, found


def configuration_examples() -> Iterator[tuple[str, list[str]]]:
    """A recipe and overrides out of the comments in `configs/` and `configs/policy/`."""
    for file in sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("configs/policy/*.yaml")]):
        comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
        for found in re.findall(rf"{DOTTED}=\w+", " ".join(comments)):
            recipe, chosen = (
                ("demo", [f"+policy={file.stem}"])
                if file.parent.name == "policy"
                else (file.stem, [])
            )
            yield recipe, [*chosen, found]


def test_examples_are_found_where_they_stand() -> None:
    assert "run demo pretrain.training.seed=1" in documented_overrides()
    runs = {Path(where).suffix for where, _, _ in documented_runs()}
    assert runs == {".md", ".yaml"}
    assert {command for command, _, _ in help_examples()} == set(COMPOSERS)
    assert {"compose.py", "files.py"} < {where for where, _ in examples()}
    assert {recipe for recipe, _ in configuration_examples()} >= {"demo", "push_t_image"}
    assert list(documented_targets())


def test_documented_commands_are_understood_and_name_what_there_is() -> None:
    known = {*available(), *_own_recipes()}
    for document, command in documented_commands():
        words = shlex.split(command)
        options = _parse(words)
        if words[0] == "hil":
            assert options.task in available("hil"), document
        elif words[0] != "deploy":
            assert options.name in known, document


@pytest.mark.parametrize("command", documented_overrides())
def test_overrides_of_a_documented_command_compose(command: str) -> None:
    words = shlex.split(command)
    options = _parse(words)
    name = getattr(options, "name", None) or getattr(options, "task", None) or str(options.gate)
    COMPOSERS[words[0]](name, options.overrides)


@pytest.mark.parametrize(("where", "recipe", "overrides"), documented_runs())
def test_overrides_of_a_documented_run_of_a_deployment_compose(
    where: str, recipe: str, overrides: str
) -> None:
    compose(recipe, json.loads(overrides))


@pytest.mark.parametrize(("recipe", "overrides"), list(documented_targets()))
def test_documented_arguments_of_make_compose(recipe: str, overrides: str) -> None:
    compose(recipe, shlex.split(overrides))


@pytest.mark.parametrize(("command", "name", "override"), list(help_examples()))
def test_example_in_a_commands_help_composes(command: str, name: str, override: str) -> None:
    COMPOSERS[command](name, [override])


def compose_example(override: str) -> None:
    """Composes an override with whatever it belongs to; a sentence may speak of one recipe's or one
    policy's key."""
    root = override.partition(".")[0]
    if root in {field.name for field in fields(HilConfig)} - {
        field.name for field in fields(PipelineConfig)
    }:
        compose_hil("pick_cube", [override])
    elif not override.startswith("+") and root not in {
        field.name for field in fields(PipelineConfig)
    }:
        compose_deploy("push_t", [override])
    else:
        policies = [
            ("demo", [f"+policy={file.stem}"])
            for file in sorted(ROOT.glob("configs/policy/*.yaml"))
        ]
        refused: list[str] = []
        for recipe, chosen in [("demo", []), *((name, []) for name in available()), *policies]:
            try:
                compose(recipe, [*chosen, override])
                return
            except HandoffError as error:
                refused.append(str(error))
        raise AssertionError(
            f"'{override}' fits no recipe and no policy; the demo says: {refused[0]}"
        )


@pytest.mark.parametrize(("where", "override"), list(dict.fromkeys(examples())))
def test_example_in_a_docstring_an_error_or_a_sentence_composes(where: str, override: str) -> None:
    compose_example(override)


def test_example_that_fits_nothing_is_found_out() -> None:
    with pytest.raises(
        AssertionError, match=r"fits no recipe and no policy; .* did you mean 'pretrain'"
    ):
        compose_example("pretrain.seed=1")


@pytest.mark.parametrize(("recipe", "overrides"), list(configuration_examples()))
def test_example_in_a_configurations_comment_composes(recipe: str, overrides: list[str]) -> None:
    compose(recipe, overrides)


def test_hint_about_a_missing_equals_sign_composes() -> None:
    with pytest.raises(HandoffError) as caught:
        compose("demo", ["pretrain.training.steps"])
    (override,) = EXAMPLE.findall(str(caught.value))
    assert compose("demo", [override]) != compose("demo")
