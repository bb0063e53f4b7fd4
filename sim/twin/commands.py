"""Answers the client's TCP requests, with the validation the robot applies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.twin import protocol
from sim.twin.control_unit import ControlUnit
from sim.twin.link import Link, Request
from sim.twin.protocol import Command, Controller, Generator, MoveStatus, RobotMode, SetterStatus

RECOVERY_EMERGENCY = 5
"""Status of a recovery that is refused while the user stop is pressed."""

LARGEST_SETTING = 1e6
"""No setting of the robot comes near this magnitude in SI units; NaN fails the comparison."""


def handle(request: Request, unit: ControlUnit, link: Link, show: Callable[[], None]) -> None:
    """Answers one request; one that no client would send ends the connection.

    Args:
        request: what the client asks.
        unit: what it asks it of.
        link: where the answer goes.
        show: sends the state as it is now. What a request has set is shown before the request is
            answered, so that a client which reads the state after the answer reads what it set.
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
            version, udp_port = values
            same = version == protocol.VERSION and udp_port > 0
            reply(0 if same else 1, protocol.VERSION.to_bytes(2, "little"))
            if same:
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
            show()
            reply(status)
        case _:
            status = _set(command, values, unit)
            show()
            reply(status)


def reply_to_move(link: Link, command_id: int, status: MoveStatus) -> None:
    """The second answer to a Move request, when its motion has ended."""
    link.reply(protocol.response(Command.MOVE, command_id, status))


def _begin_move(command_id: int, values: tuple, unit: ControlUnit) -> MoveStatus:
    controller_mode, generator_mode, *deviations_and_async = values
    if controller_mode > Controller.EXTERNAL or generator_mode + 1 > Generator.NONE:
        return MoveStatus.INVALID_ARGUMENT
    if not np.isfinite(deviations_and_async).all():
        return MoveStatus.INVALID_ARGUMENT
    if unit.robot_mode is not RobotMode.IDLE:
        return MoveStatus.NOT_POSSIBLE
    controller, generator = Controller(controller_mode), Generator(generator_mode + 1)
    # The twin has no Cartesian motion generator: Cartesian work is done with torques.
    if generator in (Generator.CARTESIAN_POSITION, Generator.CARTESIAN_VELOCITY):
        return MoveStatus.NOT_POSSIBLE
    if generator is Generator.NONE and controller is not Controller.EXTERNAL:
        return MoveStatus.INVALID_ARGUMENT
    unit.begin(command_id, controller, generator)
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
                unit.tau_ext_max, unit.F_ext_max = numbers[21:28], numbers[46:52]
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
                unit.m_load, unit.F_x_Cload, unit.I_load = float(numbers[0]), numbers[1:4], inertia
    return SetterStatus.SUCCESS if valid else SetterStatus.INVALID_ARGUMENT


def _is_transform(transform: np.ndarray) -> bool:
    R = transform[:3, :3]
    return bool(
        np.allclose(transform[3], [0, 0, 0, 1], atol=1e-6)
        and np.allclose(R @ R.T, np.eye(3), atol=1e-4)
        and np.linalg.det(R) > 0.0
    )
