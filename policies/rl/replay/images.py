"""Stores the images of a replay, or their feature maps, once each, in memory or in memory-mapped
files.

An episode of T steps has T + 1 images per camera, because the image after a step is the image
before the next one. Images are kept in a separate ring buffer, with one file per camera and one
file with the number of the image in each slot. That number is cleared before the pixels are written
and set afterwards, so incomplete images are detected after a crash.

Shape suffixes: N new rows, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.rl.replay.files import HEAD
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors
from robots.wire.steps import Steps


class ImageRing:
    """Ring buffer of uint8 RGB images of one or more cameras, or of float16 feature maps of a
    frozen trunk, which take a fraction of the space.

    It has an eighth more slots than the replay. If episodes are shorter than eight steps on
    average, the oldest steps lose their images before they are overwritten themselves; such steps
    are no longer sampled.

    Args:
        cameras: (name, height, width) of each camera.
        steps: capacity of the replay [steps].
        folder: folder of the memory-mapped files; None keeps the images in memory.
        maps: (name, channels, rows, columns) of each camera of which feature maps are stored.
    """

    def __init__(
        self,
        cameras: tuple[tuple[str, int, int], ...],
        steps: int,
        folder: Path | None,
        maps: tuple[tuple[str, int, int, int], ...] = (),
    ) -> None:
        self.cameras = cameras
        self.maps = maps
        self._forms = {
            name: ((height, width, 3), np.dtype(np.uint8)) for name, height, width in cameras
        } | {name: (tuple(shape), np.dtype(np.float16)) for name, *shape in maps}
        """Shape and type of an image or map per camera."""
        self.folder = folder
        self.slots = steps + steps // 8 + 512
        self.added = 0
        """Number of images ever stored per camera."""
        self._resumed = folder is None
        self._number = self._allocate("numbers.i64", (self.slots,), np.dtype(np.int64))
        """Number of the image in each slot, plus 1; 0 for an empty or incomplete slot."""
        suffixes = {np.dtype(np.uint8): "u8", np.dtype(np.float16): "f16"}
        self._pixels = {
            name: self._allocate(f"{name}.{suffixes[dtype]}", (self.slots, *shape), dtype)
            for name, (shape, dtype) in self._forms.items()
        }

    @property
    def oldest(self) -> int:
        """Number of the oldest image that is still stored."""
        return max(0, self.added - self.slots)

    def check(self, steps: Steps) -> None:
        """Checks the images of steps against the cameras.

        Raises:
            HandoffError: a camera is missing, or its images have another shape or dtype.
        """
        for name, (one, dtype) in self._forms.items():
            for field, pictures in (
                ("pictures", steps.pictures),
                ("next_pictures", steps.next_pictures),
            ):
                images = pictures.get(name)
                shape = (steps.rows, *one)
                if images is None or images.shape != shape or images.dtype != dtype:
                    actual = "missing" if images is None else f"{images.shape} {images.dtype}"
                    raise HandoffError(
                        f"replay: {field} of camera {name} are {actual}, expected {shape} {dtype}. Is it "
                        "another camera setup?"
                    )

    def append(
        self,
        steps: Steps,
        columns: dict[str, np.ndarray],
        slot_N: np.ndarray,
        predecessor_N: np.ndarray,
    ) -> None:
        """Stores the images of new steps and writes their numbers to the columns `picture` and
        `next_picture`.

        Args:
            steps: the new steps, at most 256 rows.
            columns: columns of the replay.
            slot_N: slots of the new steps in the replay.
            predecessor_N: slot of the preceding step of each row, whose next image is shared; -1 if
                there is none.
        """
        self._begin()
        oldest_kept = max(0, self.added + 2 * len(slot_N) - self.slots)
        # An image is shared with a predecessor among the new rows, or with an older one whose image
        # is not overwritten by this call.
        shared_N = (predecessor_N >= 0) & (
            np.isin(predecessor_N, slot_N) | (columns["next_picture"][predecessor_N] >= oldest_kept)
        )
        unshared_N = ~shared_N
        next_number_N = self.added + np.cumsum(1 + unshared_N) - 1
        columns["next_picture"][slot_N] = next_number_N
        columns["picture"][slot_N] = np.where(
            shared_N, columns["next_picture"][predecessor_N], next_number_N - 1
        )
        numbers = np.concatenate([next_number_N[unshared_N] - 1, next_number_N])
        slots = numbers % self.slots
        self._number[slots] = 0
        for name, pixels in self._pixels.items():
            pixels[(next_number_N[unshared_N] - 1) % self.slots] = steps.pictures[name][unshared_N]
            pixels[next_number_N % self.slots] = steps.next_pictures[name]
        self._number[slots] = numbers + 1
        self.added += len(numbers)

    def gather(self, number_B: np.ndarray) -> dict[str, Tensor]:
        """Images or maps with the given numbers, per camera (B, ...)."""
        slots = number_B % self.slots
        return {name: torch.from_numpy(pixels[slots]) for name, pixels in self._pixels.items()}

    def stored_numbers(
        self, picture_N: np.ndarray, next_picture_N: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Columns `picture` and `next_picture` with both set to -1 if either image is not
        stored."""
        stored_N = (picture_N >= 0) & (next_picture_N >= 0)
        for number_N in (picture_N, next_picture_N):
            stored_N &= self._number[number_N % self.slots] == number_N + 1
        return {
            "picture": np.where(stored_N, picture_N, -1),
            "next_picture": np.where(stored_N, next_picture_N, -1),
        }

    def resume(self, added: int) -> None:
        """Continues after `added` images; later images, whose steps were not saved, are
        overwritten."""
        self.added = added
        self._resumed = True

    def check_folder(self, folder: Path) -> None:
        """Checks that the images are stored in `folder`, together with the steps.

        Raises:
            HandoffError: the images are in memory or in another folder.
        """
        if self.folder != folder:
            where = "in memory" if self.folder is None else f"in {self.folder}"
            raise HandoffError(
                f"{folder}: the images of the replay are {where}, expected in this folder. Construct the "
                "replay with it."
            )

    def flush(self, folder: Path) -> None:
        """Flushes the images to disk.

        Raises:
            HandoffError: the images are in memory or in another folder, or the disk is full.
        """
        self.check_folder(folder)
        assert self.folder is not None
        with explain_write_errors(self.folder, "the images of the replay were not stored"):
            for array in (*self._pixels.values(), self._number):
                assert isinstance(array, np.memmap)
                array.flush()

    def state_dict(self) -> dict[str, Any]:
        """All images, for `load_state_dict`."""
        pixels = {name: np.array(array) for name, array in self._pixels.items()}
        return {"added": self.added, "number": np.array(self._number), "pixels": pixels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`.

        Raises:
            HandoffError: the state has other cameras or another capacity.
        """
        expected = {name: array.shape for name, array in self._pixels.items()}
        stored = {name: array.shape for name, array in state["pixels"].items()}
        if expected != stored:
            raise HandoffError(
                f"replay: stored images {stored}, expected {expected}. Is it another camera or capacity?"
            )
        self._begin()
        self.added = state["added"]
        self._number[:] = state["number"]
        for name, array in self._pixels.items():
            array[:] = state["pixels"][name]

    def _begin(self) -> None:
        """Clears the images of an earlier run that saved no steps, before the first write.

        Raises:
            HandoffError: the files belong to a saved replay that was not loaded.
        """
        if self._resumed:
            return
        assert self.folder is not None
        if (self.folder / HEAD).exists():
            raise HandoffError(
                f"{self.folder}: holds a saved replay; new images would overwrite its images. Load it first, or "
                "choose another folder."
            )
        self._number[:] = 0
        self._resumed = True

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self.folder is None:
            return np.zeros(shape, dtype)
        path = self.folder / name
        size = int(np.prod(shape)) * dtype.itemsize
        with explain_write_errors(path, "there is no space for the images of the replay"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size != size:
                raise HandoffError(
                    f"{path}: {path.stat().st_size} bytes, expected {size}. Is it another camera or capacity? Choose "
                    "another folder."
                )
            # A sparse file takes disk space only as it fills.
            return np.memmap(path, dtype, "r+" if path.exists() else "w+", shape=shape)
