"""Strangers at the console's sockets: other sites, half-open connections, floods, oversized and
malformed greetings, a full disk. Limits hold, and the arm holds or goes on as its person wants."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from real.console import client as clients
from real.console.audit import AuditLog, read_audit
from real.console.client import ConsoleClient
from real.console.control.arbiter import ArbiterConfig, ControlArbiter
from real.console.control.bindings import Bindings
from real.console.control.commands import STILL, ControlCommand, Mode
from real.console.control.people import MOST_REFUSALS
from real.console.messages import read_inputs
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from robots.errors import HandoffError
from robots.interfaces import Label
from robots.wire.policy import pack
from robots.wire.web_server import FIRST_MESSAGE, MOST_CONNECTIONS, REQUEST_SECONDS
from tests.real.console.pages import Page, logged, until
from tests.real.console.test_server import driven, held

EVIL = "https://evil.example"
PATHS = ("/page", "/robot", "/scene/key")


@pytest.fixture
def page(opened: OpenConsole, robot: ConsoleClient) -> Iterator[Page]:
    page = Page(opened)
    with contextlib.closing(page.socket):
        yield page


def base(opened: OpenConsole) -> str:
    return opened.url.partition("/#")[0].replace("http", "ws")


def port(opened: OpenConsole) -> int:
    return int(base(opened).rpartition(":")[2])


# Other sites


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_another_site_opens_no_socket_and_moves_and_holds_nothing(
    page: Page, robot: ConsoleClient, opened: OpenConsole, path: str
) -> None:
    driven(page, robot)
    with pytest.raises(InvalidStatus):
        connect(base(opened) + path, origin=EVIL)  # type: ignore[arg-type]
    page.keys("ArrowUp")
    assert robot.command().mode is Mode.PERSON


@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_is_not_this_computers_opens_no_socket(
    page: Page, robot: ConsoleClient, opened: OpenConsole, path: str
) -> None:
    """DNS rebinding: the browser takes the page and the server for one site."""
    driven(page, robot)
    number = port(opened)
    with (
        socket.create_connection(("127.0.0.1", number)) as line,
        pytest.raises(InvalidStatus),
    ):
        connect(
            f"ws://evil.example:{number}{path}",
            sock=line,
            origin=f"http://evil.example:{number}",  # type: ignore[arg-type]
        )
    page.keys("ArrowUp")
    assert robot.command().mode is Mode.PERSON


def test_the_page_itself_is_not_given_to_another_name(opened: OpenConsole) -> None:
    answer = ask(opened, b"GET / HTTP/1.1\r\nHost: evil.example:1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 421")
    assert b"HANDOFF_HOST_NAMES" in answer
    assert ask(opened, b"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n").startswith(b"HTTP/1.1 200")


def ask(opened: OpenConsole, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port(opened)), 5.0) as line:
        line.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        return b"".join(iter(lambda: line.recv(4096), b""))


# Tokens


def test_a_cameras_token_does_not_make_a_robot(
    page: Page, robot: ConsoleClient, opened: OpenConsole
) -> None:
    driven(page, robot)
    with connect(opened.uri) as camera:
        hello = {"kind": "hello", "role": "robot", "token": opened.camera_token, "about": {}}
        camera.send(pack(hello))
        with pytest.raises(ConnectionClosed):
            camera.recv(timeout=5.0)
        held(robot)
    assert robot.connection == 1, "the robot's side was not replaced"


def test_a_robots_token_sends_no_images(opened: OpenConsole) -> None:
    with connect(opened.uri) as stranger:
        stranger.send(pack({"kind": "hello", "role": "camera", "token": opened.robot_token}))
        with pytest.raises(ConnectionClosed):
            stranger.recv(timeout=5.0)


# Greetings and messages that are none


@pytest.mark.parametrize(
    "greeting", [pack([1, 2]), pack({"role": ["robot"], "token": {}}), b"\x00", b""]
)
def test_a_greeting_that_is_none_holds_the_arm_and_is_written_down(
    page: Page, robot: ConsoleClient, opened: OpenConsole, folder: Path, greeting: bytes
) -> None:
    driven(page, robot)
    before = len(logged(folder, "refused"))
    with connect(opened.uri) as stranger:
        stranger.send(greeting)
        held(robot)
        with pytest.raises(ConnectionClosed):
            stranger.recv(timeout=5.0)
    until(lambda: len(logged(folder, "refused")) > before)


def test_a_greeting_with_an_about_that_is_no_map_is_none(opened: OpenConsole) -> None:
    with connect(opened.uri) as stranger:
        stranger.send(pack({"role": "robot", "token": opened.robot_token, "about": 5}))
        with pytest.raises(ConnectionClosed) as closed:
            stranger.recv(timeout=5.0)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4400


@pytest.mark.parametrize("path", ["/page", "/robot"])
def test_a_large_first_message_is_not_even_read(
    page: Page, robot: ConsoleClient, opened: OpenConsole, path: str
) -> None:
    driven(page, robot)
    with connect(base(opened) + path) as stranger:
        with contextlib.suppress(ConnectionClosed):
            stranger.send("x" * (FIRST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed):
            stranger.recv(timeout=5.0)
    assert stranger.close_code == 1009, "too big"


def test_a_number_that_no_float_holds_is_an_unreadable_input() -> None:
    message = {"sequence": 1, "visible": True, "axes": [10**400]}
    with pytest.raises(HandoffError, match="expected a number"):
        read_inputs(json.loads(json.dumps(message)))


# Half-open connections and floods


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_half_open_connections_are_closed_and_the_arm_goes_on(
    page: Page, robot: ConsoleClient, opened: OpenConsole, begun: bytes
) -> None:
    driven(page, robot)
    lines = [socket.create_connection(("127.0.0.1", port(opened)), 5.0) for _ in range(60)]
    try:
        for line in lines:
            line.sendall(begun)
            line.setblocking(False)
        deadline = time.monotonic() + REQUEST_SECONDS + 3.0
        while any(not closed(line) for line in lines):
            assert time.monotonic() < deadline, "half-open connections were not closed"
            page.keys("ArrowUp")
            assert robot.command().mode is Mode.PERSON
            time.sleep(0.05)
    finally:
        for line in lines:
            line.close()


def closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_more_connections_than_the_limit_are_closed_at_once_and_the_arm_goes_on(
    page: Page, robot: ConsoleClient, opened: OpenConsole
) -> None:
    driven(page, robot)
    lines: list[socket.socket] = []
    try:
        for _ in range(200):
            line = socket.create_connection(("127.0.0.1", port(opened)), 5.0)
            line.setblocking(False)
            lines.append(line)
            page.keys("ArrowUp")
            assert robot.command().mode is Mode.PERSON
        until(lambda: sum(map(closed, lines)) >= 200 - MOST_CONNECTIONS, 3.0)
        assert sum(map(closed, lines)) < 200
    finally:
        for line in lines:
            line.close()


def test_a_flood_of_wrong_tokens_fills_no_disk_and_the_arm_holds(
    page: Page, robot: ConsoleClient, opened: OpenConsole, folder: Path
) -> None:
    driven(page, robot)
    size = (folder / "audit.jsonl").stat().st_size
    hello = pack({"kind": "hello", "role": "robot", "token": "x" * 24, "about": {}})
    for _ in range(100):
        with connect(opened.uri, close_timeout=0.1) as stranger:
            stranger.send(hello)
    held(robot)
    grown = (folder / "audit.jsonl").stat().st_size - size
    assert grown < (MOST_REFUSALS + 10) * 250


# A full disk


@contextlib.contextmanager
def full_disk(opened: OpenConsole, folder: Path) -> Iterator[None]:
    """No file of the server's process can grow."""
    pid = opened.process.pid
    assert pid is not None
    usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    size = (folder / "audit.jsonl").stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)


