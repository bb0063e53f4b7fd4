"""Drives a Franka arm through franky 2.0.0: Python streams targets, and the impedance law runs in
franky's 1 kHz C++ loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import numpy as np

from real.arm import (
    ArmFaultError,
    ArmState,
    ConnectionLostError,
    JointPositionTarget,
    PoseTarget,
    TorqueResponse,
    note_failed_stop,
)
from real.clock import WallClock
from real.franka.config import FrankaConfig, check_data_sheet, flange_T_tool
from real.franka.connection import NO_REALTIME, arm_state, check_robot, connect, error_names
from real.franka.impedance import (
    cartesian_gains,
    impedance_motion,
    limp_motion,
    torque_response,
)
from real.franka.joint_limits import checked_joints, joint_velocity
from real.franka.kept_faults import clear_fault, kept_fault, try_to_keep
from real.franka.preflight import check_ready
from real.franka.realtime import Scheduling, scheduled
from real.franka.recovery import clear_errors
from real.franka.slot import robot_slot
from real.franka.state_recorder import StateRecorder
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from robots.franka.robot import Robot
from robots.interfaces import Clock
from robots.processes import login

GAINS_MOTION = 0.1
"""Motion of a joint after which the Cartesian gains are computed again [rad], in which they change
by a few percent."""
STOP_DYNAMICS = 0.5
"""Share of the arm's limits with which a motion is stopped half-way. At the full limits franky's
first sample failed the twin's check of accelerations, which is the robot's."""
STIFFEN_SECONDS = 0.6
"""Time for which an arm that has yielded is held under control before it gives up control [s]:
franky raises the gains with a time constant of 0.1 s."""


class FrankaArm:
    """Implements `real.arm.Arm`; a context manager, which always brings the arm to rest before it
    disconnects. While it is connected, no other process of this computer can use the arm.

    The arm never recovers by itself: a fault is latched, and every later command raises it again
    until `recover` is called. `FrankaConfig.latch` says whether it outlives the connection.
    """

    def __init__(
        self,
        config: FrankaConfig,
        clock: Clock | None = None,
        await_motion: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepares the arm; entering the context connects to it.

        Args:
            config: connection, controller and collision behaviour.
            clock: clock of robot time; None follows the robot's own (hardware). A lockstep twin is
                its own clock.
            await_motion: called after every start of a motion; a lockstep twin waits in it for the
                first command, so that granted time never passes before the motion.

        Raises:
            HandoffError: an option exceeds a figure of the robot's data sheet, or is for a twin.
        """
        self.config = config
        self.robot: Robot = find_robot(config.robot)
        check_data_sheet(config, self.robot)
        self._await_motion = await_motion
        self.clock: Clock = (
            WallClock(lambda: self._robot.state.time.to_sec()) if clock is None else clock
        )
        self.flange_T_ee = flange_T_tool(config, self.robot)
        self.recorder: StateRecorder | None = None
        self._robot: Any = None
        self._control_scheduling: Scheduling | None = None
        self._motion: Any = None
        self._limp = False
        """Whether the motion that runs, or ran last, yields to a hand and follows no target."""
        self._fault: HandoffError | None = None
        self._moving = False
        """Whether a motion was sent that has not been found to have ended."""
        self._connection = ExitStack()
        self._q_target = self.robot.q_home.copy()
        self._q_gains = self.robot.q_home
        """(J,) positions for which the Cartesian gains were computed last [rad]."""

    def __enter__(self) -> FrankaArm:
        with ExitStack() as stack:
            stack.enter_context(robot_slot(self.config.host, self.config.robot))
            stack.callback(setattr, self, "_robot", None)
            with scheduled():
                self._robot = connect(self.config.host, self.config.realtime)
                self._control_scheduling = Scheduling.current()
            self._guarded(lambda: check_robot(self.robot, self._robot, self.config.host))
            self._configure()
            if self.config.latch == "kept":
                self._fault = kept_fault(self.config.host)
            self._connection = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception as second:  # noqa: BLE001  noted or raised
            note_failed_stop(error, second)
        finally:
            self._connection.close()

    @property
    def moving(self) -> bool:
        """Whether a motion was sent that has not been found to have ended."""
        return self._moving

    def state(self) -> ArmState:
        """The newest state.

        Raises:
            ArmFaultError: the robot has stopped by itself; the fault is latched.
            ConnectionLostError: it no longer sends states.
        """
        self._raise_latched()
        state = self._newest_state()
        if self._motion is not None and (state.errors or not self._in_control()):
            # franky may know that the motion has failed before the state that says why has come.
            self._guarded(lambda: self._robot.join_motion(timeout=0.5))
            self._latch(state)
        self._refresh_gains(state)
        return state

    def preflight(self) -> ArmState:
        """Checks that the arm is ready: mode, errors, fresh states, joint limits, payload.

        Raises:
            SafetyError: a fault is latched, or the arm is not ready; the message names the figure,
                its limit and the likely cause.
        """
        self._raise_latched()
        limits, torque = self.robot.limits, self.config.rest_torque
        return check_ready(self._newest_state, self.clock, limits, torque)

    def move_to_joints(self, q: np.ndarray, halted: Callable[[], bool] = lambda: False) -> bool:
        """Moves to joint positions at reduced dynamics, and waits in robot time until they are
        reached.

        Args:
            q: (J,) target [rad].
            halted: called every 10 ms; once it returns True the arm comes to rest where it is.

        Returns:
            Whether the target was reached.

        Raises:
            SafetyError: `q` is not one finite number per joint inside the limits.
            ArmFaultError: the robot stopped on the way.
        """
        import franky

        self._require_idle("move_to_joints")
        q = checked_joints(self.robot, q)
        motion = franky.JointMotion(q, relative_dynamics_factor=self.config.move_dynamics)
        self._begin(motion)
        if self._wait_until_done(60.0, halted):
            return True
        self._move(franky.JointStopMotion(STOP_DYNAMICS))
        self._wait_until_done(4.0)
        return False

    def start(self, states: int | None = None) -> None:
        """Takes control under impedance, holds the present pose, and starts a new `recorder`.

        Args:
            states: memory for it, see `StateRecorder`.
        """
        self._require_idle("start")
        state = self._newest_state()
        self._q_target = state.q.copy()
        self._q_gains = state.q
        motion = impedance_motion(self.config.impedance, self.robot, state)
        seconds, joints = self.config.record_seconds, self.robot.num_joints
        self.recorder = StateRecorder(seconds, joints, states)
        motion.register_callback(self.recorder)
        self._limp = False
        self._motion = motion
        self._begin(motion)

    def start_limp(self, damping: Sequence[float]) -> None:
        """See `real.arm.YieldingArm`; near the joints' limits a soft spring pushes back."""
        self._require_idle("start_limp")
        motion = limp_motion(damping, self.robot, self._newest_state())
        self._limp = True
        self._motion = motion
        self._begin(motion)

    def set_target(self, target: PoseTarget | JointPositionTarget) -> None:
        """Sends one target, which takes 33 us.

        Raises:
            SafetyError: a non-finite entry, joint positions for the Cartesian law, or the arm is
                not under control.
        """
        import franky

        self._raise_latched()
        if self._motion is None or self._limp:
            raise SafetyError(
                "arm: a target was set while the arm is not under control. Was `start` called?"
            )
        if not all(np.isfinite(part).all() for part in target):
            raise SafetyError(
                f"arm: target {target[0].ravel().tolist()}, velocity {target[1].tolist()} is not finite."
            )
        if isinstance(target, JointPositionTarget):
            self._follow_joints(target.q, target.dq)
            return
        if self.config.impedance.controller != "joint":
            twist = franky.Twist(target.twist[:3], target.twist[3:])
            acceleration = franky.TwistAcceleration(
                target.acceleration[:3], target.acceleration[3:]
            )
            self._motion.set_reference(
                franky.CartesianReference(franky.Affine(target.base_T_ee), twist, acceleration)
            )
            return
        flange = target.base_T_ee @ np.linalg.inv(self.flange_T_ee)
        q = inverse_kinematics(self.robot, flange, self._q_target)
        dq = joint_velocity(self.robot.chain, q, target.twist, self.flange_T_ee)
        self._follow_joints(q, dq)

    def _follow_joints(self, q: np.ndarray, dq: np.ndarray) -> None:
        """Sends joint positions (J,) [rad] and velocities (J,) [rad/s] to the joint law."""
        import franky

        if self.config.impedance.controller != "joint":
            raise SafetyError(
                "arm: a target of joint positions for the Cartesian law. Set arm.impedance.controller=joint."
            )
        self._q_target = q
        self._motion.set_reference(franky.JointReference(q=q, dq=dq))

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        """See `real.arm.Arm`."""
        return torque_response(self.config.impedance, self.robot, q, axes, along, self.flange_T_ee)

    def stop(self) -> None:
        """Ramps the torque into pure damping, and waits until the arm rests; a fault on the way is
        latched. An arm that yields is stiffened first, where it is measured."""
        import franky

        if self._robot is None or self._motion is None:
            return
        if self._fault is None and self._in_control():
            if self._limp:
                self._stiffen()
            self._move(franky.TorqueStopMotion())
        # Not before: a call that Ctrl-C has interrupted is made again when the context is left.
        self._motion = None
        if self._fault is None:
            self._wait_until_done(4.0)

    def recover(self) -> None:
        """Clears a latched fault; to be called by a person who has found its cause.

        Raises:
            SafetyError: the robot refuses, e.g. because the user stop is still pressed.
        """
        refusal = clear_errors(self._robot)
        if refusal is not None:
            raise refusal
        if self.config.latch == "kept" and kept_fault(self.config.host) is not None:
            clear_fault(self.config.host, login(), "recovered by the program")
        self._fault = None
        self._motion = None

    def _stiffen(self) -> None:
        """Holds an arm that yields at its measured joint positions, by the joint law."""
        import franky

        config = self.config.impedance
        gains = franky.JointImpedanceGains(
            np.array(config.joint_stiffness), np.array(config.joint_damping)
        )
        self._motion.set_reference(franky.JointReference(q=self._newest_state().q))
        self._motion.set_gains(gains)
        for _ in range(round(STIFFEN_SECONDS / 0.01)):
            self.clock.advance(0.01)

    def _refresh_gains(self, state: ArmState) -> None:
        """Computes the Cartesian gains again once a joint has moved by `GAINS_MOTION`."""
        config = self.config.impedance
        if self._motion is None or self._limp or config.controller == "joint":
            return
        if np.abs(state.q - self._q_gains).max() < GAINS_MOTION:
            return
        gains = cartesian_gains(config, self.robot, state.q, state.base_T_ee[:3, 3])
        self._motion.set_gains(gains)
        self._q_gains = state.q

    def _configure(self) -> None:
        torque, force = (
            np.array(self.config.collision_torque),
            np.array(self.config.collision_force),
        )
        # The tip is given from the flange; what Desk calls the nominal end effector may already be
        # part of the way.
        NE_T_EE = np.linalg.inv(self._robot.state.F_T_NE.matrix) @ self.flange_T_ee

        def send() -> None:
            self._robot.set_collision_behavior(
                torque / 2, torque, torque / 2, torque, force / 2, force, force / 2, force
            )
            self._robot.set_ee(NE_T_EE.ravel(order="F").tolist())
            self._robot.set_load(self.config.load_mass, list(self.config.load_com), [0.0] * 9)

        self._guarded(send)

    def _move(self, motion: Any) -> None:
        """Starts `motion` in franky, whose 1 kHz thread inherits the priority set here."""
        self._moving = True
        with scheduled(self._control_scheduling):
            self._guarded(lambda: self._robot.move(motion, asynchronous=True))

    def _begin(self, motion: Any) -> None:
        """Starts a motion and waits, in host time, until the robot executes it; robot time may
        stand still meanwhile."""
        import franky

        self._move(motion)
        self._await_motion()
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            if self._in_control() and self._robot.state.robot_mode == franky.RobotMode.Move:
                return
            if self._has_ended():
                break
            time.sleep(0.001)
        self._latch(self._newest_state())

    def _wait_until_done(self, seconds: float, halted: Callable[[], bool] = lambda: False) -> bool:
        """Lets robot time pass until the running motion has ended; returns False if `halted` came
        first."""
        for _ in range(round(seconds / 0.01)):
            if self._has_ended():
                return True
            if halted():
                return False
            self.clock.advance(0.01)
        raise SafetyError(
            f"arm: the motion did not end within {seconds} s of robot time. Is the arm blocked?"
        )

    def _has_ended(self) -> bool:
        """Whether the motion has ended; raises the fault that ended it."""
        # Not `poll_motion`: in franky 2.0.0 it answers the opposite of what its documentation says.
        ended = self._guarded(lambda: self._robot.join_motion(timeout=0.0))
        self._moving = not ended
        return ended

    def _in_control(self) -> bool:
        """Whether a motion of franky runs."""
        return self._guarded(lambda: self._robot.is_in_control)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Runs a call into franky, and converts its exceptions to a fault or one clear error."""
        import franky

        try:
            return call()
        except franky.ControlException:
            state = self._newest_state()
            flags = error_names(self._robot.state.last_motion_errors)
            self._latch(state, flags)
        except (franky.NetworkException, RuntimeError) as error:
            raise self._lost(error) from None
        except franky.RealtimeException as error:
            raise HandoffError(NO_REALTIME.format(error)) from None
        except (franky.CommandException, franky.InvalidOperationException) as error:
            raise HandoffError(
                f"arm at {self.config.host}: refused a command ({error}). Is it in the right mode?"
            ) from None

    def _newest_state(self) -> ArmState:
        import franky

        try:
            return arm_state(self._robot.state)
        except (franky.NetworkException, RuntimeError) as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> ConnectionLostError:
        """The error of a connection that franky, or a socket below it, has given up; during a
        motion it is latched."""
        lost = ConnectionLostError(
            f"arm at {self.config.host}: connection lost ({error}). Is it still powered and linked?"
        )
        if self._moving:
            self._hold_fault(lost, f"a lost connection ({error})")
        return lost

    def _latch(self, state: ArmState, flags: tuple[str, ...] = ()) -> None:
        fault = ArmFaultError(flags or state.errors, state.mode, state.time)
        self._hold_fault(fault, f"{fault.causes} in mode {fault.mode}")
        # Joining takes what the control thread left behind, so that the next motion does not meet
        # it.
        with suppress(Exception):
            self._robot.join_motion(timeout=0.5)
        raise fault

    def _hold_fault(self, fault: HandoffError, what: str) -> None:
        """Latches a fault; `what` describes it on disk."""
        self._fault = fault
        self._moving = False
        if self.config.latch == "kept":
            try_to_keep(fault, self.config.host, self.config.robot, what)

    def _require_idle(self, what: str) -> None:
        self._raise_latched()
        if self._motion is not None:
            raise SafetyError(
                f"arm: {what} was called while an impedance motion runs. Call `stop` first."
            )

    def _raise_latched(self) -> None:
        if self._robot is None:
            raise HandoffError("arm: not connected; use it as a context manager.")
        if self._fault is not None:
            raise self._fault
