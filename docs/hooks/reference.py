"""Writes the reference pages of the site from the code: options from the configuration classes,
commands from their functions and the Makefile."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages to the site; MkDocs calls it."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


@cache
def pages() -> Mapping[str, str]:
    """Text of the generated pages, by their path in the site."""
    return {"reference/options.md": options_page(), "reference/command_line.md": command_page()}


# Options


@dataclass(frozen=True)
class Group:
    """A configuration that a person writes: a file, or overrides of a command."""

    title: str
    cls: type
    about: str
    """Where its options are written."""


@cache
def groups() -> tuple[Group, ...]:
    """All configurations that a person writes."""
    from flows.deployment.config import DeploySession, DeployTaskSession
    from flows.runner.signature import find_kind, shipped_kinds
    from sim.evaluation.protocol import Protocol

    kinds = [find_kind(name) for name in shipped_kinds()]
    return (
        *(Group(_stage_title(kind), kind.config, _wiring(kind)) for kind in kinds),
        Group("Push-T at an arm", DeploySession, "`configs/deploy/`, and of `handoff deploy`."),
        Group("Tasks at an arm", DeployTaskSession, "`configs/deploy/`, and of `handoff deploy`."),
        Group("Protocols", Protocol, "Files in `configs/protocol/`."),
    )


def _stage_title(kind: Any) -> str:
    return f"Stage {kind.name}"


def _wiring(kind: Any) -> str:
    """What the kind of stage does, takes and makes."""
    inputs = [
        f"`{entry.name}` ({'several ' if entry.several else ''}{entry.kind}"
        f"{', optional' if entry.optional else ''})"
        for entry in kind.inputs
    ]
    takes = f"Takes {', '.join(inputs)}." if inputs else "Takes no artifact."
    return f"{kind.about} {takes} Makes: {kind.makes}."


@cache
def places(cls: type) -> Mapping[type, list[str]]:
    """Every configuration class inside `cls`, with the paths at which it stands; "" is `cls`."""
    found: dict[type, list[str]] = {}
    _find_places(cls, "", found)
    return found


def _find_places(cls: type, path: str, found: dict[type, list[str]]) -> None:
    found.setdefault(cls, []).append(path)
    for name, option in _options(cls):
        _find_places(option, f"{path}.{name}".lstrip("."), found)


@cache
def _options(cls: type) -> tuple[tuple[str, type], ...]:
    """The configuration classes that the options of a class take, each with the option's name. Some
    classes stand at hundreds of places."""
    from robots.config import classes_of

    hints = get_type_hints(cls)
    return tuple(
        (field.name, option) for field in fields(cls) for option in classes_of(hints[field.name])
    )


def options_page() -> str:
    """Every option of every configuration, a section for each class."""
    lines = [
        "# Options",
        "",
        "After this page you know every option, with its type, its default and what it means.",
        "",
        "An option is written as a key of a YAML file, or as an override `path.to.key=value`; "
        "[configuration](../guides/configuration.md) says how.",
        "A section lists the options of one configuration class, and the paths at which it stands.",
        "This page is made from the code.",
    ]
    shown: set[type] = set()
    for group in groups():
        lines += ["", f"## {group.title}", "", group.about]
        for cls, paths in places(group.cls).items():
            if cls in shown:
                continue
            shown.add(cls)
            lines += ["", *_section(cls, paths, group)]
        again = [cls for cls in places(group.cls) if cls is not group.cls]
        if group.cls in shown and places(group.cls)[group.cls] == [""]:
            lines += ["", f"Options: {_link(group.cls)}."]
        if again:
            lines += ["", f"Classes of {group.title.lower()} and where they stand:", ""]
        lines += [f"- {_link(cls)}: {_paths(places(group.cls)[cls])}" for cls in again]
    return "\n".join(lines) + "\n"


def _section(cls: type, paths: list[str], group: Group) -> Iterator[str]:
    title = group.cls.__name__ if paths == [""] else f"{cls.__name__}: `{paths[0]}`"
    yield f"### {title} {{#{cls.__name__}}}"
    yield ""
    yield _one_line(inspect.getdoc(cls) or "")
    yield ""
    yield "| option | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, kind, default, text in rows(cls):
        yield f"| `{name}` | {kind} | {default} | {text} |"


def rows(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and description of every option of a class, as cells of a table."""
    from flows.config.descriptions import Style, option_rows

    for row in option_rows(cls, Style("`{}`".format, _link)):
        yield row.name, row.type, row.default, row.meaning.replace("|", "\\|")


