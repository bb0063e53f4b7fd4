"""Sends messages with arrays over a socket, without pickle.

A message is a map of plain values. It is one frame: the length in 8 bytes, and a msgpack value
(`robots.wire.policy`). On one machine arrays go through shared memory: each side writes into a
block of its own, which grows, and whose file descriptor travels with the first frame that uses it.
Between machines arrays are inside the frame.

Both sides take turns: a side sends the next message only after it has received the answer, so a
block is read before it is written again.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.wire.policy import pack, unpack
from sim.processes.shared_memory import (
    ArrayLayout,
    BlockLayout,
    DescriptorBlock,
    layout_of,
    size_of,
)

Message = dict[str, Any]
Arrays = dict[str, np.ndarray]
_HEADER = struct.Struct("!Q")
LARGEST_FRAME = 2**30
"""Largest size of a frame [bytes]."""
FIRST_FRAME = 2**12
"""Largest size of a frame before the other side has proved that it has the token [bytes]."""
SILENT_SECONDS = 8
"""Time after which a machine that sends nothing, not even acknowledgements, counts as lost [s]."""
PROBE_SECONDS = 2
"""Time between two probes of a silent connection by the kernel [s]."""
MOST_LAYOUTS = 64
"""Number of layouts that are sent once and then named by their number."""


class ClosedChannelError(HandoffError):
    """The other side has closed the connection, or has ended."""


class SilentChannelError(HandoffError):
    """The other side has not answered in time."""


def set_tcp_options(connection: socket.socket) -> None:
    """Sends small frames at once, and closes the connection after `SILENT_SECONDS` without a sign
    of life from the kernel of the other machine, however long its engine computes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = SILENT_SECONDS // PROBE_SECONDS - 1
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_SECONDS),
        ("TCP_KEEPINTVL", PROBE_SECONDS),
        ("TCP_KEEPCNT", probes),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def limit_unacknowledged(connection: socket.socket) -> None:
    """Closes the connection, too, if what was sent is not acknowledged within `SILENT_SECONDS`.

    It is for the client: a server always reads the next request, but a client that learns may read
    a long response late.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = 1000 * SILENT_SECONDS
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class Channel:
    """One end of a connection.

    Args:
        connection: connected stream socket, which the channel closes.
        shared: whether arrays go through shared memory; the socket must be a UNIX one then.
        seconds: time limit for sending [s]; None has none.
    """

    def __init__(
        self, connection: socket.socket, *, shared: bool, seconds: float | None = None
    ) -> None:
        self.largest = LARGEST_FRAME
        self._connection = connection
        self._shared = shared
        self._seconds = seconds
        self._outgoing: DescriptorBlock | None = None
        self._incoming: DescriptorBlock | None = None
        self._sent_layouts: dict[BlockLayout, int] = {}
        self._received_layouts: list[BlockLayout] = []

    def send(self, message: Message, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Sends one message.

        Args:
            message: plain values.
            arrays: numeric arrays by name.

        Raises:
            HandoffError: `ClosedChannelError` or `SilentChannelError`, an array that is not
                numeric, or a frame that is too large.
        """
        frame: dict[str, Any] = {"message": message}
        descriptors: list[int] = []
        if arrays:
            if self._shared:
                frame |= self._write(arrays, descriptors)
            else:
                frame["arrays"] = dict(arrays)
        payload = pack(frame)
        if len(payload) > LARGEST_FRAME:
            raise HandoffError(
                f"environment server: a message of {len(payload)} bytes, at most {LARGEST_FRAME}. "
                "Make fewer environments, or smaller pictures."
            )
        self._connection.settimeout(self._seconds)
        try:
            header = _HEADER.pack(len(payload))
            if descriptors:
                socket.send_fds(self._connection, [header], descriptors)
            else:
                payload = header + payload
            self._connection.sendall(payload)
        except OSError as error:
            raise _failure(error, "the other side does not receive.") from None

    def receive(self, seconds: float | None = None) -> tuple[Message, Arrays]:
        """Waits for the next message.

        Args:
            seconds: time limit [s]; None waits for ever.

        Returns:
            The message and its arrays, which later messages do not change.

        Raises:
            HandoffError: `ClosedChannelError` or `SilentChannelError`, or an invalid frame.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        header, descriptors = self._header(deadline)
        (length,) = _HEADER.unpack(header)
        try:
            if length > self.largest:
                raise HandoffError(
                    f"environment server: a frame of {length} bytes, at most {self.largest}. Does "
                    "another program use this port?"
                )
            frame = unpack(bytes(self._bytes(length, deadline)))
            if not isinstance(frame, dict) or not isinstance(frame.get("message"), dict):
                raise HandoffError("environment server: a frame without a message.")
            arrays = self._read(frame, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return frame["message"], arrays

    def end_requests(self) -> None:
        """Closes the direction to the other side, whose `receive` then raises
        `ClosedChannelError`."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            # The other side has closed the connection already.
            return

    def close(self) -> None:
        """Closes the connection and the memory; a second call does nothing."""
        self._connection.close()
        for block in (self._outgoing, self._incoming):
            if block is not None:
                block.close()
        self._outgoing = self._incoming = None

    def _write(self, arrays: Mapping[str, np.ndarray], descriptors: list[int]) -> Message:
        """Writes arrays to the outgoing block; returns the entries of the frame, and adds the
        descriptor of a new block."""
        layout = layout_of(arrays)
        _check_dtypes(layout)
        size = size_of(layout)
        entries: Message = {}
        block = self._outgoing
        if block is None or block.size < size:
            if block is not None:
                block.close()
            block = self._outgoing = DescriptorBlock.make(size)
            descriptors.append(block.descriptor)
            entries["block"] = block.size
        block.write(layout, arrays)
        if layout in self._sent_layouts:
            return entries | {"number": self._sent_layouts[layout]}
        if len(self._sent_layouts) < MOST_LAYOUTS:
            self._sent_layouts[layout] = len(self._sent_layouts)
        return entries | {"layout": [list(entry) for entry in layout]}

    def _read(self, frame: Message, descriptors: list[int]) -> Arrays:
        if "arrays" in frame:
            return _checked_arrays(frame["arrays"])
        if descriptors and isinstance(frame.get("block"), int):
            if self._incoming is not None:
                self._incoming.close()
            self._incoming = _block(descriptors.pop(), frame["block"])
        if "number" in frame:
            layout = self._known_layout(frame["number"])
        elif "layout" in frame:
            layout = _layout(frame["layout"])
            if len(self._received_layouts) < MOST_LAYOUTS:
                self._received_layouts.append(layout)
        else:
            return {}
        if self._incoming is None or size_of(layout) > self._incoming.size:
            raise HandoffError("environment server: arrays beyond the shared memory.")
        return self._incoming.read(layout)

    def _known_layout(self, number: Any) -> BlockLayout:
        if not isinstance(number, int) or not 0 <= number < len(self._received_layouts):
            raise HandoffError(f"environment server: layout {number!r} was not sent.")
        return self._received_layouts[number]

    def _header(self, deadline: float | None) -> tuple[bytes, list[int]]:
        """The length of the next frame, and the descriptors that were sent with it."""
        if not self._shared:
            return bytes(self._bytes(_HEADER.size, deadline)), []
        self._limit(deadline)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _HEADER.size, 1)
        except OSError as error:
            raise _failure(error, "no answer.") from None
        if not data:
            raise ClosedChannelError("the connection was closed.")
        return data + bytes(self._bytes(_HEADER.size - len(data), deadline)), list(descriptors)

    def _bytes(self, length: int, deadline: float | None) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        received = 0
        while received < length:
            self._limit(deadline)
            try:
                count = self._connection.recv_into(view[received:])
            except OSError as error:
                raise _failure(error, "no answer.") from None
            if count == 0:
                raise ClosedChannelError("the connection was closed.")
            received += count
        return data

    def _limit(self, deadline: float | None) -> None:
        """Sets the time limit of the next receive; the smallest one is not 0, which would poll."""
        remaining = None if deadline is None else max(1e-3, deadline - time.monotonic())
        self._connection.settimeout(remaining)


