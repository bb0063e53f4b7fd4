"""A person with a SpaceMouse: takes over by moving it or by a button, as in HIL-SERL (arXiv
2410.21845).

Followed is the released code's rule: the arm is the person's while |u| > 0.001, after a dead zone,
or while a button is down; the left button closes the hand, the right one opens it. The device
springs back to its middle, so letting go is giving back. Labels come from the keyboard of the
terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from real.teleop.keyboard import KeySource, LabelKeys
from real.teleop.takeover import Hand, Takeover, TakeoverConfig
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Requests
from robots.spec import ActionSpec

MOVED = 0.001
"""Norm of the deflection above which the person has the arm [C]."""
_READS = 64
"""Reports taken in per step at most; as many as the kernel keeps."""
_AXES = ("x", "y", "z", "roll", "pitch", "yaw")


@config
class SpaceMouseConfig:
    """What deflections come to."""

    dead_zone: float = 0.05
    """Deflection of an axis that counts as none, as a share of the full one; what is above is
    stretched to begin at
    0. The code has none: a device that does not quite come to rest then never gives back."""
    hold_over: float = 0.0
    """Time for which the arm stays the person's after the last deflection [s]; RLinf has 0.5,
    HIL-SERL's code 0."""
    silence: float = 0.3
    """A deflection that is not reported again within this time counts as let go [s]: a lost cable
    says nothing."""
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)


class Deflected(Protocol):
    """What a device tells; axes forward, left, up, and rotations about these."""

    t: float
    """Of the last report; only its change matters."""
    x: float
    y: float
    z: float
    roll: float
    pitch: float
    yaw: float
    buttons: Sequence[int]


class Device(Protocol):
    """A SpaceMouse; pyspacemouse's is one."""

    def read(self) -> Deflected:
        """Takes one waiting report in, if there is one, and tells the state."""
        ...

    def close(self) -> None:
        """Lets it go."""
        ...


class SpaceMouse:
    """A device as a hand.

    Args:
        config: what deflections come to.
        device: None opens the first SpaceMouse there is.
        now: time [s].

    Raises:
        HandoffError: no device.
    """

    def __init__(
        self,
        config: SpaceMouseConfig | None = None,
        device: Device | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._now = config or SpaceMouseConfig(), now
        self._device = open_spacemouse() if device is None else device
        self._report, self._reported, self._deflected = -1.0, -np.inf, -np.inf

    def let_go(self) -> None:
        """A deflection kept up so far counts as a new one."""
        self._deflected = -np.inf

    def hand(self) -> Hand:
        """Now.

        Raises:
            HandoffError: the device does not answer.
        """
        state, now, config = self._read(), self._now(), self._config
        twist = with_dead_zone(np.array([getattr(state, axis) for axis in _AXES]), config.dead_zone)
        if now - self._reported > config.silence:
            twist[:] = 0.0
        buttons = [*map(bool, state.buttons), False, False]
        grip = int(buttons[1]) - int(buttons[0])
        if float(np.linalg.norm(twist)) > MOVED or any(buttons):
            self._deflected = now
        engaged = self._deflected == now or now - self._deflected < config.hold_over
        return Hand(engaged, twist, grip)

    def close(self) -> None:
        """Lets the device go."""
        self._device.close()

    def _read(self) -> Deflected:
        """The newest state: reports queue up in the kernel between two steps."""
        try:
            state = self._device.read()
            for _ in range(_READS):
                if state.t == self._report:
                    break
                self._report, self._reported = state.t, self._now()
                state = self._device.read()
        except (OSError, RuntimeError) as error:
            raise HandoffError(f"spacemouse: {error}. Was its cable pulled?") from None
        return state


class SpaceMouseOperator:
    """Implements `robots.interfaces.Operator` for one world.

    Args:
        spec: of the world's actions.
        operator: the person's name.
        config: how.
        device: None opens the first SpaceMouse there is.
        keys: for labels; None does without.
        now: time [s].

    Raises:
        HandoffError: no device, or actions that are not Cartesian steps.
    """

    def __init__(
        self,
        spec: ActionSpec,
        operator: str,
        config: SpaceMouseConfig | None = None,
        device: Device | None = None,
        keys: KeySource | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or SpaceMouseConfig()
        self._takeover = Takeover(spec, config.takeover, operator, "spacemouse", now)
        self._mouse = SpaceMouse(config, device, now)
        self._source, self._labels = keys, LabelKeys()

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`; a deflection kept up from the episode before begins a
        new takeover."""
        self._takeover.reset()
        self._mouse.let_go()

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one world, or the device does not answer.
        """
        return self._takeover.intervene(proposed, observation, self._mouse.hand())

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`."""
        if self._source is not None:
            self._labels.press(self._source.read())
        return self._labels.requests()

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        return self._labels.status(self._takeover.engaged)

    def close(self) -> None:
        """See `robots.interfaces.Operator`."""
        self._mouse.close()
        if self._source is not None:
            self._source.close()


def bindings() -> list[tuple[str, str]]:
    """(control, what it does) for a screen."""
    from real.teleop import keyboard

    labels = [
        row for row in keyboard.bindings() if row[0] in ("s or enter, q", "r, d", "p", "escape")
    ]
    return [
        ("move the cap", "take the arm over; let go and the policy has it again"),
        ("left, right", "buttons: close, open the hand"),
        *labels,
    ]


def with_dead_zone(deflection: np.ndarray, dead_zone: float) -> np.ndarray:
    """Deflections in [-1, 1]: 0 within the dead zone, from there on rising from 0 to 1."""
    beyond = np.maximum(np.abs(deflection) - dead_zone, 0.0) / (1.0 - dead_zone)
    return np.sign(deflection) * np.minimum(beyond, 1.0)


def open_spacemouse() -> Any:
    """The first SpaceMouse there is, its axes forward, left and up.

    Raises:
        HandoffError: pyspacemouse is not installed, or there is no device that it may open.
    """
    try:
        import pyspacemouse  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise HandoffError(
            "spacemouse: pyspacemouse is not installed. pip install 'handoff[teleop]'."
        ) from None
    try:
        # Its `ros` convention is x forward, y left, z up, right-handed.
        return pyspacemouse.open(axis_convention=pyspacemouse.AxisConvention.ROS)
    except Exception as error:  # noqa: BLE001  its own errors and those of two HID libraries below it
        raise HandoffError(
            f"spacemouse: {error} Is it plugged in, and may this user read its hidraw device (udev rule)?"
        ) from None
