"""Describes factors: parameters of the environments whose values change, each an override of the
protocol's options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from robots.config import LARGEST, Finite, Whole, config, to_plain, validate
from robots.errors import HandoffError
from sim.evaluation.evaluate import env_config
from sim.evaluation.protocol import PUBLISHED_PUSH_T, Protocol
from sim.scene.dynamics import UNITS, DynamicsQuantity, quantity_name

Value = bool | Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | Finite | str
"""Value of a factor."""
DUMMY = "dummy"
"""Name of the factor without an effect that every design has."""


@config
class Factor:
    """Parameter of the environments and the values that it takes."""

    values: tuple[Value, ...] = ()
    """Values that are measured one at a time, while all other factors are as they are: numbers, and
    for `option` also words and flags."""
    low: Finite | None = None
    """Smallest value in the design over all factors; None leaves the factor out of it."""
    high: Finite | None = None
    """Largest value in the design; None as `low`."""
    log: bool = False
    """Whether the design spreads the logarithm of the value evenly between the bounds, which suits
    a factor that changes by multiples."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise HandoffError(
                f"factor: low is {self.low} and high {self.high}, expected both or neither."
            )
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise HandoffError(
                f"factor: low is {self.low} and high {self.high}, expected low < high. Are they swapped?"
            )
        if self.log and not (self.low is not None and self.low > 0.0):
            raise HandoffError(f"factor: log with low {self.low}, expected low and high above 0.")
        if not self.values and self.low is None:
            raise HandoffError("factor: expected values, or low and high, or both.")
        if len(set(self.values)) < len(self.values):
            raise HandoffError(f"factor: values are {list(self.values)}, expected each once.")
        words = [value for value in self.values if isinstance(value, bool | str)]
        if words and not isinstance(self, OptionFactor):
            raise HandoffError(f"factor: values are {list(self.values)}, expected numbers.")

    @property
    def extremes(self) -> tuple[Value, ...]:
        """All values that are named: those of `values`, and the bounds of the design."""
        bounds = () if self.low is None or self.high is None else (self.low, self.high)
        return (*self.values, *bounds)

    def place(self, at: float) -> float:
        """The number at a place between the bounds, 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        if self.log:
            return self.low * (self.high / self.low) ** at
        return self.low + (self.high - self.low) * at

    def rounded(self, value: float) -> Value:
        """The value that the environments get for a number between `low` and `high`."""
        return value


@config
class PhysicsFactor(Factor):
    """Physical quantity of the scene; see `sim.scene.randomize.Range`."""

    kind: Literal["physics"] = "physics"
    what: Literal["mass", "friction", "gain", "damping", "delay"]
    """Quantity, as a factor of the model's own value: a body's mass and inertia, sliding friction
    of a geom, stiffness of an actuator, damping of an actuator or joint; or the delay of all
    actions [s]."""
    names: tuple[str, ...] = ()
    """Names of the bodies, geoms, actuators or joints; a trailing * matches any ending. Empty for
    `delay`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.what == "delay") == bool(self.names):
            expected = "none" if self.what == "delay" else "one or more"
            raise HandoffError(
                f"factor: {self.what} has the names {list(self.names)}, expected {expected}."
            )


@config
class ArmFactor(Factor):
    """Quantity of the arm's dynamics; see `sim.scene.dynamics.DynamicsValue`."""

    kind: Literal["arm"] = "arm"
    what: DynamicsQuantity
    """Quantity. stiffness, damping: gains of the impedance law, as factors of the task's. viscous,
    friction: joint friction, proportional to velocity [Nm s/rad] and constant [Nm]. armature:
    reflected rotor inertia [kg m^2]. payload: mass between the fingertips [kg]. delay: delay of all
    targets [s]."""
    joints: tuple[Whole, ...] = ()
    """Numbers, from 1, of the joints that share the value; empty for all joints."""


@config
class AppearanceFactor(Factor):
    """Quantity of what cameras see; see `sim.scene.appearance.Appearance`."""

    kind: Literal["appearance"] = "appearance"
    what: Literal["camera_shift", "light", "clutter"]
    """Quantity: displacement of the cameras [m], factor of the brightness of all lights, number of
    distractors."""

    def rounded(self, value: float) -> Value:
        """See `Factor.rounded`; distractors are whole."""
        return round(value) if self.what == "clutter" else value


