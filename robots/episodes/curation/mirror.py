"""Mirrors push-T episodes; a mirror image is a valid demonstration as well.

The board is a square, and T and goal are symmetric about the axis of the T. At the goal, in the
middle at 45 degrees, this axis is the board's diagonal from bottom left to top right. A reflection
about the diagonal leaves walls, goal and physics unchanged. (x, y) becomes (L - y, L - x) on a
board of edge L, the block's angle t becomes pi/2 - t, and the keypoints move with the block, which
is not reflected itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robots.episodes.formats.pusht import STREAM, pusht_schema
from robots.episodes.schema import EpisodeSchema
from robots.errors import HandoffError

BOARD_EDGE = 0.512
"""Edge length L of the board [m]."""


def check_mirrored(schema: EpisodeSchema) -> None:
    """Checks that every field of the episodes can be mirrored.

    Raises:
        HandoffError: another task, an additional stream or an additional field.
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
            f"no other fields than {', '.join(sorted(known[STREAM]))}. The mirror image of others is not defined."
        )


def mirrored(streams: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """The mirror image of one episode, with the same dtypes.

    Args:
        streams: fields of `pusht_schema` [m, rad]; images (T, edge, edge, 3).
    """
    fields = streams[STREAM]
    pose = fields["block_pose"].astype(np.float64)
    position = _reflected(pose[:, :2])
    angle = np.pi / 2 - pose[:, 2]
    # Keypoints in the frame of the block, which do not change.
    offsets = fields["keypoints"] - pose[:, None, :2]
    block_points = np.einsum("tji,tkj->tki", _rotation(pose[:, 2]), offsets)
    image: dict[str, np.ndarray] = {
        "agent": _reflected(fields["agent"].astype(np.float64)),
        "keypoints": np.einsum("tij,tkj->tki", _rotation(angle), block_points) + position[:, None],
        "block_pose": np.concatenate([position, angle[:, None]], axis=1),
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
    """(T, 2, 2) rotation matrices from the frame of the block to that of the board."""
    cosine, sine = np.cos(angle_T), np.sin(angle_T)
    return np.stack(
        [np.stack([cosine, -sine], axis=-1), np.stack([sine, cosine], axis=-1)], axis=-2
    )
