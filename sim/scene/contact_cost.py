"""Measures how hard the robot presses what it should not touch, as a cost of constrained
reinforcement learning.

Fingers, or the tool on the flange, may press the bodies that a task names in `Task.handled`: a
cube, a lever, a drawer. All other contacts of the robot are unwanted: fingers on the table or a
fixture, palm and links on anything. Contact sensors in the model report their normal forces at
every physics step, so the C threads of the rollout sum them without a callback; sensors do not
change the dynamics.

Shape suffixes: M environments, K physics steps, S sensor values.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.errors import HandoffError
from robots.franka.robot import Robot

if TYPE_CHECKING:
    import mujoco

CONTACTS = 16
"""Contacts that one sensor reports, the strongest first; a box on a plane has 4."""
_FORCE, _STRONGEST = 1 << 1, 2
"""Reported data (the force in the contact's frame) and order of the contacts, as MuJoCo numbers
them in `<contact data= reduce=>`."""
_ENTRIES = 3
"""Entries of a force in the contact's frame, the normal first."""
_PREFIX = "unwanted contact "


def add_contact_sensors(spec: mujoco.MjSpec, robot: Robot, handled: Sequence[str]) -> None:
    """Adds the sensors of all unwanted contacts, after any other sensor.

    Args:
        spec: scene with the robot.
        robot: the arm.
        handled: names of the bodies that fingers or tool may press.

    Raises:
        HandoffError: the scene has no body of such a name.
    """
    import mujoco

    root = spec.body(robot.link_names[0])
    flange = spec.body(robot.link_names[-1])
    links = [root, *_below(root)]
    tools = {body.name for body in _below(flange) if body.name != "hand"}
    own = {body.name for body in links}
    others = [body for body in spec.bodies if body.name not in own]
    missing = sorted({*handled} - {body.name for body in others})
    if missing:
        raise HandoffError(
            f"contact cost: the scene has no bodies {missing}, it has {sorted(body.name for body in others)}."
        )
    whole, single = mujoco.mjtObj.mjOBJ_XBODY, mujoco.mjtObj.mjOBJ_BODY
    for other in others:
        if not len(other.geoms):
            continue
        pressing = [(whole, root.name)]
        if other.name in handled:
            pressing = [
                (single, body.name) for body in links if len(body.geoms) and body.name not in tools
            ]
        for kind, name in pressing:
            spec.add_sensor(
                name=f"{_PREFIX}{name} {other.name}",
                type=mujoco.mjtSensor.mjSENS_CONTACT,
                objtype=kind,
                objname=name,
                reftype=single,
                refname=other.name,
                intprm=[_FORCE, _STRONGEST, CONTACTS],
            )


def contact_impulse(
    sensors_MKS: np.ndarray, columns: slice, threshold: float, timestep: float
) -> np.ndarray:
    """(M,) impulse of the unwanted contacts beyond the threshold [N s]: at every physics step the
    normal forces are summed, and what exceeds `threshold` is integrated.

    Args:
        sensors_MKS: values of all sensors at every physics step.
        columns: those of the contact sensors; see `contact_columns`.
        threshold: force without a cost [N].
        timestep: physics step [s].
    """
    steps = sensors_MKS[:, :, columns]
    normal = np.abs(steps.reshape(*steps.shape[:2], -1, _ENTRIES)[..., 0])
    return np.maximum(normal.sum(axis=2) - threshold, 0.0).sum(axis=1) * timestep


class ContactCost:
    """The cost of the last control period of N environments.

    Args:
        model: compiled model with contact sensors.
        num_envs: N.
        threshold: force without a cost [N].
    """

    def __init__(self, model: Any, num_envs: int, threshold: float) -> None:
        self.cost_N = np.zeros(num_envs)
        """(N,) cost of the last control period [N s]."""
        self._columns = contact_columns(model)
        self._threshold = threshold
        self._timestep = float(model.opt.timestep)

    def measure(self, rows: np.ndarray, sensors_MKS: np.ndarray) -> None:
        """Measures the cost of the environments `rows` (M,) over the physics steps of a control
        period."""
        self.cost_N[rows] = contact_impulse(
            sensors_MKS, self._columns, self._threshold, self._timestep
        )


def contact_columns(model: Any) -> slice:
    """The columns of the contact sensors among the sensor values of a compiled model."""
    numbers = [i for i in range(model.nsensor) if model.sensor(i).name.startswith(_PREFIX)]
    first, last = numbers[0], numbers[-1]
    return slice(int(model.sensor_adr[first]), int(model.sensor_adr[last] + model.sensor_dim[last]))


def _below(body: Any) -> list[Any]:
    """All bodies below `body`."""
    return [one for child in body.bodies for one in (child, *_below(child))]
