"""Places of coloured things from pictures, as a person judges them: by colour, and by looking from
two sides."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flows.session.viewed_scene import AXES_AT, CAMERAS, SHOULDER, SHOULDER_SIZE, SIZE, viewed_model
from sim.make import find_task

Colour = Callable[[np.ndarray], np.ndarray]
"""Mask (height, width) of the pixels of a picture that have a colour."""
SMALLEST = 6
"""Fewest pixels of a thing that counts as seen."""
SHORTEST_PIECE = 5.0
"""Length above which a piece of that line is one [px]."""
LONGEST_GAP = 30.0
"""Longest gap in the line below the gripper [px]."""
REACH = 0.42
"""Largest distance to the left or right at which the arm works [m]."""
BAR_LOW, BAR_HIGH = np.array([0.38, -0.28]), np.array([0.62, 0.28])
"""(2,) corners of the part of the table in which handles are looked for [m]."""
BAR_LENGTH, BAR_RADIUS = 0.09, 0.006
"""Farthest part of a handle from its middle, and half the thickness of its bar [m]."""
UPRIGHT = 0.06
"""Sine of the largest angle of a line to one that hangs straight down."""
NEXT_TO = 20.0
"""Longest distance of a ball from the upper end of its line [px]."""
LONGEST_APART = 0.03
"""Largest distance of two lines of sight that meet in one thing [m]."""


class Camera:
    """A pinhole camera that stands still.

    Args:
        position: (3,) place [m], base frame.
        rotation: (3, 3) axes right, up and backwards as columns.
        focal: focal length [px].
        size: height and width of its pictures [px].
    """

    def __init__(
        self, position: np.ndarray, rotation: np.ndarray, focal: float, size: tuple[int, int]
    ) -> None:
        self.position, self.size = position, size
        self._rotation, self._focal = rotation, focal
        self._middle = np.array([size[1], size[0]]) / 2.0

    def direction(self, pixel: np.ndarray) -> np.ndarray:
        """(3,) unit vector from the camera through a pixel (column, row)."""
        right, down = (pixel + 0.5 - self._middle) / self._focal
        ray = self._rotation @ np.array([right, -down, -1.0])
        return ray / np.linalg.norm(ray)

    def pixel(self, point: np.ndarray) -> np.ndarray:
        """(..., 2) column and row of points (..., 3) [m]."""
        right, up, back = np.moveaxis((point - self.position) @ self._rotation, -1, 0)
        return self._middle - 0.5 + self._focal * np.stack([right, -up], axis=-1) / -back[..., None]

    def on_plane(self, pixel: np.ndarray, height: float) -> np.ndarray:
        """(3,) point of the horizontal plane at `height` [m] that a pixel shows."""
        ray = self.direction(pixel)
        return self.position + ray * (height - self.position[2]) / ray[2]

    def height_over(self, pixel: np.ndarray, place: np.ndarray) -> float:
        """Height [m] of what a pixel shows, where it is known to be above `place` (2,)."""
        ray = self.direction(pixel)
        along = (place - self.position[:2]) @ ray[:2] / (ray[:2] @ ray[:2])
        return float(self.position[2] + along * ray[2])


def room(task: str) -> dict[str, Camera]:
    """The cameras that stand in the room, by name: `shoulder` and `front`."""
    import mujoco

    model = viewed_model(find_task(task, None, "fr3"))
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    cameras = {}
    for name, size in ((SHOULDER, SHOULDER_SIZE), (CAMERAS[0], SIZE)):
        number = model.camera(name).id
        focal = size[0] / 2.0 / np.tan(np.radians(model.cam_fovy[number]) / 2.0)
        rotation = data.cam_xmat[number].reshape(3, 3)
        cameras[name] = Camera(data.cam_xpos[number].copy(), rotation.copy(), focal, size)
    return cameras


def picture(frame: bytes) -> tuple[str, np.ndarray]:
    """Name of the camera and (height, width, 3) float picture in [0, 255] of a page's message."""
    from PIL import Image

    length = frame[0]
    name = frame[1 : 1 + length].decode()
    image = np.asarray(Image.open(io.BytesIO(frame[1 + length :])).convert("RGB"))
    return name, image.astype(np.float32)


def green(image: np.ndarray) -> np.ndarray:
    """(height, width) where the goal's green is."""
    red, green_, blue = np.moveaxis(image, -1, 0)
    return (green_ > 1.35 * red) & (green_ > 1.25 * blue) & (green_ > 60)


def red(image: np.ndarray) -> np.ndarray:
    """(height, width) where the cube's red is."""
    red_, green_, blue = np.moveaxis(image, -1, 0)
    return (red_ > 2.0 * green_) & (red_ > 2.0 * blue) & (red_ > 80)


def orange(image: np.ndarray) -> np.ndarray:
    """(height, width) where the line below the gripper is, darker than the table behind it."""
    red_, green_, blue = np.moveaxis(image, -1, 0)
    bright = image.sum(axis=-1)
    over_table = (red_ - blue > 28) & (green_ > 0.62 * red_) & _thin(bright, 60.0)
    over_things = (red_ > 100) & (blue < 0.4 * red_) & _thin(blue - green_, 25.0)
    return (over_table | over_things) & (green_ < red_) & (bright < 440)


