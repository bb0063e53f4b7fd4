"""The documentation as tests read it: pages, code blocks, commands, names in backticks, links."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "results" / "notebook"
"""The record of past days, with the names and commands of those days."""
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)(?: *\{[^}]*\})?$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced code block."""

    language: str
    """Empty for commands."""
    text: str


def pages() -> list[Path]:
    """README, CONTRIBUTING, and every page of the site but the notebook."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in sorted(DOCS.rglob("*.md")) if NOTEBOOK not in page.parents),
    ]


def name_of(page: Path) -> str:
    """The path of a page from the root of the repository, for names of tests and messages."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """The fenced code blocks of a page."""
    return [Block(language, block) for language, block in _FENCE.findall(text)]


def spans(text: str) -> list[str]:
    """What stands in backticks within the prose of a page."""
    return _SPAN.findall(_FENCE.sub("", text))


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The words behind every call of `program`: in code blocks, and in the prose where none is left
    open."""
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
    """Whether a command has a word, such as TASK or N, in whose place the reader writes their
    own."""
    return any(re.search(r"\b[A-Z]+\b|\.\.", word) for word in words)


def links(text: str) -> list[str]:
    """Targets of the links and pictures of a page that lead to no other machine."""
    found = _LINK.findall(_SPAN.sub("", _FENCE.sub("", text)))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Names of the headings of a page, as Python-Markdown makes them."""
    return {_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
