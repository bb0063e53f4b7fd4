"""Serves actors over websockets, in a separate thread of the learner process.

A client presents the token and sends a hello and steps (`robots.wire.learner`). It receives
acknowledgements of entries on disk, and new parameters. An invalid frame is answered with an error
message as text; it closes neither the connection nor the server.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from math import prod

from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from policies.rl.hil.config import LearnerConfig
from policies.rl.hil.message_log import MessageLog
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError
from robots.wire.learner import (
    Acknowledgement,
    Hello,
    JournalEntry,
    Parameters,
    Pause,
    decode,
    encode,
    max_steps_bytes,
)
from robots.wire.policy import check_token

LOG = logging.getLogger(__name__)
MAX_ERROR_LENGTH = 2000
"""Maximum length of an error message [characters]."""
START_SECONDS = 30.0
"""Timeout for starting and stopping the server [s]."""


class LearnerServer:
    """Websocket server for actors, running from `start` to `stop`.

    Args:
        message_log: log of received messages.
        sizes: sizes of observations, actions and images; other steps are rejected.
        config: address and limits.
        token: token that actors must present.

    Raises:
        HandoffError: the token is invalid.
    """

    def __init__(
        self, message_log: MessageLog, sizes: Sizes, config: LearnerConfig, token: str
    ) -> None:
        check_token(token)
        self._message_log = message_log
        self._sizes = sizes
        self._config = config
        self._credentials = f"Api-Key {token}".encode()
        pictures = sum(3 * height * width for _, height, width in sizes.pictures)
        pictures += sum(2 * prod(shape) for _, *shape in sizes.maps)
        self._limit = max_steps_bytes(sizes.observation, sizes.action, pictures)
        self._clients: dict[ServerConnection, asyncio.Event] = {}
        self._parameters: bytes | None = None
        self._pause = encode(Pause(False))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Starts the server and returns its port.

        Raises:
            HandoffError: the server cannot listen on the address or port, or does not start in
                time.
        """
        ready, results = threading.Event(), []

        def report(result: int | HandoffError) -> None:
            results.append(result)
            ready.set()

        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(report)), name="learner server", daemon=True
        )
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise HandoffError(
                f"learner: the server on {self._config.host} did not start within {START_SECONDS} s. Is the "
                "machine overloaded?"
            )
        if isinstance(results[0], HandoffError):
            raise results[0]
        return results[0]

    def publish(self, parameters: Parameters) -> None:
        """Sends parameters to all current and future actors; slow actors receive only the newest.

        Raises:
            HandoffError: parameters are not finite.
        """
        self._parameters = encode(parameters)
        self._wake()

    def pause(self, on: bool) -> None:
        """Tells actors to pause or to continue."""
        frame = encode(Pause(on))
        if frame != self._pause:
            self._pause = frame
            self._wake()

    def stop(self) -> None:
        """Closes the connections and stops the thread; further calls have no effect."""
        loop = self._loop
        stopped = self._stopped
        thread = self._thread
        if loop is None or stopped is None or thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)
        thread.join(START_SECONDS)

    def _wake(self) -> None:
        if self._loop is None:
            return

        def wake() -> None:
            for changed in self._clients.values():
                changed.set()

        # The loop is closed if the server has stopped.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(wake)

    async def _serve(self, report: Callable[[int | HandoffError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        config = self._config
        handshakes = logging.getLogger(f"{__name__}.handshakes")
        handshakes.setLevel(
            logging.CRITICAL
        )  # Failed handshakes, such as port scans, are not logged.
        try:
            server = await listen(
                self._serve_client,
                config.host,
                config.port,
                process_request=self._authorise,
                # Programs send no origin; a page of any site does.
                origins=[None],
                compression=None,
                max_size=self._limit,
                max_queue=4,
                close_timeout=1.0,
                server_header=None,
                logger=handshakes,
            )
        except OSError as error:
            report(
                HandoffError(
                    f"learner: cannot listen on {config.host} port {config.port} ({error.strerror or error}). "
                    "Does another learner run there?"
                )
            )
            return
        async with server:
            report(next(iter(server.sockets)).getsockname()[1])
            await self._stopped.wait()

    def _authorise(self, connection: ServerConnection, request: Request) -> Response | None:
        """Rejects requests without the token; None accepts the connection."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        credentials = request.headers.get_all("Authorization")
        if len(credentials) == 1 and hmac.compare_digest(
            credentials[0].encode("utf-8", "surrogateescape"), self._credentials
        ):
            return None
        response = connection.respond(HTTPStatus.UNAUTHORIZED, "token: missing or wrong\n")
        response.headers["WWW-Authenticate"] = "Api-Key"
        return response

    async def _serve_client(self, connection: ServerConnection) -> None:
        if len(self._clients) >= self._config.actors:
            await connection.close(
                CloseCode.TRY_AGAIN_LATER, f"{self._config.actors} actors are connected already"
            )
            return
        changed = asyncio.Event()
        self._clients[connection] = changed
        sender: asyncio.Task[None] | None = None
        try:
            # A closed connection ends only this handler.
            with suppress(ConnectionClosed):
                async for frame in connection:
                    answer = self._answer(frame)
                    await connection.send(answer)
                    # Parameters follow the answer to hello, for which the actor waits first.
                    if sender is None and isinstance(answer, bytes):
                        sender = asyncio.create_task(self._send_updates(connection, changed))
        finally:
            del self._clients[connection]
            if sender is not None:
                sender.cancel()

    async def _send_updates(self, connection: ServerConnection, changed: asyncio.Event) -> None:
        """Sends new parameters and pauses as fast as the connection accepts them, skipping
        outdated ones."""
        sent: tuple[bytes | None, bytes] = (None, encode(Pause(False)))
        with suppress(ConnectionClosed):
            while True:
                parameters, pause = self._parameters, self._pause
                if parameters is not None and parameters is not sent[0]:
                    await connection.send(parameters)
                if pause != sent[1]:
                    await connection.send(pause)
                sent = (parameters, pause)
                if parameters is self._parameters and pause == self._pause:
                    changed.clear()
                    await changed.wait()

    def _answer(self, frame: str | bytes) -> str | bytes:
        """Acknowledgement of the sender's journal, or an error message."""
        try:
            if isinstance(frame, str):
                raise HandoffError("message: text, expected a binary frame with a msgpack map.")
            message = decode(frame)
            if not isinstance(message, Hello | JournalEntry):
                raise HandoffError(
                    f"message: {type(message).__name__.lower()} is sent by the learner only."
                )
            if isinstance(message, JournalEntry):
                self._check(message)
            return encode(Acknowledgement(self._message_log.put(frame, message)))
        except HandoffError as error:
            return str(error)[:MAX_ERROR_LENGTH]
        except Exception as error:
            LOG.exception("failed to process a frame")
            return f"learner: failed with {type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]

    def _check(self, sent: JournalEntry) -> None:
        """Rejects steps with other sizes."""
        sizes, steps = self._sizes, sent.steps
        entries = (steps.observation.shape[1], steps.action.shape[1])
        pictures, next_pictures = (
            tuple(
                (name, picture.dtype.name, *picture.shape[1:])
                for name, picture in sorted(images.items())
            )
            for images in (steps.pictures, steps.next_pictures)
        )
        expected = tuple(
            sorted(
                [
                    *((name, "uint8", height, width, 3) for name, height, width in sizes.pictures),
                    *((name, "float16", *shape) for name, *shape in sizes.maps),
                ]
            )
        )
        if (
            entries != (sizes.observation, sizes.action)
            or pictures != expected
            or next_pictures != expected
        ):
            raise HandoffError(
                f"steps: {entries[0]} observation entries, {entries[1]} action entries and images {pictures}, expected "
                f"{sizes.observation}, {sizes.action} and {expected}. Does this actor run another task?"
            )
