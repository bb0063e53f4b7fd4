"""Defines what a tracker may say of an observed field: its range, how fast it changes, how old it
may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from real.motion.governor import Coordinate
from robots.config import Finite, config
from robots.contract import Contract
from robots.control.relations import measured_specs
from robots.errors import HandoffError, suggest
from robots.spec import WXYZ, FieldSpec, entry_units

SLACK = 0.01
"""Distance that noise may move a position from one picture to the next [m]."""
SLACK_ANGLE = 0.1
"""Angle that noise may turn something from one picture to the next [rad]."""
RESERVED = ("token", "frame", "age")
"""Names in a message that are no fields."""
Age = Annotated[float, Field(gt=0.0, le=10.0)]
Speed = Annotated[float, Field(gt=0.0, le=20.0)]
Turn = Annotated[float, Field(gt=0.0, le=50.0)]


@config
class RemoteTrackerConfig:
    """Address of a tracker, and its limits of time."""

    uri: str = ""
    """Address of the tracker: ws:// or wss://, host and port; empty if there is none."""
    max_age: Age = 0.25
    """Age of the newest value of a field above which it is an error [s]."""
    first_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 5.0
    """Time limit for the first value of every field [s]."""
    wait: Annotated[float, Field(ge=0.0, le=10.0)] = 0.2
    """Time from a lost connection to the next attempt [s]."""


@config
class TrackerConfig(RemoteTrackerConfig):
    """Tracker of the T on push-T's board."""

    low: tuple[Coordinate, Coordinate] = (0.0, 0.0)
    """Lower corner of the board, within which the object must be [m]."""
    high: tuple[Coordinate, Coordinate] = (0.512, 0.512)
    """Upper corner of the board [m]."""
    max_speed: Annotated[float, Field(gt=0.0, le=5.0)] = 1.0
    """Speed of the object above which a pose is not taken [m/s]; a pusher moves it with at most
    0.5."""
    max_turn: Turn = 15.0
    """Speed of its rotation above which a pose is not taken [rad/s]."""


@config
class TrackedFieldConfig:
    """Limits of one field of a tracker, in the units of the field."""

    low: tuple[Finite, ...] | None = None
    """Lowest values, one per entry; None takes those below which the policy refuses the field."""
    high: tuple[Finite, ...] | None = None
    """Highest values; None takes those above which the policy refuses the field."""
    max_speed: Speed = 2.0
    """Speed of a position above which a value is not taken [m/s]."""
    max_turn: Turn = 20.0
    """Speed of a rotation above which a value is not taken [rad/s]."""
    max_age: Age | None = None
    """Age of the newest value above which it is an error [s]; None takes the tracker's."""


@config
class FieldTrackerConfig(RemoteTrackerConfig):
    """Tracker of observed fields, such as the pose of a cube or the opening of a drawer."""

    fields: dict[str, TrackedFieldConfig]
    """Fields of the policy's observation that this tracker sends, by name, with their limits."""


