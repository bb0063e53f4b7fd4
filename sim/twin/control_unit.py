"""The robot's control unit without its network: modes, motions, limits and reflexes, one cycle of 1
ms at a time."""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError
from sim.twin import checks
from sim.twin.arm_model import ArmModel
from sim.twin.protocol import (
    JOINTS,
    N_ERRORS,
    Controller,
    ErrorBit,
    Generator,
    MoveStatus,
    RobotMode,
)
from sim.twin.world import World

SUCCESS_WINDOW = 100
"""Control commands that `control_command_success_rate` looks back on, FCI documentation."""


class ControlUnit:
    """Turns commands into torques and watches them as the robot would.

    At rest it holds the arm where it is. While a motion runs, `cycle` takes one command per call;
    what it refuses becomes a reflex with the error bit of the real robot. Final answers to Move
    requests collect in `replies`.
    """

    def __init__(self, world: World) -> None:
        """Takes control of the world's robot.

        Raises:
            HandoffError: it has another number of joints than the network protocol speaks of.
        """
        joints = world.robot.num_joints
        if joints != JOINTS:
            raise HandoffError(
                f"twin: {world.robot.name} has {joints} joints, the FCI protocol speaks of {JOINTS}. Is it another "
                "maker's arm?"
            )
        self.world, self._limits = world, world.robot.limits
        self.arm = ArmModel(world.robot)
        self.robot_mode = RobotMode.IDLE
        self.controller = Controller.OTHER
        self.generator = Generator.IDLE
        self.errors = np.zeros(N_ERRORS, bool)
        self.reflex_reason = np.zeros(N_ERRORS, bool)
        self.replies: list[tuple[int, MoveStatus]] = []
        """(command id, status) of Move requests, to be sent after the next state."""
        self.answered = False
        """Whether the running motion has had its first command."""
        self.reference = np.zeros((3, joints))
        """Desired joint position [rad], velocity [rad/s], acceleration [rad/s^2]."""
        self.tau_d = np.zeros(joints)
        """Commanded joint torque without gravity [Nm]."""
        self.tau_J_before = world.tau_J.copy()
        """Joint torque with gravity one cycle ago [Nm]."""
        self.F_ext = np.zeros(6)
        """Estimated external wrench at K in base axes [N, Nm]."""
        self.tau_ext_max = np.full(joints, 20.0)
        self.F_ext_max = np.full(6, 30.0)
        self.m_load, self.F_x_Cload, self.I_load = 0.0, np.zeros(3), np.zeros((3, 3))
        self.NE_T_EE, self.EE_T_K = np.eye(4), np.eye(4)
        self.lost_packets = 0
        # Positions, velocities and external torques of the joints, then the wrench.
        self._watched, self._highest, self._lowest = np.zeros((3, 3 * joints + 6))
        self._motion_id = -1
        self._lost_in_row = 0
        self._received = bytearray(b"\x01") * SUCCESS_WINDOW
        self._received_at = 0
        self.rest()

    @property
    def moving(self) -> bool:
        """Whether a motion is open."""
        return self.robot_mode is RobotMode.MOVE

    @property
    def success_rate(self) -> float:
        """Share of the last 100 expected commands that arrived."""
        return self._received.count(1) / SUCCESS_WINDOW

    def rest(self) -> None:
        """Holds the arm where it is; to be called also when the world has placed the arm
        elsewhere."""
        self.reference[:] = 0.0
        self.reference[0] = self.world.q

    def begin(self, motion_id: int, controller: Controller, generator: Generator) -> None:
        """Opens a motion; the caller has checked that the unit is idle."""
        self.robot_mode, self.controller, self.generator = RobotMode.MOVE, controller, generator
        self.reflex_reason[:] = False
        self.answered = False
        self._motion_id, self._lost_in_row = motion_id, 0
        self._received[:] = b"\x01" * SUCCESS_WINDOW
        limits, outer = self._limits, (self.tau_ext_max, self.F_ext_max)
        self._highest = np.concatenate([limits.q_max, limits.dq_max, *outer])
        self._lowest = np.concatenate([limits.q_min, -limits.dq_max, *(-part for part in outer)])

    def end(self, status: MoveStatus, robot_mode: RobotMode = RobotMode.IDLE) -> None:
        """Closes the motion, if one is open, with the final answer to its request."""
        if self.moving:
            self.replies.append((self._motion_id, status))
            self.rest()
        self.robot_mode, self.controller, self.generator = (
            robot_mode,
            Controller.OTHER,
            Generator.IDLE,
        )

    def trip(self, error: ErrorBit) -> None:
        """Reflex: the motion is aborted and the error stands until recovery."""
        self.errors[error] = self.reflex_reason[error] = True
        self.end(MoveStatus.REFLEX_ABORTED, RobotMode.REFLEX)

    def press_user_stop(self, pressed: bool) -> None:
        """The user stop button; released, the robot is idle again unless errors stand."""
        if pressed:
            self.end(MoveStatus.EMERGENCY_ABORTED, RobotMode.USER_STOPPED)
        elif self.robot_mode is RobotMode.USER_STOPPED:
            self.robot_mode = RobotMode.REFLEX if self.errors.any() else RobotMode.IDLE

    def recover(self) -> None:
        """Clears errors and leaves the reflex."""
        self.errors[:] = False
        self.robot_mode = RobotMode.IDLE

    def cycle(self, command: np.ndarray | None) -> None:
        """One control cycle: obeys the command, advances the world by 1 ms, watches the limits.

        Args:
            command: (1,) of `protocol.COMMAND`; None when none arrived in time or no motion runs.
        """
        world = self.world
        if self.moving:
            self._obey(command)
        external = self.controller is Controller.EXTERNAL and self.answered
        if not external:
            self.tau_d = self.arm.tracking_torque(world.q, world.dq, self.reference)
        self.tau_J_before[:] = world.tau_J
        world.step(self.tau_d)
        self._estimate_contact()
        if self.moving:
            if self.generator is Generator.NONE:
                self.rest()
            self._watch()

    def _obey(self, command: np.ndarray | None) -> None:
        if command is None:
            self._miss()
            return
        self._note(received=True)
        first, self.answered = not self.answered, True
        error = None
        if self.generator in (Generator.JOINT_POSITION, Generator.JOINT_VELOCITY):
            error = self._follow(command, first)
        if error is None and self.controller is Controller.EXTERNAL:
            tau = command["tau_J_d"][0].copy()
            error = checks.check_torque(self._limits, tau, self.tau_d)
            if error is None:
                self.tau_d = tau
        if error is not None:
            self.trip(error)
        elif command["motion_generation_finished"][0] or command["torque_command_finished"][0]:
            self._finish()

    def _follow(self, command: np.ndarray, first: bool) -> ErrorBit | None:
        old, new = self.reference, np.empty_like(self.reference)
        if self.generator is Generator.JOINT_POSITION:
            new[0] = command["q_c"][0]
            if first and (error := checks.check_start(new[0], old[0])) is not None:
                return error
            new[1] = (new[0] - old[0]) / checks.PERIOD
        else:
            new[1] = command["dq_c"][0]
            new[0] = old[0] + checks.PERIOD * new[1]
        new[2] = (new[1] - old[1]) / checks.PERIOD
        error = checks.check_joint_reference(self._limits, new, old)
        if error is None:
            self.reference = new
        return error

    def _finish(self) -> None:
        position, velocity = self.reference[0].copy(), self.reference[1]
        follows = self.generator is not Generator.NONE
        slowest = checks.TOLERANCE * checks.PERIOD * self._limits.ddq_max
        if follows and (np.abs(velocity) > slowest).any():
            self.trip(ErrorBit.COMMANDED_VELOCITY_DISCONTINUITY)
            return
        self.end(MoveStatus.SUCCESS)
        if follows:
            self.reference[0] = position

    def _miss(self) -> None:
        """A lost command: torques are held, joint references extrapolated with constant
        acceleration."""
        if not self.answered:
            return
        self._note(received=False)
        self.lost_packets += 1
        if self._lost_in_row >= checks.LOST_PACKETS_MAX:
            self.trip(ErrorBit.COMMUNICATION_CONSTRAINTS)
        elif self.generator is not Generator.NONE:
            q, dq, ddq = self.reference
            self.reference[:2] = (
                q + checks.PERIOD * (dq + checks.PERIOD * ddq),
                dq + checks.PERIOD * ddq,
            )

    def _note(self, received: bool) -> None:
        self._lost_in_row = 0 if received else self._lost_in_row + 1
        self._received[self._received_at] = received
        self._received_at = (self._received_at + 1) % SUCCESS_WINDOW

    def _estimate_contact(self) -> None:
        world = self.world
        if world.tau_ext.any():
            flange_p_k = (world.flange_T_ee @ self.NE_T_EE @ self.EE_T_K)[:3, 3]
            self.F_ext = self.arm.external_wrench(world.q, world.tau_ext, flange_p_k)
        elif self.F_ext.any():
            self.F_ext = np.zeros(6)

    def _watch(self) -> None:
        world, watched = self.world, self._watched
        joints = len(world.q)
        watched[:joints] = world.q
        watched[joints : 2 * joints] = world.dq
        watched[2 * joints : 3 * joints] = world.tau_ext
        watched[3 * joints :] = self.F_ext
        # One comparison for all limits: this runs every millisecond, finding out which one gave way
        # does not.
        if ((watched <= self._highest) & (watched >= self._lowest)).all():
            return
        error = checks.check_measured(self._limits, world.q, world.dq)
        if error is None:
            error = checks.check_contact(
                world.tau_ext, self.F_ext, self.tau_ext_max, self.F_ext_max
            )
        if error is not None:
            self.trip(error)
