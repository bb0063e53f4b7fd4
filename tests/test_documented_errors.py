"""Errors that the documentation shows are those that the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flows.__main__ import main
from tests.documents import ROOT, name_of, pages

SHOWN = re.compile(r"^    \$ handoff (.+)\n    (handoff: .+)$", re.MULTILINE)
"""A command that fails, as a block of two indented lines: the command and what it prints."""


def shown() -> list[tuple[Path, str, str]]:
    """Page, arguments and message of every error in the documentation."""
    return [(page, *found) for page in pages() for found in SHOWN.findall(page.read_text())]


def test_the_guide_to_configuration_shows_errors() -> None:
    assert [name_of(page) for page, _, _ in shown()].count("docs/guides/configuration.md") >= 3


@pytest.mark.parametrize(("page", "arguments", "message"), shown(), ids=lambda part: str(part)[:60])
def test_error_is_printed_as_it_is_shown(
    page: Path,
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(arguments)) == 1, page
    assert capsys.readouterr().err.rstrip("\n") == message
