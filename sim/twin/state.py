"""Writes the robot's state datagram."""

from __future__ import annotations

import numpy as np

from sim.twin.protocol import STATE
from sim.twin.unit.checks import PERIOD
from sim.twin.unit.control_unit import ControlUnit

GRAVITY = (0.0, 0.0, -9.81)
"""Gravitational acceleration in the base frame [m/s^2]; the client's gravity model reads it from
the state."""


class StateWriter:
    """One state datagram, which is overwritten in place each cycle."""

    def __init__(self, unit: ControlUnit) -> None:
        self._unit = unit
        self.record = np.zeros(1, STATE)
        """(1,) the newest state."""
        self.datagram = self.record.view(np.uint8).data
        """The newest state as bytes."""
        self._field = {
            name: self.record[name][0] for name in STATE.names or () if STATE[name].shape
        }
        self._base_T_ee = np.zeros((4, 4), order="F")
        self._elbow = np.zeros(2)
        self._offset = False
        """Whether the client has moved the end effector, as of `write_tool`."""
        self._twists = False
        """Whether the state has twists of the end effector that are not zero."""
        self._wrench = False
        """Whether the state has an external wrench that is not zero."""
        self.write_tool()

    def write(self) -> None:
        """Writes all fields except the message id."""
        unit = self._unit
        world = self._unit.world
        field = self._field
        record = self.record
        self._write_pose()
        q = world.q
        dq = world.dq
        tau_J = world.tau_J
        reference = unit.reference
        field["q"][:] = field["theta"][:] = q
        field["dq"][:] = field["dtheta"][:] = dq
        field["q_d"][:], field["dq_d"][:], field["ddq_d"][:] = reference
        field["tau_J"][:], field["tau_J_d"][:] = tau_J, unit.tau_d
        field["dtau_J"][:] = (tau_J - unit.previous_tau_J) / PERIOD
        field["tau_ext_hat_filtered"][:] = world.tau_ext
        self._write_wrench()
        record["motion_generator_mode"] = unit.generator
        record["controller_mode"] = unit.controller
        record["robot_mode"] = unit.robot_mode
        record["control_command_success_rate"] = unit.success_rate
        field["errors"][:], field["reflex_reason"][:] = unit.errors, unit.reflex_reason

    def write_tool(self) -> None:
        """Writes the fields that change only between motions: frames, end effector and load."""
        unit = self._unit
        world = self._unit.world
        field = self._field
        record = self.record
        self._offset = not np.array_equal(unit.NE_T_EE, np.eye(4))
        field["F_T_NE"][:] = world.flange_T_ee.T.ravel()
        field["NE_T_EE"][:] = unit.NE_T_EE.T.ravel()
        field["F_T_EE"][:] = (world.flange_T_ee @ unit.NE_T_EE).T.ravel()
        field["EE_T_K"][:] = unit.EE_T_K.T.ravel()
        record["m_ee"] = world.ee_mass
        field["F_x_Cee"][:] = world.ee_com
        field["I_ee"][:] = world.ee_inertia.ravel()
        record["m_load"], field["F_x_Cload"][:] = unit.m_load, unit.F_x_Cload
        field["I_load"][:] = unit.I_load.ravel()
        field["O_ddP_O"][:] = GRAVITY

    def _write_pose(self) -> None:
        field = self._field
        unit = self._unit
        pose = unit.world.base_T_ee
        self._base_T_ee[:] = pose @ unit.NE_T_EE if self._offset else pose
        measured = field["O_T_EE"]
        measured[:] = self._base_T_ee.ravel(order="F")
        if unit.moves_end_effector:
            cartesian = unit.cartesian
            field["O_T_EE_d"][:] = field["O_T_EE_c"][:] = cartesian.pose.ravel(order="F")
            field["O_dP_EE_d"][:] = field["O_dP_EE_c"][:] = cartesian.twist
            field["O_ddP_EE_c"][:] = cartesian.acceleration
            self._twists = True
        else:
            field["O_T_EE_d"][:] = field["O_T_EE_c"][:] = measured
            self._clear_twists()
        q = unit.world.q
        elbow = self._elbow
        elbow[0] = q[2]
        elbow[1] = 1.0 if q[3] >= 0.0 else -1.0
        field["elbow"][:] = field["elbow_d"][:] = field["elbow_c"][:] = elbow

    def _clear_twists(self) -> None:
        if self._twists:
            for name in ("O_dP_EE_d", "O_dP_EE_c", "O_ddP_EE_c"):
                self._field[name][:] = 0.0
            self._twists = False

    def _write_wrench(self) -> None:
        # Nearly always there is none, which is written once.
        if not (self._unit.in_contact or self._wrench):
            return
        field, F_base = self._field, self._unit.F_ext
        field["O_F_ext_hat_K"][:] = F_base
        R = self._base_T_ee[:3, :3] @ self._unit.EE_T_K[:3, :3]
        field["K_F_ext_hat_K"][:] = (F_base.reshape(2, 3) @ R).ravel()
        self._wrench = self._unit.in_contact
