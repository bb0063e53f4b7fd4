"""Accepts connections from other machines, and starts an environment server for each.

    HANDOFF_TOKEN=... python -m sim.servers.listen 0.0.0.0:8770

It needs NumPy and msgpack only, like the servers. Whoever has the token may run every engine and
import every module that this Python has.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from robots.errors import HandoffError
from robots.signals import raising_signals
from robots.wire.policy import TOKEN_VARIABLE, check_token
from sim.servers.authentication import BUSY, prove_as_listener
from sim.servers.channel import Channel, set_tcp_options
from sim.servers.child import ServerChild

DEFAULT_ADDRESS = "127.0.0.1:8770"
ABOUT = "Accept connections from other machines, and start an environment server for each."
MOST_SERVERS = 16
"""Largest number of servers at once."""
END_SECONDS = 10.0
"""Time for a server to end after its connection [s]."""


class Listener:
    """Listens at an address, from its creation to `close`.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        token: token that clients must have.
        most: largest number of servers at once; further connections are closed.
        echo: whether the servers' output is printed.

    Raises:
        HandoffError: an invalid token, or the address cannot be used.
    """

    def __init__(
        self, address: str, token: str, most: int = MOST_SERVERS, *, echo: bool = True
    ) -> None:
        check_token(token)
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_server((host.strip("[]"), int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise HandoffError(
                f"environment servers: cannot listen at '{address}' ({error}). Is it HOST:PORT, and the port free?"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._token = token
        self._free = threading.BoundedSemaphore(most)
        self._echo = echo

    def serve(self) -> None:
        """Accepts connections until `close` is called."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # The socket was closed.
                return
            free = self._free.acquire(blocking=False)
            serve = self._serve_one if free else _refuse
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stops accepting connections; the servers end with this process."""
        # Closing alone does not wake the thread that accepts.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            set_tcp_options(connection)
            channel = Channel(connection, shared=False, seconds=END_SECONDS)
            if prove_as_listener(channel, self._token):
                _run_server(connection, channel, echo=self._echo)
        except HandoffError as error:
            # One client's failure must not end the others.
            print(f"environment servers: {error}", file=sys.stderr)  # noqa: T201
        finally:
            connection.close()
            self._free.release()


def _refuse(connection: socket.socket) -> None:
    """Says that there are too many servers already."""
    channel = Channel(connection, shared=False, seconds=END_SECONDS)
    try:
        channel.send({"refused": BUSY})
    except HandoffError as error:
        print(f"environment servers: {error}", file=sys.stderr)  # noqa: T201
    finally:
        channel.close()


def _run_server(connection: socket.socket, channel: Channel, *, echo: bool) -> None:
    """Hands the connection to a server, and tells the client if the server dies."""
    connection.settimeout(None)
    child = ServerChild(sys.executable, connection.dup(), "remote", echo=echo)
    code = child.wait(None)
    child.end(END_SECONDS)
    if code:
        text = f"its process ended with exit code {code}.{child.output()}"
        channel.send({"answer": "death", "text": text})


def listen(address: str, most: int, say: Callable[[str], None]) -> None:
    """Listens until a signal ends the process.

    Args:
        address: HOST:PORT.
        most: largest number of servers at once.
        say: prints one line.

    Raises:
        HandoffError: see `Listener`.
    """
    listener = Listener(address, os.environ.get(TOKEN_VARIABLE, ""), most)
    try:
        say(f"environment servers  port {listener.port}")
        with raising_signals():
            listener.serve()
    finally:
        listener.close()


def main() -> None:
    """Runs the module as a program."""
    parser = argparse.ArgumentParser(description=ABOUT)
    parser.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, help="HOST:PORT")
    parser.add_argument("--most", type=int, default=MOST_SERVERS, help="largest number of servers")
    arguments = parser.parse_args()
    try:
        listen(arguments.address, arguments.most, lambda line: print(line, flush=True))  # noqa: T201
    except HandoffError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
