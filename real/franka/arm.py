"""A Franka arm through franky 2.0.0: Python streams targets, the impedance law runs in franky's 1
kHz C++ loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from types import TracebackType
from typing import Any, Literal

import numpy as np

from real.arm import ArmFaultError, ArmState, PoseTarget
from real.clock import WallClock
from real.franka.impedance import ImpedanceConfig, Vector6, Vector7, impedance_motion
from real.franka.joint_limits import joint_velocity
from real.franka.realtime import Scheduling, scheduled
from real.franka.state_recorder import FlightRecorder
from robots.config import config
from robots.errors import HandoffError, SafetyError, words
from robots.franka.fr3 import Q_MAX, Q_MIN
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock

Vector3 = tuple[float, float, float]

_NO_REALTIME = "arm: no realtime priority ({}). A real arm needs a PREEMPT_RT kernel; a twin, `realtime: ignore`."

STOP_DYNAMICS = 0.5
"""Share of the limits with which a move is stopped half-way. At all of them franky's first sample
was refused by the twin's check of the accelerations, which is the robot's."""


@config
class FrankaConfig:
    """Connection, controller and collision behaviour of one arm."""

    host: str = "127.0.0.1"
    """Name or address of the robot's control (or of its twin)."""
    realtime: Literal["enforce", "ignore"] = "enforce"
    """`enforce` refuses to run without a PREEMPT_RT kernel; `ignore` is for the twin."""
    impedance: ImpedanceConfig = field(default_factory=ImpedanceConfig)
    """The law that follows the targets."""
    collision_torque: Vector7 = (40.0, 40.0, 36.0, 36.0, 12.0, 12.0, 12.0)
    """External joint torque that makes the robot stop [Nm]; half of it counts as contact."""
    collision_force: Vector6 = (50.0, 50.0, 50.0, 15.0, 15.0, 15.0)
    """External force x, y, z [N] and moment [Nm] that make the robot stop; half of them count as
    contact."""
    tool_length: float = 0.120
    """Flange to the tool's tip [m], by default the pusher's; the end effector frame is the flange
    moved along its z."""
    load_mass: float = 0.0
    """Payload beyond the end effector configured in Desk [kg]."""
    load_com: Vector3 = (0.0, 0.0, 0.0)
    """Its centre of mass in the flange frame [m]."""
    move_dynamics: float = 0.1
    """Share of the arm's velocity, acceleration and jerk limits used by `move_to_joints`."""
    rest_torque: float = 4.0
    """External torque per joint at rest above which the payload counts as wrongly configured
    [Nm]."""
    record_seconds: float = 60.0
    """Robot states reserved per motion [s] (0.5 kB each millisecond)."""


