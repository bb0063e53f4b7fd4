"""Implements the robot's control unit without its network: modes, motions, limits and reflexes, in
cycles of 1 ms."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from sim.twin.protocol import (
    JOINTS,
    N_ERRORS,
    Controller,
    ErrorBit,
    Generator,
    MoveStatus,
    RobotMode,
)
from sim.twin.unit import checks
from sim.twin.unit.arm_model import ArmModel
from sim.twin.unit.cartesian_reference import CartesianReference
from sim.twin.unit.point_to_point import PointToPoint
from sim.twin.world import World

SUCCESS_WINDOW = 100
"""Window of `control_command_success_rate` [commands] (FCI documentation)."""


_CARTESIAN = (Generator.CARTESIAN_POSITION, Generator.CARTESIAN_VELOCITY)
_JOINT_ERRORS = {
    ErrorBit.COMMANDED_POSITION_LIMITS: ErrorBit.CARTESIAN_JOINT_POSITION_LIMITS,
    ErrorBit.COMMANDED_VELOCITY_LIMITS: ErrorBit.CARTESIAN_JOINT_VELOCITY_LIMITS,
    ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY: ErrorBit.CARTESIAN_JOINT_VELOCITY_DISCONTINUITY,
    ErrorBit.COMMANDED_ACCELERATION_DISCONTINUITY: (
        ErrorBit.CARTESIAN_JOINT_ACCELERATION_DISCONTINUITY
    ),
}
"""Errors of joints that follow a motion of the end effector, by those of a joint motion."""


class ControlUnit:
    """Converts commands to torques and enforces the robot's limits.

    Without a motion it holds the arm's position. During a motion, `cycle` takes one command per
    call; an invalid one triggers a reflex with the real robot's error bit. Final replies to Move
    requests are collected in `replies`.
    """

    def __init__(self, world: World) -> None:
        """Takes control of the world's robot.

        Raises:
            HandoffError: the robot's number of joints differs from the network protocol's.
        """
        joints = world.robot.num_joints
        if joints != JOINTS:
            raise HandoffError(
                f"twin: {world.robot.name} has {joints} joints, the FCI protocol expects {JOINTS}. Is it another "
                "manufacturer's arm?"
            )
        self.world = world
        self._limits = world.robot.limits
        self.arm = ArmModel(world.robot)
        self.cartesian = CartesianReference(self.arm, world.robot.cartesian)
        """Commanded motion of the end effector; in use while `moves_end_effector`."""
        self.robot_mode = RobotMode.IDLE
        self.controller = Controller.OTHER
        self.generator = Generator.IDLE
        self.errors = np.zeros(N_ERRORS, bool)
        self.reflex_reason = np.zeros(N_ERRORS, bool)
        self.replies: list[tuple[int, MoveStatus]] = []
        """(command id, status) of Move requests, to be sent after the next state."""
        self.command_received = False
        """Whether the current motion has received its first command."""
        self.reference = np.zeros((3, joints))
        """Desired joint position [rad], velocity [rad/s], acceleration [rad/s^2]."""
        self.tau_d = np.zeros(joints)
        """Commanded joint torque without gravity [Nm]."""
        self.previous_tau_J = world.tau_J.copy()
        """Joint torque with gravity one cycle ago [Nm]."""
        self.F_ext = np.zeros(6)
        """Estimated external wrench at K in base axes [N, Nm]."""
        self.in_contact = False
        """Whether `F_ext` is not zero."""
        self.tau_ext_max = np.full(joints, 20.0)
        self.F_ext_max = np.full(6, 30.0)
        self.m_load = 0.0
        self.F_x_Cload = np.zeros(3)
        self.I_load = np.zeros((3, 3))
        self.NE_T_EE = np.eye(4)
        self.EE_T_K = np.eye(4)
        self.lost_packets = 0
        # Positions, velocities and external torques of the joints, then the wrench at K.
        self._measured, self._highest, self._lowest = np.zeros((3, 3 * joints + 6))
        self._planner: PointToPoint | None = None
        """Plans the motion, where the client sends targets instead of every cycle's position."""
        self._motion_id = -1
        self._lost_in_row = 0
        self._received = bytearray(b"\x01") * SUCCESS_WINDOW
        self._received_at = 0
        self.rest()

    @property
    def moving(self) -> bool:
        """Whether a motion is active."""
        return self.robot_mode is RobotMode.MOVE

    @property
    def moves_end_effector(self) -> bool:
        """Whether a motion is active whose client commands poses or twists of the end effector."""
        return self.moving and self.generator in _CARTESIAN

    @property
    def asynchronous(self) -> bool:
        """Whether a motion is active that the robot plans, to targets that come at any time."""
        return self.moving and self._planner is not None

    @property
    def success_rate(self) -> float:
        """Fraction of the last 100 expected commands that were received."""
        return self._received.count(1) / SUCCESS_WINDOW

    def rest(self) -> None:
        """Holds the arm's current position; must also be called after the world has placed the arm
        elsewhere."""
        self.reference[:] = 0.0
        self.reference[0] = self.world.q

    def forget(self) -> None:
        """Forgets torques, contact and received commands of earlier motions, and holds the arm's
        current position."""
        self.rest()
        self.tau_d = np.zeros_like(self.tau_d)
        self.previous_tau_J = self.world.tau_J.copy()
        self.F_ext = np.zeros(6)
        self.in_contact = False
        self._received[:] = b"\x01" * SUCCESS_WINDOW

    def begin(
        self,
        motion_id: int,
        controller: Controller,
        generator: Generator,
        maximum_velocity: np.ndarray | None = None,
    ) -> None:
        """Starts a motion; the caller has checked that the unit is idle.

        Args:
            motion_id: command id of the request.
            controller: source of the torques.
            generator: quantity that the client commands.
            maximum_velocity: (J,) highest joint velocities of a motion that the robot plans
                [rad/s]; None for one that the client commands in every cycle.
        """
        self.robot_mode = RobotMode.MOVE
        self.controller = controller
        self.generator = generator
        self.reflex_reason[:] = False
        self._planner = None
        if maximum_velocity is not None:
            self._planner = PointToPoint(self._limits, self.reference[0], maximum_velocity)
        # Such a motion waits for nobody.
        self.command_received = self._planner is not None
        self._motion_id = motion_id
        self._lost_in_row = 0
        if generator in _CARTESIAN:
            self.cartesian.begin(self.reference[0], self.world.flange_T_ee @ self.NE_T_EE)
        self._received[:] = b"\x01" * SUCCESS_WINDOW
        limits = self._limits
        contact_limits = (self.tau_ext_max, self.F_ext_max)
        self._highest = np.concatenate([limits.q_max, limits.dq_max, *contact_limits])
        self._lowest = np.concatenate(
            [limits.q_min, -limits.dq_max, *(-limit for limit in contact_limits)]
        )

    def end(self, status: MoveStatus, robot_mode: RobotMode = RobotMode.IDLE) -> None:
        """Ends the current motion, if any, with the final reply to its request."""
        if self.moving:
            self.replies.append((self._motion_id, status))
            self.rest()
        self.robot_mode = robot_mode
        self.controller = Controller.OTHER
        self.generator = Generator.IDLE

    def trip(self, error: ErrorBit) -> None:
        """Triggers a reflex: aborts the motion and keeps the error until recovery."""
        self.errors[error] = self.reflex_reason[error] = True
        self.end(MoveStatus.REFLEX_ABORTED, RobotMode.REFLEX)

    def press_user_stop(self, pressed: bool) -> None:
        """Presses or releases the user stop; after the release the robot is idle unless there are
        errors."""
        if pressed:
            self.end(MoveStatus.EMERGENCY_ABORTED, RobotMode.USER_STOPPED)
        elif self.robot_mode is RobotMode.USER_STOPPED:
            self.robot_mode = RobotMode.REFLEX if self.errors.any() else RobotMode.IDLE

    def recover(self) -> None:
        """Clears errors and leaves the reflex mode."""
        self.errors[:] = False
        self.robot_mode = RobotMode.IDLE

    def cycle(self, command: np.ndarray | None) -> None:
        """Runs one control cycle: applies the command, advances the world by 1 ms, checks limits.

        Args:
            command: (1,) of `protocol.COMMAND`; None if none arrived in time or there is no motion.
        """
        world = self.world
        if self.moving:
            self._apply(command)
        external = self.controller is Controller.EXTERNAL and self.command_received
        if not external:
            self.tau_d = self.arm.tracking_torque(world.q, world.dq, self.reference)
        self.previous_tau_J[:] = world.tau_J
        world.step(self.tau_d)
        self._estimate_contact()
        if self.moving:
            if self.generator is Generator.NONE:
                self.rest()
            self._check_limits()

    def _apply(self, command: np.ndarray | None) -> None:
        if self._planner is not None:
            self._plan(self._planner, command)
            return
        if command is None:
            self._handle_lost_command()
            return
        self._count_command(received=True)
        first = not self.command_received
        self.command_received = True
        error = None
        if self.generator in (Generator.JOINT_POSITION, Generator.JOINT_VELOCITY):
            error = self._follow(command, first)
        elif self.generator in _CARTESIAN:
            error = self._follow_end_effector(command, first)
        if error is None and self.controller is Controller.EXTERNAL:
            tau = command["tau_J_d"][0].copy()
            error = checks.check_torque(self._limits, tau, self.tau_d)
            if error is None:
                self.tau_d = tau
        if error is not None:
            self.trip(error)
        elif command["motion_generation_finished"][0] or command["torque_command_finished"][0]:
            self._finish()

    def _plan(self, planner: PointToPoint, command: np.ndarray | None) -> None:
        """Heads for the newest target, or brakes where the client has ended the motion; what the
        real robot does with a motion that is ended on its way is not published."""
        if command is not None:
            if command["motion_generation_finished"][0]:
                planner.stop()
            elif (error := checks.check_position(self._limits, command["q_c"][0])) is not None:
                self.trip(error)
                return
            else:
                planner.go_to(command["q_c"][0])
        self.reference = planner.step()
        if planner.stopped:
            self._end_at(self.reference[0].copy())

    def _follow(self, command: np.ndarray, first: bool) -> ErrorBit | None:
        old, new = self.reference, np.empty_like(self.reference)
        if self.generator is Generator.JOINT_POSITION:
            new[0] = command["q_c"][0]
            if first:
                # A motion may begin a little beside the desired position: that is its start, at
                # rest, and no step that the arm would have to make in a millisecond.
                if (error := checks.check_start(new[0], old[0])) is not None:
                    return error
                old = np.stack([new[0], *np.zeros((2, len(new[0])))])
            new[1] = (new[0] - old[0]) / checks.PERIOD
        else:
            new[1] = command["dq_c"][0]
            new[0] = old[0] + checks.PERIOD * new[1]
        new[2] = (new[1] - old[1]) / checks.PERIOD
        error = checks.check_joint_reference(self._limits, new, old)
        if error is None:
            self.reference = new
        return error

    def _follow_end_effector(self, command: np.ndarray, first: bool) -> ErrorBit | None:
        cartesian, q = self.cartesian, self.reference[0]
        if self.generator is Generator.CARTESIAN_POSITION:
            pose = command["O_T_EE_c"][0].reshape(4, 4).T
            error = cartesian.follow_pose(pose, first=first)
        else:
            error = cartesian.follow_twist(command["O_dP_EE_c"][0])
        if error is None and command["valid_elbow"][0]:
            error = cartesian.follow_elbow(command["elbow_c"][0], q, first=first)
        else:
            cartesian.release_elbow()
        return self._follow_joints(first=first) if error is None else error

    def _follow_joints(self, *, first: bool) -> ErrorBit | None:
        """Moves the joints towards the commanded pose of the end effector."""
        old, new = self.reference, np.zeros_like(self.reference)
        new[0] = old[0] + self.cartesian.joint_step(old[0])
        if not first or self.generator is Generator.CARTESIAN_VELOCITY:
            new[1] = (new[0] - old[0]) / checks.PERIOD
            new[2] = (new[1] - old[1]) / checks.PERIOD
        error = checks.check_joint_reference(self._limits, new, old)
        if error is None:
            self.reference = new
        return None if error is None else _JOINT_ERRORS[error]

    def _finish(self) -> None:
        position, velocity = self.reference[0].copy(), self.reference[1]
        follows = self.generator is not Generator.NONE
        slowest = checks.TOLERANCE * checks.PERIOD * self._limits.ddq_max
        if self.generator in _CARTESIAN:
            if not self.cartesian.at_rest:
                self.trip(ErrorBit.CARTESIAN_VELOCITY_DISCONTINUITY)
                return
        elif follows and (np.abs(velocity) > slowest).any():
            self.trip(ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY)
            return
        if follows:
            self._end_at(position)
        else:
            self.end(MoveStatus.SUCCESS)

    def _end_at(self, position: np.ndarray) -> None:
        """Ends the motion successfully; the arm holds `position` (J,) [rad]."""
        self.end(MoveStatus.SUCCESS)
        self.reference[0] = position

    def _handle_lost_command(self) -> None:
        """Holds torques and extrapolates joint references with constant acceleration."""
        if not self.command_received:
            return
        self._count_command(received=False)
        self.lost_packets += 1
        if self._lost_in_row >= checks.LOST_PACKETS_MAX:
            self.trip(ErrorBit.COMMUNICATION_CONSTRAINTS)
        elif self.generator in _CARTESIAN:
            self.cartesian.extrapolate()
            if (error := self._follow_joints(first=False)) is not None:
                self.trip(error)
        elif self.generator is not Generator.NONE:
            q, dq, ddq = self.reference
            self.reference[:2] = (
                q + checks.PERIOD * (dq + checks.PERIOD * ddq),
                dq + checks.PERIOD * ddq,
            )

    def _count_command(self, received: bool) -> None:
        self._lost_in_row = 0 if received else self._lost_in_row + 1
        self._received[self._received_at] = received
        self._received_at = (self._received_at + 1) % SUCCESS_WINDOW

    def _estimate_contact(self) -> None:
        world = self.world
        if world.tau_ext.any():
            flange_p_k = (world.flange_T_ee @ self.NE_T_EE @ self.EE_T_K)[:3, 3]
            self.F_ext = self.arm.external_wrench(world.q, world.tau_ext, flange_p_k)
            self.in_contact = True
        elif self.in_contact:
            self.F_ext = np.zeros(6)
            self.in_contact = False

    def _check_limits(self) -> None:
        world = self.world
        measured = self._measured
        joints = len(world.q)
        measured[:joints] = world.q
        measured[joints : 2 * joints] = world.dq
        measured[2 * joints : 3 * joints] = world.tau_ext
        measured[3 * joints :] = self.F_ext
        # This runs every millisecond, so all limits are compared at once; which one is exceeded is
        # determined only after a violation.
        if ((measured <= self._highest) & (measured >= self._lowest)).all():
            return
        error = checks.check_measured(self._limits, world.q, world.dq)
        if error is None:
            error = checks.check_contact(
                world.tau_ext, self.F_ext, self.tau_ext_max, self.F_ext_max
            )
        if error is not None:
            self.trip(error)
