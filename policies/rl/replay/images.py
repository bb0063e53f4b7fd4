"""The pictures of a replay: each stored once, in memory or in memory-mapped files.

An episode of T steps has T + 1 pictures per camera: a step's picture after it is the next step's
picture before it. Pictures lie in a ring of their own, one file per camera, beside a file that says
which picture a slot holds. That number is taken away before the pixels change and set after, so
what a killed process leaves is told right from wrong.

Shape suffixes: N rows taken in, B batch.
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


class Pictures:
    """A ring of uint8 RGB pictures of one or several cameras.

    It has an eighth more room than the steps' ring; where episodes are shorter than eight steps on
    average, the oldest steps lose their pictures before they are overwritten, and are then no
    longer drawn.

    Args:
        cameras: (name, height, width) of each.
        steps: capacity of the steps' ring.
        folder: where the files lie; None keeps all in memory.
    """

    def __init__(
        self, cameras: tuple[tuple[str, int, int], ...], steps: int, folder: Path | None
    ) -> None:
        self.cameras, self.folder = cameras, folder
        self.slots = steps + steps // 8 + 512
        self.added = 0
        """Pictures ever taken in, per camera."""
        self._resumed = folder is None
        self._number = self._room("numbers.i64", (self.slots,), np.dtype(np.int64))
        """Which picture a slot holds, plus 1; 0 while it is none."""
        self._pixels = {
            name: self._room(f"{name}.u8", (self.slots, height, width, 3), np.dtype(np.uint8))
            for name, height, width in cameras
        }

    @property
    def oldest(self) -> int:
        """Number of the oldest picture that is still there."""
        return max(0, self.added - self.slots)

    def check(self, steps: Steps) -> None:
        """Compares a step's pictures with the cameras.

        Raises:
            HandoffError: a camera is missing or its pictures have another shape or type.
        """
        for name, height, width in self.cameras:
            for which, pictures in (
                ("pictures", steps.pictures),
                ("next_pictures", steps.next_pictures),
            ):
                found = pictures.get(name)
                wanted = (steps.rows, height, width, 3)
                if found is None or found.shape != wanted or found.dtype != np.uint8:
                    what = "missing" if found is None else f"{found.shape} {found.dtype}"
                    raise HandoffError(
                        f"replay: {which} of camera {name} are {what}, expected {wanted} uint8. Another camera setup?"
                    )

    def append(
        self, steps: Steps, columns: dict[str, np.ndarray], slot_N: np.ndarray, before_N: np.ndarray
    ) -> None:
        """Stores the steps' pictures and notes their numbers in the columns `picture` and
        `next_picture`.

        Args:
            steps: at most 256 rows.
            columns: of the steps' ring.
            slot_N: of the rows there.
            before_N: slot of every row's predecessor, whose picture after it is not stored again;
                -1 without one.
        """
        self._begin()
        fresh = max(0, self.added + 2 * len(slot_N) - self.slots)
        # A predecessor among the same rows is stored with them; any other's picture must outlast
        # them.
        shared_N = (before_N >= 0) & (
            np.isin(before_N, slot_N) | (columns["next_picture"][before_N] >= fresh)
        )
        own_N = ~shared_N
        after_N = self.added + np.cumsum(1 + own_N) - 1
        columns["next_picture"][slot_N] = after_N
        columns["picture"][slot_N] = np.where(
            shared_N, columns["next_picture"][before_N], after_N - 1
        )
        numbers = np.concatenate([after_N[own_N] - 1, after_N])
        place = numbers % self.slots
        self._number[place] = 0
        for name, pixels in self._pixels.items():
            pixels[(after_N[own_N] - 1) % self.slots] = steps.pictures[name][own_N]
            pixels[after_N % self.slots] = steps.next_pictures[name]
        self._number[place] = numbers + 1
        self.added += len(numbers)

    def gather(self, number_B: np.ndarray) -> dict[str, Tensor]:
        """Per camera (B, height, width, 3) uint8."""
        place = number_B % self.slots
        return {name: torch.from_numpy(pixels[place]) for name, pixels in self._pixels.items()}

    def kept(self, picture_N: np.ndarray, next_picture_N: np.ndarray) -> dict[str, np.ndarray]:
        """The columns `picture` and `next_picture`, both -1 where either is no longer there."""
        there_N = (picture_N >= 0) & (next_picture_N >= 0)
        for number_N in (picture_N, next_picture_N):
            there_N &= self._number[number_N % self.slots] == number_N + 1
        return {
            "picture": np.where(there_N, picture_N, -1),
            "next_picture": np.where(there_N, next_picture_N, -1),
        }

    def resume(self, added: int) -> None:
        """Goes on after `added` pictures; later ones, whose steps were not saved, will be
        overwritten."""
        self.added, self._resumed = added, True

    def check_folder(self, folder: Path) -> None:
        """Steps and pictures are found again only together.

        Raises:
            HandoffError: the pictures lie in memory, or not in `folder`.
        """
        if self.folder != folder:
            where = "in memory" if self.folder is None else f"in {self.folder}"
            raise HandoffError(
                f"{folder}: the replay's pictures lie {where}, expected there. Make it with that folder."
            )

    def flush(self, folder: Path) -> None:
        """Hands the pixels to the disk.

        Raises:
            HandoffError: they lie in memory or not in `folder`; the disk is full.
        """
        self.check_folder(folder)
        assert self.folder is not None
        with explain_write_errors(self.folder, "the pictures of the replay were not stored"):
            for room in (*self._pixels.values(), self._number):
                assert isinstance(room, np.memmap)
                room.flush()

    def state_dict(self) -> dict[str, Any]:
        """All pictures, for `load_state_dict`."""
        pixels = {name: np.array(room) for name, room in self._pixels.items()}
        return {"added": self.added, "number": np.array(self._number), "pixels": pixels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over.

        Raises:
            HandoffError: other cameras, or a ring of another size.
        """
        shapes = {name: room.shape for name, room in self._pixels.items()}
        found = {name: room.shape for name, room in state["pixels"].items()}
        if shapes != found:
            raise HandoffError(
                f"replay: stored pictures {found}, expected {shapes}. Another camera or capacity?"
            )
        self._begin()
        self.added = state["added"]
        self._number[:] = state["number"]
        for name, room in self._pixels.items():
            room[:] = state["pixels"][name]

    def _begin(self) -> None:
        """Forgets what a run left that never saved a step.

        Raises:
            HandoffError: the files belong to a saved replay that was not loaded.
        """
        if self._resumed:
            return
        assert self.folder is not None
        if (self.folder / HEAD).exists():
            raise HandoffError(
                f"{self.folder}: holds a saved replay; new pictures would overwrite its own. Load it first, or choose "
                "another folder."
            )
        self._number[:] = 0
        self._resumed = True

    def _room(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self.folder is None:
            return np.zeros(shape, dtype)
        path = self.folder / name
        size = int(np.prod(shape)) * dtype.itemsize
        with explain_write_errors(path, "there is no room for the pictures of the replay"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size != size:
                raise HandoffError(
                    f"{path}: {path.stat().st_size} bytes, expected {size}. Another camera or capacity? Choose another "
                    "folder."
                )
            # A file of holes takes room on the disk only as it fills.
            return np.memmap(path, dtype, "r+" if path.exists() else "w+", shape=shape)
