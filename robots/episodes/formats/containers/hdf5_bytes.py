"""Reads the bytes of HDF5 files for the library, and refuses those at which it would never end.

Words and other entries of variable length lie in collections (the "global heap"). In a damaged one
an entry without a size makes the library (HDF5 2.0) loop forever; here every collection is walked
before the library sees it. The layout is that of the HDF5 File Format Specification, III.E.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COLLECTION = b"GCOL\x01"
"""Signature and version of a collection."""
_LARGEST_METADATA = 2**20
"""Largest size of a read in which the library takes metadata [bytes]; longer ones are rows."""
_LARGEST_COLLECTION = 2**26
"""Largest size of a collection, or of the largest entry, which has one of its own [bytes]."""
_HEADER = 16
_ENTRY = struct.Struct("<HHIQ")
"""Number, references, reserved bytes and size of an entry; number 0 is free space, whose size
includes these bytes."""


class CheckedFile(io.RawIOBase):
    """A file opened for reading, whose collections are checked as they are read.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be opened, or has numbers of another size than 8 bytes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._position = 0
        self._checked: set[int] = set()
        start = os.pread(self._descriptor, 16, 0)
        # Sizes of addresses and lengths, which the superblock states.
        sizes = start[13:15] if start[8:9] in (b"\0", b"\1") else start[9:11]
        if sizes != b"\x08\x08":
            os.close(self._descriptor)
            raise OSError(f"its numbers have {list(sizes)} bytes, expected 8")

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the position of the next read [bytes]."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position of the next read [bytes]."""
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        """Fills the buffer with the next bytes, and returns their number.

        Raises:
            OSError: a collection among them is damaged.
        """
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], self._position + done)
            if count == 0:
                break
            done += count
        if done <= _LARGEST_METADATA:
            self._check(view[:done], self._position)
        self._position += done
        return done

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _check(self, view: memoryview, start: int) -> None:
        """Checks the collections that begin among the bytes from `start`, also in the bytes of the
        read before."""
        overlap = min(start, len(_COLLECTION) - 1)
        content = b"".join((os.pread(self._descriptor, overlap, start - overlap), view))
        start -= overlap
        found = content.find(_COLLECTION)
        while found >= 0:
            if start + found not in self._checked:
                self._check_collection(start + found)
                self._checked.add(start + found)
            found = content.find(_COLLECTION, found + 1)

    def _check_collection(self, start: int) -> None:
        """Checks that every entry of the collection at `start` has a size."""
        header = os.pread(self._descriptor, _HEADER, start)
        if len(header) < _HEADER:
            return
        (size,) = struct.unpack_from("<Q", header, 8)
        # The library itself refuses a collection that is larger than the file.
        if not _HEADER <= size <= self._size - start:
            return
        if size > _LARGEST_COLLECTION:
            raise OSError(f"the collection of words at byte {start} has {size} bytes")
        content = os.pread(self._descriptor, size, start)
        place = _HEADER
        while place + _ENTRY.size <= len(content):
            number, _, _, length = _ENTRY.unpack_from(content, place)
            step = _ENTRY.size + (length + 7) // 8 * 8 if number else length
            if step == 0:
                raise OSError(
                    f"the collection of words at byte {start} has an entry without a size"
                )
            place += step
