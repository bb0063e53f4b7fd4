"""Tells whether a camera's picture looks like those of the training data, by numpy alone.

Two quantities are compared, each in units of a limit that all but 0.5 % of the pictures of held-out
episodes keep:

- The appearance is 88 numbers, the mean luminance of 8 x 8 cells and a histogram of 8 levels of
  each colour; its distance to the training pictures is that of Mahalanobis.
- The shift against the mean picture, by least squares (Lucas and Kanade 1981) in which every pixel
  counts by how little it changes in the training data, so that what moves hardly counts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from robots.config import Count, Positive, Share, config, to_plain, validate
from robots.errors import HandoffError

PICTURES_KEY = "handoff.training_pictures"
"""Metadata key of the statistics inside the ONNX file."""
GRID = 8
"""Cells along each side."""
LEVELS = 8
"""Levels of the histogram of a colour."""
THUMBNAIL = 32
"""Side of the mean picture [px], by which a shift is told."""
LEAST_SHIFT = 0.1
"""Smallest limit of a shift [pixels of the thumbnail]."""
NOISE = 0.02
"""Standard deviation that every number has at least, as a share of white: a camera's noise, and
light that is not quite the same."""
PIXEL_NOISE = 0.01
"""The same of a pixel of the thumbnail."""
QUANTILE = 0.995
"""Share of the pictures of held-out episodes that each limit lets pass."""
FOLDS = 5
"""Parts of the episodes, each held out once."""
FEWEST_EPISODES = 2
"""Smallest number of episodes."""
MOST_PICTURES = 3000
"""Number of training pictures that are used at most, evenly spread."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
COVERED = 0.3
"""Share of the usual contrast between cells below which a lens is covered."""
SHIFTS = 6
"""Largest shift that is looked for [pixels of the thumbnail]."""
CLEARER = 0.05
"""Gain in correlation by which a large shift is told."""
CLEAR = 0.7
"""Smallest correlation of a large shift."""


@config
class TrainingPictures:
    """Statistics of the training pictures of one camera."""

    episodes: Count
    """Number of episodes."""
    pictures: Count
    """Number of pictures."""
    limit: Positive
    """Mahalanobis distance that `QUANTILE` of the pictures of held-out episodes keep."""
    shift_limit: Positive
    """Shift that `QUANTILE` of the pictures of held-out episodes keep [pixels of the thumbnail]."""
    luminance: Share
    """Mean luminance, black to white."""
    luminance_spread: Share
    """Standard deviation of a picture's mean luminance."""
    contrast: Share
    """Standard deviation of the luminance between the cells of a picture, mean."""
    mean: str
    """Mean of the features: 88 numbers, float32 in base64."""
    whitening: str
    """(88, 88) matrix W for which |W (features - mean)| is the distance, in the same form."""
    thumbnail: str
    """Mean luminance (32, 32), black to white, in the same form."""
    spread: str
    """Standard deviation of the luminance (32, 32), in the same form."""


class PictureVerdict(NamedTuple):
    """What a picture is compared with the training data."""

    distance: float
    """Larger of appearance and shift, in units of their limits."""
    words: str
    """How it differs, in words; empty within the limit."""


def picture_features(image: np.ndarray) -> np.ndarray:
    """(88,) float32 features of a picture (height, width, 3) uint8 RGB."""
    grid = _cells(image @ _LUMA / 255.0, GRID)
    level = (image.reshape(-1, 3) >> 5).astype(np.int64)
    counts = np.bincount((level + LEVELS * np.arange(3)).ravel(), minlength=3 * LEVELS)
    return np.concatenate([grid.ravel(), counts / len(level)]).astype(np.float32)