@config
class OptionFactor(Factor):
    """Any other option of the environments, also of third-party engines."""

    kind: Literal["option"] = "option"
    option: Annotated[str, Field(min_length=1)]
    """Dotted path below the protocol's `options`, such as `rate_hz` or `server.options.size`."""
    whole: bool = False
    """Whether values of the design are rounded to whole numbers."""

    def rounded(self, value: float) -> Value:
        """See `Factor.rounded`."""
        return round(value) if self.whole else value


AnyFactor = Annotated[
    PhysicsFactor | ArmFactor | AppearanceFactor | OptionFactor, Field(discriminator="kind")
]


def nominal(factor: Factor, protocol: Protocol) -> Value | None:
    """The factor's value in the environments of the protocol as they are; None where only their
    models know it."""
    own: Any = None
    match factor:
        case PhysicsFactor():
            own = 0.0 if factor.what == "delay" else 1.0
        case ArmFactor():
            defaults = {"stiffness": 1.0, "damping": 1.0, "payload": 0.0, "delay": 0.0}
            listed = [item for item in _arm(protocol) if _is(item, factor)]
            own = listed[0].get("value") if listed else defaults.get(factor.what)
        case AppearanceFactor():
            defaults = {"camera_shift": 0.0, "light": 1.0, "clutter": 0}
            own = _mapping(protocol, "appearance").get(factor.what, defaults[factor.what])
        case OptionFactor():
            own = protocol.options
            for key in factor.option.split("."):
                own = own.get(key) if isinstance(own, Mapping) else None
    return own if isinstance(own, bool | int | float | str) else None


def shown(value: Value) -> str:
    """A value as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(name: str, factor: Factor) -> str:
    """Label of a factor's axis in charts and tables, with its unit; the name alone where it says
    what the factor is."""
    meaning = _meaning(factor)
    own = re.match(rf"{re.escape(name)}(?![\w])", meaning)
    return meaning if own else f"{name}: {meaning}"


def _meaning(factor: Factor) -> str:
    """What a factor sets, with its unit."""
    match factor:
        case PhysicsFactor(what="delay") | ArmFactor(what="delay"):
            return "delay [s]"
        case PhysicsFactor():
            return f"{factor.what} of {', '.join(factor.names)} (factor)"
        case ArmFactor():
            unit = UNITS[factor.what]
            marked = f"({unit})" if unit.startswith("times") else f"[{unit}]"
            return f"{quantity_name(factor.what, factor.joints)} {marked}"
        case AppearanceFactor():
            unit = {
                "camera_shift": "displacement of the cameras [m]",
                "light": "brightness of the lights (factor)",
                "clutter": "distractors on the table",
            }
            return unit[factor.what]
        case OptionFactor():
            return factor.option
        case _:
            return "no effect"


def with_values(
    protocol: Protocol, factors: Mapping[str, Factor], values: Mapping[str, Value]
) -> Protocol:
    """The protocol with some factors at other values; factors without a value stay as they are.

    Args:
        protocol: environments as they are.
        factors: all factors by name.
        values: by name of a factor; one that is not among `factors`, such as `DUMMY`, has no
            effect.

    Raises:
        HandoffError: the protocol has what a factor needs to set already, or an option of another
            form.
    """
    options = dict(protocol.options)
    for name, value in values.items():
        match factors.get(name):
            case PhysicsFactor() as factor:
                own = [to_plain(item) for item in options.get("ranges") or ()]
                drawn = {"what": factor.what, "low": value, "high": value}
                options["ranges"] = [*own, {**drawn, "names": list(factor.names)}]
            case ArmFactor() as factor:
                own = {"robot": protocol.robot, **_mapping(protocol, "dynamics", options)}
                kept = [item for item in own.get("values") or () if not _is(item, factor)]
                set_to = {"what": factor.what, "joints": list(factor.joints), "value": value}
                options["dynamics"] = {**own, "values": [*kept, set_to]}
            case AppearanceFactor() as factor:
                own = _mapping(protocol, "appearance", options)
                options["appearance"] = {**own, factor.what: value}
            case OptionFactor() as factor:
                options = _with_option(options, factor.option, value, protocol.name)
            case _:
                continue
    return replace(protocol, options=options)


def check_factors(protocol: Protocol, factors: Mapping[str, Factor]) -> None:
    """Checks, before anything runs, that the environments of a protocol have all factors.

    Raises:
        HandoffError: no factors, a name that is taken, two factors of one quantity, a quantity that
            the protocol randomises, an engine that ignores an option, or a value that it refuses.
    """
    if not factors:
        raise HandoffError(
            "factors: 0 are given, expected one or more, such as {delay: {kind: arm, what: delay, values: [0, 0.05]}}."
        )
    if DUMMY in factors:
        raise HandoffError(
            f"factors: '{DUMMY}' is the name of the factor without an effect that every design has. Rename it."
        )
    _check_apart(protocol, factors)
    for name, factor in factors.items():
        for value in factor.extremes:
            changed = with_values(protocol, factors, {name: value})
            try:
                _check_options(changed)
            except HandoffError as error:
                raise HandoffError(f"factor {name} = {shown(value)}: {error}") from None


def _check_options(protocol: Protocol) -> None:
    """Checks the options of a protocol's environments without making any."""
    if (protocol.engine, protocol.task) == PUBLISHED_PUSH_T:
        from sim.engines.gym_push_t import PushTConfig

        validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
        return
    from sim.ignored_options import refuse_ignored

    env = env_config(protocol)
    refuse_ignored(env)
    if env.ranges and env.randomized:
        raise HandoffError(
            f"protocol {protocol.name}: options.randomized draws what the factor sets. Evaluate without it."
        )
    if env.appearance is not None and env.cameras is None:
        raise HandoffError(
            f"protocol {protocol.name}: has no options.cameras, so nothing sees the change. Does the policy see?"
        )


