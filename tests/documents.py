"""Parses the documentation for tests: pages, code blocks, commands, names in backticks, links."""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "results" / "notebook"
"""The record of past experiments, with the names and commands of their time."""
_FENCE = re.compile(
    r"^ *```(\w*)(?: title=\"([^\"\n]*)\")?[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)(?: *\{[^}]*\})?$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced code block."""

    language: str
    """Empty for commands."""
    text: str
    title: str = ""
    """File that the block writes or changes, in a page of `docs/extend/`."""


def pages() -> list[Path]:
    """README, CONTRIBUTING, and every page of the site but the notebook."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in sorted(DOCS.rglob("*.md")) if NOTEBOOK not in page.parents),
    ]


@cache
def hook() -> ModuleType:
    """The MkDocs hook that generates the reference pages from the code."""
    path = DOCS / "hooks" / "reference.py"
    spec = spec_from_file_location("reference_hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def generated(page: Path) -> str | None:
    """Text of a page that the hook generates; None for any other path."""
    path = page.resolve()
    inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else ""
    return hook().pages().get(inside)


def name_of(page: Path) -> str:
    """The path of a page from the root of the repository, for names of tests and messages."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """The fenced code blocks of a page."""
    return [Block(language, block, title) for language, title, block in _FENCE.findall(text)]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """Texts in backticks within the prose of a page."""
    return _SPAN.findall(prose(text))


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The arguments of every call of `program`: in code blocks, and in prose without
    placeholders."""
    lines = [
        line.strip()
        for block in blocks(text)
        if not block.language
        for line in block.text.splitlines()
    ]
    for line in lines:
        if line.removeprefix(".venv/bin/").split(" ")[0] == program:
            yield shlex.split(line, comments=True)[1:]
    for span in spans(text):
        words = shlex.split(span) if span.startswith(f"{program} ") else []
        if any(not word.startswith("-") for word in words[2:]) and not left_open(words):
            yield words[1:]


def left_open(words: list[str]) -> bool:
    """Whether a command has a placeholder such as TASK or N."""
    return any(re.search(r"\b[A-Z]+\b|\.\.", word) for word in words)


def links(text: str) -> list[str]:
    """Targets of the internal links and images of a page."""
    found = _LINK.findall(_SPAN.sub("", _FENCE.sub("", text)))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as Python-Markdown generates them."""
    return {_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
