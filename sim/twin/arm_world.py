"""Simulates a robot with a tool in a MuJoCo scene as a world for the FCI twin, driven by joint
torques in steps of 1 ms."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from robots.errors import HandoffError
from robots.franka.robot import JointFriction, Robot
from sim.rendering.camera_clock import KEPT_SECONDS
from sim.scene.deviations import Deviations, apply_deviations
from sim.twin.disturbances import Disturbances, add_payload_body
from sim.twin.world import TwinGripper

if TYPE_CHECKING:
    import mujoco

STEP = 0.001
"""Physics step [s]."""
_IDENTITY = np.eye(4)
"""Its copy takes a tenth of the time of a new one, which counts every millisecond."""
_KEPT_TICKS = round(KEPT_SECONDS / STEP)


class PastStates:
    """The states of a world at its last ticks, for cameras, whose pictures arrive later.

    Args:
        name: name of the world in error messages.
        size: entries of a state.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._ticks = 0
        self._past = np.zeros((_KEPT_TICKS, size))
        """States at the last ticks; that of tick t is in row t % `_KEPT_TICKS`."""

    def begin(self, state: np.ndarray) -> None:
        """Begins an episode with the state (size,)."""
        self._ticks = 0
        self._past[0] = state

    def add(self, state: np.ndarray) -> None:
        """Adds the state (size,) of the next tick."""
        self._ticks += 1
        self._past[self._ticks % _KEPT_TICKS] = state

    def at(self, time: float) -> np.ndarray:
        """The state (size,) at a time since `begin` [s]; before that, the first one.

        Raises:
            HandoffError: a time that has not come, or longer ago than `KEPT_SECONDS`.
        """
        tick = max(0, round(time / STEP))
        if not self._ticks - _KEPT_TICKS < tick <= self._ticks:
            raise HandoffError(
                f"{self._name}: state of {time:.3f} s at {self._ticks * STEP:.3f} s, expected one of the last "
                f"{KEPT_SECONDS:g} s."
            )
        return self._past[tick % _KEPT_TICKS].copy()


