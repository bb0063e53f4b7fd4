"""Makes a person with a SpaceMouse an operator, who takes over by moving it or by a button, as in
HIL-SERL (arXiv 2410.21845).

The rule is that of the released code: the person has the arm while |u| > 0.001, after a dead zone,
or while a button is down; the left button closes the gripper, the right one opens it. The device
springs back to its centre, so letting go gives the arm back. Labels come from the keyboard of the
terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol

import numpy as np

from real.teleop.keyboard import KeySource, LabelKeys
from real.teleop.takeover import HandInput, Takeover, TakeoverConfig
from robots.config import Delay, Seconds, ShareBelowOne, config
from robots.errors import HandoffError
from robots.extras import pip_install
from robots.interfaces import Intervention, Observation, Requests
from robots.spec import ActionSpec

MOVED = 0.001
"""Norm of the deflection above which the person has the arm [C]."""
_READS = 64
"""Largest number of reports read per step, which is the size of the kernel's queue."""
_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
FULL_COUNTS = 350.0
"""Count of a HID report at full deflection, of every device that pyspacemouse knows."""
HID_FILTERS = (
    {"vendorId": 0x256F, "usagePage": 1, "usage": 8},
    {"vendorId": 0x046D, "usagePage": 1, "usage": 8},
)
"""Devices that a browser offers: multi-axis controllers (USB HID usage tables, 4.1) by 3Dconnexion,
and by Logitech, which sold them before."""


@config
class SpaceMouseConfig:
    """Thresholds of the deflection, and scaling of the motion."""

    dead_zone: ShareBelowOne = 0.05
    """Deflection of an axis below which it counts as centred, as a share of full deflection; larger
    deflections are scaled to begin at 0. HIL-SERL's code has no dead zone: a device that does not
    quite come to rest then never gives the arm back."""
    hold_over: Delay = 0.0
    """Time for which the person keeps the arm after the last deflection [s]; RLinf has 0.5,
    HIL-SERL's code 0."""
    silence: Seconds = 0.3
    """Time without a report after which a deflection counts as released [s], as when the cable is
    lost."""
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)
    """Scaling and axes of the motion."""


class SpaceMouseState(Protocol):
    """The state of a SpaceMouse: deflections forward, left, up, and rotations about these."""

    t: float
    """Time of the last report; only its change matters."""
    x: float
    y: float
    z: float
    roll: float
    pitch: float
    yaw: float
    buttons: Sequence[int]


class SpaceMouseDevice(Protocol):
    """A SpaceMouse; pyspacemouse's is one."""

    def read(self) -> SpaceMouseState:
        """Reads one report, if there is one, and returns the state."""
        ...

    def close(self) -> None:
        """Closes the device."""
        ...


class SpaceMouseReport(NamedTuple):
    """The state of a SpaceMouse by its HID reports, as a browser reads them."""

    counts: tuple[float, ...]
    """(6,) counts along right, towards the person and down, and about these axes."""
    buttons: tuple[bool, ...]
    """Whether each button is down, in the order of the report's bits."""
    age: float
    """Time since the newest report [s]."""


class SpaceMouseHand:
    """Turns states of a SpaceMouse into the input of a person's hand.

    Args:
        config: thresholds.
    """

    def __init__(self, config: SpaceMouseConfig) -> None:
        self._config = config
        self._deflected_at = -np.inf
        """Time of the last deflection or button [s]."""

    def release(self) -> None:
        """Ends the hold-over time of the last deflection."""
        self._deflected_at = -np.inf

    def hand(
        self, deflection: np.ndarray, buttons: Sequence[int | bool], age: float, now: float
    ) -> HandInput:
        """The input at one moment.

        Args:
            deflection: (6,) deflection forward, left, up, and about these, in [-1, 1].
            buttons: whether each button is down; the first closes the gripper, the second opens it.
            age: time since the newest report [s].
            now: time [s].
        """
        config = self._config
        twist = with_dead_zone(deflection, config.dead_zone)
        if age > config.silence:
            twist[:] = 0.0
        down = [*map(bool, buttons), False, False]
        grip = int(down[1]) - int(down[0])
        deflected = float(np.linalg.norm(twist)) > MOVED or any(down)
        if deflected:
            self._deflected_at = now
        engaged = deflected or now - self._deflected_at < config.hold_over
        return HandInput(engaged, twist, grip)


