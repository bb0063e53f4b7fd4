"""Applies domain randomisation: values are drawn from declared ranges once per episode, from its
seed, and written into the environment's own model."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from robots.config import Finite, Share, config
from robots.errors import HandoffError, suggest

if TYPE_CHECKING:
    import mujoco

Quantity = Literal[
    "mass",
    "friction",
    "gain",
    "damping",
    "delay",
    "camera",
    "camera_rotation",
    "field_of_view",
    "light",
    "light_colour",
    "colour",
    "background",
]
VISIBLE = (
    "camera",
    "camera_rotation",
    "field_of_view",
    "light",
    "light_colour",
    "colour",
    "background",
)
"""Quantities that change pictures and nothing else."""
HEADLIGHT = "headlight"
"""Name, among those of the lights, of the light that moves with the camera, with its ambient
part."""


@config
class Range:
    """One randomised quantity and the interval of its uniform distribution."""

    what: Quantity
    """Randomised quantity. mass: a body's mass and inertia. friction: sliding friction of a geom
    and of its contact pairs. gain: stiffness of an actuator. damping: damping of an actuator or
    joint.
    delay: delay of all actions [s]. camera: offset of a camera per axis [m]. camera_rotation: turn
    of a camera about its own axes right, up and backwards [rad]. field_of_view: that of a camera.
    light: brightness of a light, or of `headlight`. light_colour, colour, background: red, green
    and blue of a light, a geom, or a texture."""
    names: tuple[str, ...] = ()
    """Names of the bodies, geoms, actuators, joints, cameras, lights or textures, which share one
    draw; a trailing * matches any ending. Empty for `delay`."""
    low: Finite = 1.0
    """Lower bound, in the same unit as `high`."""
    high: Finite = 1.0
    """Upper bound: a factor of the model's own value, except for `delay` [s], `camera` [m] and
    `camera_rotation` [rad]."""


ARM_AND_CAMERAS = (
    Range(what="gain", names=("impedance_*",), low=0.7, high=1.3),
    Range(what="delay", low=0.0, high=0.03),
    Range(what="camera", names=("front", "wrist"), low=-0.02, high=0.02),
    Range(what="light", names=("key", "fill"), low=0.6, high=1.4),
)
"""Randomisation of the arm, cameras and lights that all tasks share."""


def drawn_ranges(
    of_task: Sequence[Range], own: Sequence[Range], randomized: bool, name: str
) -> Sequence[Range]:
    """Ranges from which the episodes of an environment draw.

    Args:
        of_task: ranges of the task.
        own: ranges that the environment's options give.
        randomized: whether the task's ranges are drawn from.
        name: name of the environment in messages.

    Raises:
        HandoffError: both kinds of ranges, or own ones of quantities that pictures alone show.
    """
    if not own:
        return of_task if randomized else ()
    if randomized:
        raise HandoffError(
            f"{name}: randomized draws from the ranges of the task, and ranges gives others. Remove one of them."
        )
    visible = sorted({item.what for item in own} & {*VISIBLE})
    if visible:
        raise HandoffError(
            f"{name}: ranges of {visible}, which only pictures show. Give them as appearance.ranges."
        )
    return own


Places = tuple[tuple[Share, ...], ...]
"""Places between the bounds of ranges, 0 to 1, one row for each member of a family."""


def check_places(places: Places, size: int, name: str) -> None:
    """Checks the places of a family of environments.

    Args:
        places: one row for each member.
        size: number of quantities that vary.
        name: name of the environment in messages.

    Raises:
        HandoffError: nothing varies, or a row of another length.
    """
    if not places:
        return
    if size == 0:
        raise HandoffError(
            f"{name}: places of {len(places)} members, but neither ranges nor dynamics with bounds vary. Give them."
        )
    if wrong := [row for row in places if len(row) != size]:
        raise HandoffError(
            f"{name}: a member has {len(wrong[0])} places, expected {size}: one for each range, then for each value "
            "of the dynamics."
        )


def draw(ranges: Sequence[Range], rng: np.random.Generator) -> np.ndarray:
    """Draws (len(ranges), 3) values, one row per range; quantities of one entry use only the first
    column.

    Raises:
        HandoffError: a lower bound above the upper bound.
    """
    return values_at(ranges, rng.random((len(ranges), 3)))


def values_at(ranges: Sequence[Range], unit: np.ndarray) -> np.ndarray:
    """(len(ranges), 3) values at places (len(ranges), 3) between the bounds, 0 to 1.

    Raises:
        HandoffError: a lower bound above the upper bound.
    """
    for item in ranges:
        if not item.low <= item.high:
            raise HandoffError(
                f"randomisation of {item.what}: range [{item.low}, {item.high}], expected low <= high. "
                "Are the bounds swapped?"
            )
    low, high = np.array([r.low for r in ranges]), np.array([r.high for r in ranges])
    return low[:, None] + (high - low)[:, None] * unit


def apply(
    ranges: Sequence[Range], values: np.ndarray, base: mujoco.MjModel, model: mujoco.MjModel
) -> None:
    """Writes the drawn `values` into `model`, a copy of `base` or the same; quantities that are not
    part of the model are skipped.

    Raises:
        HandoffError: the model has no element of a given name.
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
            case "delay":
                continue
            case _:
                _apply_visible(item, value, base, model)


