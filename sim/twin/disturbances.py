"""Applies what acts on a simulated arm beside its drives and its contacts: joint friction, pushes
and a payload that its controller does not know."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from robots.franka.robot import JointFriction, Robot

if TYPE_CHECKING:
    import mujoco

PAYLOAD = "payload"
"""Name of the body that becomes the payload."""


def add_payload_body(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Adds a body without mass at the flange, which `Disturbances.load` turns into a payload; the
    motion of the arm without one is the same to the bit."""
    spec.body(robot.link_names[-1]).add_body(
        name=PAYLOAD, pos=spec.site(robot.flange_name).pos, gravcomp=0.0
    )


class Disturbances:
    """Torques on the arm's J joints that no command asks for."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, joints: int, tip: str) -> None:
        """Begins without any.

        Args:
            model: compiled model with the body of `add_payload_body`.
            data: state of the model; the forces are written to it.
            joints: number of the arm's joints, which are the model's first.
            tip: name of the site that is pushed.
        """
        import mujoco

        self._jac = mujoco.mj_jac
        self._set_constants = lambda: mujoco.mj_setConst(model, mujoco.MjData(model))
        self._model = model
        self._data = data
        self._applied = data.qfrc_applied[:joints]
        self._dq = data.qvel[:joints]
        self._jacobian = np.zeros((3, model.nv))
        self._arm_jacobian = self._jacobian[:, :joints]
        self._tip = data.site(tip).xpos
        self._tip_body = int(model.site(tip).bodyid[0])
        self._payload = int(model.body(PAYLOAD).id)
        self._payload_position = data.xipos[self._payload]
        self._friction: JointFriction | None = None
        self._push = np.zeros(3)
        self._push_steps = 0
        self._mass = 0.0
        self._own_mass = 0.0
        self._own_position = np.zeros(3)
        self._payload_velocity = np.zeros(3)
        self._payload_time = -np.inf
        """Time at which the payload had this velocity [s]."""
        self._period = float(model.opt.timestep)
        self.active = False
        """Whether `apply` has anything to do."""
        self.external = np.zeros(joints)
        """(J,) torque of push and payload in the last step [Nm], which a robot's estimate of
        external torques contains."""

    def rub(self, friction: JointFriction | None) -> None:
        """Gives the joints this friction from now on; None takes it away."""
        self._friction = friction
        self.active = True

    def push(self, force: Sequence[float], steps: int) -> None:
        """Pushes the tip with `force` (3,) [N], base frame, for a number of steps."""
        self._push = np.array(force, dtype=float)
        self._push_steps = steps
        self.active = True

    def carry(self, mass: float, position: Sequence[float]) -> None:
        """Fixes a point mass to the flange for good, to which those of `load` are added.

        Args:
            mass: mass [kg].
            position: (3,) its place in the flange frame [m].
        """
        self._own_mass = mass
        self._own_position = np.array(position, dtype=float)
        self.load(0.0, position)

    def load(self, mass: float, position: Sequence[float]) -> None:
        """Fixes a point mass to the flange.

        Args:
            mass: mass [kg]; 0 takes it away.
            position: (3,) its place in the flange frame [m].
        """
        centre = np.array(position, dtype=float)
        if self._own_mass > 0.0:
            # Two point masses act as one at their common centre, but for the inertia about it.
            moment = mass * centre + self._own_mass * self._own_position
            mass += self._own_mass
            centre = moment / mass
        self._model.body_mass[self._payload] = mass
        self._model.body_ipos[self._payload] = centre
        # The engine derives other quantities, such as contact softness, from the masses.
        self._set_constants()
        self._mass = mass
        self._payload_time = -np.inf
        self.active = True

    def apply(self) -> None:
        """Writes the torques of the next step; called before it, while `active`."""
        external = self.external
        external[:] = 0.0
        if self._push_steps > 0:
            self._push_steps -= 1
            external += self._push @ self._jacobian_at(self._tip, self._tip_body)
        # The payload itself is part of the model, which moves it; only the push acts in addition.
        self._applied[:] = external
        if self._mass > 0.0:
            external += self._payload_force() @ self._arm_jacobian
        if self._friction is not None:
            self._applied -= self._friction.torque(self._dq)
        self.active = bool(self._push_steps or self._mass or self._friction or self._applied.any())

    def _jacobian_at(self, point: np.ndarray, body: int) -> np.ndarray:
        """(3, J) Jacobian of a point [m] of a body, base axes; the same array at every call."""
        self._jac(self._model, self._data, self._jacobian, None, point, body)
        return self._arm_jacobian

    def _payload_force(self) -> np.ndarray:
        """(3,) force of the payload on the arm [N]: its weight, less what accelerates it."""
        velocity = self._jacobian_at(self._payload_position, self._payload) @ self._dq
        passed = self._data.time - self._payload_time
        # After a reset the earlier velocity is that of another motion.
        steady = not 0.5 * self._period < passed < 1.5 * self._period
        acceleration = 0.0 if steady else (velocity - self._payload_velocity) / self._period
        self._payload_velocity = velocity
        self._payload_time = self._data.time
        return self._mass * (self._model.opt.gravity - acceleration)
