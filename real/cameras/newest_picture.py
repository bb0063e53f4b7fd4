"""Shares the newest picture of a camera between the process that reads it and the one that acts.

Neither waits for the other. Pictures are written in turn to one of several slots, and the number of
the last complete one is stored behind them: a reader copies that slot, and takes a newer one if the
writer has come round to it meanwhile.
"""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

import numpy as np

from real.cameras.camera import Picture
from robots.errors import HandoffError

SLOTS = 4
"""Pictures in memory; at 60 Hz a reader has 50 ms for the copy of one, which takes 1 ms."""
WIDEST = 4
"""Largest ratio of width to height."""
_COUNT = 5
"""Entries before those of the slots: how many pictures were written, length of the message of the
last fault, whether it lasts, and the size of the camera's own pictures."""
_ABOUT = 2
"""Entries per slot: capture time [ns] and width [px]."""


_MESSAGE = 600
"""Memory for the message of a fault [bytes]."""


class CameraFault(NamedTuple):
    """Why a camera sends no pictures."""

    message: str
    lasting: bool
    """Whether trying again cannot help, as the camera's options do not fit it."""


class NewestPicture:
    """The newest picture of one camera; a context manager, which frees the memory.

    Args:
        height: height of the pictures [px].
        name: name of the memory that another process has made; None makes it.
    """

    def __init__(self, height: int, name: str | None = None) -> None:
        self._height = height
        self._size = height * height * WIDEST * 3
        entries = _COUNT + SLOTS * _ABOUT
        if name is None:
            size = 8 * entries + SLOTS * self._size + _MESSAGE
            self._memory = SharedMemory(create=True, size=size)
        else:
            self._memory = SharedMemory(name=name)
        self._owner = name is None
        memory = self._memory.buf
        assert memory is not None, "open until `__exit__`"
        self._entries = np.frombuffer(memory, np.int64, entries)
        pixels = np.frombuffer(memory, np.uint8, SLOTS * self._size, 8 * entries)
        self._pixels = pixels.reshape(SLOTS, self._size)
        end = 8 * entries + SLOTS * self._size
        self._message = np.frombuffer(memory, np.uint8, _MESSAGE, end)

    @property
    def name(self) -> str:
        """Name by which another process finds the memory."""
        return self._memory.name

    @property
    def count(self) -> int:
        """Number of pictures that were written."""
        return int(self._entries[0])

    @property
    def fault(self) -> CameraFault | None:
        """The last fault of the camera since its newest picture."""
        length = int(self._entries[1])
        if not length:
            return None
        message = self._message[:length].tobytes().decode(errors="replace")
        return CameraFault(message, bool(self._entries[2]))

    def fail(self, message: str, *, lasting: bool) -> None:
        """States why there are no more pictures, until the next one; the process that writes.

        Args:
            message: message of the error.
            lasting: see `CameraFault`.
        """
        text = np.frombuffer(message.encode()[:_MESSAGE], np.uint8)
        self._entries[1] = 0
        self._message[: text.size] = text
        self._entries[2] = lasting
        self._entries[1] = text.size

    def write(self, picture: Picture) -> None:
        """Makes a picture the newest; one process writes.

        Raises:
            HandoffError: a picture of another height, or a wider one than there is memory for.
        """
        height, width, _ = picture.image.shape
        if height != self._height or width > WIDEST * height:
            raise HandoffError(
                f"camera: a picture of {height} x {width}, expected height {self._height} and at most "
                f"{WIDEST} times the width."
            )
        count = self.count
        slot = count % SLOTS
        about = _COUNT + slot * _ABOUT
        self._pixels[slot, : picture.image.size] = picture.image.reshape(-1)
        self._entries[about : about + _ABOUT] = (round(picture.captured * 1e9), width)
        self._entries[3:5] = picture.own_size or (0, 0)
        self._entries[0] = count + 1
        self._entries[1] = 0

    def read(self) -> Picture | None:
        """The newest picture, a read-only copy; None before the first."""
        while count := self.count:
            slot = (count - 1) % SLOTS
            about = _COUNT + slot * _ABOUT
            captured, width = (int(entry) for entry in self._entries[about : about + _ABOUT])
            image = self._pixels[slot, : self._height * width * 3].copy()
            # Whoever keeps it then needs no further copy.
            image.flags.writeable = False
            # The writer is busy with the slot behind the last complete one, so `SLOTS` - 1 more
            # pictures have to come before this one may be torn.
            if self.count - count < SLOTS - 1:
                across, down = (int(entry) for entry in self._entries[3:5])
                own_size = (across, down) if across else None
                return Picture(image.reshape(self._height, width, 3), captured / 1e9, own_size)
        return None

    def __enter__(self) -> NewestPicture:
        return self

    def __exit__(self, *error: object) -> None:
        del self._entries, self._pixels, self._message
        self._memory.close()
        if self._owner:
            self._memory.unlink()
