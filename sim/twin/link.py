"""Provides the twin's sockets: one TCP connection for requests, one UDP pair for states and motion
commands."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from robots.errors import HandoffError
from sim.twin.keep_alive import KeepAlive
from sim.twin.protocol import COMMAND, HEADER, MAX_REQUEST_SIZE, PORT

SPIN = 1e-4
"""Time for which an expected command is polled before this process sleeps [s]; waking up takes
about as long."""
REPLY_TIMEOUT = 1.0
"""Maximum time for a client to accept a reply before it is disconnected [s]."""
LEFT_BEHIND = 3.0
"""Time for which the twin of a process that was killed may still hold its address [s]."""


class Request(NamedTuple):
    """One TCP request of the client."""

    command: int
    command_id: int
    payload: bytes


class Service:
    """Listens on one port, serves one client at a time and tolerates malformed messages."""

    def __init__(self, host: str, port: int, header: struct.Struct) -> None:
        """Binds the service's TCP port and a UDP port on `host`.

        Args:
            host: address.
            port: TCP port.
            header: header of every message: command, command id, size of the whole message [bytes].

        Raises:
            HandoffError: the port is in use, or `host` is no address of this computer.
        """
        self._header = header
        self._listener = _listen(host, port)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((host, 0))
        self._udp.setblocking(False)
        self._keep_alive = KeepAlive(self._udp)
        self._tcp: socket.socket | None = None
        self._peer = ""
        self._received = bytearray()
        self.lost_client = False
        """Set when a client has disconnected; the reader clears it."""
        self._udp_ready = False

    def sockets(self) -> list[socket.socket]:
        """Sockets that become readable on TCP events."""
        return [self._listener] if self._tcp is None else [self._listener, self._tcp]

    def requests(self) -> Iterator[Request]:
        """Accepts connections and yields every complete request; call it when one of `sockets` is
        readable."""
        self._read()
        self._accept()
        header = self._header
        while len(self._received) >= header.size:
            command, command_id, size = header.unpack_from(self._received)
            if not header.size <= size <= MAX_REQUEST_SIZE:
                self.close_client()
                break
            if len(self._received) < size:
                break
            payload = bytes(self._received[header.size : size])
            del self._received[:size]
            yield Request(command, command_id, payload)

    def reply(self, message: bytes) -> None:
        """Sends one TCP reply; a client that has disconnected is dropped."""
        if self._tcp is None:
            return
        try:
            self._tcp.settimeout(REPLY_TIMEOUT)
            self._tcp.sendall(message)
            self._tcp.setblocking(False)
        except OSError:
            self.close_client()

    def open_udp(self, port: int) -> None:
        """Sends states to the client's UDP `port` from now on."""
        self._udp.connect((self._peer, port))
        self._keep_alive.set_client(self._peer, port)
        self._udp_ready = True

    def send_state(self, state: memoryview | bytes) -> None:
        """Sends one state datagram; it is lost if the buffer is full or the port closed, as on a
        real network. If the next one is late, it is repeated."""
        if not self._udp_ready:
            return
        self._keep_alive.note(state)
        try:
            self._udp.send(state)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.EAGAIN, errno.ENOBUFS):
                raise

    def close_client(self) -> None:
        """Drops the connection; the next client may connect."""
        if self._tcp is not None:
            self._tcp.close()
            self.lost_client = True
        self._tcp = None
        self._udp_ready = False
        self._keep_alive.clear()
        self._received.clear()

    def close(self) -> None:
        """Frees all ports."""
        self.close_client()
        self._keep_alive.close()
        self._udp.close()
        self._listener.close()

    def _read(self) -> None:
        if self._tcp is None:
            return
        try:
            data = self._tcp.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data:
            self.close_client()

    def _accept(self) -> None:
        try:
            tcp, (peer, _) = self._listener.accept()
        except BlockingIOError:
            return
        # The previous client may have disconnected since its data were read; that is handled before
        # the new connection.
        self._read()
        if self._tcp is not None:
            tcp.close()
            return
        tcp.setblocking(False)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tcp = tcp
        self._peer = peer


class Link(Service):
    """The arm's service, whose client also sends a motion command for every state that it
    receives."""

    def __init__(self, host: str) -> None:
        """Binds the robot's TCP port and a UDP port on `host`.

        Raises:
            HandoffError: the port is in use, or `host` is no address of this computer.
        """
        super().__init__(host, PORT, HEADER)
        self.command = np.zeros(1, COMMAND)
        """The newest command datagram; valid after `receive` returned its message id."""
        self._command_buffer = bytearray(COMMAND.itemsize + 1)
        self._command_bytes = self.command.view(np.uint8)

    def udp_socket(self) -> socket.socket:
        """Socket that becomes readable on motion commands."""
        return self._udp

    def open_udp(self, port: int) -> None:
        """Sends states to the client's UDP `port` and accepts commands only from there."""
        super().open_udp(port)
        # Discard buffered commands of an earlier client, which would be taken for this one's.
        with suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                self._udp.recv_into(self._command_buffer)

    def receive(self, timeout: float) -> int | None:
        """Waits up to `timeout` [s] for a well-formed command datagram and returns its message id,
        or None."""
        spin_until = time.perf_counter() + min(SPIN, timeout)
        while True:
            try:
                size = self._udp.recv_into(self._command_buffer)
            except BlockingIOError:
                if time.perf_counter() < spin_until:
                    continue
                if timeout <= 0.0 or not select.select([self._udp], [], [], timeout)[0]:
                    return None
                timeout = 0.0
                continue
            except ConnectionRefusedError:
                return None
            if size == COMMAND.itemsize:
                self._command_bytes[:] = memoryview(self._command_buffer)[:size]
                return int(self.command["message_id"][0])


def _listen(host: str, port: int) -> socket.socket:
    patient_until = time.monotonic() + LEFT_BEHIND
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(4)
        except OSError as error:
            listener.close()
            in_use = error.errno == errno.EADDRINUSE
            if in_use and time.monotonic() < patient_until:
                time.sleep(0.05)
                continue
            why = (
                f"the port is in use. Is another twin running there? Choose another host, such as {_next(host)}"
                if in_use
                else f"{error.strerror}. Is it an address of this computer?"
            )
            raise HandoffError(f"twin: cannot listen on {host}:{port}: {why}") from None
        listener.setblocking(False)
        return listener


def _next(host: str) -> str:
    head, _, last = host.rpartition(".")
    return f"{head}.{int(last) % 250 + 1}" if last.isdecimal() else "127.0.0.2"
