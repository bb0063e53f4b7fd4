"""Defines the nodes of a formula in signal temporal logic and of the arithmetic that it compares.

The position of a node is that of its first character in the text, counted from 1, for messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

ROUNDING = 1e-6
"""Largest rounding error of a time as a multiple of the period."""


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float
    position: int


@dataclass(frozen=True)
class ObservedField:
    """A field of the observation."""

    name: str
    position: int


@dataclass(frozen=True)
class Entries:
    """One entry, or a range of entries, of a quantity."""

    of: Quantity
    start: int
    stop: int
    """First entry that is not taken; `start + 1` for one entry."""
    position: int


@dataclass(frozen=True)
class NamedEntry:
    """An entry of a field by its name, such as `goal_offset.x`."""

    of: ObservedField
    name: str
    position: int


@dataclass(frozen=True)
class FunctionCall:
    """A function of quantities."""

    function: Literal["norm", "abs", "min", "max", "distance"]
    arguments: tuple[Quantity, ...]
    position: int


@dataclass(frozen=True)
class Arithmetic:
    """Sum, difference, product or quotient of two quantities, entry by entry."""

    operator: Literal["+", "-", "*", "/"]
    left: Quantity
    right: Quantity
    position: int


Quantity = Number | ObservedField | Entries | NamedEntry | FunctionCall | Arithmetic
"""A vector of numbers as a function of one observation."""


@dataclass(frozen=True)
class Predicate:
    """A predicate: `larger` is at least `smaller`. Its robustness is the difference."""

    larger: Quantity
    smaller: Quantity
    position: int


@dataclass(frozen=True)
class Not:
    """A formula that must not hold."""

    of: Formula
    position: int


@dataclass(frozen=True)
class Junction:
    """Two formulas of which both must hold (`and`), or at least one (`or`)."""

    kind: Literal["and", "or"]
    left: Formula
    right: Formula
    position: int


@dataclass(frozen=True)
class Interval:
    """Time after the step at which a formula is evaluated."""

    start: float = 0.0
    """First time [s]."""
    end: float | None = None
    """Last time [s]; None for the end of the episode."""
    position: int = 0

    def steps(self, rate_hz: float) -> tuple[int, int | None]:
        """First and last step, counted from the one at which the formula is evaluated; None if the
        last is the end of the episode.

        Args:
            rate_hz: steps per second.
        """
        first = math.ceil(self.start * rate_hz - ROUNDING)
        return first, None if self.end is None else math.floor(self.end * rate_hz + ROUNDING)


@dataclass(frozen=True)
class Temporal:
    """A formula that must hold at every step of an interval (`always`), or at one
    (`eventually`)."""

    kind: Literal["always", "eventually"]
    interval: Interval
    of: Formula
    position: int


@dataclass(frozen=True)
class Until:
    """`right` must hold at a step of an interval, and `left` at every step before that one."""

    interval: Interval
    left: Formula
    right: Formula
    position: int


Formula = Predicate | Not | Junction | Temporal | Until
"""A requirement of an episode from one of its steps on."""


def observed_fields(formula: Formula) -> tuple[str, ...]:
    """Names of the fields that a formula reads, sorted."""
    return tuple(sorted({node.name for node in _nodes(formula) if isinstance(node, ObservedField)}))


def _nodes(node: Any) -> Iterator[Any]:
    """A node and all nodes inside it."""
    yield node
    children: Any = ()
    if isinstance(node, tuple):
        children = node
    elif is_dataclass(node):
        children = [getattr(node, each.name) for each in fields(node)]
    for child in children:
        yield from _nodes(child)
