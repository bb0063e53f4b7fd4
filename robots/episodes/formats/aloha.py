"""Reads episodes of ALOHA and ACT: a folder of HDF5 files, one per episode.

| file, or path inside it          | content                                                      |
|----------------------------------|--------------------------------------------------------------|
| `episode_7.hdf5`                 | an episode; attributes `sim` and `compress`                  |
| `observations/qpos`, `qvel`,     | (T, 14): per arm six joints and the gripper                  |
| `effort`                         |                                                              |
| `observations/images/CAMERA`     | (T, height, width, 3) uint8 RGB, or (T, bytes) JPEG          |
| `action`                         | (T, 14): joints and grippers of the leader arms              |
| `base_action`                    | (T, 2): velocities of Mobile ALOHA's base                    |
| `compress_len`                   | (cameras, T) sizes of the JPEG [bytes]; the rest is padding  |

ALOHA and Mobile ALOHA keep RGB arrays and encode them by `cv2.imencode`, which takes them for BGR:
a JPEG holds red and blue swapped, and here they are swapped back. Source: the code of ACT++ and
Mobile ALOHA (`compress_data.py`, `record_episodes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import data_files
from robots.episodes.formats.containers.hdf5 import (
    Hdf5Group,
    add_source,
    open_hdf5,
    peek,
    read_picture,
    read_steps,
)
from robots.episodes.formats.containers.hdf5_arrays import Hdf5Array
from robots.episodes.formats.containers.pictures import as_rgb
from robots.episodes.formats.source import (
    SourceEpisode,
    SourceSchema,
    StepFields,
    array_field,
    check_size,
)
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec, Role

RATE_HZ = 50.0
"""Steps per second by ALOHA's convention (DT = 0.02 s), which the files do not state."""
_PATTERNS = ("episode_*.hdf5", "episode_*.h5")
_ACTION = "action"
_IMAGES = "observations/images/"
_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
_WORDS = ("language_raw", "instruction", "language_instruction")
_UNITS = {"qpos": "rad", "qvel": "rad/s", "action": "rad"}


def recognises(path: Path) -> bool:
    """Whether the path is an HDF5 file with `action` and `observations/qpos`, or a folder of such
    files called `episode_*.hdf5`."""
    if path.is_dir():
        first = next((file for pattern in _PATTERNS for file in sorted(path.glob(pattern))), None)
        return first is not None and first.is_file() and recognises(first)
    return peek(path, _ACTION, "observations", "observations/qpos") == [False, True, False]


@contextmanager
def open_source(path: Path, images: bool) -> Iterator[AlohaSource]:
    """Opens a folder of episodes, or one episode.

    Raises:
        HandoffError: an episode is damaged, leaves out what it needs, or names other files.
    """
    files = data_files(path, *_PATTERNS) if path.is_dir() else [path]
    if not files:
        raise HandoffError(f"{path}: holds no episode_*.hdf5. Is it another folder?")
    yield AlohaSource(path, files, images)


