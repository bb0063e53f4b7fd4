"""Forwards pages to the process that renders the scene in three dimensions, so that one port is
enough for a tunnel.

That process listens at the loopback without any authentication. Pages reach it by a path with a
random key, which they receive once they have shown their token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from robots.errors import HandoffError

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

LOG = logging.getLogger(__name__)
LARGEST = 2**26
"""Largest size of a message of the scene [bytes]; a mesh is one message."""


class SceneProxy:
    """The port of the process that renders the scene, and the secret path to it."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(18)
        self._port: int | None = None
        self._page: bytes | None = None

    def set_port(self, port: int | None) -> None:
        """Sets the port of the scene at this machine's loopback; None if no scene is shown any
        more."""
        self._port = port
        self._page = None

    @property
    def path(self) -> str | None:
        """Path of the page to be embedded; None if no scene is shown."""
        return None if self._port is None else f"scene/{self.key}/"

    async def page(self, key: str) -> bytes:
        """The page of the scene, which is one HTML file.

        Raises:
            HandoffError: a wrong key, or no scene is shown.
        """
        port = self._checked(key)
        if self._page is None:
            self._page = await asyncio.to_thread(_fetch, port)
        return self._page

    async def socket(self, key: str, browser: WebSocket) -> None:
        """Forwards a browser's websocket to the scene until either side closes it."""
        from starlette.websockets import WebSocketDisconnect
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException
        from websockets.typing import Subprotocol

        try:
            port = self._checked(key)
            subprotocols = [Subprotocol(name) for name in browser.scope.get("subprotocols", [])]
            async with connect(
                f"ws://127.0.0.1:{port}",
                subprotocols=subprotocols or None,
                max_size=LARGEST,
                compression=None,
                proxy=None,
            ) as scene:
                await browser.accept(subprotocol=scene.subprotocol)

                async def to_browser() -> None:
                    async for message in scene:
                        await (
                            browser.send_text(message)
                            if isinstance(message, str)
                            else browser.send_bytes(bytes(message))
                        )

                async def to_scene() -> None:
                    while True:
                        message = await browser.receive()
                        if message["type"] == "websocket.disconnect":
                            return
                        data = message.get("bytes")
                        await scene.send(message["text"] if data is None else data)

                # The first direction that ends, ends the other.
                tasks = [asyncio.create_task(to_browser()), asyncio.create_task(to_scene())]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (HandoffError, OSError, WebSocketException, WebSocketDisconnect) as error:
            # The scene is optional: the page shows an empty one, and asks again when there is
            # another.
            LOG.info("scene: %s", error)
        finally:
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
                await browser.close()

    def _checked(self, key: str) -> int:
        """The port, for the right key."""
        if self._port is None or not secrets.compare_digest(
            key.encode("utf-8", "surrogateescape"), self.key.encode()
        ):
            raise HandoffError("console: no scene is shown here.")
        return self._port


def _fetch(port: int) -> bytes:
    """The page at a port of the loopback."""
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/", timeout=5.0
        ) as answer:
            return answer.read()
    except (URLError, OSError) as error:
        raise HandoffError(f"console: the scene does not answer ({error}).") from None
