"""What an action means: how its numbers become targets of the arm.

Action spaces. `CartesianDelta`, `JointDelta`, `JointTarget` and `PdTarget` move the target of an
impedance law (`robots.control.impedance`) once per policy period, for one arm or many. A delta
moves the target, not the arm, so a load does not make the arm creep; a leash keeps the target near
the measured pose, which bounds the force in contact by leash times stiffness.

The interface `pd_target` is that of push-T in gym-pusht 0.1.8 (`gym_pusht/envs/pusht.py`,
`PushTEnv.step`): an action is the position target `a` of a critically damped agent, obeyed for one
policy period at 100 Hz as

    v <- v + (k_p (a - p) - k_v v) dt,    p <- p + v dt.

The arm follows the same recursion, so that what a policy learned about its own agent stays true on
the robot.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from robots.config import config
from robots.errors import HandoffError, SafetyError
from robots.franka import gripper
from robots.franka.fr3 import DQ_MAX, Q_MAX, Q_MIN
from robots.spec import ActionSpec

PD_TARGET = "pd_target"
"""`Contract.action_interface`: the action is the position target of the 100 Hz agent above."""

Axis = Literal["x", "y", "z", "roll", "pitch", "yaw"]
AXES: tuple[Axis, ...] = ("x", "y", "z", "roll", "pitch", "yaw")

_TIME_SLACK = 1e-9
"""Seconds by which a time may miss a knot, being a sum of milliseconds in floating point."""


@config
class AgentDynamics:
    """The second-order agent that obeys position targets."""

    k_p: float = 100.0
    """Stiffness per mass [1/s^2]."""
    k_v: float = 20.0
    """Damping per mass [1/s]."""
    rate_hz: float = 100.0
    """Steps of the recursion per second."""


class Motion(NamedTuple):
    """One sample of a moving point, each `(D,)`."""

    position: np.ndarray
    """[m]."""
    velocity: np.ndarray
    """[m/s]."""
    acceleration: np.ndarray
    """[m/s^2]."""


def agent_dynamics(interface: str) -> AgentDynamics:
    """The agent behind an action interface.

    Raises:
        HandoffError: the interface is not known here.
    """
    match interface:
        case "pd_target":
            return AgentDynamics()
        case _:
            raise HandoffError(
                f"action interface: '{interface}' is not known, this build knows '{PD_TARGET}'. "
                "Was the policy exported by a newer version?"
            )


@config
class CartesianDelta:
    """Steps of the target pose of the frame "grasp" (see `robots.franka.gripper`), in base axes;
    entries in [-1, 1]."""

    kind: Literal["cartesian_delta"] = "cartesian_delta"
    """Names the space in a configuration file."""
    axes: tuple[Axis, ...] = ("x", "y", "z", "yaw")
    """What an action moves; the other axes keep their target."""
    translation: float = 0.02
    """Step of x, y, z at 1 [m]."""
    rotation: float = 0.10
    """Step of roll, pitch, yaw at 1 [rad], entries of the pose's rotation vector."""
    leash_translation: float = 0.03
    """Largest distance from target to measured position, per axis [m]."""
    leash_rotation: float = 0.20
    """Likewise of the rotation vector's entries [rad]."""
    low: tuple[float, float, float] = (0.30, -0.28, 0.005)
    """Lowest target position [m]; the hand, pointing down, reaches the box's corners at any yaw
    within 1.2 rad."""
    high: tuple[float, float, float] = (0.66, 0.28, 0.45)
    """Highest target position [m]."""
    rotation_limit: float = 1.7
    """Bound of each entry of the target's rotation vector [rad]."""

    @property
    def spec(self) -> ActionSpec:
        """Of the arm's part of an action; the gripper's entry follows it."""
        n = len(self.axes)
        return ActionSpec(
            low=(-1.0,) * n, high=(1.0,) * n, names=tuple(self.axes), interface="cartesian_delta"
        )

    def target(self, target: np.ndarray, measured: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The next target.

        Args:
            target: (..., 6) the present one: position [m], rotation vector [rad].
            measured: (..., 6) where the frame is.
            action: (..., len(axes)), clipped to [-1, 1].

        Returns:
            (..., 6).
        """
        index = [AXES.index(axis) for axis in self.axes]
        scale = np.array([self.translation if i < 3 else self.rotation for i in index])
        leash = np.array([self.leash_translation if i < 3 else self.leash_rotation for i in index])
        limit = self.rotation_limit
        low = np.array([*self.low, -limit, -limit, -limit])[index]
        high = np.array([*self.high, limit, limit, limit])[index]
        following = target.copy()
        moved = target[..., index] + scale * np.clip(action, -1.0, 1.0)
        # The leash last: an arm that starts outside the box is led back, not torn.
        inside = np.clip(moved, low, high)
        following[..., index] = np.clip(
            inside, measured[..., index] - leash, measured[..., index] + leash
        )
        return following


@config
class JointDelta:
    """Steps of the joints' target positions; entries in [-1, 1]."""

    kind: Literal["joint_delta"] = "joint_delta"
    """Names the space in a configuration file."""
    step: float = 0.06
    """Step at 1 [rad]."""
    leash: float = 0.15
    """Largest distance from target to measured position, per joint [rad]."""
    margin: float = 0.05
    """Distance kept from the joint limits [rad]."""

    @property
    def spec(self) -> ActionSpec:
        """Of the arm's part of an action; the gripper's entry follows it."""
        names = tuple(f"joint{i}" for i in range(1, 8))
        return ActionSpec(low=(-1.0,) * 7, high=(1.0,) * 7, names=names, interface="joint_delta")

    def target(self, target: np.ndarray, measured: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The next target (..., 7) [rad] from the present one, the measured positions and an action
        (..., 7)."""
        moved = target + self.step * np.clip(action, -1.0, 1.0)
        near = np.clip(moved, measured - self.leash, measured + self.leash)
        return np.clip(near, Q_MIN + self.margin, Q_MAX - self.margin)


@config
class JointTarget:
    """Joint positions [rad] to go to, as fast as the arm's velocity limits allow."""

    kind: Literal["joint_target"] = "joint_target"
    """Names the space in a configuration file."""
    margin: float = 0.05
    """Distance kept from the joint limits [rad]."""
    speed: float = 0.8
    """Share of the joint velocity limits that the target may move with."""
    leash: tuple[float, float, float, float, float, float, float] = (
        0.29,
        0.29,
        0.29,
        0.29,
        0.72,
        0.73,
        1.50,
    )
    """Largest distance from target to measured position, per joint [rad]: how far the joint lags
    behind a target that moves at `speed`, and one period's way at 20 Hz. An arm that was held up
    and comes free is not thrown."""

    @property
    def spec(self) -> ActionSpec:
        """Of the arm's part of an action; the gripper's entry follows it."""
        return ActionSpec(
            low=tuple((Q_MIN + self.margin).tolist()),
            high=tuple((Q_MAX - self.margin).tolist()),
            names=tuple(f"joint{i}" for i in range(1, 8)),
            unit="rad",
            interface="joint_target",
        )

    def target(
        self, target: np.ndarray, measured: np.ndarray, action: np.ndarray, period: float
    ) -> np.ndarray:
        """The next target (..., 7) [rad], `period` [s] after the present one, from the measured
        positions and an action (..., 7) [rad]."""
        reach, leash = self.speed * DQ_MAX * period, np.array(self.leash)
        wanted = np.clip(action, Q_MIN + self.margin, Q_MAX - self.margin)
        near = np.clip(
            np.clip(wanted, target - reach, target + reach), measured - leash, measured + leash
        )
        return np.clip(near, Q_MIN + self.margin, Q_MAX - self.margin)


@config
class PdTarget:
    """Position targets [m] on a board, obeyed by the agent of `pd_target`; the frame "grasp" moves
    with the agent."""

    kind: Literal["pd_target"] = "pd_target"
    """Names the space in a configuration file."""
    low: tuple[float, float] = (0.030, 0.030)
    """Lowest target on the board [m]."""
    high: tuple[float, float] = (0.480, 0.480)
    """Highest target on the board [m]."""
    origin: tuple[float, float, float] = (0.776, 0.256, 0.004)
    """The frame "grasp" over the board's origin [m], base."""
    x_axis: tuple[float, float, float] = (0.0, -1.0, 0.0)
    """The board's x in the base frame."""
    y_axis: tuple[float, float, float] = (-1.0, 0.0, 0.0)
    """The board's y in the base frame."""
    mass: float = 7.0
    """Inertia of the upright arm along the board [kg]: 5 to 8 over most of it, more near the base's
    sides. So much force per acceleration goes ahead of the motion."""
    dynamics: AgentDynamics = AgentDynamics()
    """The agent."""

    @property
    def spec(self) -> ActionSpec:
        """Of an action; a hand has no part in it."""
        return ActionSpec(
            low=self.low, high=self.high, names=("x", "y"), unit="m", interface=PD_TARGET
        )

    def to_board(self, position: np.ndarray) -> np.ndarray:
        """(..., 2) point of the board [m] under the position (..., 3) [m], base."""
        return (position - np.array(self.origin)) @ np.array([self.x_axis, self.y_axis]).T

    def to_base(self, board: np.ndarray) -> np.ndarray:
        """(..., 3) vector in base axes of a vector (..., 2) along the board."""
        return board @ np.array([self.x_axis, self.y_axis])

    def motion(
        self, position: np.ndarray, velocity: np.ndarray, action: np.ndarray, period: float
    ) -> Motion:
        """What the agents do in one policy period: the knots of `AgentReference`, of many agents at
        once.

        Args:
            position: (N, 2) of the agents [m], board.
            velocity: (N, 2) the recursion's `v` [m/s].
            action: (N, 2) targets [m], board, clipped to `low` and `high`.
            period: of the policy [s].

        Returns:
            (N, K, 2) each, at the K knots of the period, the last being its end. The velocity is
            the recursion's `v`; the acceleration is that of the interval after the knot, were the
            target to stay.
        """
        dt = 1.0 / self.dynamics.rate_hz
        target = np.clip(action, self.low, self.high)
        knots = round(period * self.dynamics.rate_hz)
        motion = Motion(*(np.empty((len(position), knots, 2)) for _ in range(3)))
        acceleration = self.dynamics.k_p * (target - position) - self.dynamics.k_v * velocity
        for k in range(knots):
            velocity = velocity + acceleration * dt
            position = position + velocity * dt
            acceleration = self.dynamics.k_p * (target - position) - self.dynamics.k_v * velocity
            motion.position[:, k], motion.velocity[:, k], motion.acceleration[:, k] = (
                position,
                velocity,
                acceleration,
            )
        return motion


ActionSpace = CartesianDelta | JointDelta | JointTarget | PdTarget

GRIPPER_SPEC = ActionSpec(low=(-1.0,), high=(1.0,), names=("gripper",), interface="gripper_width")
"""-1 closes, 1 opens; in between the opening is proportional."""


GRIPPER_LEASH = 0.016
"""Furthest that the hand's target runs ahead of its fingers [m]: the servo presses as hard as it
may long before, and opening begins at once instead of unwinding first."""


def gripper_target(
    width: np.ndarray, measured: np.ndarray, action: np.ndarray, period: float
) -> np.ndarray:
    """The next target of the hand's opening.

    Args:
        width: (...) the present target [m].
        measured: (...) the present opening [m].
        action: (...) in [-1, 1], see `GRIPPER_SPEC`.
        period: until the next one [s]; the hand moves no faster than its data sheet says.

    Returns:
        (...) [m].
    """
    wanted = 0.5 * gripper.WIDTH_MAX * (1.0 + np.clip(action, -1.0, 1.0))
    reach = gripper.SPEED_MAX * period
    moved = np.clip(wanted, width - reach, width + reach)
    return np.maximum(0.0, np.clip(moved, measured - GRIPPER_LEASH, measured + GRIPPER_LEASH))


def checked_target(target: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of `target` [m], float64.

    Raises:
        SafetyError: another shape than `shape`, or a non-finite entry.
    """
    found = np.array(target, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise SafetyError(
            f"action target: {found.tolist()}, expected {int(np.prod(shape))} finite numbers [m]. Did it diverge?"
        )
    return found


class AgentReference:
    """The agent's motion under a stream of targets, sampled at any time.

    Positions at the knots are those of the recursion. Between knots the path is a cubic Hermite
    segment. The recursion is semi-implicit, its `v` being the mean velocity of the interval that it
    ends; so a knot's tangent is the mean of the two velocities around it, which keeps the
    acceleration free of a 100 Hz ripple.
    """

    def __init__(self, position: np.ndarray, dynamics: AgentDynamics, time: float = 0.0) -> None:
        """Starts at rest.

        Args:
            position: `(D,)` [m]; it is also the first target.
            dynamics: of the agent.
            time: of the first knot [s].
        """
        self._dynamics = dynamics
        self._dt = 1.0 / dynamics.rate_hz
        self._start_time = time
        self._knot = 0
        self._from = np.array(position, dtype=np.float64)
        self._from_tangent = np.zeros_like(self._from)
        self._to = self._from.copy()
        self._to_tangent = np.zeros_like(self._from)
        self._velocity = np.zeros_like(self._from)
        self._target = self._from.copy()

    @property
    def target(self) -> np.ndarray:
        """(D,) [m], the target obeyed from the next knot on."""
        return self._target.copy()

    @property
    def position(self) -> np.ndarray:
        """(D,) [m], at the newest knot."""
        return self._to.copy()

    @property
    def velocity(self) -> np.ndarray:
        """(D,) [m/s], the recursion's `v` at the newest knot."""
        return self._velocity.copy()

    @property
    def time(self) -> float:
        """Time of the newest knot [s]."""
        return self._start_time + self._knot * self._dt

    def push(self, target: np.ndarray) -> None:
        """Obeys `target` from the newest knot on.

        Args:
            target: `(D,)` [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        self._target = checked_target(target, self._to.shape)

    def sample(self, time: float) -> Motion:
        """The reference at `time`, computing further knots as needed.

        Args:
            time: [s], not earlier than the segment that the newest knot ends.

        Raises:
            HandoffError: `time` lies before that segment.
        """
        while time > self.time + _TIME_SLACK:
            self._step()
        segment_start = self.time - (self._dt if self._knot else 0.0)
        if time < segment_start - _TIME_SLACK:
            raise HandoffError(
                f"agent reference: asked for {time:.4f} s, the running segment starts at {segment_start:.4f} s. "
                "Did the robot's clock jump back?"
            )
        return self._hermite(min(max((time - segment_start) / self._dt, 0.0), 1.0))

    def _acceleration(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        return self._dynamics.k_p * (self._target - position) - self._dynamics.k_v * velocity

    def _step(self) -> None:
        self._from, self._from_tangent = self._to, self._to_tangent
        self._velocity = self._velocity + self._acceleration(self._from, self._velocity) * self._dt
        self._to = self._from + self._velocity * self._dt
        following = self._velocity + self._acceleration(self._to, self._velocity) * self._dt
        self._to_tangent = (self._velocity + following) / 2.0
        self._knot += 1

    def _hermite(self, s: float) -> Motion:
        if self._knot == 0:
            return Motion(self._to.copy(), np.zeros_like(self._to), np.zeros_like(self._to))
        dt, p0, p1 = self._dt, self._from, self._to
        m0, m1 = self._from_tangent * dt, self._to_tangent * dt
        rise = p1 - p0
        c2, c3 = 3.0 * rise - 2.0 * m0 - m1, m0 + m1 - 2.0 * rise
        return Motion(
            p0 + s * (m0 + s * (c2 + s * c3)) if s < 1.0 else p1.copy(),
            (m0 + s * (2.0 * c2 + 3.0 * s * c3)) / dt,
            (2.0 * c2 + 6.0 * s * c3) / dt**2,
        )
