"""Serves the console: the page, its websocket, and the connection to the robot's process.

A page must send a token before it receives anything; the robot's process has another token, and so
have its cameras. A
malformed message closes its page and holds the arm still; a connection without the right token does
the same. A page of another site, which the browser may have open as well, is refused before
(`robots.wire.web_server`), without any effect on the arm.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real.console.attached import Attach, AttachedPages
from real.console.audit import AuditLog, read_audit
from real.console.control.arbiter import ArbiterConfig, ControlArbiter
from real.console.control.bindings import (
    RefusedBindingError,
    actions_without,
    stored_bindings,
)
from real.console.control.commands import STILL
from real.console.control.people import FloodedError
from real.console.control.picture_watch import PictureWatch
from real.console.messages import (
    LONGEST_INSTRUCTION,
    LONGEST_REASON,
    command_message,
    read_choice,
    read_entries,
    read_hint,
    read_inputs,
    read_message,
    read_progress,
    read_question,
    read_refusals,
    read_text,
)
from real.console.page_connection import PageConnection
from real.console.scene_proxy import SceneProxy
from real.console.telemetry import Telemetry, result_text
from real.teleop.spacemouse import SpaceMouse
from robots.config import Delay, Hertz, Port, config
from robots.errors import HandoffError
from robots.storage.durable import write_atomically
from robots.wire.policy import check_token, pack, unpack
from robots.wire.web_server import LARGER

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

BINDINGS = "bindings.json"
"""Name of the file of the bindings, in the console's folder."""
AUDIT = "audit.jsonl"
"""Name of the log of all actions, in the console's folder."""
ENDED_EPISODE = "episode ended"
"""What the log says of an episode that ended."""
TICK = 0.005
"""Longest time between checks of the watchdog [s]."""
KEEP_ALIVE = 0.02
"""Longest time between two commands to the robot's process [s]."""
HELLO_SECONDS = 5.0
"""Time limit for a new connection to send its greeting [s]."""
LARGEST_FRAME = 2**22
"""Largest size of a message from the robot's process [bytes]."""
BAD_MESSAGE = 4400
"""Code with which the websocket of a malformed message is closed."""
WRONG_TOKEN = 4401
"""Code with which the websocket of a wrong token is closed."""
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""Errors of a greeting or message that is no map of the expected form."""
ENDED = 4410
"""Code with which the websockets of all pages are closed when the session is over."""
KILLED = "The process of the session died. The same command goes on; what was recorded is kept."
"""What the pages say where the session ended without a word."""
FLOODED = 4429
"""Code with which the websocket of a page that sends too many messages is closed."""


@config
class ConsoleConfig:
    """Address of the console's server, rates and time limits."""

    host: str = "127.0.0.1"
    """Address to listen at. An address that other machines can reach needs $HANDOFF_TOKEN; traffic
    is not encrypted, so use a tunnel."""
    port: Port = 8700
    """TCP port to listen at; 0 takes a free one."""
    state_hz: Hertz = 50.0
    """Rate of messages to a page [1/s]."""
    picture_seconds: Delay | None = 1.0
    """Age of the newest picture of a camera above which the arm holds still [s]; None moves the arm
    without pictures."""
    spacemouse: bool = False
    """Whether a SpaceMouse at the server's machine moves the arm for the person in control."""
    arbiter: ArbiterConfig = field(default_factory=ArbiterConfig)
    """Time limits of the control arbiter."""


