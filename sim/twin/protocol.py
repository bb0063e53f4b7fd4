"""Defines the wire format of the Franka control interface, protocol 10: message layouts, ids,
status codes, modes and error bits.

All fields are little-endian and packed. The robot listens on TCP port 1337 for requests; states and
motion commands are UDP datagrams between the robot and the port that the client names when it
connects. The gripper (Franka Hand) is a separate service on TCP port 1338 with states by UDP. The
layouts were written from the documented behaviour of libfranka 0.18+ and confirmed by running its
clients unmodified (franky 2.0.0, the arm's also with pylibfranka 0.21).
"""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np

VERSION = 10
"""The only supported protocol version: libfranka >= 0.18, FR3 system >= 5.9.0."""

PORT = 1337
"""TCP port of the robot, which clients cannot change."""


class Command(IntEnum):
    """TCP requests."""

    CONNECT = 0
    MOVE = 1
    STOP_MOVE = 2
    SET_COLLISION_BEHAVIOR = 3
    SET_JOINT_IMPEDANCE = 4
    SET_CARTESIAN_IMPEDANCE = 5
    SET_GUIDING_MODE = 6
    SET_EE_TO_K = 7
    SET_NE_TO_EE = 8
    SET_LOAD = 9
    AUTOMATIC_ERROR_RECOVERY = 10
    GET_ROBOT_MODEL = 11


class MoveStatus(IntEnum):
    """Status of `Command.MOVE`: first MOTION_STARTED or a refusal, then one of the others when the
    motion ends."""

    SUCCESS = 0
    MOTION_STARTED = 1
    PREEMPTED = 2
    PREEMPTED_SAFETY = 3
    REJECTED_SAFETY = 4
    NOT_POSSIBLE = 5
    SINGULAR_START = 6
    INVALID_ARGUMENT = 7
    REFLEX_ABORTED = 8
    EMERGENCY_ABORTED = 9
    INPUT_ERROR_ABORTED = 10
    ABORTED = 11


class SetterStatus(IntEnum):
    """Status of the `SET_*` commands; 0 and 1 mean the same for `CONNECT`, `STOP_MOVE` and
    recovery."""

    SUCCESS = 0
    NOT_POSSIBLE = 1
    INVALID_ARGUMENT = 2


class Controller(IntEnum):
    """Source of the torques: the robot's own impedance law, or the client."""

    JOINT_IMPEDANCE = 0
    CARTESIAN_IMPEDANCE = 1
    EXTERNAL = 2
    OTHER = 3


class Generator(IntEnum):
    """Quantity that the client commands, as reported in the state; in a Move request the value is
    one less."""

    IDLE = 0
    JOINT_POSITION = 1
    JOINT_VELOCITY = 2
    CARTESIAN_POSITION = 3
    CARTESIAN_VELOCITY = 4
    NONE = 5


class RobotMode(IntEnum):
    """Mode of the robot, as reported in the state."""

    OTHER = 0
    IDLE = 1
    MOVE = 2
    GUIDING = 3
    REFLEX = 4
    USER_STOPPED = 5
    RECOVERY = 6


class ErrorBit(IntEnum):
    """Indices into the state's `errors` and `reflex_reason`; only those that the twin can raise are
    named."""

    JOINT_POSITION_LIMITS = 0
    JOINT_VELOCITY = 3
    JOINT_REFLEX = 6
    CARTESIAN_REFLEX = 7
    START_POSITION_INVALID = 11
    COMMANDED_POSITION_LIMITS = 12
    COMMANDED_VELOCITY_LIMITS = 13
    COMMANDED_VELOCITY_DISCONTINUITY = 14
    COMMANDED_ACCELERATION_DISCONTINUITY = 15
    CARTESIAN_START_POSE_INVALID = 16
    CARTESIAN_VELOCITY_LIMITS = 18
    CARTESIAN_VELOCITY_DISCONTINUITY = 19
    CARTESIAN_ACCELERATION_DISCONTINUITY = 20
    ELBOW_SIGN_INCONSISTENT = 21
    START_ELBOW_INVALID = 22
    COMMUNICATION_CONSTRAINTS = 25
    CARTESIAN_JOINT_POSITION_LIMITS = 27
    CARTESIAN_JOINT_VELOCITY_LIMITS = 28
    CARTESIAN_JOINT_VELOCITY_DISCONTINUITY = 29
    CARTESIAN_JOINT_ACCELERATION_DISCONTINUITY = 30
    CARTESIAN_INVALID_FRAME = 31
    TORQUE_DISCONTINUITY = 32
    TORQUE_RANGE = 34


N_ERRORS = 41
"""Error bits in the state."""

HEADER = struct.Struct("<III")
"""Header of every TCP message: command, command id (the client's counter), size of the whole
message [bytes]."""

MAX_REQUEST_SIZE = 1024
"""Maximum size of a request [bytes]; the longest valid one is SET_COLLISION_BEHAVIOR with 428."""

PAYLOAD: dict[Command, struct.Struct] = {
    Command.CONNECT: struct.Struct("<HH"),
    Command.MOVE: struct.Struct("<II3d3dB7d"),
    Command.STOP_MOVE: struct.Struct("<"),
    Command.SET_COLLISION_BEHAVIOR: struct.Struct("<52d"),
    Command.SET_JOINT_IMPEDANCE: struct.Struct("<7d"),
    Command.SET_CARTESIAN_IMPEDANCE: struct.Struct("<6d"),
    Command.SET_GUIDING_MODE: struct.Struct("<7?"),
    Command.SET_EE_TO_K: struct.Struct("<16d"),
    Command.SET_NE_TO_EE: struct.Struct("<16d"),
    Command.SET_LOAD: struct.Struct("<d3d9d"),
    Command.AUTOMATIC_ERROR_RECOVERY: struct.Struct("<"),
    Command.GET_ROBOT_MODEL: struct.Struct("<"),
}
"""Payload after the header of each request."""


