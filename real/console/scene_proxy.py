"""Lets pages through to the process that shows the scene in three dimensions, so that one port is
enough for a tunnel.

That process listens at the loopback and asks nobody who they are. The way to it is a path that
cannot be guessed, of which pages are told once they have shown their token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from robots.errors import HandoffError

if TYPE_CHECKING:
    from fastapi import WebSocket

LOG = logging.getLogger(__name__)
LARGEST = 2**26
"""Bytes of one message of the scene; meshes come whole."""


class SceneDoor:
    """Where the scene is, and the way there."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(18)
        self._port: int | None = None
        self._page: bytes | None = None

    def opened(self, port: int | None) -> None:
        """The scene can be had at a port of this machine's loopback; None: not any more."""
        self._port, self._page = port, None

    @property
    def path(self) -> str | None:
        """Of the page to be embedded; None where no scene is shown."""
        return None if self._port is None else f"scene/{self.key}/"

    async def page(self, key: str) -> bytes:
        """The page of the scene, which is one file.

        Raises:
            HandoffError: a wrong key, or no scene.
        """
        port = self._checked(key)
        if self._page is None:
            self._page = await asyncio.to_thread(_fetched, port)
        return self._page

    async def socket(self, key: str, near: WebSocket) -> None:
        """Carries a websocket through until either side ends it."""
        from starlette.websockets import WebSocketDisconnect
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException
        from websockets.typing import Subprotocol

        try:
            port = self._checked(key)
            asked = [Subprotocol(name) for name in near.scope.get("subprotocols", [])]
            async with connect(
                f"ws://127.0.0.1:{port}",
                subprotocols=asked or None,
                max_size=LARGEST,
                compression=None,
            ) as far:
                await near.accept(subprotocol=far.subprotocol)

                async def outwards() -> None:
                    async for message in far:
                        await (
                            near.send_text(message)
                            if isinstance(message, str)
                            else near.send_bytes(bytes(message))
                        )

                async def inwards() -> None:
                    while True:
                        message = await near.receive()
                        if message["type"] == "websocket.disconnect":
                            return
                        data = message.get("bytes")
                        await far.send(message["text"] if data is None else data)

                ways = [asyncio.create_task(outwards()), asyncio.create_task(inwards())]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (HandoffError, OSError, WebSocketException, WebSocketDisconnect) as error:
            # Nothing depends on the scene: the page shows an empty one, and asks again when there
            # is another.
            LOG.info("scene: %s", error)
        finally:
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
                await near.close()

    def _checked(self, key: str) -> int:
        if self._port is None or not secrets.compare_digest(
            key.encode("utf-8", "surrogateescape"), self.key.encode()
        ):
            raise HandoffError("console: no scene is shown here.")
        return self._port


def _fetched(port: int) -> bytes:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=5.0) as answer:
            return answer.read()
    except (URLError, OSError) as error:
        raise HandoffError(f"console: the scene does not answer ({error}).") from None
