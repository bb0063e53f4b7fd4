"""Defines the result of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "failed", "not checked"]


@dataclass(frozen=True)
class Check:
    """Result of one check of this machine."""

    name: str
    """Name of the thing that was checked."""
    status: Status
    """`warning` if a part of Handoff would be worse or absent, `failed` if something that was asked
    for cannot work, `not checked` if there is nothing to check or no way to do it."""
    found: str
    """Description of what was found, one line."""
    advice: str = ""
    """Remedy, one line; for `ok` it is empty."""
    lines: tuple[str, ...] = ()
    """Further lines, such as a histogram."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Measured numbers, by a name that ends in their unit."""
