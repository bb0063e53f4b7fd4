"""The T and the pusher of push-T in the page's pictures, and a person who steers with the stick on
the page.

The person knows the shape of both, and lays it over what the pictures show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim.tasks.push_t.expert import push_to_goal
from sim.tasks.push_t.geometry import (
    AGENT_RADIUS,
    BASE_R_BOARD,
    PUSHER_LENGTH,
    TEE_THICKNESS,
    base_from_board,
    tee_polygons,
)
from tests.person.eyes import Camera, room

LOOK_AHEAD = 0.45
"""Age of what the person sees, and time until they look again [s]."""
FULL = 0.15
"""Speed of the pusher at full deflection in a session [m/s]."""
TIP = 0.004
"""Height of the pusher's lower end [m]."""
SHAFT = TIP + PUSHER_LENGTH
"""Height of its upper end [m]."""
COMPARED = 160
"""Rows of a picture of which pixels are compared."""
LOST, HIDDEN = 0.35, 0.9
"""Mismatch above which a thing is looked for anew, and above which it counts as hidden."""
MARGIN = 40
"""Distance of compared pixels from the thing [px]."""

Shape = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Convex solids, (n, 3) corners [m] in the base frame each, for a place."""


class Sight(NamedTuple):
    """What one picture shows of a thing."""

    camera: Camera
    pixels: np.ndarray
    """(n, 2) columns and rows."""
    shown: np.ndarray
    """(n,) whether the thing is there: 1, or something that it would hide: 0; -1 for what may hide
    it."""


def slate(image: np.ndarray) -> np.ndarray:
    """(height, width) where the blue-grey of the T is."""
    red, green, blue = np.moveaxis(image, -1, 0)
    return (blue > 1.12 * red) & (blue < 1.6 * red) & (red > 60) & (blue < 215) & (green < blue)


def navy(image: np.ndarray) -> np.ndarray:
    """(height, width) where the blue of the pusher is."""
    red, green, blue = np.moveaxis(image, -1, 0)
    return (blue > 2.0 * red) & (blue > 1.4 * green) & (blue > 60)


def board(image: np.ndarray) -> np.ndarray:
    """(height, width) where the white board or the painted goal is."""
    red, green, blue = np.moveaxis(image, -1, 0)
    return (image.min(axis=-1) > 251) | ((green > 1.35 * red) & (green > 1.25 * blue))


def tee_solids(pose: np.ndarray) -> list[np.ndarray]:
    """Bar and stem of a T at a pose (3,), board frame."""
    return [
        np.concatenate([base_from_board(part, height) for height in (0.0, TEE_THICKNESS)])
        for part in tee_polygons(pose)
    ]


def pusher_solids(agent: np.ndarray) -> list[np.ndarray]:
    """The lower part of the pusher at a position (2,), board frame."""
    angle = np.linspace(0.0, 2.0 * np.pi, 12, endpoint=False)
    ring = agent + AGENT_RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return [np.concatenate([base_from_board(ring, height) for height in (TIP, SHAFT)])]


def covered(camera: Camera, solids: Sequence[np.ndarray], pixels: np.ndarray) -> np.ndarray:
    """(n,) whether pixels (n, 2) show one of the solids."""
    from scipy.spatial import ConvexHull

    inside = np.zeros(len(pixels), dtype=bool)
    for corners in solids:
        hull = ConvexHull(camera.pixel(corners))
        lines = hull.equations
        inside |= (pixels @ lines[:, :2].T + lines[:, 2] <= 0.0).all(axis=1)
    return inside


def mismatch(sights: Sequence[Sight], solids: Sequence[np.ndarray]) -> float:
    """Number of pixels that disagree with the solids, per pixel of the thing."""
    off = 0
    for camera, pixels, shown in sights:
        inside = covered(camera, solids, pixels)
        off += int((inside & (shown == 0)).sum()) + int((~inside & (shown == 1)).sum())
    return off / max(1, sum(int((sight.shown == 1).sum()) for sight in sights))


def fitted(sights: Sequence[Sight], shape: Shape, begin: np.ndarray) -> tuple[np.ndarray, float]:
    """The place at which a shape covers what is shown, and its mismatch.

    Args:
        sights: of the cameras that show it.
        shape: solids at a place.
        begin: first guess.
    """
    from scipy.optimize import minimize

    scale = np.array([0.01, 0.01, 0.2])[: len(begin)]
    simplex = np.concatenate([begin[None], begin + np.diag(scale)])
    options = {"initial_simplex": simplex, "maxfev": 60, "xatol": 2e-4, "fatol": 1e-3}
    found = minimize(
        lambda place: mismatch(sights, shape(place)), begin, method="Nelder-Mead", options=options
    )
    return np.asarray(found.x), float(found.fun)


class BoardEyes:
    """Where T and pusher are, from the newest pictures, given where they were."""

    def __init__(self) -> None:
        self._cameras = room("push_t")
        self.tee: np.ndarray | None = None
        """(3,) x, y [m] and angle [rad], board frame."""
        self.pusher: np.ndarray | None = None
        """(2,) position [m], board frame."""

    def look(self, pictures: Mapping[str, np.ndarray]) -> None:
        """Takes the newest pictures, by camera."""
        sights = self._sights(pictures, slate)
        if sights:
            best, off = np.zeros(3), np.inf
            if self.tee is not None:
                best, off = fitted(sights, tee_solids, self.tee)
            if off > LOST:
                # It is looked for anew.
                guesses = self._guesses(sights)
                guesses.sort(key=lambda guess: mismatch(sights, tee_solids(guess)))
                results = [fitted(sights, tee_solids, guess) for guess in guesses[:8]]
                best, off = min(results, key=lambda result: result[1])
            self.tee = best if off < HIDDEN else self.tee
        sights = self._sights(pictures, navy)
        if sights:
            guess = self._middle(sights, 0.03) if self.pusher is None else self.pusher
            best, off = fitted(sights, pusher_solids, guess)
            if off > LOST:
                best, off = fitted(sights, pusher_solids, self._middle(sights, 0.03))
            self.pusher = best if off < HIDDEN else self.pusher

    def _guesses(self, sights: Sequence[Sight]) -> list[np.ndarray]:
        middle = self._middle(sights, TEE_THICKNESS)
        guesses = []
        for angle in np.arange(0.0, 2.0 * np.pi, np.pi / 6.0):
            # The middle of what is seen is that of the T, 0.045 m along its stem.
            stem = 0.045 * np.array([-np.sin(angle), np.cos(angle)])
            guesses.append(np.array([*(middle - stem), angle]))
        return guesses

    def _middle(self, sights: Sequence[Sight], height: float) -> np.ndarray:
        """(2,) middle of a thing at a height [m], board frame."""
        camera, pixels, shown = sights[0]
        place = camera.on_plane(pixels[shown == 1].mean(axis=0), height)
        return _board(place)

    def _sights(
        self, pictures: Mapping[str, np.ndarray], colour: Callable[[np.ndarray], np.ndarray]
    ) -> list[Sight]:
        from scipy import ndimage

        sights = []
        for name, camera in self._cameras.items():
            image = pictures.get(name)
            if image is None:
                continue
            thing, parts = colour(image), np.zeros(image.shape[:2], np.int32)
            ndimage.label(thing, output=parts)
            sizes = np.bincount(parts.ravel())
            sizes[0] = 0
            if sizes.max(initial=0) < 30:
                continue
            # Pieces that something splits belong together; specks do not count.
            thing = np.isin(parts, np.flatnonzero(sizes > 0.15 * sizes.max()))
            rows, columns = np.nonzero(thing)
            low = np.array([columns.min(), rows.min()]) - MARGIN
            high = np.array([columns.max(), rows.max()]) + MARGIN
            stride = max(1, len(image) // COMPARED)
            grid = np.stack(
                np.meshgrid(
                    np.arange(max(0, low[0]), min(image.shape[1], high[0]), stride),
                    np.arange(max(0, low[1]), min(image.shape[0], high[1]), stride),
                ),
                axis=-1,
            ).reshape(-1, 2)
            at = (grid[:, 1], grid[:, 0])
            shown = np.where(thing[at], 1, np.where(board(image)[at], 0, -1))
            sights.append(Sight(camera, grid.astype(float), shown))
        return sights


def _board(place: np.ndarray) -> np.ndarray:
    """(2,) board coordinates of a place (3,) [m], base frame."""
    return (BASE_R_BOARD.T @ (place - base_from_board(np.zeros(2))))[:2]


class PushT:
    """Pushes as the scripted expert would, at what the pictures show."""

    def __init__(self) -> None:
        self._eyes = BoardEyes()

    def stick(self, pictures: Mapping[str, np.ndarray]) -> tuple[float, float]:
        """Deflection of the stick, forward and left in [-1, 1], until the next decision."""
        self._eyes.look(pictures)
        tee, pusher = self._eyes.tee, self._eyes.pusher
        if tee is None or pusher is None:
            return 0.0, 0.0
        way = (push_to_goal(pusher[None], tee[None]) - pusher)[0]
        across = BASE_R_BOARD[:2, :2] @ way / (LOOK_AHEAD * FULL)
        across /= max(1.0, float(np.abs(across).max()))
        return float(across[0]), float(across[1])