class FrankaArm:
    """Implements `real.arm.Arm`. A context manager: leaving it, in whatever way, brings the arm to
    rest first.

    Nothing recovers by itself: a fault is latched, and every later command raises it again until
    `recover` is called.
    """

    def __init__(
        self,
        config: FrankaConfig,
        clock: Clock | None = None,
        await_motion: Callable[[], None] = lambda: None,
    ) -> None:
        """Does not connect yet.

        Args:
            config: of the arm.
            clock: robot time; None waits for the robot's own (hardware). A lockstep twin brings its
                own.
            await_motion: called after every start of a motion; a lockstep twin waits there for the
                first command, so that granted time never passes before the motion.
        """
        self.config = config
        self._await_motion = await_motion
        self.clock: Clock = (
            WallClock(lambda: self._robot.state.time.to_sec()) if clock is None else clock
        )
        self.flange_T_ee = np.eye(4)
        self.flange_T_ee[2, 3] = config.tool_length
        self.recorder: FlightRecorder | None = None
        self._robot: Any = None
        self._control_scheduling: Scheduling | None = None
        self._motion: Any = None
        self._fault: ArmFaultError | None = None
        self._q_target = np.zeros(7)

    def __enter__(self) -> FrankaArm:
        with scheduled():
            self._robot = _connect(self.config)
            self._control_scheduling = Scheduling.current()
        self._configure()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception as second:
            # The first error tells what happened; the one of the clean-up would only hide it.
            if error is None:
                raise
            error.add_note(f"Stopping the arm failed: {words(second)}")
        finally:
            self._robot = None

    def state(self) -> ArmState:
        """The newest state. Latches and raises an `ArmFaultError` when the robot has stopped by
        itself."""
        self._raise_latched()
        state = arm_state(self._robot.state)
        if self._motion is not None and (state.errors or not self._robot.is_in_control):
            # franky may know that the motion has failed before the state that says why has come.
            self._guarded(lambda: self._robot.join_motion(timeout=0.5))
            self._latch(state)
        return state

    def preflight(self) -> ArmState:
        """Checks that the arm is ready: mode, errors, fresh states, joint limits, payload.

        Raises:
            SafetyError: it is not; names the figure, its limit and the likely cause.
        """
        before = arm_state(self._robot.state)
        self.clock.advance(0.01)
        # Read twice: after an idle gap the first datagram in the socket's buffer may be seconds
        # old.
        state = arm_state(self._robot.state)
        state = arm_state(self._robot.state)
        if state.mode != "Idle" or state.errors:
            raise SafetyError(
                f"arm: mode is {state.mode}, errors {list(state.errors)}, expected Idle without errors. "
                "Is the user stop released, FCI active, the last fault recovered?"
            )
        if not state.time > before.time:
            raise SafetyError(
                f"arm: its time stands at {state.time:.3f} s. Are states still being sent?"
            )
        margin = np.minimum(state.q - Q_MIN, Q_MAX - state.q)
        if margin.min() < 0.05:
            i = int(np.argmin(margin))
            raise SafetyError(
                f"arm: joint{i + 1} is {margin[i]:.3f} rad from its limit, at least 0.05 wanted. Guide it away."
            )
        if np.abs(state.tau_ext).max() > self.config.rest_torque:
            i = int(np.argmax(np.abs(state.tau_ext)))
            raise SafetyError(
                f"arm: joint{i + 1} feels {state.tau_ext[i]:.2f} Nm at rest, limit {self.config.rest_torque} Nm. "
                "Is the tool's mass configured in Desk, does something touch the arm?"
            )
        return state

    def move_to_joints(self, q: np.ndarray, halted: Callable[[], bool] = lambda: False) -> bool:
        """Moves to joint positions `q` (7,) [rad] at reduced dynamics, and waits in robot time
        until it is there.

        Args:
            q: target.
            halted: asked every 10 ms; once true the arm comes to rest where it is, at full
                deceleration.

        Returns:
            Whether it is there.

        Raises:
            SafetyError: `q` is not 7 finite numbers inside the limits.
            ArmFaultError: the robot stopped on the way.
        """
        import franky

        self._require_idle("move_to_joints")
        q = np.asarray(q, dtype=np.float64)
        if q.shape != (7,) or not ((q > Q_MIN) & (q < Q_MAX)).all():
            raise SafetyError(
                f"arm: joint target {q.tolist()} rad, expected 7 numbers inside {Q_MIN.tolist()} to {Q_MAX.tolist()}."
            )
        motion = franky.JointMotion(q, relative_dynamics_factor=self.config.move_dynamics)
        self._begin(motion)
        if self._wait_until_done(60.0, halted):
            return True
        self._move(franky.JointStopMotion(STOP_DYNAMICS))
        self._wait_until_done(4.0)
        return False

    def start(self) -> None:
        """Takes control under impedance, holding the present pose, and starts a fresh
        `recorder`."""
        self._require_idle("start")
        state = arm_state(self._robot.state)
        self._q_target = state.q.copy()
        motion = impedance_motion(self.config.impedance, state)
        self.recorder = FlightRecorder(self.config.record_seconds)
        motion.register_callback(self.recorder)
        self._motion = motion
        self._begin(motion)

    def set_target(self, target: PoseTarget) -> None:
        """Streams one target; 33 us, so 250 Hz cost nothing.

        Raises:
            SafetyError: a non-finite entry, or the arm is not under control.
        """
        import franky

        self._raise_latched()
        if self._motion is None:
            raise SafetyError(
                "arm: a target came while the arm is not under control. Was `start` called?"
            )
        if not all(np.isfinite(part).all() for part in target):
            raise SafetyError(
                f"arm: target {target.base_T_ee[:3, 3].tolist()} m, twist {target.twist.tolist()} is not finite."
            )
        if self.config.impedance.controller == "cartesian":
            twist = franky.Twist(target.twist[:3], target.twist[3:])
            acceleration = franky.TwistAcceleration(
                target.acceleration[:3], target.acceleration[3:]
            )
            self._motion.set_reference(
                franky.CartesianReference(franky.Affine(target.base_T_ee), twist, acceleration)
            )
            return
        flange = target.base_T_ee @ np.linalg.inv(self.flange_T_ee)
        self._q_target = inverse_kinematics(flange, self._q_target)
        dq = joint_velocity(self._q_target, target.twist, self.flange_T_ee)
        self._motion.set_reference(franky.JointReference(q=self._q_target, dq=dq))

    def stop(self) -> None:
        """Ramps the torque into pure damping, waits until the arm rests; latches what went
        wrong."""
        import franky

        if self._robot is None or self._motion is None:
            return
        if self._fault is None and self._robot.is_in_control:
            self._move(franky.TorqueStopMotion())
        # Not before: a call that Ctrl-C has interrupted is made again when the context is left.
        self._motion = None
        if self._fault is None:
            self._wait_until_done(4.0)

    def recover(self) -> None:
        """Clears a latched fault. Only for a person who has found its cause.

        Raises:
            SafetyError: the robot refuses, e.g. because the user stop is still pressed.
        """
        import franky

        try:
            recovered = self._robot.recover_from_errors()
        except franky.CommandException as error:
            raise SafetyError(
                f"arm: recovery refused ({error}). Is the user stop still pressed?"
            ) from None
        if not recovered:
            raise SafetyError("arm: recovery failed. Does the cause of the fault persist?")
        self._fault, self._motion = None, None

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
        """Hands `motion` to franky. The thread in which it runs its 1 kHz loop inherits the
        priority held here."""
        with scheduled(self._control_scheduling):
            self._guarded(lambda: self._robot.move(motion, asynchronous=True))

    def _begin(self, motion: Any) -> None:
        """Starts a motion and waits, in host time, until the robot obeys it; robot time may stand
        still meanwhile."""
        import franky

        self._move(motion)
        self._await_motion()
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            if self._robot.is_in_control and self._robot.state.robot_mode == franky.RobotMode.Move:
                return
            if self._has_ended():
                break
            time.sleep(0.001)
        self._latch(arm_state(self._robot.state))

    def _wait_until_done(self, seconds: float, halted: Callable[[], bool] = lambda: False) -> bool:
        """Lets robot time pass until the running motion has ended; False when `halted` came
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
        """Whether no motion runs; raises the fault that ended one."""
        # Not `poll_motion`: in franky 2.0.0 it answers the opposite of what its documentation says.
        return self._guarded(lambda: self._robot.join_motion(timeout=0.0))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Runs a call into franky; what it raises becomes a fault or one clear error."""
        import franky

        try:
            return call()
        except franky.ControlException:
            state = arm_state(self._robot.state)
            flags = error_names(self._robot.state.last_motion_errors)
            self._latch(state, flags)
        except franky.NetworkException as error:
            raise HandoffError(
                f"arm at {self.config.host}: connection lost ({error}). Is it still powered and linked?"
            ) from None
        except franky.RealtimeException as error:
            raise HandoffError(_NO_REALTIME.format(error)) from None
        except (franky.CommandException, franky.InvalidOperationException) as error:
            raise HandoffError(
                f"arm at {self.config.host}: refused a command ({error}). Is it in the right mode?"
            ) from None

    def _latch(self, state: ArmState, flags: tuple[str, ...] = ()) -> None:
        self._fault = ArmFaultError(flags or state.errors, state.mode, state.time)
        # Joining takes what the control thread left behind, so that the next motion does not meet
        # it.
        with suppress(Exception):
            self._robot.join_motion(timeout=0.5)
        raise self._fault

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


