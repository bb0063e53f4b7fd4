"""Defines action spaces, and converts actions to targets of the arm.

`CartesianDelta`, `JointDelta`, `JointTarget` and `PdTarget` move the target of an impedance law
(`robots.control.impedance`) once per policy period, for one arm or many. A delta is added to the
target, not to the measured pose, so that a load does not make the arm drift. The leash is the
target lag limit: the largest distance between target and measured pose, which bounds the contact
force by leash times stiffness.

The interface `pd_target` is that of push-T in gym-pusht 0.1.8 (`gym_pusht/envs/pusht.py`,
`PushTEnv.step`): an action is the position target `a` of a critically damped agent, which follows
it for one policy period at 100 Hz as

    v <- v + (k_p (a - p) - k_v v) dt,    p <- p + v dt.

The arm follows the same recursion, so that the dynamics on the robot match those in training.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from robots.config import Hertz, Metres, NonNegative, Positive, Radians, UnitComponent, config
from robots.errors import HandoffError
from robots.franka.robot import Gripper, JointLimits, Robot
from robots.spec import ActionSpec

PD_TARGET = "pd_target"
"""`Contract.action_interface`: the action is the position target of the 100 Hz agent above."""

AS_RECORDED = "as_recorded"
"""`Contract.action_interface`: the action is whatever the demonstrations recorded, which no
controller of Handoff knows."""

ActionInterface = Literal[
    "pd_target", "cartesian_delta", "joint_delta", "joint_target", "as_recorded"
]
"""Meanings of an action to a controller; the arm's loop runs all but the last."""
Axis = Literal["x", "y", "z", "roll", "pitch", "yaw"]
AXES: tuple[Axis, ...] = ("x", "y", "z", "roll", "pitch", "yaw")