def _failure(error: OSError, silent: str) -> HandoffError:
    """The error for a failed call of a socket; `silent` says what did not happen in time."""
    # The kernel's own time limit is a `TimeoutError`, too, and that of Python has no number.
    if isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT:
        return SilentChannelError(silent)
    return ClosedChannelError(f"connection: {error.strerror or error}.")


def _block(descriptor: int, size: int) -> DescriptorBlock:
    try:
        return DescriptorBlock(descriptor, size)
    except (OSError, ValueError, OverflowError) as error:
        os.close(descriptor)
        raise HandoffError(
            f"environment server: shared memory of {size} bytes cannot be opened ({error})."
        ) from None


def _layout(value: Any) -> BlockLayout:
    """Checks the layout of a frame."""
    try:
        entries = tuple(
            ArrayLayout(str(name), str(dtype), tuple(int(n) for n in shape), int(offset), int(size))
            for name, dtype, shape, offset, size in value
        )
        _check_dtypes(entries)
        for entry in entries:
            needed = int(np.prod(entry.shape, dtype=np.int64)) * np.dtype(entry.dtype).itemsize
            if entry.offset < 0 or min(entry.shape, default=0) < 0 or needed != entry.size:
                raise ValueError(entry.name)
    except (TypeError, ValueError) as error:
        raise HandoffError(f"environment server: an invalid layout of arrays ({error}).") from None
    return entries


def _check_dtypes(layout: BlockLayout) -> None:
    for entry in layout:
        if np.dtype(entry.dtype).kind not in "biuf":
            raise HandoffError(
                f"environment server: the array '{entry.name}' has the dtype {np.dtype(entry.dtype)}, only numbers and "
                "booleans can be sent."
            )


def _checked_arrays(value: Any) -> Arrays:
    if not isinstance(value, dict) or not all(isinstance(v, np.ndarray) for v in value.values()):
        raise HandoffError("environment server: a frame whose arrays are none.")
    # Those of the frame are read-only views of its bytes.
    return {str(name): array.copy() for name, array in value.items()}
