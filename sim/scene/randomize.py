"""Domain randomisation: declared ranges, drawn once per episode from its seed and written into a
world's own model."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError

if TYPE_CHECKING:
    import mujoco

Quantity = Literal["mass", "friction", "gain", "damping", "delay", "camera", "light"]


@config
class Range:
    """One quantity and the interval it is drawn from, uniformly."""

    what: Quantity
    """mass: of a body, with its inertia. friction: sliding friction of a geom and of the pairs it
    is in. gain: stiffness of an actuator. damping: of an actuator or joint. delay: of all actions
    [s]. camera: offset of a camera, per axis [m]. light: brightness of a light."""
    names: tuple[str, ...] = ()
    """Which bodies, geoms, actuators, joints, cameras or lights; a trailing * matches any ending.
    One draw is shared by all of them. Empty for `delay`."""
    low: float = 1.0
    """Lower bound."""
    high: float = 1.0
    """Bounds: factors of the model's own value; for `delay` seconds and for `camera` metres."""


ARM_AND_CAMERAS = (
    Range(what="gain", names=("impedance_*",), low=0.7, high=1.3),
    Range(what="delay", low=0.0, high=0.03),
    Range(what="camera", names=("front", "wrist"), low=-0.02, high=0.02),
    Range(what="light", names=("key", "fill"), low=0.6, high=1.4),
)
"""What is uncertain about the arm and its pictures, whatever the task."""


def draw(ranges: Sequence[Range], rng: np.random.Generator) -> np.ndarray:
    """(len(ranges), 3) one draw per range; all but `camera` use the first column only.

    Raises:
        HandoffError: bounds that are not low <= high.
    """
    for item in ranges:
        if not item.low <= item.high:
            raise HandoffError(
                f"randomisation of {item.what}: range [{item.low}, {item.high}], expected low <= high. "
                "Are the bounds swapped?"
            )
    low, high = np.array([r.low for r in ranges]), np.array([r.high for r in ranges])
    return low[:, None] + (high - low)[:, None] * rng.random((len(ranges), 3))


def apply(
    ranges: Sequence[Range], values: np.ndarray, base: mujoco.MjModel, model: mujoco.MjModel
) -> None:
    """Writes the drawn `values` into `model`, a copy of `base`; quantities that the model does not
    hold are left.

    Raises:
        HandoffError: a name that the model does not have.
    """
    for item, value in zip(ranges, values, strict=True):
        factor = value[0]
        match item.what:
            case "mass":
                for i in _ids(base, "body", item):
                    model.body_mass[i] = factor * base.body_mass[i]
                    model.body_inertia[i] = factor * base.body_inertia[i]
            case "friction":
                ids = _ids(base, "geom", item)
                model.geom_friction[ids, 0] = factor * base.geom_friction[ids, 0]
                paired = np.isin(base.pair_geom1, ids) | np.isin(base.pair_geom2, ids)
                model.pair_friction[paired, :2] = factor * base.pair_friction[paired, :2]
            case "gain":
                for i in _ids(base, "actuator", item):
                    model.actuator_gainprm[i, 0] = factor * base.actuator_gainprm[i, 0]
                    model.actuator_biasprm[i, 1] = factor * base.actuator_biasprm[i, 1]
            case "damping":
                _scale_damping(item, factor, base, model)
            case "camera":
                for i in _ids(base, "camera", item):
                    model.cam_pos[i] = base.cam_pos[i] + value
            case "light":
                for i in _ids(base, "light", item):
                    model.light_diffuse[i] = np.clip(factor * base.light_diffuse[i], 0.0, 1.0)
            case "delay":
                continue


def delay_of(ranges: Sequence[Range], values: np.ndarray) -> float:
    """The drawn delay of actions [s]; 0 when no range asks for one."""
    return float(
        sum(value[0] for item, value in zip(ranges, values, strict=True) if item.what == "delay")
    )


def _scale_damping(item: Range, factor: float, base: mujoco.MjModel, model: mujoco.MjModel) -> None:
    actuators = [i for i in range(base.nu) if _matches(base.actuator(i).name, item)]
    joints = [i for i in range(base.njnt) if _matches(base.joint(i).name, item)]
    if not actuators and not joints:
        raise _unknown("actuator or joint", item, [base.joint(i).name for i in range(base.njnt)])
    for i in actuators:
        model.actuator_biasprm[i, 2] = factor * base.actuator_biasprm[i, 2]
    for i in joints:
        start, size = base.jnt_dofadr[i], (6, 3, 1, 1)[base.jnt_type[i]]
        model.dof_damping[start : start + size] = factor * base.dof_damping[start : start + size]


def _ids(
    model: mujoco.MjModel, kind: Literal["body", "geom", "actuator", "camera", "light"], item: Range
) -> list[int]:
    count = {
        "body": model.nbody,
        "geom": model.ngeom,
        "actuator": model.nu,
        "camera": model.ncam,
        "light": model.nlight,
    }
    names = [getattr(model, kind)(i).name for i in range(count[kind])]
    found = [i for i, name in enumerate(names) if _matches(name, item)]
    if not found:
        raise _unknown(kind, item, names)
    return found


def _matches(name: str, item: Range) -> bool:
    return any(
        name.startswith(want[:-1]) if want.endswith("*") else name == want for want in item.names
    )


def _unknown(kind: str, item: Range, names: Sequence[str]) -> HandoffError:
    return HandoffError(
        f"randomisation of {item.what}: no {kind} is called {list(item.names)}; the model has "
        f"{[name for name in names if name]}. Is the range meant for another task?"
    )