def test_with_a_full_disk_the_arm_holds_within_200_ms_and_goes_on_once_there_is_space(
    page: Page, robot: ConsoleClient, opened: OpenConsole, folder: Path
) -> None:
    driven(page, robot)
    pid = opened.process.pid
    with full_disk(opened, folder):
        began = time.monotonic()
        page.keys("ArrowUp", "Escape")
        while robot.command().mode is not Mode.HOLD:
            assert time.monotonic() - began < 0.2
            time.sleep(0.001)
        # It does not go on without a log, and says why.
        page.keys()
        page.keys("Enter")
        page.keys()
        until(lambda: "audit log cannot be written: File too large" in page.state()["why"])
        assert robot.command().mode is Mode.HOLD
    page.go()
    until(lambda: robot.command().mode is Mode.POLICY)
    assert opened.process.pid == pid, "the same server"


def test_a_policy_at_work_is_held_when_the_log_fails() -> None:
    now, trouble = [0.0], [""]
    arbiter = ControlArbiter(
        ArbiterConfig(), Bindings(), lambda *_: None, lambda: now[0], lambda: trouble[0]
    )
    arbiter.robot_connected(True, "")
    page = arbiter.join("ada", "here")
    arbiter.press(page, "go on")
    arbiter.tick()
    assert arbiter.mode is Mode.POLICY
    trouble[0] = "The audit log cannot be written: No space left on device."
    arbiter.tick()
    assert (arbiter.mode, arbiter.why) == (Mode.HOLD, trouble[0])


