"""Defines one condition of a release, with its value, limit and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flows.gating.config import SpecificationLimit

State = Literal["passed", "failed", "not evaluated", "not applicable", "waived"]
FULFILLED: tuple[State, ...] = ("passed", "not applicable", "waived")
"""States of a condition that do not prevent a release."""
VERDICTS: dict[State, str] = {
    "passed": "met",
    "failed": "NOT MET",
    "not evaluated": "NOT EVALUATED",
    "not applicable": "not applicable",
    "waived": "WAIVED",
}
"""States as tables show them."""


@dataclass(frozen=True)
class Condition:
    """One condition and its verdict."""

    name: str
    state: State
    value: float | None = None
    """Measured value; for an interval its end that is compared with the limit."""
    limit: float | None = None
    bound: Literal["at most", "at least", ""] = ""
    unit: str = ""
    note: str = ""
    """Phrase about the value for the release page; if the condition is not met, the reason."""
    repeatable: bool = True
    """Whether a repetition measures the same value; latencies are not repeatable."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures, JSON-ready."""

    @property
    def fulfilled(self) -> bool:
        """Whether the condition does not prevent a release."""
        return self.state in FULFILLED

    def sentence(self) -> str:
        """States value, limit and reason, for an error message."""
        measured = "" if self.value is None else f" is {number(self.value)}{_of(self.unit)}"
        if self.value is not None and self.value == self.details.get("low"):
            measured += " at the lower end of its interval"
        wanted = "" if self.limit is None else f", {self.bound} {number(self.limit)} required"
        verdict = "" if self.state == "failed" else f" was {self.state}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}{measured}{wanted}{verdict}{note}"

    def to_plain(self) -> dict[str, Any]:
        """JSON-ready entries of the condition."""
        return asdict(self)


def at_most(name: str, value: float, limit: float, **more: Any) -> Condition:
    """A condition whose value must not exceed the limit; a value that is not a number fails."""
    state: State = "passed" if value <= limit else "failed"
    return Condition(name, state, float(value), float(limit), "at most", **more)


def at_least(name: str, value: float, limit: float, **more: Any) -> Condition:
    """A condition whose value must reach the limit; a value that is not a number fails."""
    state: State = "passed" if value >= limit else "failed"
    return Condition(name, state, float(value), float(limit), "at least", **more)


def specification_conditions(
    limits: Mapping[str, SpecificationLimit], metrics: Mapping[str, Any], where: str
) -> Iterator[Condition]:
    """Conditions on the shares of the episodes that satisfy specifications.

    Args:
        limits: limits by name of the specification.
        metrics: metrics of the episodes, with `specifications` as `satisfied_shares` of
            `robots.specifications.shares` returns them, if there are any.
        where: suffix of the conditions' names, such as ` at the twin`.
    """
    measured = metrics.get("specifications", {})
    for name, limit in limits.items():
        title = f"specification {name}{where}"
        if name not in measured:
            yield not_evaluated(title, f"the episodes were run without a specification '{name}'")
            continue
        share = measured[name]
        smallest = share["smallest"]
        least = "" if smallest is None else f", smallest robustness {number(smallest)}"
        note = f"{share['k']} of {share['n']} episodes, interval up to {share['high']:.3f}{least}"
        yield at_least(title, share["low"], limit.min_share, note=note, details=dict(share))


def not_evaluated(name: str, reason: str) -> Condition:
    """A condition that could not be checked, which prevents the release."""
    return Condition(name, "not evaluated", note=reason)


def unmet(conditions: Iterable[Condition]) -> list[Condition]:
    """Returns the conditions that prevent the release."""
    return [condition for condition in conditions if not condition.fulfilled]


def number(value: float) -> str:
    """A value with three significant digits."""
    return f"{value:.3g}"


def _of(unit: str) -> str:
    return f" {unit}" if unit else ""