class AlohaSource:
    """Episodes of ALOHA, opened by `open_source`.

    Args:
        path: the data set, for messages.
        files: files of the episodes in order.
        images: whether pictures are read.
    """

    def __init__(self, path: Path, files: list[Path], images: bool) -> None:
        self._files = files
        self._images = images
        self._steps = StepFields(path)
        self._encoded: dict[str, str] = {}
        """Names of the arrays with encoded pictures by the names of their fields."""
        self._skipped: list[str] = []
        with open_hdf5(files[0]) as file:
            self._sources = self._find_fields(file)
        fields = self._steps.fields
        self.schema = SourceSchema(
            form="ALOHA (HDF5)",
            task=path.name if path.is_dir() else path.absolute().parent.name,
            rate_hz=RATE_HZ,
            fields=fields,
            robot="aloha",
            notes=tuple(self._notes()),
        )

    @property
    def num_episodes(self) -> int:
        """Number of files."""
        return len(self._files)

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, in the order of the numbers in the names of the files.

        Raises:
            HandoffError: a file is damaged or differs from the first one.
        """
        for number in range(first, stop):
            with open_hdf5(self._files[number]) as file:
                steps = self._length(file)
                arrays = read_steps(file, self._sources, steps)
                for name, source in self._encoded.items():
                    arrays[name] = _decoded(file.array(source), steps)
                metadata = self._metadata(file)
            self._steps.check(number, arrays)
            yield SourceEpisode({name: arrays[name] for name in self._steps.fields}, metadata)

    def _length(self, file: Hdf5Group) -> int:
        shape = file.array(_ACTION).shape
        return shape[0] if shape else 0

    def _find_fields(self, file: Hdf5Group) -> dict[str, str]:
        """Names of the arrays by the names of their fields, which are added to the schema."""
        steps = self._length(file)
        sources: dict[str, str] = {}
        for source, array in file.arrays(skip=("compress_len", *_WORDS)).items():
            camera = source.startswith(_IMAGES)
            if array.shape[:1] != (steps,) and not source.startswith("observations/"):
                self._skipped.append(source)
            elif camera and _is_encoded(array):
                if self._images:
                    name = add_source(file.path, self._encoded, source)
                    self._steps.fields[name] = _camera_field(array)
            elif not array.is_numeric:
                self._skipped.append(source)
            elif self._images or not camera:
                name = add_source(file.path, sources, source)
                self._steps.fields[name] = _field(source, array)
        return sources

    def _metadata(self, file: Hdf5Group) -> dict[str, Any]:
        metadata: dict[str, Any] = {"source_file": file.path.name}
        simulated = file.attribute("sim")
        if isinstance(simulated, (bool, int)):
            metadata["sim"] = bool(simulated)
        success = file.attribute("success")
        if isinstance(success, (bool, int)):
            metadata["success"] = bool(success)
        for name in _WORDS:
            found = file.find(name)
            if isinstance(found, Hdf5Array) and found.is_text and (words := found.words()):
                metadata.setdefault(INSTRUCTION, words[0])
        return metadata

    def _notes(self) -> Iterator[str]:
        yield "The files do not state the rate; 50 Hz is ALOHA's convention."
        if self._encoded:
            example = next(iter(self._encoded))
            yield (
                "In JPEG pictures, red and blue were swapped back, as ALOHA's encoder swaps them; where another "
                f"encoder wrote them and colours look wrong, map a field with source: {example} and image: bgr."
            )
        depth = [n for n, spec in self._steps.fields.items() if spec.unit == "mm"]
        if depth:
            yield f"Depth in {', '.join(depth)} is taken to be in mm, which ALOHA does not state."
        if "base_action" in self._sources:
            yield "base_action, of the mobile base, is not part of the action; join them by map.fields.action.source."
        if self._skipped:
            yield f"Left out are {', '.join(self._skipped)} (no numbers of every step)."


def _field(source: str, array: Hdf5Array) -> FieldSpec:
    """Specification of a field that is stored as numbers."""
    example = np.empty((0, *array.shape[1:]), array.dtype)
    role: Role = "observation" if source.startswith("observations/") else "other"
    if source == _ACTION:
        role = "action"
    if source.startswith(_IMAGES):
        if array.is_picture:
            return array_field(example, role, image=True)
        depth = array.dtype.kind in "iu" and array.dtype.itemsize == 2
        return array_field(example, role, unit="mm" if depth else "1")
    last = source.rpartition("/")[2]
    arms = ("",) if array.shape[1:] == (7,) else ("left_", "right_")
    if array.shape[1:] != (7 * len(arms),) or last not in (*_UNITS, "effort"):
        return array_field(example, role)
    names = tuple(f"{arm}{joint}" for arm in arms for joint in _JOINTS)
    if last not in _UNITS:
        return array_field(example, role, names=(names,))
    # Grippers have normalised positions and velocities.
    unit = ", ".join([*[_UNITS[last]] * 6, "1"] * len(arms))
    return array_field(example, role, names=(names,), unit=unit)


def _is_encoded(array: Hdf5Array) -> bool:
    return array.is_bytes or (array.dtype == np.uint8 and len(array.shape) == 2)


def _camera_field(array: Hdf5Array) -> FieldSpec:
    """Specification of a camera from its first picture."""
    example = next((_colours(array, row) for row in array.byte_rows(0, 1)), None)
    if example is None:
        raise HandoffError(f"{array.path}: {array.name} holds no picture. Was it cut short?")
    return array_field(example[None][:0], "observation", image=True)


def _decoded(array: Hdf5Array, steps: int) -> np.ndarray:
    """The pictures of one camera (T, height, width, 3)."""
    pictures = np.empty((0,), np.uint8)
    if array.shape[:1] != (steps,):
        raise HandoffError(
            f"{array.path}: {array.name} has {array.shape[0]} pictures, expected {steps}, one per action."
        )
    for row, content in enumerate(array.byte_rows()):
        picture = _colours(array, content)
        if row == 0:
            check_size(array.path, array.name, (steps, *picture.shape), 1)
            pictures = np.empty((steps, *picture.shape), np.uint8)
        if picture.shape != pictures.shape[1:]:
            raise HandoffError(
                f"{array.path}: picture {row} of {array.name} has the shape {picture.shape}, expected "
                f"{pictures.shape[1:]} as the first one."
            )
        pictures[row] = picture
    return pictures


def _colours(array: Hdf5Array, content: bytes) -> np.ndarray:
    """One picture (height, width, 3) RGB."""
    decoded = as_rgb(array.path, array.name, read_picture(array, content))
    return decoded[:, :, ::-1]
