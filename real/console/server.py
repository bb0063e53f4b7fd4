"""The console's server: one page, its websocket, and the line to the robot's side. FastAPI in a
process of its own.

Pages show a token before they are told anything; the robot's side shows another one. Every message
of a page that is not what it should be shuts that page out and holds the arm still, and so does
every stranger at the door. A page of another site, which a browser may open beside ours, is turned
away before it can do even that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from real.console.arbiter import STILL, Desk, DeskConfig, FloodedError
from real.console.audit import AuditLog
from real.console.bindings import ACTIONS, RefusedBindingError, stored_bindings
from real.console.messages import command_word, read_inputs, read_text, read_word
from real.console.scene_proxy import SceneDoor
from real.console.telemetry import Story
from real.teleop.spacemouse import SpaceMouse
from robots.config import config
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.wire.policy import check_token, pack, unpack

if TYPE_CHECKING:
    from fastapi import WebSocket

BINDINGS = "bindings.json"
"""Name of the file that keeps the bindings, in the console's folder."""
TICK = 0.005
"""Between two looks at the watchdog [s]."""
KEEP_ALIVE = 0.02
"""Longest time between two commands to the robot's side [s]."""
HELLO_SECONDS = 5.0
"""For a new connection to say who it is."""
LARGEST_FRAME = 2**22
"""Bytes of a message of the robot's side."""
WRONG_TOKEN, BAD_MESSAGE, FLOODED = 4401, 4400, 4429
"""Codes with which a websocket is closed."""


@config
class ConsoleConfig:
    """Where the console listens, and how it behaves."""

    host: str = "127.0.0.1"
    """Another address than this machine's own needs $HANDOFF_TOKEN; traffic is not encrypted, so
    use a tunnel."""
    port: int = 8700
    state_hz: float = 50.0
    """Rate at which pages are told how things stand."""
    spacemouse: bool = False
    """Whether a SpaceMouse at the server's machine moves the arm for whoever has control."""
    desk: DeskConfig = field(default_factory=DeskConfig)


class _Page:
    """One open page: what is still to be sent to it. A slow one misses frames, never words."""

    def __init__(self, socket: WebSocket, number: int) -> None:
        self.socket, self.number = socket, number
        self.frames: dict[str, bytes] = {}
        self.stale = True
        """It does not know yet what is being done, or what the keys mean."""
        self.episode, self.sent = -1, 0
        """Of the running episode: which, and how many steps of it this page has."""
        self.ended = 0
        self.refused: dict[str, Any] | None = None
        """Why a binding was refused, to be told once."""


