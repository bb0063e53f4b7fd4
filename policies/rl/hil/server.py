"""The learner's end of the line: a websocket server in a thread of its own; nothing that comes in
can end it.

A client shows the token, says hello and sends steps (`robots.wire.learner`); it is told what is on
the disk, and the newest parameters whenever there are others. What is wrong with a frame comes back
as text, and the connection stays.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from websockets.asyncio.server import Request, Response, ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from policies.rl.hil.config import LearnerConfig
from policies.rl.hil.inbox import Inbox
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError
from robots.wire.learner import Hello, Parameters, Pause, Sent, Taken, decode, encode, steps_limit
from robots.wire.policy import check_token

LOG = logging.getLogger(__name__)
LONGEST_ERROR = 2000
"""Characters of a complaint."""
START_SECONDS = 30.0
"""Limit for the server's start [s]."""


class LearnerServer:
    """Serves from `start` to `stop`.

    Args:
        inbox: takes what comes.
        sizes: of the task; other steps are refused.
        config: where, and for how many.
        token: that actors must show.

    Raises:
        HandoffError: an unusable token.
    """

    def __init__(self, inbox: Inbox, sizes: Sizes, config: LearnerConfig, token: str) -> None:
        check_token(token)
        self._inbox, self._sizes, self._config = inbox, sizes, config
        self._credentials = f"Api-Key {token}".encode()
        pictures = sum(3 * height * width for _, height, width in sizes.pictures)
        self._limit = steps_limit(sizes.observation, sizes.action, pictures)
        self._clients: dict[ServerConnection, asyncio.Event] = {}
        self._parameters: bytes | None = None
        self._pause = encode(Pause(False))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Begins to serve; returns the port.

        Raises:
            HandoffError: the address or port cannot be had.
        """
        ready, found = threading.Event(), []

        def tell(result: int | HandoffError) -> None:
            found.append(result)
            ready.set()

        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(tell)), name="learner server", daemon=True
        )
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise HandoffError(
                f"learner: no server on {self._config.host} within {START_SECONDS} s. Is the machine overloaded?"
            )
        if isinstance(found[0], HandoffError):
            raise found[0]
        return found[0]

    def publish(self, parameters: Parameters) -> None:
        """Sends parameters to every actor, now and when it connects; who is slow gets the newest
        only.

        Raises:
            HandoffError: parameters that are not finite.
        """
        self._parameters = encode(parameters)
        self._wake()

    def pause(self, on: bool) -> None:
        """Whether actors shall hold still, from now on."""
        frame = encode(Pause(on))
        if frame != self._pause:
            self._pause = frame
            self._wake()

    def stop(self) -> None:
        """Closes the connections and ends the thread; a second call does nothing."""
        loop, stopped, thread = self._loop, self._stopped, self._thread
        if loop is None or stopped is None or thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)
        thread.join(START_SECONDS)

    def _wake(self) -> None:
        if self._loop is None:
            return

        def wake() -> None:
            for news in self._clients.values():
                news.set()

        # A closed loop: the server has stopped.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(wake)

    async def _serve(self, tell: Callable[[int | HandoffError], None]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        config = self._config
        handshakes = logging.getLogger(f"{__name__}.handshakes")
        handshakes.setLevel(logging.CRITICAL)  # a port scan is no news
        try:
            server = await listen(
                self._serve_client,
                config.host,
                config.port,
                process_request=self._admit,
                compression=None,
                max_size=self._limit,
                max_queue=4,
                close_timeout=1.0,
                server_header=None,
                logger=handshakes,
            )
        except OSError as error:
            tell(
                HandoffError(
                    f"learner: cannot listen on {config.host} port {config.port} ({error.strerror or error}). "
                    "Does another learner run there?"
                )
            )
            return
        async with server:
            tell(next(iter(server.sockets)).getsockname()[1])
            await self._stopped.wait()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Turns away who has not the token; None lets the connection open."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        shown = request.headers.get_all("Authorization")
        if len(shown) == 1 and hmac.compare_digest(
            shown[0].encode("utf-8", "surrogateescape"), self._credentials
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
        news = asyncio.Event()
        self._clients[connection] = news
        teller: asyncio.Task[None] | None = None
        try:
            # An actor that leaves, in whatever way, is the end of its conversation and nothing
            # else.
            with suppress(ConnectionClosed):
                async for frame in connection:
                    answer = self._answer(frame)
                    await connection.send(answer)
                    # Parameters come behind the answer to hello, which the actor awaits first.
                    if teller is None and isinstance(answer, bytes):
                        teller = asyncio.create_task(self._tell(connection, news))
        finally:
            del self._clients[connection]
            if teller is not None:
                teller.cancel()

    async def _tell(self, connection: ServerConnection, news: asyncio.Event) -> None:
        """Sends what is new, as fast as the connection takes it; what was overtaken meanwhile is
        left out."""
        told: tuple[bytes | None, bytes] = (None, encode(Pause(False)))
        with suppress(ConnectionClosed):
            while True:
                parameters, pause = self._parameters, self._pause
                if parameters is not None and parameters is not told[0]:
                    await connection.send(parameters)
                if pause != told[1]:
                    await connection.send(pause)
                told = (parameters, pause)
                if parameters is self._parameters and pause == self._pause:
                    news.clear()
                    await news.wait()

    def _answer(self, frame: str | bytes) -> str | bytes:
        """What is on the disk of the sender's journal, or a complaint."""
        try:
            if isinstance(frame, str):
                raise HandoffError("message: text, expected a binary frame with a msgpack map.")
            message = decode(frame)
            if not isinstance(message, Hello | Sent):
                raise HandoffError(
                    f"message: {type(message).__name__.lower()} is for actors to read, not to send."
                )
            if isinstance(message, Sent):
                self._check(message)
            return encode(Taken(self._inbox.put(frame, message)))
        except HandoffError as error:
            return str(error)[:LONGEST_ERROR]
        except Exception as error:
            LOG.exception("a frame could not be taken")
            return f"learner: failed with {type(error).__name__}: {error}"[:LONGEST_ERROR]

    def _check(self, sent: Sent) -> None:
        """Refuses another task's steps."""
        sizes, steps = self._sizes, sent.steps
        told = (steps.observation.shape[1], steps.action.shape[1])
        pictures = tuple(
            (name, *picture.shape[1:3]) for name, picture in sorted(steps.pictures.items())
        )
        after = tuple(
            (name, *picture.shape[1:3]) for name, picture in sorted(steps.next_pictures.items())
        )
        expected = tuple(sorted(sizes.pictures))
        if told != (sizes.observation, sizes.action) or pictures != expected or after != expected:
            raise HandoffError(
                f"steps: {told[0]} observed entries, {told[1]} of an action and pictures {pictures}, expected "
                f"{sizes.observation}, {sizes.action} and {expected}. Is this actor another task's?"
            )