def picture_statistics(
    read: Callable[[int], np.ndarray], ends: Sequence[int]
) -> TrainingPictures | None:
    """Statistics of the training pictures of one camera; None for too few episodes.

    Args:
        read: returns the picture (height, width, 3) of a step.
        ends: number of the step behind the last one of every episode.
    """
    if len(ends) < FEWEST_EPISODES:
        return None
    steps = np.unique(np.linspace(0, ends[-1] - 1, min(ends[-1], MOST_PICTURES)).astype(int))
    episode = np.searchsorted(ends, steps, side="right")
    rows = [_measured(read(int(step))) for step in steps]
    features = np.stack([row for row, _ in rows])
    thumbnails = np.stack([small for _, small in rows])
    distances, shifts = np.zeros(len(steps)), np.zeros(len(steps))
    folds = min(FOLDS, len(ends))
    for fold in range(folds):
        out = episode % folds == fold
        # Few episodes may leave a part without a picture.
        if out.any() and not out.all():
            mean, whitening = _fitted(features[~out])
            distances[out] = np.linalg.norm((features[out] - mean) @ whitening.T, axis=1)
            usual, spread = thumbnails[~out].mean(axis=0), _spread(thumbnails[~out])
            shifts[out] = [np.hypot(*_shift(usual, spread, each)) for each in thumbnails[out]]
    mean, whitening = _fitted(features)
    grids = features[:, : GRID * GRID]
    return TrainingPictures(
        episodes=len(ends),
        pictures=len(steps),
        limit=round(float(np.quantile(distances, QUANTILE)), 4) or 1.0,
        shift_limit=round(max(LEAST_SHIFT, float(np.quantile(shifts, QUANTILE))), 4),
        luminance=round(float(grids.mean()), 4),
        luminance_spread=round(float(grids.mean(axis=1).std()), 4),
        contrast=round(float(grids.std(axis=1).mean()), 4),
        mean=_packed(mean),
        whitening=_packed(whitening),
        thumbnail=_packed(thumbnails.mean(axis=0)),
        spread=_packed(_spread(thumbnails)),
    )


def judge_picture(statistics: TrainingPictures, image: np.ndarray) -> PictureVerdict:
    """Compares a picture (height, width, 3) uint8 RGB with the training data."""
    features, thumbnail = _measured(image)
    mean = _unpacked(statistics.mean)
    whitening = _unpacked(statistics.whitening).reshape(len(mean), len(mean))
    usual, spread = _square(statistics.thumbnail), _square(statistics.spread)
    shift = _shift(usual, spread, thumbnail)
    moved = float(np.hypot(*shift)) / statistics.shift_limit
    distance = max(moved, float(np.linalg.norm(whitening @ (features - mean))) / statistics.limit)
    if distance <= 1.0:
        return PictureVerdict(distance, "")
    large = _large_shift(usual, thumbnail)
    likely_shift = large if any(large) or moved <= 1.0 else shift
    return PictureVerdict(distance, _difference(statistics, features, likely_shift))


def to_json(statistics: Mapping[str, TrainingPictures]) -> str:
    """JSON of the statistics of all cameras, by the name of the sensor."""
    return json.dumps({name: to_plain(each) for name, each in statistics.items()})