class ArmWorld:
    """Implements `sim.twin.world.World`, without methods to place objects. The same calls give the
    same states.

    The model's first joints and actuators must be the arm's, and its physics step 1 ms. J is the
    number of the arm's joints.
    """

    def __init__(self, name: str, spec: mujoco.MjSpec, robot: Robot, tool: str, tip: str) -> None:
        """Compiles a scene.

        Args:
            name: name in error messages.
            spec: the scene; the body of a payload is added to it.
            robot: the arm.
            tool: name of the body at the flange that, with its children, is the end effector.
            tip: name of the site at the end effector's frame, with the flange's axes.
        """
        import mujoco

        add_payload_body(spec, robot)
        self.name = name
        self.model = model = spec.compile()
        self.robot = robot
        self.data = data = mujoco.MjData(model)
        self._step1 = mujoco.mj_step1
        self._step2 = mujoco.mj_step2
        joints = slice(robot.num_joints)
        self._q = data.qpos[joints]
        self._dq = data.qvel[joints]
        self._ctrl = data.ctrl[joints]
        self._qvel = data.qvel
        self._tau_J = data.qfrc_actuator[joints]
        self._tau_ext = data.qfrc_constraint[joints]
        self._disturbances = Disturbances(model, data, robot.num_joints, tip)
        self._rubbing: list[int] = []
        """Joints, from 0, whose dry friction is a constraint of the engine."""
        self._dry = np.zeros(robot.num_joints)
        """(J,) torque of the dry friction in the last step [Nm]."""
        self._tip_position = data.site(tip).xpos
        self._tip_axes = data.site(tip).xmat
        self.flange_T_ee = np.eye(4)
        mujoco.mj_kinematics(model, data)
        flange = data.site(robot.flange_name)
        self.flange_T_ee[:3, 3] = np.round(
            flange.xmat.reshape(3, 3).T @ (self._tip_position - flange.xpos), 12
        )
        self.ee_mass, self.ee_com, self.ee_inertia = _inertials(model, data, robot, tool)

    @property
    def gripper(self) -> TwinGripper | None:
        """See `World`; None."""
        return None

    @property
    def time(self) -> float:
        """Seconds since the last reset."""
        return self.data.time

    @property
    def q(self) -> np.ndarray:
        """(J,) joint positions [rad]; a view."""
        return self._q

    @property
    def dq(self) -> np.ndarray:
        """(J,) joint velocities [rad/s]; a view."""
        return self._dq

    @property
    def tau_J(self) -> np.ndarray:
        """(J,) joint torques of the last step, gravity included [Nm]; a view."""
        return self._tau_J

    @property
    def tau_ext(self) -> np.ndarray:
        """(J,) J^T F of the contact forces on the arm in the last step [Nm]; a view.

        It is MuJoCo's exact constraint force, not an estimate. At a joint limit it includes the
        limit's torque. Pushes and a payload count, joint friction does not.
        """
        disturbances = self._disturbances
        external = self._tau_ext
        if self._rubbing:
            external = external - self._dry
        return external + disturbances.external if disturbances.active else external

    @property
    def base_T_ee(self) -> np.ndarray:
        """(4, 4) pose of the end effector [m], a new array."""
        pose = _IDENTITY.copy()
        pose[:3, :3] = self._tip_axes.reshape(3, 3)
        pose[:3, 3] = self._tip_position
        return pose

    def push(self, force: Sequence[float], seconds: float) -> None:
        """Something pushes the end effector for some time.

        Args:
            force: (3,) force on the end effector, base frame [N].
            seconds: duration [s].

        Raises:
            HandoffError: a force that is not finite.
        """
        if not np.isfinite(force).all():
            raise HandoffError(f"{self.name}: force {force} N, expected finite values.")
        self._disturbances.push(force, round(seconds / STEP))

    def load(self, mass: float, position: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """Fixes a point mass to the flange that the robot's controller does not know: it is not
        compensated, and shows as an external torque.

        Args:
            mass: mass [kg]; 0 takes it away.
            position: (3,) its place in the flange frame [m].

        Raises:
            HandoffError: a negative mass, or a value that is not finite.
        """
        if not (np.isfinite([mass, *position]).all() and mass >= 0.0):
            raise HandoffError(
                f"{self.name}: payload of {mass} kg at {position} m, expected a mass of at least 0 and finite values."
            )
        self._disturbances.load(mass, position)
        self._step1(self.model, self.data)

    def rub(self, friction: JointFriction | None) -> None:
        """See `World`."""
        self._disturbances.rub(friction)

    def deviate(self, deviations: Deviations) -> None:
        """See `World`. The payload is at the tip, between the fingertips of a gripper.

        Raises:
            HandoffError: see `sim.scene.deviations.apply_deviations`.
        """
        apply_deviations(deviations, self.model, self.robot)
        friction = self.model.dof_frictionloss[: self.robot.num_joints]
        self._rubbing = np.flatnonzero(friction > 0.0).tolist()
        if deviations.payload > 0.0:
            self._disturbances.carry(deviations.payload, self.flange_T_ee[:3, 3].tolist())
        self._step1(self.model, self.data)

    def step(self, tau: np.ndarray) -> None:
        """Advances 1 ms under torques `tau` (J,) [Nm] without gravity, clipped to the joints'
        limits.

        Raises:
            HandoffError: a torque or the resulting state is not finite.
        """
        if not isfinite(tau.sum()):
            raise HandoffError(
                f"{self.name}: torque command {tau.tolist()} Nm at {self.data.time:.3f} s, expected finite values. "
                "Did the controller divide by zero?"
            )
        if self._disturbances.active:
            self._disturbances.apply()
        self._ctrl[:] = tau
        # The position and velocity stages come last, so that poses and contacts belong to the new
        # state at no extra cost.
        self._step2(self.model, self.data)
        if self._rubbing:
            # The engine's order of constraints: equalities, friction of the joints, the others. The
            # next stage overwrites them.
            first = self.data.ne
            self._dry[self._rubbing] = self.data.efc_force[first : first + len(self._rubbing)]
        self._step1(self.model, self.data)
        if not isfinite(self._qvel.sum()):
            raise HandoffError(
                f"{self.name}: state not finite at {self.data.time:.3f} s, q {self.data.qpos.tolist()}, "
                f"dq {self._qvel.tolist()}, torque {tau.tolist()} Nm. Was the arm driven into the table?"
            )


def _inertials(
    model: mujoco.MjModel, data: mujoco.MjData, robot: Robot, tool: str
) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass [kg], centre of mass (3,) [m] and inertia about it (3, 3) [kg m^2] of the body `tool`
    and its children, in the flange frame at the configuration in `data`."""
    carried = {model.body(tool).id}
    # A body's id is larger than its parent's.
    for body in range(min(carried) + 1, model.nbody):
        if int(model.body_parentid[body]) in carried:
            carried.add(body)
    site = data.site(robot.flange_name)
    axes, origin = site.xmat.reshape(3, 3), site.xpos
    mass = 0.0
    moment = np.zeros(3)
    about_flange = np.zeros((3, 3))
    for body in sorted(carried):
        m = float(model.body_mass[body])
        R = axes.T @ data.ximat[body].reshape(3, 3)
        p = axes.T @ (data.xipos[body] - origin)
        mass, moment = mass + m, moment + m * p
        about_flange += R @ np.diag(model.body_inertia[body]) @ R.T + m * (
            p @ p * np.eye(3) - np.outer(p, p)
        )
    com = moment / mass
    return mass, com, about_flange - mass * (com @ com * np.eye(3) - np.outer(com, com))
