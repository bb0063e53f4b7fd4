"""The reference pages of the site name every option and every command, each with a description."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import cache

import pytest

from flows.commands.app import command_arguments, examples, named_commands
from robots.config import config, key_paths
from tests.documents import ROOT, hook


def options_page() -> str:
    return hook().pages()["reference/options.md"]


def commands_page() -> str:
    return hook().pages()["reference/command_line.md"]


@cache
def sections(text: str) -> dict[str, str]:
    """The parts of a page, by their headings."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def cells(text: str) -> list[list[str]]:
    """Rows of the tables of a part of a page, but their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def shown_at(group: str) -> dict[str, set[str]]:
    """Names of the classes that a configuration has at each of its paths."""
    found: dict[str, set[str]] = {}
    text = sections(options_page())
    last = [heading for heading in text if heading in {g.title for g in hook().groups()}]
    assert group in last
    body = options_page().split(f"\n## {group}\n", 1)[1].split("\n## ", 1)[0]
    for name, paths in re.findall(r"^- \[(\w+)\]\(#\1\): (.+)$", body, re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", paths):
            found.setdefault(path, set()).add(name)
    return found


def options_of(name: str) -> set[str]:
    """Options in the section of a class."""
    (body,) = [
        text for heading, text in sections(options_page()).items() if f"{{#{name}}}" in heading
    ]
    return {row[0].strip("`") for row in cells(body)}


@pytest.mark.parametrize(("group", "cls"), [(group.title, group.cls) for group in hook().groups()])
def test_every_option_is_listed_in_a_class_that_stands_at_its_path(group: str, cls: type) -> None:
    standing = shown_at(group) | {"": {cls.__name__}}
    missing = []
    for key in key_paths(cls):
        path, _, name = key.rpartition(".")
        if not any(name in options_of(shown) for shown in standing.get(path, ())):
            missing.append(key)
    assert missing == []


def test_no_option_is_without_type_default_and_description() -> None:
    rows = cells(options_page())
    assert len(rows) > 500
    assert [row for row in rows if len(row) != 4 or not all(row)] == []


def test_every_command_and_argument_is_listed_with_a_description() -> None:
    for name in named_commands():
        body = sections(commands_page())[f"handoff {name}"]
        rows = {row[0].split("`")[1]: row[2] for row in cells(body)}
        for argument in command_arguments(name):
            assert len(rows[argument.names[0]]) > 5, f"handoff {name} {argument.names[0]}"


def test_every_command_is_shown_with_what_it_does_its_usage_and_examples() -> None:
    for name, function in named_commands().items():
        body = sections(commands_page())[f"handoff {name}"]
        first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        assert first in body
        assert f"```\nhandoff {name}" in body
        assert examples(function).splitlines()[1].strip() in body


def test_every_target_that_make_help_prints_is_listed() -> None:
    printed = re.findall(r"^## make ([\w-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = {row[0].strip("`").split()[1] for row in cells(sections(commands_page())["make"])}
    assert set(printed) == listed


@config
class Silent:
    """A configuration with a description too few."""

    spoken: int = 1
    """Number of words."""
    silent: int = 2


def test_an_option_without_a_docstring_has_no_description() -> None:
    texts = {name: text for name, _, _, text in hook().rows(Silent)}
    assert texts == {"spoken": "Number of words.", "silent": ""}
    assert len(fields(Silent)) == len(texts)  # type: ignore[arg-type]