def from_json(text: str) -> dict[str, TrainingPictures]:
    """Reads `to_json` back.

    Raises:
        HandoffError: not JSON, or missing keys.
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise HandoffError(f"policy: metadata '{PICTURES_KEY}' is not JSON ({error}).") from None
    return {name: validate(TrainingPictures, each, name) for name, each in plain.items()}


def _difference(
    statistics: TrainingPictures, features: np.ndarray, shift: tuple[float, float]
) -> str:
    """How a picture differs, in words.

    Args:
        statistics: statistics of the training pictures.
        features: features of the picture.
        shift: its shift to the right and down [pixels of the thumbnail].
    """
    grid = features[: GRID * GRID]
    if grid.std() < COVERED * statistics.contrast:
        return "covered, or without contrast"
    reasons = []
    change = float(grid.mean()) - statistics.luminance
    if abs(change) > 4.0 * statistics.luminance_spread + NOISE:
        share = 100.0 * abs(change) / max(statistics.luminance, 1e-3)
        reasons.append(f"{'darker' if change < 0.0 else 'brighter'} by {share:.0f} %")
    shares = [100.0 * each / THUMBNAIL for each in shift]
    ways = (("width", "left", "right"), ("height", "top", "bottom"))
    moved = [
        f"{abs(share):.1f} % of the {side} to the {after if share > 0.0 else before}"
        for share, (side, before, after) in zip(shares, ways, strict=True)
        if abs(share) >= 0.1
    ]
    if moved:
        reasons.append(f"shifted by about {' and '.join(moved)}")
    return ", ".join(reasons) or "different"


def _shift(usual: np.ndarray, spread: np.ndarray, thumbnail: np.ndarray) -> tuple[float, float]:
    """Shift of a thumbnail to the right and down against the usual one [px], however bright it is;
    exact for less than a pixel.

    Args:
        usual: (32, 32) mean luminance.
        spread: (32, 32) standard deviation, which weighs the pixels.
        thumbnail: (32, 32) luminance.
    """
    down, right = np.gradient(usual)
    columns = (-right, -down, usual, np.ones_like(usual))
    matrix = np.stack([column.ravel() for column in columns], axis=1)
    target = (thumbnail - usual).ravel()
    weight = 1.0 / spread.ravel()
    found = np.zeros(4)
    for _ in range(6):
        # What does not fit, such as an arm, counts less (Huber's weights, squared).
        off = np.abs(target - matrix @ found) * weight
        weighted = matrix * (weight * np.minimum(1.0, 2.0 / np.maximum(off, 1e-6)))[:, None] ** 2
        normal = matrix.T @ weighted + 1e-6 * np.eye(4)
        found = np.linalg.solve(normal, weighted.T @ target)
    return float(found[0]), float(found[1])


def _large_shift(usual: np.ndarray, thumbnail: np.ndarray) -> tuple[int, int]:
    """Shift of a thumbnail to the right and down by whole pixels, 0 if none explains it."""
    edge = SHIFTS
    inner = usual[edge:-edge, edge:-edge]
    span = range(-edge, edge + 1)
    size = THUMBNAIL - 2 * edge
    found = {
        (across, down): _correlation(
            inner, thumbnail[edge + down : edge + down + size, edge + across : edge + across + size]
        )
        for across in span
        for down in span
    }
    best = max(found, key=lambda shift: found[shift])
    clear = found[best] > max(CLEAR, found[0, 0] + CLEARER)
    return best if clear else (0, 0)


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    a, b = one - one.mean(), other - other.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 0.0 else 0.0


def _fitted(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) of features (N, D), and the whitening (D, D) of their distribution."""
    mean = features.mean(axis=0, dtype=np.float64)
    off = features - mean
    covariance = off.T @ off / len(features) + NOISE**2 * np.eye(len(mean))
    return mean, np.linalg.inv(np.linalg.cholesky(covariance))


def _spread(thumbnails: np.ndarray) -> np.ndarray:
    """(32, 32) standard deviation of thumbnails (N, 32, 32)."""
    return np.sqrt(thumbnails.var(axis=0) + PIXEL_NOISE**2)


def _measured(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features (88,) and thumbnail (32, 32), the luminance 0..1, of a picture."""
    return picture_features(image), _cells(image @ _LUMA / 255.0, THUMBNAIL)


def _cells(grey: np.ndarray, number: int) -> np.ndarray:
    """(number, number) means of the cells of a picture (height, width); of a smaller picture a cell
    has the nearest pixel."""
    for axis in (0, 1):
        size = grey.shape[axis]
        edges = np.arange(number + 1) * size // number
        begins = np.minimum(edges[:-1], size - 1)
        lengths = np.maximum(np.diff(edges), 1).astype(np.float32)
        if size < number:
            grey = np.take(grey, begins, axis=axis)
        else:
            sums = np.add.reduceat(grey, begins, axis=axis)
            grey = sums / (lengths[:, None] if axis == 0 else lengths)
    return grey


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)


def _square(text: str) -> np.ndarray:
    return _unpacked(text).reshape(THUMBNAIL, THUMBNAIL)
