"""Changes what cameras see of a scene, once per episode: displaced cameras, another brightness,
distractors, and visual quantities from ranges. Physics and initial states stay as they are.

An episode draws from its seed, with a stream for each part: displacements keep their directions
whatever their length, and the first distractors stay when more are added, so that episodes of one
seed differ in the given value alone.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from robots.config import NonNegative, Positive, config
from robots.errors import HandoffError
from sim.episode_streams import EpisodeStream
from sim.scene import randomize
from sim.scene.clutter import ENTRIES, distractor_ids, draw_clutter, place_clutter
from sim.scene.randomize import VISIBLE, Range

Distractors = Annotated[int, Field(ge=0, le=32)]

FIELDS = ("cam_pos", "cam_quat", "cam_fovy", "light_diffuse", "geom_rgba", "tex_data")
"""Fields of the model that an appearance changes, besides the headlight and the distractors."""
_CAMERA, _CLUTTER, _RANGES = range(3)
"""Third entries of the seed sequence of the parts."""
_ALL_LIGHTS = Range(what="light", names=("*",))


@config
class Appearance:
    """What pictures of a scene differ in from the task's own; the physics is the same."""

    camera_shift: NonNegative = 0.0
    """Length by which cameras are displaced [m], each in a direction of its own that an episode
    draws."""
    shifted: tuple[str, ...] = ()
    """Cameras that are displaced; empty takes those that stand beside the arm, because one on the
    arm would look into the gripper."""
    light: Positive = 1.0
    """Factor of the brightness of all lights."""
    clutter: Distractors = 0
    """Number of distractors on the table, which nothing touches; with `clutter_high`, its lower
    bound."""
    clutter_high: Distractors | None = None
    """Upper bound of the number of distractors, which each episode draws; None takes `clutter`."""
    ranges: tuple[Range, ...] = ()
    """Visual quantities that each episode draws, in addition to those of the task."""

    def __post_init__(self) -> None:
        if self.clutter_high is not None and self.clutter_high < self.clutter:
            raise HandoffError(
                f"appearance: clutter is {self.clutter} with clutter_high {self.clutter_high}, expected clutter <= "
                "clutter_high. Are they swapped?"
            )
        other = sorted({item.what for item in self.ranges} - {*VISIBLE})
        if other:
            raise HandoffError(
                f"appearance: ranges of {other}, expected some of {list(VISIBLE)}. Physical quantities are drawn "
                "with the environment's option `ranges`, or with `randomized: true` from those of the task."
            )

    @property
    def distractors(self) -> int:
        """Largest number of distractors."""
        return self.clutter if self.clutter_high is None else self.clutter_high


@dataclass(frozen=True)
class Look:
    """Appearance of one episode."""

    shift: np.ndarray
    """(cameras, 3) displacement of every camera of the scene, in the frame of its body [m]."""
    values: np.ndarray
    """(ranges, 3) drawn values of `Appearance.ranges`."""
    clutter: np.ndarray
    """(C, 10) distractors; see `sim.scene.clutter`."""

    def flat(self) -> np.ndarray:
        """All numbers in one vector."""
        return np.concatenate([self.shift.ravel(), self.values.ravel(), self.clutter.ravel()])


def draw_look(config: Appearance, model: Any, data: Any, root: str, seed: int) -> Look:
    """Draws the appearance of an episode.

    Args:
        config: the appearance.
        model: mujoco.MjModel with the largest number of distractors.
        data: mujoco.MjData at the start of the episode, with the poses of all geoms.
        root: name of the robot's first body.
        seed: seed of the episode.

    Raises:
        HandoffError: no such camera, bounds of a range that are swapped, or no place for the
            distractors.
    """

    def stream(part: int) -> np.random.Generator:
        return np.random.default_rng([seed, EpisodeStream.APPEARANCE, part])

    direction = stream(_CAMERA).standard_normal((model.ncam, 3))
    length = np.zeros((model.ncam, 1))
    length[_shifted(config, model)] = config.camera_shift
    shift = length * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    rng = stream(_CLUTTER)
    shown = int(rng.integers(config.clutter, config.distractors + 1))
    return Look(
        shift,
        randomize.draw(config.ranges, stream(_RANGES)),
        draw_clutter(model, data, root, shown, rng),
    )


def look_size(config: Appearance, model: Any) -> int:
    """Number of entries of `Look.flat`."""
    return 3 * model.ncam + 3 * len(config.ranges) + ENTRIES * len(distractor_ids(model))


def look_of(config: Appearance, model: Any, flat: np.ndarray) -> Look:
    """The appearance of `Look.flat`."""
    sizes = (3 * model.ncam, 3 * len(config.ranges))
    shift, values, clutter = np.split(flat, np.cumsum(sizes))
    return Look(
        shift.reshape(-1, 3),
        values.reshape(-1, 3),
        clutter.reshape(-1, ENTRIES),
    )


def drawn_textures(config: Appearance, model: Any) -> tuple[int, ...]:
    """Textures that differ between episodes.

    Raises:
        HandoffError: the model has no texture of a name in the ranges.
    """
    found = {
        texture
        for item in config.ranges
        if item.what == "background"
        for texture in randomize.texture_ids(model, item)
    }
    return tuple(sorted(found))


def reset_look(base: Any, model: Any) -> None:
    """Gives `model`, a copy of `base`, the appearance of `base` again."""
    for name in FIELDS:
        getattr(model, name)[:] = getattr(base, name)
    for part in ("ambient", "diffuse"):
        getattr(model.vis.headlight, part)[:] = getattr(base.vis.headlight, part)


def apply_look(config: Appearance, look: Look, model: Any) -> None:
    """Changes the appearance of `model`, which has that of the task, with what the task itself
    randomises.

    Raises:
        HandoffError: the model has no element of a name in the ranges.
    """
    model.cam_pos[:] += look.shift
    if config.light != 1.0:
        randomize.scale_lights(_ALL_LIGHTS, np.full(3, config.light), model, model)
    randomize.apply(config.ranges, look.values, model, model)
    place_clutter(model, look.clutter)


def _shifted(config: Appearance, model: Any) -> list[int]:
    names = [model.camera(i).name for i in range(model.ncam)]
    unknown = sorted({*config.shifted} - {*names})
    if unknown:
        raise HandoffError(
            f"appearance: shifted names the cameras {unknown}, the scene has {names}. Is a name misspelt?"
        )
    if config.shifted:
        return [names.index(name) for name in config.shifted]
    return [i for i in range(model.ncam) if model.cam_bodyid[i] == 0]