class ConsoleServer:
    """The server's state and its websockets.

    Args:
        config: rates and time limits.
        token: token that pages must show.
        robot_token: token that the robot's process must show.
        camera_token: token that cameras, and whoever else sends images, must show.
        folder: folder of the audit log and of the bindings, which survive a restart.
        now: returns the time [s].
        attach: makes another application, which pages that have shown the token can open.

    Raises:
        HandoffError: unusable tokens, or bindings that cannot be read.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        token: str,
        robot_token: str,
        camera_token: str,
        folder: Path,
        now: Callable[[], float] = time.monotonic,
        attach: Attach | None = None,
    ) -> None:
        check_token(token)
        check_token(robot_token)
        check_token(camera_token)
        self.config = config
        self._token = token
        self._tokens = {"robot": robot_token, "camera": camera_token}
        """Token of every role that a process can have."""
        folder.mkdir(parents=True, exist_ok=True)
        self._bindings_file = folder / BINDINGS
        log = folder / AUDIT
        before = [line for line in read_audit(log) if line["what"] == ENDED_EPISODE]
        self.audit = AuditLog(log)
        bindings = stored_bindings(self._bindings_file)
        self.pictures = PictureWatch(config.picture_seconds, now)
        """Whether the pages have recent pictures."""
        self.arbiter = ControlArbiter(
            config.arbiter,
            bindings,
            self.audit,
            now,
            lambda: self.audit.trouble or self.pictures.trouble(),
        )
        self.telemetry = Telemetry(before)
        self.scene_proxy = SceneProxy()
        self._pages: dict[int, PageConnection] = {}
        self._robot: WebSocket | None = None
        self._renderers: dict[WebSocket, asyncio.Event] = {}
        """Processes that draw the scene, each with an event that a new scene has come."""
        self._scene: bytes | None = None
        self._frames: dict[str, bytes] = {}
        """Newest image of every camera, for pages that join later."""
        self.attached = (
            None if attach is None else AttachedPages(attach(), lambda text: _equal(text, token))
        )
        self._spacemouse = SpaceMouse() if config.spacemouse else None
        self._changed = asyncio.Event()
        """Something happened that may change the command to the robot's process."""
        self._episodes_ended = len(self.telemetry.ended)

    async def run_control(self) -> None:
        """Checks the watchdog and sends commands to the robot's process, as long as the server
        runs."""
        sent = None
        sent_at = 0.0
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TICK)
            self._changed.clear()
            self._read_device()
            self.arbiter.tick()
            command = self.arbiter.command()
            now = time.monotonic()
            # Inputs are compared by identity: their arrays have no single truth value.
            same = (
                sent is not None
                and command[:1] + command[2:] == sent[:1] + sent[2:]
                and command.hand is sent.hand
            )
            if self._robot is None or (same and now - sent_at < KEEP_ALIVE):
                continue
            sent = command
            sent_at = now
            with contextlib.suppress(RuntimeError, OSError, _disconnected()):
                await self._robot.send_bytes(pack(command_message(command)))

    async def _send_hold(self, robot: WebSocket) -> None:
        """Sends the command to hold, without which a robot's process that holds by itself does not
        move again; `run_control` may miss it, if a person says `go on` in the same moment."""
        with contextlib.suppress(RuntimeError, OSError, _disconnected()):
            await robot.send_bytes(pack(command_message(self.arbiter.command())))

    async def page(self, socket: WebSocket) -> None:
        """Serves one page from its greeting until it disconnects."""
        address = _address(socket)
        await socket.accept()
        name = await self._authenticate(socket, address)
        if name is None:
            return
        page = PageConnection(socket, self.arbiter.join(name, address), self._frames)
        self._pages[page.number] = page
        self._changed.set()
        sender = asyncio.create_task(self._send(page))
        why = "closed"
        try:
            while True:
                text = await socket.receive_text()
                self.arbiter.count(page.number)
                self._handle(page, read_message(text))
                self._changed.set()
        except FloodedError as error:
            why = str(error)
            await _close(socket, FLOODED, why)
        except (HandoffError, KeyError) as error:
            why = str(error)
            self.arbiter.hold(f"The page of {name} sent an unreadable message.")
            await _close(socket, BAD_MESSAGE, why)
        except (RuntimeError, OSError):
            why = "the connection broke"
        except _disconnected():
            why = "closed"
        finally:
            del self._pages[page.number]
            self.arbiter.leave(page.number, why)
            self._changed.set()
            sender.cancel()

    async def robot(self, socket: WebSocket) -> None:
        """Serves the robot's process, or one of its cameras, until it disconnects."""
        await socket.accept()
        address = _address(socket)
        try:
            hello = unpack(await asyncio.wait_for(socket.receive_bytes(), HELLO_SECONDS))
            token, role = str(hello["token"]), str(hello["role"])
            about = dict(hello.get("about", {}))
        except (TimeoutError, HandoffError, *_UNREADABLE, _disconnected()):
            self.arbiter.refuse(address, "no greeting of a robot")
            await _close(socket, BAD_MESSAGE, "no greeting")
            return
        if not _equal(token, self._tokens.get(role, "")) or role not in self._tokens:
            self.arbiter.refuse(address, "wrong token of a robot")
            await _close(socket, WRONG_TOKEN, "wrong token")
            return
        if LARGER in socket.scope:
            socket.scope[LARGER](LARGEST_FRAME)
        if role == "camera":
            cameras = [str(name) for name in hello.get("cameras", ())]
            draws = hello.get("draws") is not False
            await self._serve_camera(socket, hello.get("scene"), cameras, draws=draws)
        else:
            await self._serve_robot(socket, about)

    async def say_goodbye(self) -> None:
        """Tells all pages that the session is over, and closes them."""
        why = self.arbiter.why if self.arbiter.robot else ""
        session = multiprocessing.parent_process()
        if session is None or session.is_alive():
            self.arbiter.finish(f"The session is over. {why}".strip())
        else:
            self.arbiter.finish(KILLED)
        for page in list(self._pages.values()):
            with contextlib.suppress(RuntimeError, OSError, _disconnected()):
                message = page.next_message(
                    self.arbiter, self.telemetry, None, self._episodes_ended
                )
                await page.socket.send_text(json.dumps(message))
            await _close(page.socket, ENDED, self.arbiter.why)

    def _read_device(self) -> None:
        """Reads the SpaceMouse at this machine; if its cable was pulled, the arm holds still."""
        if self._spacemouse is None:
            return
        try:
            self.arbiter.device(self._spacemouse.hand())
        except HandoffError as error:
            self._spacemouse = None
            self.arbiter.device(STILL)
            self.arbiter.hold(str(error))

    async def _authenticate(self, socket: WebSocket, address: str) -> str | None:
        """The name of a person whose page shows the right token; other pages are closed."""
        try:
            message = read_message(await asyncio.wait_for(socket.receive_text(), HELLO_SECONDS))
            token, name = read_text(message, "token", 200), read_text(message, "name")
        except (TimeoutError, HandoffError, KeyError) as error:
            self.arbiter.refuse(address, f"no greeting ({type(error).__name__})")
            await _close(socket, BAD_MESSAGE, "no greeting")
            return None
        except _disconnected():
            return None
        if _equal(token, self._token):
            return name
        self.arbiter.refuse(address, "wrong token")
        self._changed.set()
        # The delay slows down guessing.
        await asyncio.sleep(0.5)
        await _close(socket, WRONG_TOKEN, "wrong token")
        return None

    def _handle(self, page: PageConnection, message: dict[str, Any]) -> None:
        """Executes a page's message."""
        arbiter, number = self.arbiter, page.number
        match message["kind"]:
            case "inputs":
                arbiter.inputs(number, *read_inputs(message))
            case "press":
                arbiter.press(number, read_text(message, "action"))
            case "claim":
                arbiter.claim(number, force=message.get("force") is True)
            case "give":
                arbiter.give(number)
            case "recover":
                arbiter.recover(number, read_text(message, "cause", LONGEST_REASON))
            case "answer":
                arbiter.answer(number, read_choice(message))
            case "instruct":
                arbiter.instruct(number, read_text(message, "text", LONGEST_INSTRUCTION))
            case "bind" | "restore":
                self._bind(page, message)
            case _:
                raise HandoffError("a second greeting.")

    def _bind(self, page: PageConnection, message: dict[str, Any]) -> None:
        """Changes the bindings of all pages and stores them, or tells the page why not."""
        try:
            if message["kind"] == "restore":
                self.arbiter.restore(page.number)
            else:
                action, name = read_text(message, "action"), read_text(message, "input")
                self.arbiter.bind(page.number, action, name, swap=message.get("swap") is True)
        except RefusedBindingError as refused:
            page.refused = {"why": str(refused), "swap": refused.swap}
            return
        inputs = self.arbiter.bindings.inputs
        write_atomically(self._bindings_file, json.dumps(inputs, indent=1).encode())
        for each in self._pages.values():
            each.stale = True

    async def _send(self, page: PageConnection) -> None:
        """Sends a page the state and the newest images, at the configured rate."""
        period = 1.0 / self.config.state_hz
        with contextlib.suppress(RuntimeError, OSError, _disconnected()):
            while True:
                began = time.monotonic()
                message = page.next_message(
                    self.arbiter, self.telemetry, self.scene_proxy.path, self._episodes_ended
                )
                if self.attached is not None and self.attached.waiting:
                    message["waiting"] = {
                        "names": self.attached.waiting,
                        "link": self.attached.link,
                    }
                await page.socket.send_text(json.dumps(message))
                frames = page.frames
                page.frames = {}
                for frame in frames.values():
                    await page.socket.send_bytes(frame)
                await asyncio.sleep(max(0.0, period - (time.monotonic() - began)))

    async def _serve_robot(self, socket: WebSocket, about: dict[str, Any]) -> None:
        """Serves the robot's process until it disconnects; a new one replaces an old one."""
        try:
            refusals = read_refusals(about)
            without = actions_without(read_entries(about))
        except HandoffError as error:
            await _close(socket, BAD_MESSAGE, str(error))
            return
        replaced = self._robot
        self._robot = socket
        if replaced is not None:
            await _close(replaced, 1000, "another robot's process connected")
        self.telemetry.begin(about)
        if "cameras" in about:
            self.pictures.await_cameras(about["cameras"])
        for page in self._pages.values():
            page.stale = True
        self.arbiter.without = without
        self.arbiter.robot_connected(
            True,
            str(about.get("task", "")),
            refusals,
            client=str(about.get("client", "")),
            instructable=about.get("instructable") is True,
        )
        await self._send_hold(socket)
        try:
            while True:
                if self._receive(unpack(await socket.receive_bytes())):
                    await self._send_hold(socket)
                    self._changed.set()
        except (HandoffError, *_UNREADABLE, RuntimeError, OSError, _disconnected()):
            await _close(socket, BAD_MESSAGE, "gone")
        finally:
            if self._robot is socket:
                self._robot = None
                self.telemetry.leave()
                for page in self._pages.values():
                    page.stale = True
                self.arbiter.robot_connected(False, str(about.get("task", "")))
                self._changed.set()

    def _receive(self, message: dict[str, Any]) -> bool:
        """Executes a message of the robot's process; returns whether it may have held the arm.

        Raises:
            HandoffError: a message that cannot be read.
        """
        arbiter, telemetry = self.arbiter, self.telemetry
        match message["kind"]:
            case "begin":
                telemetry.begin_episode(message["told"])
                arbiter.begin_episode(telemetry.episode, int(message["told"].get("heard", 0)))
            case "step":
                telemetry.step(message["told"])
            case "hint":
                telemetry.hint = read_hint(message["told"])
            case "scene":
                self._set_scene(message["scene"])
            case "facts":
                facts = dict(message["told"])
                telemetry.facts = {str(name): str(facts[name]) for name in facts}
            case "still":
                self._show_still(bytes(message["frame"]))
            case "progress":
                telemetry.progress = read_progress(message)
            case "hold":
                arbiter.hold(str(message["why"])[:200])
                return True
            case "fault":
                interrupted = telemetry.interrupted()
                if interrupted is not None:
                    self._end_episode(interrupted)
                why, asks = str(message["why"])[:LONGEST_REASON], message["asks"] is True
                arbiter.fault(int(message["number"]), why, asks_cause=asks)
                return True
            case "end":
                self._end_episode(message["told"])
                arbiter.end_episode(result_text(message["told"]))
                return True
            case "reset":
                if message["open"] is True:
                    wait = message["wait"] is True
                    why, asked = str(message["why"])[:LONGEST_REASON], read_question(message)
                    arbiter.await_start(why, wait=wait, question=asked)
                else:
                    arbiter.leave_reset()
                return True
            case "finish":
                arbiter.finish(str(message["why"])[:200])
                self._changed.set()
        return False

    def _end_episode(self, report: dict[str, Any]) -> None:
        """Counts an episode that ended, and logs it, for a server that takes this one's place."""
        self.telemetry.end(report)
        self._episodes_ended += 1
        self.audit("robot", ENDED_EPISODE, self.telemetry.ended[-1])

    def _show_still(self, frame: bytes) -> None:
        """Shows a picture that does not age, such as that of a start, on all pages; one without
        content takes it away."""
        name = frame[1 : 1 + frame[0]].decode("ascii", "replace")
        self._frames[name] = frame
        for page in self._pages.values():
            page.frames[name] = frame

    def _set_scene(self, scene: bytes) -> None:
        """Passes a packed scene on to the processes that draw it."""
        self._scene = scene
        for changed in self._renderers.values():
            changed.set()

    async def _serve_camera(
        self, socket: WebSocket, scene_port: Any, cameras: Sequence[str], *, draws: bool
    ) -> None:
        """Serves a process that sends images until it disconnects.

        Args:
            socket: the process's websocket.
            scene_port: port of the loopback at which the process shows the scene; another type than
                int if it shows none.
            cameras: names of the cameras whose images the process sends.
            draws: whether the process draws the scene, and therefore receives it.
        """
        changed = asyncio.Event()
        self.pictures.announce(cameras, draws=draws)
        if draws:
            self._renderers[socket] = changed
        if draws and self._scene is not None:
            changed.set()
        if isinstance(scene_port, int):
            self.scene_proxy.set_port(scene_port)
        sender = asyncio.create_task(self._send_scenes(socket, changed))
        try:
            while True:
                frame = await socket.receive_bytes()
                name = frame[1 : 1 + frame[0]].decode("ascii", "replace")
                self.pictures.picture(name)
                self._frames[name] = frame
                for page in self._pages.values():
                    page.frames[name] = frame
        except (IndexError, KeyError, RuntimeError, OSError, _disconnected()):
            await _close(socket, BAD_MESSAGE, "gone")
        finally:
            self._renderers.pop(socket, None)
            sender.cancel()
            if isinstance(scene_port, int):
                self.scene_proxy.set_port(None)

    async def _send_scenes(self, socket: WebSocket, changed: asyncio.Event) -> None:
        """Sends the newest scene whenever the process can take one; a slow process delays nobody
        else."""
        with contextlib.suppress(RuntimeError, OSError, _disconnected()):
            while True:
                await changed.wait()
                changed.clear()
                if self._scene is not None:
                    await socket.send_bytes(self._scene)


def _equal(received: str, token: str) -> bool:
    """Compares a token in constant time."""
    return hmac.compare_digest(received.encode("utf-8", "surrogateescape"), token.encode())


def _address(socket: WebSocket) -> str:
    return "unknown" if socket.client is None else f"{socket.client.host}:{socket.client.port}"


def _disconnected() -> type[Exception]:
    from starlette.websockets import WebSocketDisconnect

    return WebSocketDisconnect


async def _close(socket: WebSocket, code: int, why: str) -> None:
    # A peer that has disconnected already cannot be told.
    with contextlib.suppress(RuntimeError, OSError, _disconnected()):
        await socket.close(code, why[:100])