def arm_state(state: Any) -> ArmState:
    """The `ArmState` of a `franky.RobotState`."""
    return ArmState(
        time=state.time.to_msec() * 1e-3,
        q=np.array(state.q),
        dq=np.array(state.dq),
        base_T_ee=np.array(state.O_T_EE.matrix),
        tau_J=np.array(state.tau_J),
        tau_ext=np.array(state.tau_ext_hat_filtered),
        success_rate=float(state.control_command_success_rate),
        mode=state.robot_mode.name,
        errors=error_names(state.current_errors),
    )


def error_names(errors: Any) -> tuple[str, ...]:
    """Names of the flags that are set in a `franky.Errors`."""
    # One call into C++ for the usual case, that nothing is wrong.
    if not any(errors.__getstate__()):
        return ()
    flags = (name for name, member in vars(type(errors)).items() if isinstance(member, property))
    return tuple(name for name in flags if getattr(errors, name))


def _connect(config: FrankaConfig) -> Any:
    try:
        import franky
    except ImportError as error:
        raise HandoffError(
            f"franky: cannot be imported ({error}). Install franky-control==2.0.0 (Linux x86_64)."
        ) from None
    realtime = (
        franky.RealtimeConfig.Enforce
        if config.realtime == "enforce"
        else franky.RealtimeConfig.Ignore
    )
    try:
        return franky.Robot(config.host, relative_dynamics_factor=1.0, realtime_config=realtime)
    except franky.NetworkException as error:
        raise HandoffError(
            f"arm: nobody answers at {config.host}:1337 ({error}). "
            "Is the twin running, the robot on, FCI active in Desk?"
        ) from None
    except franky.IncompatibleVersionException as error:
        raise HandoffError(
            f"arm at {config.host}: speaks another FCI version ({error}). franky-control 2.0.0 needs robot system "
            "5.9.0 or newer."
        ) from None
    except franky.RealtimeException as error:
        raise HandoffError(_NO_REALTIME.format(error)) from None
    except (franky.ProtocolException, franky.ModelException) as error:
        raise HandoffError(
            f"arm at {config.host}: answered what is not FCI protocol 10 ({error})."
        ) from None