def _check_apart(protocol: Protocol, factors: Mapping[str, Factor]) -> None:
    """Checks that no two factors set one quantity, nor one that the protocol draws."""
    places: dict[tuple[str, ...], str] = {}
    drawn = [to_plain(item) for item in protocol.options.get("ranges") or ()]
    for item in drawn:
        for each in item.get("names") or ("",):
            places["physics", str(item.get("what")), each] = "options.ranges of the protocol"
    for name, factor in factors.items():
        for place in _places(factor):
            if place in places:
                raise HandoffError(
                    f"factor {name}: {' of '.join(filter(None, place[1:]))} is set by {places[place]}, too. Remove one "
                    "of them."
                )
        places |= dict.fromkeys(_places(factor), f"factor {name}")


def _places(factor: Factor) -> Sequence[tuple[str, ...]]:
    match factor:
        case PhysicsFactor():
            return [("physics", factor.what, name) for name in factor.names or ("",)]
        case ArmFactor():
            return [("arm", quantity_name(factor.what, factor.joints))]
        case AppearanceFactor():
            return [("appearance", factor.what)]
        case OptionFactor():
            return [("option", factor.option)]
        case _:
            return []


def _arm(protocol: Protocol) -> list[dict[str, Any]]:
    return list(_mapping(protocol, "dynamics").get("values") or ())


def _is(item: Mapping[str, Any], factor: ArmFactor) -> bool:
    return (item["what"], tuple(item.get("joints") or ())) == (factor.what, factor.joints)


def _mapping(
    protocol: Protocol, name: str, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    given = (protocol.options if options is None else options).get(name)
    return dict(to_plain(given)) if given else {}


def _with_option(options: dict[str, Any], path: str, value: Value, name: str) -> dict[str, Any]:
    key, _, rest = path.partition(".")
    if not rest:
        return {**options, key: value}
    inner = options.get(key) or {}
    if not isinstance(inner, Mapping):
        raise HandoffError(
            f"protocol {name}: options.{key} is {inner!r}, expected keys and values, of which {rest} is set."
        )
    return {**options, key: _with_option(dict(inner), rest, value, name)}
