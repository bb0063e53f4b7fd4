"""Lines on a terminal are printed as they are: rich takes words in square brackets for markup."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

FLOWS = Path(__file__).parents[2] / "flows"


def printed() -> Iterator[tuple[str, set[str | None]]]:
    """Calls of a console's `print`, also by `partial`, with the names of their keywords."""
    for file in sorted(FLOWS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = [node.func, *node.args[:1]]
            if any(isinstance(each, ast.Attribute) and each.attr == "print" for each in called):
                place = f"{file.relative_to(FLOWS.parent)}:{node.lineno}"
                yield place, {keyword.arg for keyword in node.keywords}


def test_every_line_of_words_is_printed_without_markup() -> None:
    lines = {place: names for place, names in printed() if "highlight" in names}
    assert len(lines) > 15
    assert [place for place, names in lines.items() if "markup" not in names] == []


def test_markup_would_take_the_entry_of_a_field_out_of_a_fault() -> None:
    said = io.StringIO()
    screen = Console(file=said, width=80)
    screen.print("goal[x] is 9 m", highlight=False)
    screen.print("goal[x] is 9 m", highlight=False, markup=False)
    assert said.getvalue().splitlines() == ["goal is 9 m", "goal[x] is 9 m"]