@config
class AgentDynamics:
    """Dynamics of the second-order agent that follows position targets."""

    k_p: NonNegative = 100.0
    """Stiffness per mass [1/s^2]."""
    k_v: NonNegative = 20.0
    """Damping per mass [1/s]."""
    rate_hz: Hertz = 100.0
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
    """Dynamics of the agent that an action interface moves.

    Raises:
        HandoffError: the interface is unknown.
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
    """Steps of the target pose of the frame "grasp" (see `robots.franka.robot.Gripper`), in base
    axes; entries in [-1, 1]."""

    kind: Literal["cartesian_delta"] = "cartesian_delta"
    """Name of the space in a configuration file."""
    axes: tuple[Axis, ...] = ("x", "y", "z", "yaw")
    """Axes that an action moves; the others keep their target."""
    translation: Positive = 0.02
    """Step of x, y and z for an entry of 1 [m]."""
    rotation: Positive = 0.10
    """Step of roll, pitch and yaw (entries of the rotation vector) for an entry of 1 [rad]."""
    leash_translation: Positive = 0.03
    """Largest distance from target to measured position, per axis [m]."""
    leash_rotation: Positive = 0.20
    """Largest difference from target to measured rotation, per entry of the rotation vector
    [rad]."""
    low: tuple[Metres, Metres, Metres] = (0.30, -0.28, 0.005)
    """Lowest target position [m]; the gripper, pointing down, reaches the corners of the box at any
    yaw within 1.2 rad."""
    high: tuple[Metres, Metres, Metres] = (0.66, 0.28, 0.45)
    """Highest target position [m]."""
    rotation_limit: Radians = 1.7
    """Bound of each entry of the target's rotation vector [rad]."""

    def spec(self, robot: Robot) -> ActionSpec:
        """Specification of the arm's entries of an action, the same for all robots; the gripper's
        entry follows them."""
        n = len(self.axes)
        return ActionSpec(
            low=(-1.0,) * n, high=(1.0,) * n, names=tuple(self.axes), interface="cartesian_delta"
        )

    def target(self, target: np.ndarray, measured: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The next target.

        Args:
            target: (..., 6) the present target: position [m], rotation vector [rad].
            measured: (..., 6) the measured pose.
            action: (..., len(axes)), clipped to [-1, 1].

        Returns:
            (..., 6) the next target.
        """
        index = [AXES.index(axis) for axis in self.axes]
        scale = np.array([self.translation if i < 3 else self.rotation for i in index])
        leash = np.array([self.leash_translation if i < 3 else self.leash_rotation for i in index])
        limit = self.rotation_limit
        low = np.array([*self.low, -limit, -limit, -limit])[index]
        high = np.array([*self.high, limit, limit, limit])[index]
        next_target = target.copy()
        moved = target[..., index] + scale * np.clip(action, -1.0, 1.0)
        # The leash is applied last: an arm that starts outside the box returns without a jump.
        inside = np.clip(moved, low, high)
        next_target[..., index] = np.clip(
            inside, measured[..., index] - leash, measured[..., index] + leash
        )
        return next_target


@config
class JointDelta:
    """Steps of the joints' target positions; entries in [-1, 1]."""

    kind: Literal["joint_delta"] = "joint_delta"
    """Name of the space in a configuration file."""
    step: Positive = 0.06
    """Step for an entry of 1 [rad]."""
    leash: Positive = 0.15
    """Largest distance from target to measured position, per joint [rad]."""
    margin: NonNegative = 0.05
    """Distance kept from the joint limits [rad]."""

    def spec(self, robot: Robot) -> ActionSpec:
        """Specification of the arm's entries of an action; the gripper's entry follows them."""
        n = robot.num_joints
        return ActionSpec(
            low=(-1.0,) * n, high=(1.0,) * n, names=joint_entries(robot), interface="joint_delta"
        )

    def target(
        self, target: np.ndarray, measured: np.ndarray, action: np.ndarray, limits: JointLimits
    ) -> np.ndarray:
        """The next target (..., J) [rad] from the present one, the measured positions and an action
        (..., J), within `limits`."""
        moved = target + self.step * np.clip(action, -1.0, 1.0)
        near = np.clip(moved, measured - self.leash, measured + self.leash)
        return np.clip(near, limits.q_min + self.margin, limits.q_max - self.margin)


@config
class JointTarget:
    """Target joint positions [rad], approached at a share of the velocity limits."""

    kind: Literal["joint_target"] = "joint_target"
    """Name of the space in a configuration file."""
    margin: NonNegative = 0.05
    """Distance kept from the joint limits [rad]."""
    speed: Positive = 0.8
    """Largest velocity of the target, as a share of the joint velocity limits."""
    leash: tuple[Positive, ...] = (0.29, 0.29, 0.29, 0.29, 0.72, 0.73, 1.50)
    """(J,) largest distance from target to measured position [rad]: the lag of a
    joint of the FR3 behind a target that moves at `speed`, plus the distance covered in one period
    at 20 Hz. It prevents a jump when a blocked arm is released. A Panda moves more slowly; for it
    the leash is up to twice its lag."""

    def spec(self, robot: Robot) -> ActionSpec:
        """Specification of the arm's entries of an action; the gripper's entry follows them."""
        return ActionSpec(
            low=tuple((robot.limits.q_min + self.margin).tolist()),
            high=tuple((robot.limits.q_max - self.margin).tolist()),
            names=joint_entries(robot),
            unit="rad",
            interface="joint_target",
        )

    def target(
        self,
        target: np.ndarray,
        measured: np.ndarray,
        action: np.ndarray,
        period: float,
        limits: JointLimits,
    ) -> np.ndarray:
        """The next target (..., J) [rad], `period` [s] after the present one, from the measured
        positions and an action (..., J) [rad], within `limits`."""
        reach = self.speed * limits.dq_max * period
        leash = np.array(self.leash)
        lowest, highest = limits.q_min + self.margin, limits.q_max - self.margin
        goal = np.clip(action, lowest, highest)
        near = np.clip(
            np.clip(goal, target - reach, target + reach), measured - leash, measured + leash
        )
        return np.clip(near, lowest, highest)


def joint_entries(robot: Robot) -> tuple[str, ...]:
    """(J,) names of the entries of an action."""
    return tuple(f"joint{i}" for i in range(1, robot.num_joints + 1))


@config
class PdTarget:
    """Position targets [m] on a board for the agent of `pd_target`; the frame "grasp" follows the
    agent."""

    kind: Literal["pd_target"] = "pd_target"
    """Name of the space in a configuration file."""
    low: tuple[Metres, Metres] = (0.030, 0.030)
    """Lowest target on the board [m]."""
    high: tuple[Metres, Metres] = (0.480, 0.480)
    """Highest target on the board [m]."""
    origin: tuple[Metres, Metres, Metres] = (0.776, 0.256, 0.004)
    """Position of the frame "grasp" at the board's origin [m], base."""
    x_axis: tuple[UnitComponent, UnitComponent, UnitComponent] = (0.0, -1.0, 0.0)
    """Unit vector of board x in the base frame."""
    y_axis: tuple[UnitComponent, UnitComponent, UnitComponent] = (-1.0, 0.0, 0.0)
    """Unit vector of board y in the base frame."""
    mass: Positive = 7.0
    """Apparent mass of the upright arm along the board, for the feed-forward force [kg]: 5 to 8
    over most of the board, more beside the base."""
    dynamics: AgentDynamics = AgentDynamics()
    """Stiffness, damping and rate of the simulated agent."""

    def spec(self, robot: Robot) -> ActionSpec:
        """Specification of an action, the same for all robots; it has no gripper entry."""
        return ActionSpec(
            low=self.low, high=self.high, names=("x", "y"), unit="m", interface=PD_TARGET
        )

    def to_board(self, position: np.ndarray) -> np.ndarray:
        """(..., 2) board coordinates [m] of the position (..., 3) [m], base."""
        return (position - np.array(self.origin)) @ np.array([self.x_axis, self.y_axis]).T

    def to_base(self, board: np.ndarray) -> np.ndarray:
        """(..., 3) vector in base axes of a vector (..., 2) along the board."""
        return board @ np.array([self.x_axis, self.y_axis])

    def motion(
        self, position: np.ndarray, velocity: np.ndarray, action: np.ndarray, period: float
    ) -> Motion:
        """Motion of N agents in one policy period: the knots of `AgentReference`, batched.

        Args:
            position: (N, 2) positions of the agents [m], board.
            velocity: (N, 2) the recursion's `v` [m/s].
            action: (N, 2) targets [m], board, clipped to `low` and `high`.
            period: policy period [s].

        Returns:
            Motion with (N, K, 2) each, at the K knots of the period; the last knot is its end. The
            velocity is the recursion's `v`; the acceleration is that of the interval after the
            knot for an unchanged target.
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
            motion.position[:, k] = position
            motion.velocity[:, k] = velocity
            motion.acceleration[:, k] = acceleration
        return motion


ActionSpace = CartesianDelta | JointDelta | JointTarget | PdTarget
StepSpace = CartesianDelta | JointDelta | JointTarget
"""Action spaces of an arm with a gripper, which move the target of an impedance law from its last
value."""

GRIPPER_SPEC = ActionSpec(low=(-1.0,), high=(1.0,), names=("gripper",), interface="gripper_width")
"""Entry of the gripper: -1 closed, 1 open, proportional in between."""


def with_gripper(arm: ActionSpec) -> ActionSpec:
    """The specification of actions with the gripper's entry behind those of the arm."""
    return ActionSpec(
        low=(*arm.low, *GRIPPER_SPEC.low),
        high=(*arm.high, *GRIPPER_SPEC.high),
        names=(*arm.names, *GRIPPER_SPEC.names),
        unit=arm.unit,
        interface=arm.interface,
    )


def check_actions(name: str, actions: ActionSpace, robot: Robot) -> None:
    """Checks the options of an action space.

    Args:
        name: what the actions belong to, for messages.
        actions: the options.
        robot: the arm.

    Raises:
        HandoffError: no or repeated axes, bounds in the wrong order, or a number of entries that is
            not that of the joints.
    """
    if isinstance(actions, JointTarget):
        robot.check_per_joint("actions.leash", actions.leash)
    if isinstance(actions, CartesianDelta) and (
        not actions.axes or len(set(actions.axes)) < len(actions.axes)
    ):
        raise HandoffError(
            f"{name}: actions along the axes {list(actions.axes)}, expected one or more distinct axes."
        )
    if (
        isinstance(actions, (CartesianDelta, PdTarget))
        and not np.less(actions.low, actions.high).all()
    ):
        raise HandoffError(
            f"{name}: action targets from {actions.low} to {actions.high} m, expected low < high. Are they swapped?"
        )


GRIPPER_LEASH = 0.016
"""Largest distance between the target and the measured opening of the gripper [m]. The servo
reaches its force limit well before it, and the gripper opens at once instead of unwinding the
target first."""


def gripper_target(
    width: np.ndarray,
    measured: np.ndarray,
    action: np.ndarray,
    period: float,
    gripper: Gripper,
) -> np.ndarray:
    """The next target opening of the gripper.

    Args:
        width: (...) the present target [m].
        measured: (...) the present opening [m].
        action: (...) in [-1, 1], see `GRIPPER_SPEC`.
        period: time until the next target [s].
        gripper: limits of the opening and its speed.

    Returns:
        (...) the next target [m].
    """
    goal = 0.5 * gripper.width_max * (1.0 + np.clip(action, -1.0, 1.0))
    reach = gripper.speed_max * period
    moved = np.clip(goal, width - reach, width + reach)
    return np.maximum(0.0, np.clip(moved, measured - GRIPPER_LEASH, measured + GRIPPER_LEASH))
