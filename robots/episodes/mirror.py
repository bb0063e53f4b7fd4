"""Mirrors push-T episodes; a mirror image is as good a demonstration as the episode itself.

The board is a square, the T and its goal are symmetric about the T's own axis, and on the goal, at
45 degrees in the middle, that axis is the board's diagonal from bottom left to top right. Reflected
about it, an episode is one that could have been: walls, goal and physics stay as they are. (x, y)
becomes (L - y, L - x) on a board of edge L, the block's angle t becomes pi/2 - t, and the labelled
points move with the block, which is not reflected in itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robots.episodes.formats.pusht import STREAM, pusht_schema
from robots.episodes.schema import EpisodeSchema
from robots.errors import HandoffError

BOARD_EDGE = 0.512
"""L [m]."""


def check_mirrored(schema: EpisodeSchema) -> None:
    """Checks that every field of the episodes can be mirrored.

    Raises:
        HandoffError: another task, a further stream or a further field.
    """
    known = {name: set(stream.fields) for name, stream in pusht_schema(images=True).streams.items()}
    unknown = sorted(
        f"{name}/{field}"
        for name, stream in schema.streams.items()
        for field in stream.fields
        if field not in known.get(name, set())
    )
    if schema.name != "push_t" or unknown:
        raise HandoffError(
            f"mirror: episodes of '{schema.name}' with {unknown or 'the fields of another task'}, expected push_t with "
            f"nothing but {sorted(known[STREAM])}. The mirror image of anything else is not known."
        )


def mirrored(streams: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """The mirror image of one episode, in the same dtypes.

    Args:
        streams: fields of `pusht_schema`, metres and radians; pictures (T, edge, edge, 3).
    """
    fields = streams[STREAM]
    pose = fields["block_pose"].astype(np.float64)
    place, angle = _reflected(pose[:, :2]), np.pi / 2 - pose[:, 2]
    own = np.einsum("tji,tkj->tki", _rotation(pose[:, 2]), fields["keypoints"] - pose[:, None, :2])
    image: dict[str, np.ndarray] = {
        "agent": _reflected(fields["agent"].astype(np.float64)),
        "keypoints": np.einsum("tij,tkj->tki", _rotation(angle), own) + place[:, None],
        "block_pose": np.concatenate([place, angle[:, None]], axis=1),
        "action": _reflected(fields["action"].astype(np.float64)),
    }
    if "image" in fields:
        image["image"] = fields["image"][:, ::-1, ::-1].transpose(0, 2, 1, 3)
    return {
        STREAM: {
            name: np.ascontiguousarray(values, fields[name].dtype) for name, values in image.items()
        }
    }


def _reflected(points: np.ndarray) -> np.ndarray:
    return BOARD_EDGE - points[..., ::-1]


def _rotation(angle_T: np.ndarray) -> np.ndarray:
    """(T, 2, 2): block frame to board."""
    cosine, sine = np.cos(angle_T), np.sin(angle_T)
    return np.stack(
        [np.stack([cosine, -sine], axis=-1), np.stack([sine, cosine], axis=-1)], axis=-2
    )
