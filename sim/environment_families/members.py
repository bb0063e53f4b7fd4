"""Describes the members of a family of environments, and keeps them in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from robots.config import config, to_plain, validate
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from sim.evaluation.protocol import Protocol
from sim.sensitivity.factors import AnyFactor, Factor, Value, nominal, shown

FAMILY = "family.json"
"""File of a family."""
NOMINAL = "nominal"
"""Name of the member whose parameters are all as in the protocol."""


@config
class Member:
    """One kind of environment of a family."""

    name: str
    """Name in tables, charts and journals; unique in the family."""
    values: dict[str, Value] = field(default_factory=dict)
    """Value of every factor that differs from the protocol's environments, by name."""


@config
class EnvironmentFamily:
    """Environments of one task that differ in stated parameters."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters in which the members differ, with their ranges."""
    members: tuple[Member, ...] = ()
    """Members, in the order in which they were added."""

    def __post_init__(self) -> None:
        if not self.members:
            raise HandoffError("family: 0 members, expected one or more.")
        names = [member.name for member in self.members]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise HandoffError(f"family: the member '{repeated[0]}' is listed more than once.")
        for member in self.members:
            if unknown := sorted({*member.values} - {*self.factors}):
                raise HandoffError(
                    f"family: member {member.name} sets {unknown[0]}, which is none of the factors "
                    f"{list(self.factors)}."
                )


def nominal_family(factors: Mapping[str, AnyFactor]) -> EnvironmentFamily:
    """The family whose only member has all parameters as in the protocol."""
    return EnvironmentFamily(factors=dict(factors), members=(Member(name=NOMINAL),))


def value_of(
    name: str, factor: Factor, values: Mapping[str, Value], protocol: Protocol
) -> Value | None:
    """Value of a factor in a member; None where only the model knows the protocol's own."""
    return values[name] if name in values else nominal(factor, protocol)


def values_text(values: Mapping[str, Value]) -> str:
    """Values by factor in words; `as they are` without any."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items()) or "as they are"


def write_family(family: EnvironmentFamily, out: Path) -> None:
    """Writes a family to the folder `out`."""
    text = json.dumps(to_plain(family), indent=1)
    write_atomically(out / FAMILY, f"{text}\n".encode())


def read_family(folder: Path) -> EnvironmentFamily:
    """The family of a folder.

    Raises:
        HandoffError: a file that is missing or is none of a family.
    """
    path = folder / FAMILY
    try:
        plain = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HandoffError(
            f"family: cannot read {path} ({error}). Is it an output of draw_family or worst_case?"
        ) from None
    return validate(EnvironmentFamily, plain, str(path))