def blue(image: np.ndarray) -> np.ndarray:
    """(height, width) where the line below a goal is."""
    bright = image.sum(axis=-1)
    return (image[..., 2] > image[..., 0]) & (bright < 420.0) & _thin(bright, 60.0)


def grey(image: np.ndarray) -> np.ndarray:
    """(height, width) where the dark grey of a handle is."""
    most, least = image.max(axis=-1), image.min(axis=-1)
    return (most < 88) & (most > 40) & (most - least < 26)


def _thin(bright: np.ndarray, by: float) -> np.ndarray:
    """Where an image (height, width) is lower than a little to the left and to the right."""
    return bright + by < np.minimum(np.roll(bright, 6, axis=1), np.roll(bright, -6, axis=1))


def largest(mask: np.ndarray) -> np.ndarray | None:
    """(n, 2) columns and rows of the largest connected part of a mask, or None."""
    from scipy import ndimage

    parts = np.zeros(mask.shape, np.int32)
    ndimage.label(mask, structure=np.ones((3, 3)), output=parts)
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    if sizes.max() < SMALLEST:
        return None
    rows, columns = np.nonzero(parts == sizes.argmax())
    return np.stack([columns, rows], axis=1).astype(float)


def meeting(sights: Sequence[tuple[Camera, np.ndarray]]) -> np.ndarray | None:
    """(3,) point nearest to the lines of sight through a pixel of each camera; None where they miss
    each other."""
    projections, origins = [], []
    for camera, pixel in sights:
        ray = camera.direction(pixel)
        projections.append(np.eye(3) - np.outer(ray, ray))
        origins.append(camera.position)
    normal = np.sum(projections, axis=0)
    point = np.linalg.solve(normal, sum(p @ o for p, o in zip(projections, origins, strict=True)))
    miss = max(
        float(np.linalg.norm(p @ (point - o))) for p, o in zip(projections, origins, strict=True)
    )
    return point if miss < LONGEST_APART else None


class Line(NamedTuple):
    """A line down to whatever is below, in a picture."""

    top: np.ndarray
    """(2,) pixel of its upper end, unless something hides it."""
    bottom: np.ndarray
    """(2,) pixel of its lower end, on whatever is below."""


def line(mask: np.ndarray, camera: Camera) -> Line | None:
    """The longest line of a mask (height, width) that hangs straight down, in a picture of
    `camera`; None where it is hidden."""
    from scipy import ndimage

    rows, columns = np.nonzero(mask)
    every = np.stack([columns, rows], axis=1).astype(float)
    parts = np.zeros(mask.shape, np.int32)
    ndimage.label(mask, structure=np.ones((3, 3)), output=parts)
    number = parts[rows, columns]
    found = [_line_of(every[number == part], every) for part in np.unique(number)]
    lines = [ends for ends in found if ends is not None and _hangs(ends, camera)]
    return max(lines, key=lambda ends: np.linalg.norm(ends.bottom - ends.top), default=None)


def _hangs(ends: Line, camera: Camera) -> bool:
    """Whether a line points straight up from a place on the table that the arm reaches."""
    place = camera.on_plane(ends.bottom, 0.0)
    if abs(place[1]) > REACH:
        return False
    up = camera.pixel(place + np.array([0.0, 0.0, 0.1])) - ends.bottom
    way = ends.top - ends.bottom
    apart = abs(up[0] * way[1] - up[1] * way[0]) / (np.linalg.norm(up) * np.linalg.norm(way))
    return bool(apart < UPRIGHT)


def _line_of(part: np.ndarray, every: np.ndarray) -> Line | None:
    """The line of which `part` (n, 2) is a piece, with the pieces of `every` (m, 2) that go on
    after short gaps, at the edge of the table or where compression breaks it."""
    if np.ptp(part[:, 1]) < SHORTEST_PIECE:
        return None
    middle = part.mean(axis=0)
    _, _, axes = np.linalg.svd(part - middle, full_matrices=False)
    if np.abs((part - middle) @ axes[1]).max() > 4.0:
        return None
    apart = every - middle
    along = np.sort((apart @ axes[0])[np.abs(apart @ axes[1]) < 2.0])
    pieces = [
        piece
        for piece in np.split(along, np.flatnonzero(np.diff(along) > 2.0) + 1)
        if np.ptp(piece) >= SHORTEST_PIECE
    ]
    own = next((n for n, piece in enumerate(pieces) if piece[0] <= 0.0 <= piece[-1]), None)
    if own is None:
        return None
    first, last = pieces[own][0], pieces[own][-1]
    for piece in pieces[own + 1 :]:
        last = piece[-1] if piece[0] - last < LONGEST_GAP else last
    for piece in reversed(pieces[:own]):
        first = piece[0] if first - piece[-1] < LONGEST_GAP else first
    ends = middle + np.outer([first, last], axes[0])
    top, bottom = sorted(ends, key=lambda end: end[1])
    return Line(top, bottom)