class SpaceMouse:
    """The input of a person's hand through a SpaceMouse at this computer.

    Args:
        config: thresholds; None takes the defaults.
        device: an open device; None opens the first SpaceMouse.
        now: returns the time [s].

    Raises:
        HandoffError: no device.
    """

    def __init__(
        self,
        config: SpaceMouseConfig | None = None,
        device: SpaceMouseDevice | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._hand = SpaceMouseHand(config or SpaceMouseConfig())
        self._device = open_spacemouse() if device is None else device
        self._report = -1.0
        """The device's time of the newest report."""
        self._reported_at = -np.inf
        """Time at which it was read [s]."""

    def release(self) -> None:
        """Ends the hold-over time of the last deflection."""
        self._hand.release()

    def hand(self) -> HandInput:
        """The input at this moment.

        Raises:
            HandoffError: the device does not answer.
        """
        state = self._read()
        now = self._now()
        deflection = np.array([getattr(state, axis) for axis in _AXES])
        return self._hand.hand(deflection, state.buttons, now - self._reported_at, now)

    def close(self) -> None:
        """Closes the device."""
        self._device.close()

    def _read(self) -> SpaceMouseState:
        """The newest state: reports queue up in the kernel between two steps."""
        try:
            state = self._device.read()
            for _ in range(_READS):
                if state.t == self._report:
                    break
                self._report = state.t
                self._reported_at = self._now()
                state = self._device.read()
        except (OSError, RuntimeError) as error:
            raise HandoffError(f"spacemouse: {error}. Was its cable pulled?") from None
        return state


class SpaceMouseOperator:
    """Implements `robots.interfaces.Operator` for one environment.

    Args:
        spec: actions of the environment.
        operator: name of the person.
        config: thresholds and scaling; None takes the defaults.
        device: an open device; None opens the first SpaceMouse.
        keys: source of key presses for labels; None for a session without labels.
        now: returns the time [s].
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.

    Raises:
        HandoffError: no device, or actions that are not Cartesian steps.
    """

    def __init__(
        self,
        spec: ActionSpec,
        operator: str,
        config: SpaceMouseConfig | None = None,
        device: SpaceMouseDevice | None = None,
        keys: KeySource | None = None,
        now: Callable[[], float] = time.monotonic,
        width_max: float | None = None,
    ) -> None:
        config = config or SpaceMouseConfig()
        self._takeover = Takeover(spec, config.takeover, operator, "spacemouse", now, width_max)
        self._mouse = SpaceMouse(config, device, now)
        self._source = keys
        self._labels = LabelKeys()

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`; a deflection that lasts from the episode before begins
        a new takeover."""
        self._takeover.reset()
        self._mouse.release()

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one environment, or the device does not answer.
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
    """Controls and their meaning, for a screen."""
    from real.teleop import keyboard

    labels = [
        row
        for row in keyboard.bindings()
        if row[0] in ("s, q", "r, d", "escape, enter", "end, end")
    ]
    return [
        ("move the cap", "take over the arm; release it to give the arm back"),
        ("left, right", "buttons: close, open the gripper"),
        *labels,
    ]


def with_dead_zone(deflection: np.ndarray, dead_zone: float) -> np.ndarray:
    """Deflections in [-1, 1]: 0 within the dead zone, beyond it scaled to rise from 0 to 1."""
    beyond = np.maximum(np.abs(deflection) - dead_zone, 0.0) / (1.0 - dead_zone)
    return np.sign(deflection) * np.minimum(beyond, 1.0)


def deflection_of(counts: Sequence[float]) -> np.ndarray:
    """(6,) deflection forward, left, up, and about these, in [-1, 1].

    Args:
        counts: (6,) counts of HID reports, whose axes are right, towards the person and down, and
            the rotations about these, all right-handed (USB HID usage tables, 4.2).
    """
    right, back, down, about_right, about_back, about_down = counts
    turned = [-back, -right, -down, -about_back, -about_right, -about_down]
    return np.clip(np.array(turned, dtype=np.float64) / FULL_COUNTS, -1.0, 1.0)


def open_spacemouse() -> Any:
    """Opens the first SpaceMouse, with its axes forward, left and up.

    Raises:
        HandoffError: pyspacemouse is not installed, or it finds no device that it may open.
    """
    try:
        import pyspacemouse  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise HandoffError(
            f"spacemouse: pyspacemouse is not installed. Install it: {pip_install('teleop')}."
        ) from None
    try:
        # The ROS convention is x forward, y left, z up, right-handed.
        return pyspacemouse.open(axis_convention=pyspacemouse.AxisConvention.ROS)
    except Exception as error:  # noqa: BLE001  its own errors and those of two HID libraries below it
        raise HandoffError(
            f"spacemouse: {error} Is it plugged in, and may this user read its hidraw device (udev rule)?"
        ) from None
