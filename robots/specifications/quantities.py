"""Checks the arithmetic of a formula against the fields that are observed, and computes it.

Shape suffixes: N steps or robots, E entries of a quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from robots.errors import HandoffError, suggest
from robots.interfaces import Observation
from robots.spec import FieldSpec, describe
from robots.specifications.formula import (
    Arithmetic,
    Entries,
    Formula,
    FunctionCall,
    Interval,
    NamedEntry,
    Not,
    Number,
    ObservedField,
    Predicate,
    Quantity,
    Temporal,
    Until,
)

_NO_NUMBERS = ("u8", "utf8")
"""Units of pictures and texts."""


def resolve(formula: Formula, spec: Mapping[str, FieldSpec], rate_hz: float, name: str) -> Formula:
    """Checks that a formula compares single numbers of fields that are observed, over intervals
    that contain a step.

    Args:
        formula: the formula as `parse` returns it.
        spec: observed fields.
        rate_hz: observations per second.
        name: name of the specification, for messages.

    Returns:
        The formula, in which entries by name have numbers, so that its values can be computed.

    Raises:
        HandoffError: an unknown field or entry, sizes that do not match, a picture, or an interval
            between two steps; the message has the position, and the shape and unit of the field.
    """
    if isinstance(formula, (Temporal, Until)):
        _check_interval(formula.interval, rate_hz, name)
    match formula:
        case Predicate():
            fields = _Fields(spec, name)
            larger, smaller = fields.number(formula.larger), fields.number(formula.smaller)
            return replace(formula, larger=larger, smaller=smaller)
        case Not() | Temporal():
            return replace(formula, of=resolve(formula.of, spec, rate_hz, name))
        case _:
            left = resolve(formula.left, spec, rate_hz, name)
            right = resolve(formula.right, spec, rate_hz, name)
            return replace(formula, left=left, right=right)


def _check_interval(interval: Interval, rate_hz: float, name: str) -> None:
    first, last = interval.steps(rate_hz)
    if last is not None and last < first:
        raise HandoffError(
            f"specification '{name}', character {interval.position}: [{interval.start:g}, {interval.end:g}] s contains "
            f"no step at {rate_hz:g} Hz. Make it at least {1.0 / rate_hz:.3g} s long."
        )


@dataclass(frozen=True)
class _Fields:
    """The fields against which quantities are checked."""

    spec: Mapping[str, FieldSpec]
    specification: str

    def number(self, quantity: Quantity) -> Quantity:
        """The quantity of which a predicate takes a single number."""
        resolved, size = self._resolve(quantity)
        if size == 1:
            return resolved
        problem = (
            f"{self._words(quantity)} has {size} entries, and a comparison takes a single number: "
            "take an entry such as [0], .norm, .min or .max."
        )
        raise self._error(quantity, problem)

    def _resolve(self, quantity: Quantity) -> tuple[Quantity, int]:
        """The quantity with numbered entries, and its number of entries."""
        match quantity:
            case Number():
                return quantity, 1
            case ObservedField():
                return quantity, prod(self._field(quantity).shape)
            case NamedEntry():
                return self._numbered(quantity), 1
            case Entries():
                of, size = self._resolve(quantity.of)
                if not quantity.start < quantity.stop <= size:
                    taken = f"entries {quantity.start} to {quantity.stop - 1}"
                    problem = f"{self._words(quantity.of)} has {size} entries, without {taken}."
                    raise self._error(quantity, problem)
                return replace(quantity, of=of), quantity.stop - quantity.start
            case Arithmetic():
                left, right, size = self._pair(quantity, quantity.left, quantity.right)
                return replace(quantity, left=left, right=right), size
            case FunctionCall():
                return self._call(quantity)

    def _call(self, call: FunctionCall) -> tuple[Quantity, int]:
        resolved, size = self._resolve(call.arguments[0])
        arguments = [resolved]
        for other in call.arguments[1:]:
            _, resolved, pair_size = self._pair(call, call.arguments[0], other)
            arguments.append(resolved)
            size = max(size, pair_size)
        call = replace(call, arguments=tuple(arguments))
        entrywise = call.function == "abs" or (
            call.function in ("min", "max") and len(arguments) > 1
        )
        return call, size if entrywise else 1

    def _pair(
        self, whole: Quantity, left: Quantity, right: Quantity
    ) -> tuple[Quantity, Quantity, int]:
        """Two quantities that are combined entry by entry, and the number of entries."""
        first, first_size = self._resolve(left)
        second, second_size = self._resolve(right)
        if first_size != second_size and 1 not in (first_size, second_size):
            problem = (
                f"{self._words(left)} has {first_size} entries, {self._words(right)} "
                f"{second_size}: take as many of both, such as [0:3]."
            )
            raise self._error(whole, problem)
        return first, second, max(first_size, second_size)

    def _field(self, observed: ObservedField) -> FieldSpec:
        spec = self.spec.get(observed.name)
        if spec is None:
            hint = suggest(observed.name, self._numeric(), "fields:")
            raise self._error(observed, f"unknown field '{observed.name}', {hint}")
        if spec.unit in _NO_NUMBERS:
            problem = f"'{observed.name}' is a {describe(spec)}, expected numbers."
            raise self._error(observed, problem)
        return spec

    def _numeric(self) -> list[str]:
        return [name for name, spec in self.spec.items() if spec.unit not in _NO_NUMBERS]

    def _numbered(self, entry: NamedEntry) -> Entries:
        spec = self._field(entry.of)
        names = spec.names[0] if len(spec.shape) == 1 and spec.names else ()
        if entry.name not in names:
            known = suggest(entry.name, names) if names else "its entries have numbers only"
            problem = f"{self._words(entry.of)} has no entry '{entry.name}', {known}"
            raise self._error(entry, problem)
        index = names.index(entry.name)
        return Entries(entry.of, index, index + 1, entry.position)

    def _words(self, quantity: Quantity) -> str:
        """A quantity in a message: fields with their shape and unit."""
        if isinstance(quantity, ObservedField):
            return f"'{quantity.name}', {describe(self.spec[quantity.name])},"
        return "the quantity"

    def _error(self, quantity: Quantity, problem: str) -> HandoffError:
        where = f"specification '{self.specification}', character {quantity.position}"
        return HandoffError(f"{where}: {problem}")


def margin(comparison: Predicate, observation: Observation) -> np.ndarray:
    """(N,) by how much a predicate holds, in the unit of what it compares; negative where it does
    not.

    Args:
        comparison: a checked predicate.
        observation: per field `(N, ...)`.
    """
    difference_N1 = values(comparison.larger, observation) - values(comparison.smaller, observation)
    n = len(next(iter(observation.values())))
    return np.broadcast_to(difference_N1[:, 0], n)


def values(quantity: Quantity, observation: Observation) -> np.ndarray:
    """(N, E) float64: a checked quantity; N is 1 for constants.

    Args:
        quantity: the quantity.
        observation: per field `(N, ...)`.
    """
    match quantity:
        case Number():
            return np.full((1, 1), quantity.value)
        case ObservedField():
            field = np.asarray(observation[quantity.name], dtype=np.float64)
            return field.reshape(len(field), -1)
        case Entries():
            return values(quantity.of, observation)[:, quantity.start : quantity.stop]
        case Arithmetic():
            left, right = values(quantity.left, observation), values(quantity.right, observation)
            return _OPERATORS[quantity.operator](left, right)
        case FunctionCall():
            return _call(quantity, [values(each, observation) for each in quantity.arguments])
        case NamedEntry():
            raise TypeError("a quantity with entries by name was not resolved")


_OPERATORS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def _call(call: FunctionCall, arguments: list[np.ndarray]) -> np.ndarray:
    match call.function:
        case "norm":
            return np.linalg.norm(arguments[0], axis=1, keepdims=True)
        case "distance":
            return np.linalg.norm(arguments[0] - arguments[1], axis=1, keepdims=True)
        case "abs":
            return np.abs(arguments[0])
    reduce = np.minimum if call.function == "min" else np.maximum
    if len(arguments) == 1:
        return reduce.reduce(arguments[0], axis=1, keepdims=True)
    result = arguments[0]
    for each in arguments[1:]:
        result = reduce(result, each)
    return result
