"""Handles the client's TCP requests, with the robot's validation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.twin import protocol
from sim.twin.link import Link, Request
from sim.twin.protocol import Command, Controller, Generator, MoveStatus, RobotMode, SetterStatus
from sim.twin.unit.control_unit import ControlUnit

RECOVERY_EMERGENCY = 5
"""Status of a recovery request while the user stop is pressed."""

LARGEST_SETTING = 1e6
"""Maximum magnitude of any setting in SI units, far above valid ones; NaN fails the comparison."""


def handle(
    request: Request,
    unit: ControlUnit,
    link: Link,
    send_state: Callable[[], None],
    version: int = protocol.VERSION,
) -> None:
    """Handles one request; a malformed one closes the connection.

    Args:
        request: the client's request.
        unit: the control unit that executes it.
        link: connection for the reply.
        send_state: sends the current state. It is called before the reply, so that a client that
            reads the state after the reply sees the new setting.
        version: protocol version of the robot; a client with another one is refused.
    """
    try:
        command = Command(request.command)
        values = protocol.PAYLOAD[command].unpack(request.payload)
    except (ValueError, protocol.struct.error):
        link.close_client()
        return

    def reply(status: int, payload: bytes = b"") -> None:
        link.reply(protocol.response(command, request.command_id, status, payload))

    match command:
        case Command.CONNECT:
            client_version, udp_port = values
            compatible = client_version == version and udp_port > 0
            reply(0 if compatible else 1, version.to_bytes(2, "little"))
            if compatible:
                link.open_udp(udp_port)
        case Command.GET_ROBOT_MODEL:
            reply(0, unit.arm.urdf)
        case Command.MOVE:
            reply(_begin_move(request.command_id, values, unit))
        case Command.STOP_MOVE:
            unit.end(MoveStatus.PREEMPTED, RobotMode.IDLE if unit.moving else unit.robot_mode)
            reply(0)
        case Command.AUTOMATIC_ERROR_RECOVERY:
            status = _recover(unit)
            send_state()
            reply(status)
        case _:
            status = _set(command, values, unit)
            send_state()
            reply(status)


def reply_to_move(link: Link, command_id: int, status: MoveStatus) -> None:
    """Sends the second reply to a Move request, after its motion has ended."""
    link.reply(protocol.response(Command.MOVE, command_id, status))


def _begin_move(command_id: int, values: tuple, unit: ControlUnit) -> MoveStatus:
    controller_mode, generator_mode, *deviations = values[:8]
    asynchronous, maximum_velocity = bool(values[8]), np.array(values[9:])
    if controller_mode > Controller.EXTERNAL or generator_mode + 1 > Generator.NONE:
        return MoveStatus.INVALID_ARGUMENT
    if not (np.isfinite(deviations).all() and np.isfinite(maximum_velocity).all()):
        return MoveStatus.INVALID_ARGUMENT
    if unit.robot_mode is not RobotMode.IDLE:
        return MoveStatus.NOT_POSSIBLE
    controller, generator = Controller(controller_mode), Generator(generator_mode + 1)
    if generator is Generator.NONE and controller is not Controller.EXTERNAL:
        return MoveStatus.INVALID_ARGUMENT
    if not asynchronous:
        unit.begin(command_id, controller, generator)
        return MoveStatus.MOTION_STARTED
    # libfranka knows no other motion that the robot plans.
    if generator is not Generator.JOINT_POSITION or controller is Controller.EXTERNAL:
        return MoveStatus.INVALID_ARGUMENT
    highest = unit.world.robot.limits.dq_max
    if not ((maximum_velocity > 0.0) & (maximum_velocity <= highest)).all():
        return MoveStatus.INVALID_ARGUMENT
    unit.begin(command_id, controller, generator, maximum_velocity)
    return MoveStatus.MOTION_STARTED


def _recover(unit: ControlUnit) -> int:
    if unit.robot_mode is RobotMode.USER_STOPPED:
        return RECOVERY_EMERGENCY
    if unit.moving:
        return SetterStatus.NOT_POSSIBLE
    unit.recover()
    return SetterStatus.SUCCESS


def _set(command: Command, values: tuple, unit: ControlUnit) -> SetterStatus:
    if unit.moving:
        return SetterStatus.NOT_POSSIBLE
    numbers = np.array(values, dtype=float)
    if not (np.abs(numbers) <= LARGEST_SETTING).all():
        return SetterStatus.INVALID_ARGUMENT
    valid = True
    match command:
        case Command.SET_COLLISION_BEHAVIOR:
            valid = bool((numbers > 0.0).all())
            if valid:
                unit.tau_ext_max = numbers[21:28]
                unit.F_ext_max = numbers[46:52]
        case Command.SET_JOINT_IMPEDANCE:
            valid = bool(((numbers >= 0.0) & (numbers <= 14250.0)).all())
        case Command.SET_CARTESIAN_IMPEDANCE:
            highest = np.array([3000.0] * 3 + [300.0] * 3)
            valid = bool(((numbers >= 0.0) & (numbers <= highest)).all())
        case Command.SET_EE_TO_K | Command.SET_NE_TO_EE:
            transform = numbers.reshape(4, 4).T
            valid = _is_transform(transform)
            if valid and command is Command.SET_EE_TO_K:
                unit.EE_T_K = transform
            elif valid:
                unit.NE_T_EE = transform
        case Command.SET_LOAD:
            inertia = numbers[4:].reshape(3, 3)
            valid = bool(numbers[0] >= 0.0 and np.allclose(inertia, inertia.T, atol=1e-6))
            if valid:
                unit.m_load = float(numbers[0])
                unit.F_x_Cload = numbers[1:4]
                unit.I_load = inertia
    return SetterStatus.SUCCESS if valid else SetterStatus.INVALID_ARGUMENT


def _is_transform(transform: np.ndarray) -> bool:
    R = transform[:3, :3]
    return bool(
        np.allclose(transform[3], [0, 0, 0, 1], atol=1e-6)
        and np.allclose(R @ R.T, np.eye(3), atol=1e-4)
        and np.linalg.det(R) > 0.0
    )