JOINTS = 7
"""Number of joints in the protocol's messages."""

STATE = np.dtype(
    [
        ("message_id", "<u8"),
        ("O_T_EE", "<f4", 16),
        ("O_T_EE_d", "<f4", 16),
        ("F_T_EE", "<f4", 16),
        ("EE_T_K", "<f4", 16),
        ("F_T_NE", "<f4", 16),
        ("NE_T_EE", "<f4", 16),
        ("m_ee", "<f4"),
        ("I_ee", "<f4", 9),
        ("F_x_Cee", "<f4", 3),
        ("m_load", "<f4"),
        ("I_load", "<f4", 9),
        ("F_x_Cload", "<f4", 3),
        ("elbow", "<f4", 2),
        ("elbow_d", "<f4", 2),
        ("tau_J", "<f4", JOINTS),
        ("tau_J_d", "<f4", JOINTS),
        ("dtau_J", "<f4", JOINTS),
        ("q", "<f4", JOINTS),
        ("q_d", "<f4", JOINTS),
        ("dq", "<f4", JOINTS),
        ("dq_d", "<f4", JOINTS),
        ("ddq_d", "<f4", JOINTS),
        ("joint_contact", "<f4", JOINTS),
        ("cartesian_contact", "<f4", 6),
        ("joint_collision", "<f4", JOINTS),
        ("cartesian_collision", "<f4", 6),
        ("tau_ext_hat_filtered", "<f4", JOINTS),
        ("O_F_ext_hat_K", "<f4", 6),
        ("K_F_ext_hat_K", "<f4", 6),
        ("O_dP_EE_d", "<f4", 6),
        ("O_ddP_O", "<f4", 3),
        ("elbow_c", "<f4", 2),
        ("delbow_c", "<f4", 2),
        ("ddelbow_c", "<f4", 2),
        ("O_T_EE_c", "<f4", 16),
        ("O_dP_EE_c", "<f4", 6),
        ("O_ddP_EE_c", "<f4", 6),
        ("theta", "<f4", JOINTS),
        ("dtheta", "<f4", JOINTS),
        ("accelerometer_top", "<f4", (6, 3)),
        ("accelerometer_bottom", "<f4", (6, 3)),
        ("motion_generator_mode", "u1"),
        ("controller_mode", "u1"),
        ("errors", "?", N_ERRORS),
        ("reflex_reason", "?", N_ERRORS),
        ("robot_mode", "u1"),
        ("control_command_success_rate", "<f4"),
    ]
)
"""The robot state datagram, 1377 bytes. Transforms are column-major; `tau_J` includes gravity,
`tau_J_d` does not."""

COMMAND = np.dtype(
    [
        ("message_id", "<u8"),
        ("q_c", "<f8", JOINTS),
        ("dq_c", "<f8", JOINTS),
        ("O_T_EE_c", "<f8", 16),
        ("O_dP_EE_c", "<f8", 6),
        ("elbow_c", "<f8", 2),
        ("valid_elbow", "u1"),
        ("motion_generation_finished", "u1"),
        ("tau_J_d", "<f8", JOINTS),
        ("torque_command_finished", "u1"),
    ]
)
"""The command datagram, 371 bytes; `message_id` echoes the state to which it replies."""


def response(command: int, command_id: int, status: int, payload: bytes = b"") -> bytes:
    """Builds the reply to one request: header, status byte, payload."""
    return (
        HEADER.pack(command, command_id, HEADER.size + 1 + len(payload)) + bytes([status]) + payload
    )


GRIPPER_VERSION = 3
"""Protocol version of the gripper's service: libfranka >= 0.7.1."""

GRIPPER_PORT = 1338
"""TCP port of the gripper, which clients cannot change."""


class GripperCommand(IntEnum):
    """TCP requests to the gripper; the reply to an action (`HOMING`, `GRASP`, `MOVE`) is sent when
    it ends."""

    CONNECT = 0
    HOMING = 1
    GRASP = 2
    MOVE = 3
    STOP = 4


class GripperStatus(IntEnum):
    """Status in the gripper's replies; for `CONNECT`, 0 confirms the client's version and 1 refuses
    it."""

    SUCCESS = 0
    FAIL = 1
    UNSUCCESSFUL = 2
    ABORTED = 3


GRIPPER_HEADER = struct.Struct("<HII")
"""Header of the gripper's TCP messages: command, command id (the client's counter), size of the
whole message [bytes]."""

GRIPPER_PAYLOAD: dict[GripperCommand, struct.Struct] = {
    GripperCommand.CONNECT: struct.Struct("<HH"),
    GripperCommand.HOMING: struct.Struct("<"),
    GripperCommand.GRASP: struct.Struct("<5d"),
    GripperCommand.MOVE: struct.Struct("<2d"),
    GripperCommand.STOP: struct.Struct("<"),
}
"""Payload after the header of each request, in SI units: version and UDP port for CONNECT; opening,
allowed deviations below and above it, speed and force for GRASP; opening and speed for MOVE."""

GRIPPER_STATE = struct.Struct("<Idd?H")
"""The gripper's state datagram, 23 bytes: message id, opening [m], maximum opening [m], whether it
has grasped an object, temperature [degrees C]."""


def gripper_response(command: int, command_id: int, status: int, payload: bytes = b"") -> bytes:
    """Builds the gripper's reply to one request: header, status in two bytes, payload."""
    body = status.to_bytes(2, "little") + payload
    return GRIPPER_HEADER.pack(command, command_id, GRIPPER_HEADER.size + len(body)) + body