class Console:
    """The server's state and its websockets.

    Args:
        config: see there.
        token: that pages must show.
        robot_token: that the robot's side must show.
        folder: of the audit log and of the bindings, which survive a restart.
        now: time [s].

    Raises:
        HandoffError: unusable tokens, or bindings that cannot be read.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        token: str,
        robot_token: str,
        folder: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        check_token(token)
        check_token(robot_token)
        self.config, self._token, self._robot_token = config, token, robot_token
        folder.mkdir(parents=True, exist_ok=True)
        self._saved = folder / BINDINGS
        self.audit = AuditLog(folder / "audit.jsonl")
        self.desk = Desk(config.desk, stored_bindings(self._saved), self.audit, now)
        self.story = Story()
        self._pages: dict[int, _Page] = {}
        self._robot: WebSocket | None = None
        self._cameras: dict[WebSocket, asyncio.Event] = {}
        self._scene: bytes | None = None
        self.door = SceneDoor()
        self._mouse = SpaceMouse() if config.spacemouse else None
        self._changed = asyncio.Event()
        self._ended = 0

    async def clockwork(self) -> None:
        """Watches the time, and keeps the robot's side told; runs as long as the server."""
        sent, last = None, 0.0
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TICK)
            self._changed.clear()
            self._read_device()
            self.desk.tick()
            command, now = self.desk.command(), time.monotonic()
            same = (
                sent is not None
                and command[:1] + command[2:] == sent[:1] + sent[2:]
                and command.hand is sent.hand
            )
            if self._robot is None or (same and now - last < KEEP_ALIVE):
                continue
            sent, last = command, now
            with contextlib.suppress(RuntimeError, OSError, _disconnected()):
                await self._robot.send_bytes(pack(command_word(command)))

    async def page(self, socket: WebSocket) -> None:
        """One page, from its first word to its last."""
        address = _address(socket)
        if not _same_site(socket):
            self.audit(address, "turned away", {"origin": socket.headers.get("origin", "")})
            await socket.close()
            return
        await socket.accept()
        name = await self._greeted(socket, address)
        if name is None:
            return
        page = _Page(socket, self.desk.join(name, address))
        self._pages[page.number] = page
        self._changed.set()
        sender = asyncio.create_task(self._send(page))
        why = "closed"
        try:
            while True:
                text = await socket.receive_text()
                self.desk.count(page.number)
                self._take(page, read_word(text))
                self._changed.set()
        except FloodedError as error:
            why = str(error)
            await _close(socket, FLOODED, why)
        except (HandoffError, KeyError) as error:
            why = str(error)
            self.desk.hold(f"{name}'s page sent what cannot be read")
            await _close(socket, BAD_MESSAGE, why)
        except (RuntimeError, OSError):
            why = "the connection broke"
        except _disconnected():
            why = "closed"
        finally:
            del self._pages[page.number]
            self.desk.leave(page.number, why)
            self._changed.set()
            sender.cancel()

    async def robot(self, socket: WebSocket) -> None:
        """The robot's side, or its cameras."""
        await socket.accept()
        address = _address(socket)
        try:
            hello = unpack(await asyncio.wait_for(socket.receive_bytes(), HELLO_SECONDS))
            token, role = str(hello["token"]), str(hello["role"])
        except (TimeoutError, HandoffError, KeyError, TypeError, _disconnected()):
            self.desk.refuse(address, "no greeting of a robot")
            await _close(socket, BAD_MESSAGE, "no greeting")
            return
        if not _equal(token, self._robot_token) or role not in ("robot", "camera"):
            self.desk.refuse(address, "wrong token of a robot")
            await _close(socket, WRONG_TOKEN, "wrong token")
            return
        if role == "camera":
            await self._camera(socket, hello.get("scene"), draws=hello.get("draws") is not False)
        else:
            await self._drive(socket, dict(hello.get("about", {})))

    def _read_device(self) -> None:
        """A device at this machine; one whose cable was pulled is let go, and holds the arm."""
        if self._mouse is None:
            return
        try:
            self.desk.device(self._mouse.hand())
        except HandoffError as error:
            self._mouse = None
            self.desk.device(STILL)
            self.desk.hold(str(error))

    async def _greeted(self, socket: WebSocket, address: str) -> str | None:
        """The name of somebody with the right token; everybody else is sent away."""
        try:
            word = read_word(await asyncio.wait_for(socket.receive_text(), HELLO_SECONDS))
            token, name = read_text(word, "token", 200), read_text(word, "name")
        except (TimeoutError, HandoffError, KeyError) as error:
            self.desk.refuse(address, f"no greeting ({type(error).__name__})")
            await _close(socket, BAD_MESSAGE, "no greeting")
            return None
        except _disconnected():
            return None
        if _equal(token, self._token):
            return name
        self.desk.refuse(address, "wrong token")
        self._changed.set()
        # Who guesses has to wait.
        await asyncio.sleep(0.5)
        await _close(socket, WRONG_TOKEN, "wrong token")
        return None

    def _take(self, page: _Page, word: dict[str, Any]) -> None:
        """A page's word."""
        desk, number = self.desk, page.number
        match word["kind"]:
            case "inputs":
                desk.inputs(number, *read_inputs(word))
            case "press":
                desk.press(number, read_text(word, "action"))
            case "claim":
                desk.claim(number, force=word.get("force") is True)
            case "give":
                desk.give(number)
            case "bind" | "restore":
                self._bind(page, word)
            case _:
                raise HandoffError("a second greeting.")

    def _bind(self, page: _Page, word: dict[str, Any]) -> None:
        """Changes the bindings for everybody and for later, or tells the page why not."""
        try:
            if word["kind"] == "restore":
                self.desk.restore(page.number)
            else:
                action, name = read_text(word, "action"), read_text(word, "input")
                self.desk.bind(page.number, action, name, swap=word.get("swap") is True)
        except RefusedBindingError as refused:
            page.refused = {"why": str(refused), "swap": refused.swap}
            return
        write_atomically(self._saved, json.dumps(self.desk.bindings.inputs, indent=1).encode())
        for each in self._pages.values():
            each.stale = True

    async def _send(self, page: _Page) -> None:
        """Tells a page how things stand, and shows it the newest pictures."""
        period = 1.0 / self.config.state_hz
        with contextlib.suppress(RuntimeError, OSError, _disconnected()):
            while True:
                began = time.monotonic()
                await page.socket.send_text(json.dumps(self._told(page)))
                frames, page.frames = page.frames, {}
                for frame in frames.values():
                    await page.socket.send_bytes(frame)
                await asyncio.sleep(max(0.0, period - (time.monotonic() - began)))

    def _told(self, page: _Page) -> dict[str, Any]:
        """What changed for this page since it was last told."""
        story, desk = self.story, self.desk
        word: dict[str, Any] = {
            "kind": "state",
            "you": page.number,
            **desk.shown(),
            "state": story.robot,
            "scene": self.door.path,
        }
        if page.stale or page.episode != story.episode:
            page.stale, page.episode, page.sent = False, story.episode, story.first
            word |= {"about": story.about, "episode": story.episode, "counters": story.counters()}
            word |= {"bindings": desk.bindings.inputs, "actions": ACTIONS}
        total = story.first + len(story.steps)
        if page.sent < total:
            begin = max(0, page.sent - story.first)
            word |= {
                "steps": [story.steps[place] for place in range(begin, len(story.steps))],
                "total": total,
            }
            page.sent = total
        if page.refused is not None:
            word["refused"], page.refused = page.refused, None
        if page.ended != self._ended:
            page.ended = self._ended
            word |= {"counters": story.counters(), "episodes": list(story.ended)}
        return word

    async def _drive(self, socket: WebSocket, about: dict[str, Any]) -> None:
        """The robot's side, until it goes; a newer one takes the place of an older."""
        before, self._robot = self._robot, socket
        if before is not None:
            await _close(before, 1000, "another robot's side came")
        self.story.begin(about)
        for page in self._pages.values():
            page.stale = True
        self.desk.robot_here(True, str(about.get("task", "")))
        try:
            while True:
                word = unpack(await socket.receive_bytes())
                if word["kind"] == "step":
                    self.story.step(word["told"])
                elif word["kind"] == "scene":
                    self._show(word["scene"])
                elif word["kind"] == "hold":
                    self.desk.hold(str(word["why"])[:200])
                    self._changed.set()
                elif word["kind"] == "end":
                    self.story.end(word["told"])
                    self._ended += 1
        except (HandoffError, KeyError, TypeError, RuntimeError, OSError, _disconnected()):
            await _close(socket, BAD_MESSAGE, "gone")
        finally:
            if self._robot is socket:
                self._robot = None
                self.desk.robot_here(False, str(about.get("task", "")))
                self._changed.set()

    def _show(self, scene: bytes) -> None:
        """Where everything stands, for those who draw it."""
        self._scene = scene
        for changed in self._cameras.values():
            changed.set()

    async def _camera(self, socket: WebSocket, scene: Any, *, draws: bool) -> None:
        """Somebody who films, or who draws and so gets scenes; sends frames, may show a scene at a
        loopback's port."""
        changed = asyncio.Event()
        if draws:
            self._cameras[socket] = changed
        if draws and self._scene is not None:
            changed.set()
        if isinstance(scene, int):
            self.door.opened(scene)
        sender = asyncio.create_task(self._send_scenes(socket, changed))
        try:
            while True:
                frame = await socket.receive_bytes()
                name = frame[1 : 1 + frame[0]].decode("ascii", "replace")
                for page in self._pages.values():
                    page.frames[name] = frame
        except (IndexError, KeyError, RuntimeError, OSError, _disconnected()):
            await _close(socket, BAD_MESSAGE, "gone")
        finally:
            self._cameras.pop(socket, None)
            sender.cancel()
            if isinstance(scene, int):
                self.door.opened(None)

    async def _send_scenes(self, socket: WebSocket, changed: asyncio.Event) -> None:
        """The newest scene each time that it can be taken; who draws slowly keeps nobody
        waiting."""
        with contextlib.suppress(RuntimeError, OSError, _disconnected()):
            while True:
                await changed.wait()
                changed.clear()
                if self._scene is not None:
                    await socket.send_bytes(self._scene)


def _same_site(socket: WebSocket) -> bool:
    """Whether the page comes from this server; programs send no origin."""
    origin = socket.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == socket.headers.get("host")


def _equal(shown: str, token: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def _address(socket: WebSocket) -> str:
    return "unknown" if socket.client is None else f"{socket.client.host}:{socket.client.port}"


def _disconnected() -> type[Exception]:
    from starlette.websockets import WebSocketDisconnect

    return WebSocketDisconnect


async def _close(socket: WebSocket, code: int, why: str) -> None:
    # A peer that is gone already needs no goodbye.
    with contextlib.suppress(RuntimeError, OSError, _disconnected()):
        await socket.close(code, why[:100])
