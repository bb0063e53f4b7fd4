"""Repeats the last state of a twin that its computer delays, so that its client does not time out.

A client of the FCI treats a robot as lost after 1 s without a state datagram. A real robot always
sends one per millisecond; a twin may be stopped, swapped out or starved for longer than that. A
process of its own therefore sends the last datagram again. libfranka takes only states with a
higher message id, so a repeated one restarts the client's time limit and changes nothing else:
neither the simulated time nor any result.

This file is also the program of that process, which imports nothing beyond Python's own library.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import subprocess
import sys
from contextlib import suppress

INTERVAL = 0.2
"""A state is repeated once none was sent for one to two of these intervals [s]."""
END_SECONDS = 2.0
"""Time limit for the process to end, after which it is killed [s]."""
LARGEST = 2048
"""Largest size of a datagram [bytes]."""
_SEQUENCE = struct.Struct("<Q")
_HEADER = struct.Struct("<4sHH")
"""Address and port of the client, and size of the datagram; 0 without a client."""
_SLOT = _HEADER.size + LARGEST


class KeepAlive:
    """Process that repeats the newest datagram of one socket.

    The newest datagram lies in memory that both processes share, in one of two slots: the one that
    is not being written is always complete, whenever the twin is stopped.
    """

    def __init__(self, udp: socket.socket) -> None:
        """Starts the process, which sends from `udp`, so that replies reach the twin."""
        descriptor = os.memfd_create("twin-state")
        os.ftruncate(descriptor, _SEQUENCE.size + 2 * _SLOT)
        self._memory = mmap.mmap(descriptor, _SEQUENCE.size + 2 * _SLOT)
        self._count = 0
        self._client = b"\0" * 4, 0
        far_end, self._alive = os.pipe()
        passed = (udp.fileno(), descriptor, far_end)
        self._process = subprocess.Popen(
            # Without the site's packages it starts in 20 ms.
            [sys.executable, "-I", "-S", __file__, *map(str, passed)],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C ends the twin's owner, which ends the twin.
            start_new_session=True,
        )
        os.close(far_end)
        os.close(descriptor)

    def set_client(self, address: str, port: int) -> None:
        """States go to this client from now on."""
        self._client = socket.inet_aton(address), port

    def note(self, datagram: memoryview | bytes) -> None:
        """Takes the datagram that was just sent."""
        self._write(*self._client, datagram)

    def clear(self) -> None:
        """There is no client to whom to repeat anything."""
        self._write(b"\0" * 4, 0, b"")

    def _write(self, address: bytes, port: int, datagram: memoryview | bytes) -> None:
        self._count += 1
        at = _SEQUENCE.size + self._count % 2 * _SLOT
        _HEADER.pack_into(self._memory, at, address, port, len(datagram))
        self._memory[at + _HEADER.size : at + _HEADER.size + len(datagram)] = bytes(datagram)
        _SEQUENCE.pack_into(self._memory, 0, self._count)

    def close(self) -> None:
        """Ends the process."""
        # It ends when the pipe closes, as it does when the twin is killed.
        os.close(self._alive)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._memory.close()


def repeat_states(udp: socket.socket, memory: mmap.mmap, twin: int) -> None:
    """Repeats the newest datagram whenever it has not changed for an interval.

    Args:
        udp: the twin's socket.
        memory: see `KeepAlive`.
        twin: read end of a pipe, which closes with the twin.
    """
    last = 0
    while not select.select([twin], [], [], INTERVAL)[0]:
        (count,) = _SEQUENCE.unpack_from(memory, 0)
        at = _SEQUENCE.size + count % 2 * _SLOT
        address, port, size = _HEADER.unpack_from(memory, at)
        datagram = memory[at + _HEADER.size : at + _HEADER.size + size]
        if size and count == last and _SEQUENCE.unpack_from(memory, 0)[0] == count:
            # A client that has gone refuses it; a full buffer holds states enough.
            with suppress(OSError):
                udp.sendto(datagram, (socket.inet_ntoa(address), port))
        last = count


def _main(udp: int, memory: int, twin: int) -> None:
    shared = mmap.mmap(memory, _SEQUENCE.size + 2 * _SLOT, prot=mmap.PROT_READ)
    with socket.socket(fileno=udp) as connected:
        repeat_states(connected, shared, twin)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
