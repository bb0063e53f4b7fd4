"""Defines how the arrays of a data set become the fields of a store, as options."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from robots.config import Count, Finite, Hertz, Pixels, Whole, config
from robots.control.actions import ActionInterface
from robots.control.rotations import RotationForm
from robots.franka import RobotName
from robots.spec import Role, check_unit


@config
class RotationRule:
    """A rotation among the entries of a field, stored in another form."""

    given: RotationForm
    """Form of the rotation in the data set; the table in `robots.control.rotations` defines it."""
    stored: RotationForm = "quaternion_wxyz"
    """Form in the store."""
    first: Whole = 0
    """Index of the rotation's first entry, after `entries` has cut the field."""
    degrees: bool = False
    """Whether the angles in the data set are degrees, of `euler_xyz` or `rotation_vector`; in the
    store they are radians."""


@config
class FieldRule:
    """One field of the store, made from arrays of the data set."""

    source: tuple[str, ...] | str
    """Name of the array, or of several that are joined along their last axis."""
    entries: tuple[Whole, Count] | None = None
    """First entry and end of the entries that are taken from the last axis; None takes all."""
    scale: Finite = 1.0
    """Factor of every entry, such as 0.001 for millimetres or 0.017453292519943295 for degrees."""
    offset: Finite = 0.0
    """Number that is added to every entry after scaling."""
    rotation: RotationRule | None = None
    """Rotation that is stored in another form."""
    relative_to: str | None = None
    """Field of the store whose value at the same step is subtracted, for absolute actions that are
    stored as differences; None keeps them."""
    added_to: str | None = None
    """Field of the store whose value at the same step is added, for differences that are stored as
    absolute actions; None keeps them."""
    image: Literal["rgb", "bgr", "gray"] | None = None
    """Order of the colours, where the array is a picture (height, width, 3), (3, height, width) or
    (height, width); None keeps the array as the reader gives it."""
    size: tuple[Pixels, Pixels] | None = None
    """Height and width to which pictures are resized, with an average over the covered area; None
    keeps their size."""
    role: Role = ""
    """Part of the field; empty takes that of the first array."""
    unit: str | None = None
    """SI unit symbol after scaling; None takes those of the arrays, and of a rotation that of its
    form in the store (rad, or 1)."""
    frame: str | None = None
    """Coordinate frame of the values; None takes that of the first array."""
    about: str | None = None
    """One phrase: the meaning of the field; None takes that of the first array."""
    names: tuple[str, ...] | None = None
    """Names of the entries of the last axis; None keeps those of the data set where they still
    apply."""
    interface: ActionInterface | None = None
    """Meaning of an action to the controller; None leaves it as the data set states it."""

    def __post_init__(self) -> None:
        """Refuses units that are not SI, which controllers would take for it.

        Raises:
            HandoffError: such a unit.
        """
        if self.unit is not None:
            check_unit("unit", self.unit)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return (self.source,) if isinstance(self.source, str) else self.source


@config
class FieldMapConfig:
    """How the arrays of a data set become the fields of a store."""

    task: str | None = None
    """Name of the task in the store; None takes that of the data set."""
    robot: RobotName | None = None
    """Name of Handoff's robot with which the episodes were recorded, such as `fr3`; None for
    another one."""
    rate_hz: Hertz | None = None
    """Steps per second; None takes the rate of the data set, which some formats do not state."""
    resample_hz: Hertz | None = None
    """Steps per second of the store; None keeps every step. Observations are interpolated between
    steps, pictures, actions and whole numbers are those of the newest step, rewards are added
    up."""
    action_interface: ActionInterface | None = None
    """Meaning of the field `action` to the controller, which no format states; None leaves it
    open."""
    instruction: str | None = None
    """Instruction of all episodes; None takes those of the data set, per episode or per step."""
    fields: dict[str, FieldRule] = field(default_factory=dict)
    """Fields of the store that are made by a rule, by name."""
    rename: dict[str, str] = field(default_factory=dict)
    """New names of arrays that are kept as they are, by the old name."""
    drop: tuple[str, ...] = ()
    """Names of arrays that are left out; `*` stands for any characters."""
    rest: Literal["keep", "drop"] = "keep"
    """Treatment of the arrays that neither `fields` nor `rename` name."""

    @property
    def is_default(self) -> bool:
        """Whether the map changes nothing but the name of the action."""
        return self == FieldMapConfig()


def map_hint(key: str, value: str, where: str = "") -> str:
    """The hint of an error that an entry of the map is missing: both ways of giving it.

    Args:
        key: the entry.
        value: an example of its value.
        where: when the example is right, a phrase such as "if it is 50 Hz".
    """
    return (
        f"Give {key}: {value} in the file of `handoff episodes import DATA OUT --map FILE`, or "
        f"demos.map.{key}={value} to `handoff run own_data demos.data=DATA`{where and f', {where}'}."
    )
