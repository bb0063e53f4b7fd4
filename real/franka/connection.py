"""Connects to a Franka arm, converts its states, and checks which robot it is."""

from __future__ import annotations

import logging
import socket
from typing import Any, Literal

import numpy as np

from real.arm import ArmState, ConnectionLostError
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.franka.urdf_limits import check_urdf

LOG = logging.getLogger(__name__)
FCI_PORT = 1337
"""TCP port at which a control unit takes requests, fixed in libfranka."""
ANSWER_SECONDS = 3.0
"""Time limit for a control unit to accept a connection [s]."""
NO_REALTIME = "arm: no realtime priority ({}). A real arm needs a PREEMPT_RT kernel; a twin, arm.realtime=ignore."


def arm_state(state: Any) -> ArmState:
    """Converts a `franky.RobotState`."""
    return ArmState(
        time=state.time.to_msec() * 1e-3,
        q=np.array(state.q),
        dq=np.array(state.dq),
        base_T_ee=np.array(state.O_T_EE.matrix),
        tau_J=np.array(state.tau_J),
        tau_ext=np.array(state.tau_ext_hat_filtered),
        wrench_ext=np.array(state.O_F_ext_hat_K),
        success_rate=float(state.control_command_success_rate),
        mode=state.robot_mode.name,
        errors=error_names(state.current_errors),
    )


def error_names(errors: Any) -> tuple[str, ...]:
    """Names of the flags that are set in a `franky.Errors`."""
    # A single call into C++ for the usual case without errors.
    if not any(errors.__getstate__()):
        return ()
    flags = (name for name, member in vars(type(errors)).items() if isinstance(member, property))
    return tuple(name for name in flags if getattr(errors, name))


def check_answers(host: str) -> None:
    """Checks that something accepts connections where the control unit of an arm does, before a
    person is asked to begin; nothing is sent.

    Raises:
        ConnectionLostError: nothing does.
    """
    try:
        socket.create_connection((host, FCI_PORT), ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionLostError(
            f"arm: no robot answers at {host}:{FCI_PORT} ({error}). "
            f"Is the twin running, the robot on, FCI active in Desk?"
        ) from None


def connect(host: str, realtime: Literal["enforce", "ignore"]) -> Any:
    """The `franky.Robot` at `host`; see `real.franka.arm.FrankaConfig.realtime`.

    Raises:
        ConnectionLostError: no control answers.
        HandoffError: franky cannot be imported, or the control speaks another protocol than FCI.
    """
    try:
        import franky
    except ImportError as error:
        raise HandoffError(
            f"franky: cannot be imported ({error}). Install franky-control==2.0.0 (Linux x86_64)."
        ) from None
    priority = (
        franky.RealtimeConfig.Enforce if realtime == "enforce" else franky.RealtimeConfig.Ignore
    )
    try:
        return franky.Robot(host, relative_dynamics_factor=1.0, realtime_config=priority)
    except franky.NetworkException as error:
        raise ConnectionLostError(
            f"arm: no robot answers at {host}:{FCI_PORT} ({error}). "
            "Is the twin running, the robot on, FCI active in Desk?"
        ) from None
    except franky.IncompatibleVersionException as error:
        raise HandoffError(
            f"arm at {host}: has another FCI version ({error}). franky-control 2.0.0 needs robot system "
            "5.9.0 or newer."
        ) from None
    except franky.RealtimeException as error:
        raise HandoffError(NO_REALTIME.format(error)) from None
    except (franky.ProtocolException, franky.ModelException) as error:
        raise HandoffError(f"arm at {host}: its answer is not FCI protocol 10 ({error}).") from None
    except RuntimeError as error:
        # libfranka lets some errors of its sockets through as they are.
        raise ConnectionLostError(
            f"arm at {host}: the connection failed ({error}). Is the network or this computer overloaded?"
        ) from None


def check_robot(robot: Robot, connected: Any, host: str) -> None:
    """Compares the connected `franky.Robot` with the configured robot by its URDF; a Panda sends
    none.

    Raises:
        SafetyError: another robot is connected, or its limits differ.
    """
    urdf = getattr(connected, "model_urdf", "")
    if urdf:
        check_urdf(robot, urdf)
        return
    LOG.warning(
        "arm at %s: it sends no URDF, so its limits could not be compared with those of '%s'",
        host,
        robot.name,
    )