def test_the_arm_holds_before_anything_is_written() -> None:
    modes: list[Mode] = []
    arbiter = ControlArbiter(
        ArbiterConfig(), Bindings(), lambda *_: modes.append(arbiter.mode), lambda: 0.0
    )
    arbiter.robot_connected(True, "")
    page = arbiter.join("ada", "here")
    arbiter.press(page, "go on")
    for act in (lambda: arbiter.hold("why"), lambda: arbiter.leave(page, "closed")):
        modes.clear()
        act()
        assert set(modes) == {Mode.HOLD}
        arbiter.motion.mode = Mode.POLICY


def test_a_log_that_cannot_be_written_says_so_and_goes_on_when_it_can(tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = AuditLog(tmp_path / "audit.jsonl")
    log("ada", "joined", {})
    size = (tmp_path / "audit.jsonl").stat().st_size
    try:
        # Room for a part of the next line.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, usual[1]))
        log("ada", "lost", {})
        assert "File too large" in log.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    log("ada", "left", {})
    assert log.trouble == ""
    assert [line["what"] for line in read_audit(tmp_path / "audit.jsonl")] == ["joined", "left"]


# The robot's side


def test_what_was_silent_holds_until_the_console_has_held(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clients.time, "monotonic", lambda: now[0])
    line = ConsoleClient(clients.ConsoleClientConfig(), "x" * 24, {})
    acting = ControlCommand(Mode.POLICY, STILL, "ada", 1, Label.NONE, 0)

    def receive(mode: Mode) -> Mode:
        line._receive(acting._replace(mode=mode))
        return line.command().mode

    assert receive(Mode.POLICY) is Mode.HOLD, "nothing goes on before the first hold"
    assert receive(Mode.HOLD) is Mode.HOLD
    assert receive(Mode.POLICY) is Mode.POLICY
    now[0] += 1.0
    assert line.command().mode is Mode.HOLD
    assert receive(Mode.POLICY) is Mode.HOLD, "by itself it does not go on"
    assert len(line._messages) == 1, "the console is told once"
    assert receive(Mode.HOLD) is Mode.HOLD
    assert receive(Mode.POLICY) is Mode.POLICY
    # A gap that nobody has looked into counts as well.
    now[0] += 1.0
    assert receive(Mode.POLICY) is Mode.HOLD


def test_a_robot_that_heard_nothing_holds_the_console(
    page: Page, robot: ConsoleClient, folder: Path
) -> None:
    driven(page, robot)

    def silent() -> bool:
        # A newer command may arrive in the same moment.
        command, _, number = robot._newest
        robot._newest = (command, -1e9, number)
        return robot.command().mode is Mode.HOLD

    until(silent)
    until(lambda: "The robot heard nothing" in page.state()["why"])
    assert "The robot heard nothing" in logged(folder, "hold")[-1]["why"]


def test_no_proxy_learns_the_token(opened: OpenConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.5)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, address)
        line = ConsoleClient(opened.client_config(), opened.robot_token, {})
        line.start()
        with contextlib.closing(line), pytest.raises(TimeoutError):
            proxy.accept()
        assert line.connection == 1


# The start


@pytest.mark.parametrize(
    ("config", "token", "said"),
    [
        (ConsoleConfig(port=99999), None, "port is 99999, expected 0 to 65535"),
        (ConsoleConfig(port=0), "short", "token"),
    ],
)
def test_a_console_that_cannot_open_says_so_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: ConsoleConfig,
    token: str | None,
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if token is not None:
        monkeypatch.setenv("HANDOFF_TOKEN", token)
    with pytest.raises(HandoffError, match=said) as caught, open_console(config, tmp_path):
        pass
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_every_address_of_the_loopback_needs_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANDOFF_TOKEN", raising=False)
    with open_console(ConsoleConfig(host="127.0.0.7", port=0), tmp_path) as opened:
        assert opened.process.alive()
