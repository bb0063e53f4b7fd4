"""Formats results of checks as lines for a person or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from flows.doctor.check import Check

STATUS_WIDTH = 13
"""Columns of the status with the space behind it."""
NAME_WIDTH = 20
"""Columns of the name with the space behind it."""
STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "not checked": "dim"}
"""Styles of the status on a terminal."""


def status_cell(check: Check) -> str:
    """Returns the first column of a check's line."""
    word = "OK" if check.status == "ok" else check.status
    return f"{word:<{STATUS_WIDTH}}"


def text_line(check: Check) -> str:
    """Returns what stands behind the status: the name, what was found, and what to do."""
    name = f"{check.name:<{NAME_WIDTH - 1}} "
    if not check.advice:
        return f"{name}{check.found}"
    end = "" if check.found.endswith((".", "?")) else "."
    return f"{name}{check.found}{end} {check.advice}"


def further_lines(check: Check) -> Iterator[str]:
    """Yields the further lines of a check, indented below what was found."""
    indent = " " * (STATUS_WIDTH + NAME_WIDTH)
    for line in check.lines:
        yield f"{indent}{line}"


def as_json(checks: Sequence[Check]) -> str:
    """Returns one JSON object: `ok`, and the list `checks` with the fields of `Check`."""
    content = {"ok": not failed_names(checks), "checks": [asdict(check) for check in checks]}
    return json.dumps(content, indent=2, ensure_ascii=False)


def failed_names(checks: Sequence[Check]) -> list[str]:
    """Returns the names of the failed checks; warnings are no failures."""
    return [check.name for check in checks if check.status == "failed"]