def _link(cls: type) -> str:
    return f"[{cls.__name__}](#{cls.__name__})"


def _paths(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Commands


def command_page() -> str:
    """Every command with its arguments, and every target of make."""
    lines = [
        "# Command line",
        "",
        "After this page you know every command, with all that it takes.",
        "",
        "All commands are given in the root of the checkout; the program is `.venv/bin/handoff`.",
        "Overrides may stand anywhere behind the name; [options](options.md) lists them.",
        "This page is made from the code.",
    ]
    from flows.commands.app import examples, named_commands

    for name, function in named_commands().items():
        lines += ["", f"## handoff {name}", "", *_about(function), ""]
        shown = [line.strip() for line in examples(function).splitlines()[1:]]
        lines += ["```", f"handoff {name} {_usage(name)}".rstrip(), "```", ""]
        lines += ["| argument | default | meaning |", "|---|---|---|"]
        lines += [f"| {a} | {default} | {text} |" for a, default, text in arguments(name)]
        lines += ["", "Examples:", "", "```", *shown, "```"]
    lines += ["", "## make", "", "| target | what it does |", "|---|---|"]
    lines += [f"| `make {target}` | {text} |" for target, text in targets()]
    return "\n".join(lines) + "\n"


def _about(function: Any) -> list[str]:
    """The paragraphs of a command's docstring before its arguments and examples."""
    text = re.split(r"^(?:Args|Examples|Raises):$", inspect.getdoc(function) or "", flags=re.M)[0]
    return [_one_line(paragraph) for paragraph in text.strip().split("\n\n")]


def arguments(name: str) -> Iterator[tuple[str, str, str]]:
    """Argument, default and description of each argument of a command."""
    from flows.commands.app import command_arguments

    for argument in command_arguments(name):
        names = ", ".join(f"`{entry}`" for entry in argument.names)
        if not argument.field_info.is_positional and argument.hint is not bool:
            names += f" {_word(argument)}"
        value = argument.field_info.default
        hidden = value in (None, False, ()) or value is argument.field_info.empty
        default = "" if hidden else f"`{value}`"
        # A docstring breaks long descriptions; a table has one line per row.
        text = " ".join((argument.parameter.help or "").split())
        yield names, default, _sentence(text).replace("|", "\\|")


def _word(argument: Any) -> str:
    """The values of an option: its choices, or a word for them."""
    choices = argument.get_choices()
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    return str(argument.names[0]).lstrip("-").upper().replace("-", "_")


def _usage(name: str) -> str:
    """The arguments of a command in one line; optional ones in brackets."""
    from flows.commands.app import command_arguments

    words = []
    for argument in command_arguments(name):
        info = argument.field_info
        word = argument.names[0]
        if not info.is_positional and argument.hint is not bool:
            word += f" {argument.names[0].lstrip('-').upper().replace('-', '_')}"
        if info.kind is inspect.Parameter.VAR_POSITIONAL:
            word += " .."
        words.append(word if argument.required else f"[{word}]")
    return " ".join(words)


def targets() -> list[tuple[str, str]]:
    """Target of make and what it does, as `make help` prints them."""
    text = (ROOT / "Makefile").read_text()
    found = re.findall(r"^## make (.+?)  +(.+)$", text, re.MULTILINE)
    return [(target, _sentence(about)) for target, about in found]


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") or not text else ".")
