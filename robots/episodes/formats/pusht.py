"""Reads the official push-T demonstrations and converts them to metres.

Layout (diffusion_policy `ReplayBuffer`, Zarr v2, a folder or a zip of it, possibly nested):
`data/state` (N, 5) agent x y, block x y [px], block angle [rad]; `data/keypoint` (N, 9, 2) [px];
`data/action` (N, 2) [px]; `data/img` (N, 96, 96, 3) float32 in 0..255; `meta/episode_ends` (E,)
cumulative, exclusive. Source: Chi et al., Diffusion Policy, RSS 2023, and its repository.
The published board of 512 px is 0.512 m here: 1 px = 1 mm, x right, y down.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.zarr_v2 import check_arrays, check_zip_size
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.errors import HandoffError
from robots.spec import FieldSpec

STREAM = "policy"
RATE_HZ = 10.0
METRES_PER_PIXEL = 1e-3
ENDS_FILE = "meta/episode_ends/.zarray"
"""File by which a replay buffer is recognised."""

KEYPOINTS = 1e-3 * np.array(
    [
        [9.26979, 90.04097],
        [-60.98347, -1.18673],
        [60.91276, -1.39336],
        [-0.27050, 25.54363],
        [-14.06493, 122.81585],
        [39.00274, 32.85741],
        [-39.96641, 32.72966],
        [-16.82434, 62.86318],
        [23.54146, -1.70029],
    ]
)
"""(9, 2) the demonstrations' keypoints in the block frame [m]: the median over all 25,650 frames of
the published data, with a median error of 1e-5 mm."""
AGENT_FIELD = FieldSpec(
    shape=(2,), unit="m", frame="board", about="centre of the pusher", names=(("x", "y"),)
)
KEYPOINTS_FIELD = FieldSpec(
    shape=(9, 2),
    unit="m",
    frame="board",
    about="nine points fixed to the T; `points` has them in the frame of block_pose",
    names=(tuple(f"point{i}" for i in range(9)), ("x", "y")),
    points=tuple((round(float(x), 8), round(float(y), 8)) for x, y in KEYPOINTS),
)
BLOCK_POSE_FIELD = FieldSpec(
    shape=(3,),
    unit="m, m, rad",
    frame="board",
    about="pose of the T: origin in the middle of the bar's outer edge, y along the stem, "
    "angle from board x to board y",
    names=(("x", "y", "angle"),),
)
TARGET_FIELD = FieldSpec(
    shape=(2,),
    unit="m",
    frame="board",
    about="target position of the pusher",
    names=(("x", "y"),),
)

_SHAPES = {"state": (5,), "keypoint": (9, 2), "action": (2,), "img": (96, 96, 3)}
ARRAYS = ("meta/episode_ends", *(f"data/{name}" for name in _SHAPES))
"""Arrays that are read."""
_RANGE_PX = {"state": (0.0, 512.0), "keypoint": (-100.0, 612.0), "action": (0.0, 512.0)}
"""Plausible values [px]. Keypoints are corners of a block whose centre is on the board; they may
lie outside by the size of the block."""


def pusht_schema(images: bool) -> EpisodeSchema:
    """Schema of push-T episodes, with or without the 96x96 camera image."""
    fields = {
        "agent": AGENT_FIELD,
        "keypoints": KEYPOINTS_FIELD,
        "block_pose": BLOCK_POSE_FIELD,
        "action": TARGET_FIELD,
    }
    if images:
        fields["image"] = FieldSpec(
            shape=(96, 96, 3), dtype="uint8", unit="u8", about="top view, RGB"
        )
    return EpisodeSchema(
        name="push_t", streams={STREAM: StreamSpec(rate_hz=RATE_HZ, fields=fields)}
    )


class ReplayBuffer:
    """The published data set, opened and checked; created by `open_replay_buffer`."""

    def __init__(self, path: Path, group: Any, images: bool) -> None:
        """Checks the arrays and reads all but the images.

        Raises:
            HandoffError: an array is missing, incomplete, of the wrong shape or implausible.
        """
        self.schema = pusht_schema(images)
        self._path = path
        self._ends = _read_ends(path, group)
        names = [name for name in _SHAPES if images or name != "img"]
        arrays = {name: _checked_array(path, group, name, int(self._ends[-1])) for name in names}
        self._image = arrays.pop("img", None)
        self._rows = {name: _read_plausible(path, name, array) for name, array in arrays.items()}

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the data set."""
        return len(self._ends)

    def episodes(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
        """Streams and metadata of episodes `[first, stop)` in metres; only a few chunks of images
        are in memory at a time.

        Raises:
            HandoffError: images cannot be decoded, or are no whole numbers in 0..255.
        """
        starts = np.concatenate([[0], self._ends[:-1]])
        images = (
            self._images(int(starts[first])) if self._image is not None and first < stop else None
        )
        decoded = np.empty((0, *_SHAPES["img"]), np.uint8)
        for episode in range(first, stop):
            start, end = int(starts[episode]), int(self._ends[episode])
            fields = self._metric(slice(start, end))
            if images is not None:
                while len(decoded) < end - start:
                    decoded = np.concatenate([decoded, next(images)])
                fields["image"] = decoded[: end - start]
                decoded = decoded[end - start :]
            yield {STREAM: fields}, {"source_episode": episode}

    def _metric(self, rows: slice) -> dict[str, np.ndarray]:
        state = self._rows["state"][rows].astype(np.float64)
        pose = np.concatenate([state[:, 2:4] * METRES_PER_PIXEL, state[:, 4:5]], axis=1)
        fields = {
            "agent": state[:, :2] * METRES_PER_PIXEL,
            "keypoints": self._rows["keypoint"][rows].astype(np.float64) * METRES_PER_PIXEL,
            "block_pose": pose,
            "action": self._rows["action"][rows].astype(np.float64) * METRES_PER_PIXEL,
        }
        return {name: values.astype(np.float32) for name, values in fields.items()}

    def _images(self, start: int) -> Iterator[np.ndarray]:
        """Blocks of images from `start` to the end, as whole chunks so that each is decoded
        once."""
        rows = self._image.chunks[0]
        while start < self._image.shape[0]:
            stop = (start // rows + 1) * rows
            with _explain_damage(self._path, "img"):
                block = self._image[start:stop]
            yield _to_uint8(self._path, block, start)
            start = stop


@contextmanager
def open_replay_buffer(path: Path, images: bool) -> Iterator[ReplayBuffer]:
    """Opens the published data set at `path`, a zip or a folder.

    Raises:
        HandoffError: it is another data set, or damaged, or reading it could run code.
    """
    import zarr
    from zarr.storage import LocalStore, ZipStore

    prefix = find_replay_buffer(path)
    if prefix is None:
        raise HandoffError(
            f"{path}: holds no {ENDS_FILE}, so it is not a diffusion_policy replay buffer."
        )
    with _explain_damage(path, "metadata"):
        check_arrays(path, prefix, ARRAYS)
    store = LocalStore(path, read_only=True) if path.is_dir() else ZipStore(path, mode="r")
    try:
        with _explain_damage(path, "groups"):
            # Consolidated metadata would replace those that were checked.
            group = zarr.open_group(
                store, path=prefix, mode="r", zarr_format=2, use_consolidated=False
            )
        yield ReplayBuffer(path, group, images)
    finally:
        store.close()


def find_replay_buffer(path: Path) -> str | None:
    """Path of the replay buffer inside the zip or folder at `path` ("" for the top level), None
    without one.

    Raises:
        HandoffError: a zip that cannot be read, or several replay buffers.
    """
    if path.is_dir():
        files = [file for depth in ("", "*/", "*/*/") for file in path.glob(depth + ENDS_FILE)]
        names = [file.relative_to(path).as_posix() for file in files]
    else:
        names = [name for name in zip_names(path) if f"/{name}".endswith(f"/{ENDS_FILE}")]
    if len(names) > 1:
        raise HandoffError(
            f"{path}: holds {len(names)} replay buffers ({', '.join(names)}), expected 1."
        )
    return names[0].removesuffix(ENDS_FILE).rstrip("/") if names else None


def is_pusht(path: Path) -> bool:
    """Whether the replay buffer in the zip or folder at `path`, if there is one, is push-T's: the
    only one with keypoints.

    Raises:
        HandoffError: a zip that cannot be read, or several replay buffers.
    """
    prefix = find_replay_buffer(path)
    if prefix is None:
        return False
    names = [f"{prefix}/{name}".lstrip("/") for name in ("data/keypoint", "data/n_contacts")]
    if path.is_dir():
        return any((path / name).is_dir() for name in names)
    return any(entry.startswith(f"{name}/") for entry in zip_names(path) for name in names)


def content_digest(path: Path) -> str:
    """sha256 (hex) over the names and digests of the files of a replay buffer in a zip, as far as
    they are read, without decoding them; it does not depend on how they are packed.

    Raises:
        HandoffError: there is no replay buffer, or the zip cannot be read.
    """
    prefix = find_replay_buffer(path)
    if prefix is None:
        raise HandoffError(f"{path}: holds no {ENDS_FILE}.")
    start = f"{prefix}/" if prefix else ""
    total = hashlib.sha256()
    with _explain_damage(path, "content"), zipfile.ZipFile(path) as archive:
        check_zip_size(path, archive)
        for name in sorted(archive.namelist()):
            inner = name.removeprefix(start)
            array, _, file = inner.rpartition("/")
            if name.startswith(start) and array in ARRAYS and file and file != ".zattrs":
                digest = hashlib.sha256(archive.read(name)).hexdigest()
                total.update(f"{inner}\0{digest}\n".encode())
    return total.hexdigest()


def zip_names(path: Path) -> list[str]:
    """Names of the files inside the zip at `path`.

    Raises:
        HandoffError: the zip cannot be read or is incomplete.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise HandoffError(
            f"{path}: cannot be read as a zip ({error}), expected a folder or a zip. Was the download cut short?"
        ) from None


def _read_ends(path: Path, group: Any) -> np.ndarray:
    with _explain_damage(path, "meta/episode_ends"):
        ends = np.asarray(group["meta/episode_ends"][:])
    if ends.ndim != 1 or len(ends) == 0 or not np.issubdtype(ends.dtype, np.integer):
        raise HandoffError(
            f"{path}: meta/episode_ends is {ends.dtype}{ends.shape}, expected integers (E,)."
        )
    lengths = np.diff(ends, prepend=0)
    if (lengths <= 0).any():
        episode = int(np.argmax(lengths <= 0))
        previous = ends[episode] - lengths[episode]
        raise HandoffError(
            f"{path}: meta/episode_ends[{episode}] is {ends[episode]}, expected more than {previous}. "
            "Ends must increase; was the file damaged?"
        )
    return ends.astype(np.int64)


def _checked_array(path: Path, group: Any, name: str, frames: int) -> Any:
    with _explain_damage(path, f"data/{name}"):
        array = group[f"data/{name}"]
        present = array.nchunks_initialized
    expected = (frames, *_SHAPES[name])
    if array.shape != expected:
        raise HandoffError(
            f"{path}: data/{name} has shape {array.shape}, expected {expected} from meta/episode_ends."
        )
    if present != array.nchunks:
        raise HandoffError(
            f"{path}: data/{name} has {present} of {array.nchunks} chunks. Was the copy incomplete?"
        )
    return array


def _read_plausible(path: Path, name: str, array: Any) -> np.ndarray:
    with _explain_damage(path, f"data/{name}"):
        values = np.asarray(array[:])
    low, high = _RANGE_PX[name]
    pixels = values[:, :4] if name == "state" else values
    bad = ~((pixels >= low) & (pixels <= high))
    if name == "state":
        bad = np.concatenate([bad, ~(np.abs(values[:, 4:]) <= 4 * np.pi)], axis=1)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        limit = (
            "an angle within 4 pi rad"
            if name == "state" and where[1] == 4
            else f"{low:g} to {high:g} px"
        )
        raise HandoffError(
            f"{path}: data/{name}{list(where)} is {values[where]}, expected {limit}. "
            "Is the data already scaled, or damaged?"
        )
    return values


def _to_uint8(path: Path, block: np.ndarray, start: int) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        image = block.astype(np.uint8)
    wrong = image != block
    if wrong.any():
        where = np.argwhere(wrong)[0]
        raise HandoffError(
            f"{path}: data/img[{start + where[0]}, {where[1]}, {where[2]}, {where[3]}] is {block[tuple(where)]}, "
            "expected a whole number from 0 to 255. Are the images scaled to another range?"
        )
    return image


@contextmanager
def _explain_damage(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise HandoffError(f"{path}: {name} is missing. Is it a push-T data set?") from None
    except (
        OSError,
        ValueError,
        RuntimeError,
        SystemError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        raise HandoffError(
            f"{path}: {name} cannot be decoded ({error}). Was the file damaged or cut short?"
        ) from None