def _apply_visible(
    item: Range, value: np.ndarray, base: mujoco.MjModel, model: mujoco.MjModel
) -> None:
    match item.what:
        case "camera":
            for i in _ids(base, "camera", item):
                model.cam_pos[i] = base.cam_pos[i] + value
        case "camera_rotation":
            for i in _ids(base, "camera", item):
                model.cam_quat[i] = _turned(base.cam_quat[i], value)
        case "field_of_view":
            for i in _ids(base, "camera", item):
                model.cam_fovy[i] = value[0] * base.cam_fovy[i]
        case "light":
            scale_lights(item, np.full(3, value[0]), base, model)
        case "light_colour":
            scale_lights(item, value, base, model)
        case "colour":
            for i in _ids(base, "geom", item):
                _scale_colour(item, i, value, base, model)
        case "background":
            for i in texture_ids(base, item):
                texels = texture_slice(base, i)
                pixels = base.tex_data[texels].reshape(-1, base.tex_nchannel[i]).astype(float)
                pixels[:, :3] *= value
                model.tex_data[texels] = np.clip(pixels, 0.0, 255.0).astype(np.uint8).ravel()


def texture_ids(model: mujoco.MjModel, item: Range) -> list[int]:
    """Textures of a range.

    Raises:
        HandoffError: the model has no texture of such a name.
    """
    return _ids(model, "texture", item)


def texture_slice(model: mujoco.MjModel, texture: int) -> slice:
    """Entries of `tex_data` that hold a texture."""
    start = int(model.tex_adr[texture])
    size = model.tex_height[texture] * model.tex_width[texture] * model.tex_nchannel[texture]
    return slice(start, start + int(size))


def scale_lights(
    item: Range, factor: np.ndarray, base: mujoco.MjModel, model: mujoco.MjModel
) -> None:
    """Multiplies red, green and blue of the lights of a range by `factor` (3,), up to 1.

    Raises:
        HandoffError: the model has no light of such a name.
    """
    headlight = _matches(HEADLIGHT, item)
    if headlight:
        for part in ("ambient", "diffuse"):
            own = getattr(base.vis.headlight, part)
            getattr(model.vis.headlight, part)[:] = np.clip(factor * own, 0.0, 1.0)
    if headlight and set(item.names) == {HEADLIGHT}:
        return
    for i in _ids(base, "light", item):
        model.light_diffuse[i] = np.clip(factor * base.light_diffuse[i], 0.0, 1.0)


def _turned(quaternion: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """(4,) wxyz quaternion of a frame that turns by a rotation vector (3,) [rad] of its own
    axes."""
    import mujoco

    angle = float(np.linalg.norm(rotation))
    if angle == 0.0:
        return quaternion.copy()
    turn = np.empty(4)
    turned = np.empty(4)
    mujoco.mju_axisAngle2Quat(turn, rotation / angle, angle)
    mujoco.mju_mulQuat(turned, quaternion, turn)
    return turned


def _scale_colour(
    item: Range, geom: int, factor: np.ndarray, base: mujoco.MjModel, model: mujoco.MjModel
) -> None:
    if base.geom_matid[geom] >= 0:
        raise HandoffError(
            f"randomisation of {item.what}: geom '{base.geom(geom).name}' takes its colour from the material "
            f"'{base.material(base.geom_matid[geom]).name}', expected one with a colour of its own."
        )
    model.geom_rgba[geom, :3] = np.clip(factor * base.geom_rgba[geom, :3], 0.0, 1.0)


def delay_of(ranges: Sequence[Range], values: np.ndarray) -> float:
    """The drawn delay of actions [s]; 0 without a range for it."""
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
    model: mujoco.MjModel,
    kind: Literal["body", "geom", "actuator", "camera", "light", "texture"],
    item: Range,
) -> list[int]:
    count = {
        "body": model.nbody,
        "geom": model.ngeom,
        "actuator": model.nu,
        "camera": model.ncam,
        "light": model.nlight,
        "texture": model.ntex,
    }
    names = [getattr(model, kind)(i).name for i in range(count[kind])]
    ids = [i for i, name in enumerate(names) if _matches(name, item)]
    if not ids:
        raise _unknown(kind, item, names)
    return ids


def _matches(name: str, item: Range) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in item.names
    )


def _unknown(kind: str, item: Range, names: Sequence[str]) -> HandoffError:
    known = suggest(item.names[0], filter(None, names), "it has")
    return HandoffError(
        f"{item.what} of {', '.join(item.names)}: the scene of this task has no such {kind}; {known}"
    )