class Bar(NamedTuple):
    """The bar of a handle, on two posts that point away from the arm."""

    middle: np.ndarray
    """(3,) middle of the bar [m]."""
    away: float
    """Direction across the bar and away from the arm, about the vertical [rad]."""
    length: float
    """Length of what can be seen of it [m]."""


def _bar_of(places: np.ndarray, height: float) -> Bar:
    """The bar from places (n, 2) of bar and posts [m]."""
    _, _, axes = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)
    along, across = axes[0], np.array([axes[0][1], -axes[0][0]])
    across = across if across[0] > 0.0 else -across
    ends = np.percentile(places @ along, (2.0, 98.0))
    front = np.percentile(places @ across, 5.0)
    middle = along * ends.mean() + across * (front + BAR_RADIUS)
    away = float(np.arctan2(across[1], across[0]))
    return Bar(np.array([*middle, height]), away, float(np.ptp(ends)))


class Eyes:
    """Places of the things on the table, from the newest pictures.

    Args:
        task: name of the task, whose room is known.
    """

    def __init__(self, task: str) -> None:
        self.cameras = room(task)
        self._pictures: dict[str, np.ndarray] = {}
        shoulder = self.cameras[SHOULDER]
        self._axes = shoulder.pixel(AXES_AT)

    def look(self, pictures: Mapping[str, np.ndarray]) -> None:
        """Takes the newest pictures, by camera."""
        self._pictures = dict(pictures)

    def hand(self, below: float = 0.0) -> np.ndarray | None:
        """(3,) grasp point [m], where the line shows it.

        Args:
            below: height of what the line ends on [m].
        """
        mask = self._mask(SHOULDER, orange)
        shown = None if mask is None else line(mask, self.cameras[SHOULDER])
        if shown is None:
            return None
        camera = self.cameras[SHOULDER]
        place = camera.on_plane(shown.bottom, below)[:2]
        return np.array([*place, camera.height_over(shown.top, place)])

    def ball(self) -> np.ndarray | None:
        """(3,) middle of the green ball [m]: above the foot of its line, else from two sides."""
        mask, pixel = self._mask(SHOULDER, blue), self._middle_of(SHOULDER, green)
        below = None if mask is None else line(mask, self.cameras[SHOULDER])
        if pixel is None or below is None or np.linalg.norm(below.top - pixel) > NEXT_TO:
            return self._from_two_sides(green)
        camera = self.cameras[SHOULDER]
        place = camera.on_plane(below.bottom, 0.0)[:2]
        return np.array([*place, camera.height_over(pixel, place)])

    def held_cube(self) -> np.ndarray | None:
        """(3,) middle of the red cube [m], wherever it is."""
        return self._from_two_sides(red)

    def cube(self, height: float) -> np.ndarray | None:
        """(3,) middle of the red cube [m] at a known height."""
        pixel = self._middle_of(SHOULDER, red)
        return None if pixel is None else self.cameras[SHOULDER].on_plane(pixel, height)

    def bar(self, height: float) -> Bar | None:
        """The dark bar of a handle at a known height [m]."""
        mask = self._mask(SHOULDER, grey)
        if mask is None:
            return None
        camera = self.cameras[SHOULDER]
        rows, columns = np.nonzero(mask)
        places = np.array(
            [
                camera.on_plane(np.array(pixel, float), height)[:2]
                for pixel in zip(columns, rows, strict=True)
            ]
        ).reshape(-1, 2)
        near = ((places > BAR_LOW) & (places < BAR_HIGH)).all(axis=1)
        kept = np.zeros_like(mask)
        kept[rows[near], columns[near]] = True
        largest_part = largest(kept)
        if largest_part is None:
            return None
        middle = camera.on_plane(largest_part.mean(axis=0), height)[:2]
        places = places[near & (np.linalg.norm(places - middle, axis=1) < BAR_LENGTH)]
        return _bar_of(places, height)

    def _from_two_sides(self, colour: Colour) -> np.ndarray | None:
        sights = []
        for name, camera in self.cameras.items():
            pixel = self._middle_of(name, colour)
            if pixel is not None:
                sights.append((camera, pixel))
        return meeting(sights) if len(sights) == 2 else None

    def _middle_of(self, name: str, colour: Colour) -> np.ndarray | None:
        """(2,) middle of the largest thing of a colour."""
        mask = self._mask(name, colour)
        points = None if mask is None else largest(mask)
        return None if points is None else points.mean(axis=0)

    def _mask(self, name: str, colour: Colour) -> np.ndarray | None:
        """(height, width) where a colour is, the axes on the table excepted."""
        image = self._pictures.get(name)
        if image is None:
            return None
        mask = colour(image)
        if name == SHOULDER:
            column, row = self._axes.astype(int)
            mask[row - 45 : row + 15, column - 55 : column + 30] = False
        return mask