@dataclass(frozen=True)
class TrackedField:
    """One field of a tracker.

    Raises:
        HandoffError: bounds of another size than the field's, or in the wrong order.
    """

    name: str
    spec: FieldSpec
    low: np.ndarray
    """(n,) lowest values, in the units of the field."""
    high: np.ndarray
    """(n,) highest values."""
    max_speed: float
    """[m/s]."""
    max_turn: float
    """[rad/s]."""
    max_age: float
    """[s]."""
    where: str = "outside its range"
    """What a value beyond the bounds is, as a phrase."""

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound.shape != (self.size,):
                raise HandoffError(
                    f"tracker: {name} of {self.name} has {bound.size} values, the field has {self.size} entries."
                )
        if not (self.low <= self.high).all():
            raise HandoffError(
                f"tracker: {self.name} from {self.low.tolist()} to {self.high.tolist()}, expected low <= high."
            )

    @property
    def size(self) -> int:
        """Number n of entries."""
        return math.prod(self.spec.shape)

    def read(self, value: object) -> np.ndarray:
        """The entries (n,) in a message.

        Raises:
            HandoffError: it is not one finite number per entry.
        """
        try:
            array = np.asarray(value, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            array = np.zeros(0)
        if array.shape != (self.size,) or not np.isfinite(array).all():
            raise HandoffError(
                f"`{self.name}` is {str(value)[:80]}, expected {self.size} finite numbers [{self.spec.unit}]"
            )
        return array

    def impossible(self, value: np.ndarray, before: np.ndarray | None, seconds: float) -> str:
        """Why the field cannot have a value; empty if it can.

        Args:
            value: (n,) the value.
            before: (n,) the last one that was taken; None for the first.
            seconds: time between the two pictures [s].
        """
        shown = f"{self.name} {np.round(value, 3).tolist()}"
        if not ((value >= self.low) & (value <= self.high)).all():
            # A pose has bounds for its position alone.
            finite = np.isfinite(self.low) & np.isfinite(self.high)
            low, high = (np.round(bound[finite], 3).tolist() for bound in (self.low, self.high))
            return f"{shown} is {self.where}, {low} to {high}"
        turns = self._entries("rad")
        if (np.abs(value[turns]) > 2.0 * math.pi).any():
            return f"{shown} has an angle beyond one turn; is it in degrees?"
        is_quaternion = self._is_quaternion
        if is_quaternion and abs(float(np.linalg.norm(value)) - 1.0) > 0.05:
            return f"{shown} is a quaternion of length {np.linalg.norm(value):.2f}, expected 1"
        if before is None:
            return ""
        moved = float(np.linalg.norm((value - before)[self._entries("m")]))
        turned = max(
            (abs(math.remainder(each, 2.0 * math.pi)) for each in (value - before)[turns]),
            default=0.0,
        )
        if is_quaternion:
            turned = 2.0 * math.acos(min(1.0, abs(float(value @ before))))
        if (
            moved > self.max_speed * seconds + SLACK
            or turned > self.max_turn * seconds + SLACK_ANGLE
        ):
            return (
                f"{shown} is {moved:.3f} m and {turned:.2f} rad from that of {seconds:.3f} s before"
            )
        return ""

    def _entries(self, unit: str) -> np.ndarray:
        """Numbers of the entries with a unit."""
        units = entry_units(self.spec) or [self.spec.unit] * self.size
        return np.flatnonzero([each == unit for each in units])

    @property
    def _is_quaternion(self) -> bool:
        return self.spec.names == WXYZ or (self.size == 4 and self.name.endswith("quaternion"))


def board_field(config: TrackerConfig) -> TrackedField:
    """The field `pose` of a tracker of push-T's T: x, y [m] and angle [rad] on the board."""
    spec = FieldSpec(shape=(3,), unit="m, m, rad", frame="board", about="T x, y, angle")
    return TrackedField(
        "pose",
        spec,
        np.array([*config.low, -np.inf]),
        np.array([*config.high, np.inf]),
        config.max_speed,
        config.max_turn,
        config.max_age,
        "off the board",
    )


def trackable_fields(contract: Contract) -> dict[str, FieldSpec]:
    """Fields that a tracker may send: those of a policy's observation, and those from which such
    fields are computed."""
    return {**measured_specs(contract.observation), **contract.observation}


def contract_fields(
    name: str, config: FieldTrackerConfig, contract: Contract
) -> list[TrackedField]:
    """The fields of a tracker, with the bounds of a policy.

    Args:
        name: name of the tracker.
        config: its options.
        contract: contract of the policy.

    Raises:
        HandoffError: no field, one of which the policy knows nothing, or bounds of another size
            than the field's.
    """
    if not config.fields:
        raise HandoffError(
            f"trackers.{name}: it has no fields. Name those of the policy's observation that it sends."
        )
    specs = trackable_fields(contract)
    found = []
    for field, limits in config.fields.items():
        if field not in specs:
            raise HandoffError(
                f"trackers.{name}: the policy does nothing with '{field}', {suggest(field, list(specs))}"
            )
        spec = specs[field]
        unbounded = np.full(math.prod(spec.shape), np.inf)
        known = contract.training_range.get(field)
        low, high = -unbounded, unbounded
        if known is not None:
            low, high = np.array(known.refuse_below), np.array(known.refuse_above)
        found.append(
            TrackedField(
                field,
                spec,
                low if limits.low is None else np.array(limits.low),
                high if limits.high is None else np.array(limits.high),
                limits.max_speed,
                limits.max_turn,
                config.max_age if limits.max_age is None else limits.max_age,
            )
        )
    return found
