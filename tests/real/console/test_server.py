"""The server in its own process, with real websockets: pages, the robot's side, cameras, and what
goes wrong."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from real.console.client import ConsoleClient, ConsoleClientConfig
from real.console.control.bindings import DEFAULTS, stored_bindings
from real.console.control.commands import ControlCommand, Mode
from real.console.messages import read_command
from real.console.process import ROBOT_VARIABLE, OpenConsole, console_address, open_console
from real.console.server import ENDED, KILLED, ConsoleConfig, ConsoleServer
from robots.errors import HandoffError
from robots.interfaces import Label
from robots.wire.policy import pack, unpack
from tests.real.console.pages import CuttableLine, Page, logged, until


@pytest.fixture
def page(opened: OpenConsole, robot: ConsoleClient) -> Iterator[Page]:
    page = Page(opened)
    with contextlib.closing(page.socket):
        yield page


def driven(page: Page, robot: ConsoleClient) -> None:
    """The arm is in the person's hand."""
    page.go()
    until(lambda: robot.command().mode is Mode.POLICY)
    page.keys("ArrowUp")
    until(lambda: robot.command().mode is Mode.PERSON)


def held(robot: ConsoleClient) -> float:
    """Waits until the robot's side holds still; how fast that is, `tests.benchmarks.console`
    tells."""
    return until(lambda: robot.command().mode is Mode.HOLD)


def test_a_key_reaches_the_robot_with_its_persons_name(page, robot):
    driven(page, robot)
    command = robot.command()
    assert (command.person, command.sequence) == ("ada", page.sequence)
    assert command.hand.twist.tolist() == [1, 0, 0, 0, 0, 0]


def test_the_line_is_told_again_and_again_while_nothing_changes(page, robot):
    page.go()
    until(lambda: robot.command().mode is Mode.POLICY)
    for _ in range(20):
        time.sleep(0.03)
        page.keys()
        assert robot.command().mode is Mode.POLICY


def test_silence_ends_in_hold(page, robot, folder):
    driven(page, robot)
    held(robot)
    assert "silent" in logged(folder, "hold")[-1]["why"]


def test_a_closed_page_ends_in_hold(page, robot, folder):
    driven(page, robot)
    page.socket.close()
    held(robot)
    assert logged(folder, "left")


def test_a_connection_that_breaks_ends_in_hold(page, robot):
    driven(page, robot)
    page.socket.socket.close()
    held(robot)


def test_a_cut_line_ends_in_hold(opened, robot, folder):
    url, _, token = opened.url.partition("/#")
    relay = CuttableLine(int(url.rpartition(":")[2]))
    far = Page(opened._replace(url=f"http://127.0.0.1:{relay.port}/#{token}"))
    with contextlib.closing(relay):
        driven(far, robot)
        relay.cut()
        for _ in range(5):
            far.keys("ArrowUp")
        held(robot)
    assert "silent" in logged(folder, "hold")[-1]["why"]


def test_a_hidden_page_ends_in_hold(page, robot):
    driven(page, robot)
    page.keys("ArrowUp", visible=False)
    held(robot)


def test_control_that_is_taken_ends_in_hold(page, robot, opened, folder):
    driven(page, robot)
    bob = Page(opened, "bob")
    with contextlib.closing(bob.socket):
        bob.say(kind="claim", force=True)
        page.keys("ArrowUp")
        held(robot)
        assert logged(folder, "has control")[-1]["who"] == "bob"


def test_a_wrong_token_ends_in_hold_and_the_door(page, robot, opened, folder):
    driven(page, robot)
    thief = Page(opened, "thief", token="x" * 24)
    held(robot)
    assert thief.close_code() == 4401
    assert logged(folder, "refused")[-1]["why"] == "wrong token"


def test_a_robot_with_a_wrong_token_is_refused(page, robot, opened, folder):
    driven(page, robot)
    with connect(opened.uri) as socket:
        socket.send(pack({"kind": "hello", "role": "robot", "token": "x" * 24, "about": {}}))
        held(robot)
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5.0)
    assert logged(folder, "refused")


def test_a_flood_ends_in_hold_and_the_door(page, robot, folder):
    driven(page, robot)
    with contextlib.suppress(ConnectionClosed):
        for _ in range(2000):
            page.keys("ArrowUp")
    held(robot)
    flooded, stopped = logged(folder, "flooded")[0], logged(folder, "hold")[-1]
    assert "too many messages" in stopped["why"]
    assert flooded["who"] == "ada"
    assert page.close_code() == 4429


UNREADABLE = [
    "{",
    "[]",
    "[" * 3000,
    '{"kind": "fly"}',
    '{"kind": "inputs"}',
    '{"kind": "inputs", "sequence": 1, "visible": true, "axes": [NaN]}',
    '{"kind": "hello"}',
    f'{{"kind": "press", "action": "{"x" * 5000}"}}',
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_ends_in_hold_and_the_door(page, robot, text):
    driven(page, robot)
    page.socket.send(text)
    held(robot)
    assert page.close_code() == 4400


def test_a_page_of_another_site_is_turned_away_and_nothing_happens(page, robot, opened, folder):
    driven(page, robot)
    with pytest.raises(InvalidStatus):
        Page(opened, origin="http://example.org")  # type: ignore[arg-type]
    page.keys("ArrowUp")
    assert robot.command().mode is Mode.PERSON
    assert logged(folder, "turned away")[-1]["why"] == "a page of http://example.org"


def test_a_label_arrives_once(page, robot):
    robot.describe({"kind": "begin", "told": {"episode": 3}})
    # Of an earlier episode labels may be allowed, too.
    until(lambda: page.newest().get("about", {}).get("episode") == 3)
    until(lambda: page.newest()["labels"])
    page.go()
    page.keys("KeyS")
    page.keys()
    page.keys("KeyS")
    until(lambda: robot.command().label_number == 1)
    assert robot.command().label is Label.SUCCESS
    assert robot.command().episode == 3


def test_pages_are_told_of_steps_and_ends(page, robot):
    step = {
        "episode": 0,
        "step": 1,
        "reward": 0.5,
        "probability": None,
        "person": True,
        "hand": 0.08,
        "sequence": 3,
    }
    robot.send({"kind": "step", "told": step})
    end = {
        "episode": 0,
        "success": True,
        "label": "none",
        "steps": 9,
        "corrected": 3,
        "takeovers": 1,
    }
    robot.send({"kind": "end", "told": {**end, "seconds": 2.5, "dropped": False}})
    seen: dict[str, Any] = {}
    while not seen.get("episodes"):
        seen |= page.state()
    assert seen["state"]["step"] == 1
    assert seen["about"]["task"] == "reach"
    assert seen["counters"]["success"] == 1.0
    assert seen["counters"]["corrected"] == pytest.approx(1 / 3)
    assert seen["counters"]["low"] == pytest.approx(0.2065, abs=1e-4)


def test_a_page_that_comes_late_gets_the_whole_episode(opened, robot):
    for number in range(5):
        told = {
            "episode": 7,
            "step": number,
            "reward": float(number),
            "person": False,
            "sequence": -1,
        }
        robot.send({"kind": "step", "told": told})
    time.sleep(0.1)
    page = Page(opened)
    with contextlib.closing(page.socket):
        assert [row[1] for row in page.state()["steps"]] == [0, 1, 2, 3, 4]


def test_frames_go_to_every_page_and_scenes_to_every_camera(page, robot, opened):
    other = Page(opened, "bob")
    with contextlib.closing(other.socket), connect(opened.uri) as camera:
        camera.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        robot.send({"kind": "status"}, scene=pack({"qpos": 1}))
        scene = camera.recv(timeout=5.0)
        assert isinstance(scene, bytes)
        assert unpack(scene) == {"qpos": 1}
        camera.send(b"\x05wristjpeg")
        assert page.frame() == other.frame() == b"\x05wristjpeg"


def test_a_camera_that_reads_nothing_keeps_nobody_waiting(page, robot, opened):
    with connect(opened.uri, max_queue=1, close_timeout=0.2) as camera:
        camera.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        step = {"episode": 1, "reward": 0.0, "person": False}
        for number in range(200):
            robot.send({"kind": "step", "told": {**step, "step": number}}, scene=bytes(200_000))
            time.sleep(0.002)
        until(lambda: page.state()["state"].get("step") == 199)


def test_a_robots_side_of_another_version_is_shut_out_and_the_pages_stay(page, robot):
    until(lambda: page.state()["robot"])
    robot.send({"kind": "end", "told": {"success": True}})
    until(lambda: not page.state()["robot"])
    until(lambda: page.state()["robot"])


def test_a_killed_server_is_held_noticed_and_started_again(page, robot, opened, folder):
    driven(page, robot)
    killed = opened.process.pid
    os.kill(killed, signal.SIGKILL)
    held(robot)
    until(lambda: robot.connection == 2, 20.0)
    assert opened.process.pid != killed
    again = Page(opened)
    with contextlib.closing(again.socket):
        assert again.state()["mode"] == "hold"
        driven(again, robot)
    assert logged(folder, "took the arm over")


def test_bindings_outlive_the_server(opened, robot, page, folder):
    page.say(kind="bind", action="forward", input="key KeyW")
    until(lambda: (folder / "bindings.json").exists())
    with open_console(ConsoleConfig(port=0), folder) as later:
        line = ConsoleClient(later.client_config(), later.robot_token, {})
        line.start()
        second = Page(later)
        with contextlib.closing(second.socket), contextlib.closing(line):
            until(lambda: line.connection == 1)
            assert second.state()["bindings"]["forward"][0] == "key KeyW"


def refusal(page: Page) -> dict[str, Any]:
    """What the page is told about a binding that was refused."""
    while True:
        state = page.state()
        page.keys()
        if "refused" in state:
            return state["refused"]


def test_a_refused_binding_is_told_to_the_page_that_asked_and_changes_nothing(page, robot, folder):
    page.say(kind="restore")
    page.say(kind="bind", action="left", input="key Escape", swap=True)
    assert refusal(page) == {
        "why": "Escape is bound to Hold, which keeps its inputs. Choose another input.",
        "swap": False,
    }
    page.say(kind="bind", action="forward", input="key KeyS")
    assert refusal(page) == {"why": "S is bound to Success. Swap?", "swap": True}
    assert stored_bindings(folder / "bindings.json").inputs == DEFAULTS
    driven(page, robot)
    page.keys("Escape")
    held(robot)


def test_a_swap_and_the_defaults_are_stored(page, robot, folder):
    page.say(kind="bind", action="forward", input="key KeyS", swap=True)
    until(
        lambda: (
            stored_bindings(folder / "bindings.json").inputs["success"]
            == ("key ArrowUp", "button 3")
        )
    )
    page.say(kind="restore")
    until(lambda: stored_bindings(folder / "bindings.json").inputs == DEFAULTS)


def test_a_stored_map_without_a_stop_key_ends_the_start_in_one_line(tmp_path):
    (tmp_path / "bindings.json").write_text('{"hold still": ["key KeyX"]}')
    told = r"'key Escape' does nothing, expected 'hold still'.* Delete the file"
    with pytest.raises(HandoffError, match=told), open_console(ConsoleConfig(port=0), tmp_path):
        pass


def test_another_address_needs_a_token_of_ones_own(folder, monkeypatch):
    monkeypatch.delenv("HANDOFF_TOKEN", raising=False)
    with (
        pytest.raises(HandoffError, match="HANDOFF_TOKEN"),
        open_console(ConsoleConfig(host="0.0.0.0"), folder),
    ):
        pass


def test_a_port_that_another_session_has_is_refused_at_once(opened, tmp_path):
    port = int(opened.url.partition("/#")[0].rpartition(":")[2])
    refused = rf"127.0.0.1:{port}: another program has port {port}.*--port 0"
    with (
        pytest.raises(HandoffError, match=refused),
        open_console(ConsoleConfig(port=port), tmp_path),
    ):
        pass
    assert not (tmp_path / "audit.jsonl").exists()


def test_an_address_of_another_computer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDOFF_TOKEN", "x" * 24)
    with (
        pytest.raises(HandoffError, match=r"cannot listen at 192\.0\.2\.1:\d+"),
        open_console(ConsoleConfig(host="192.0.2.1"), tmp_path),
    ):
        pass


def test_a_session_without_a_console_says_so(monkeypatch):
    monkeypatch.delenv(ROBOT_VARIABLE, raising=False)
    with pytest.raises(HandoffError, match="no console is open"):
        console_address()


def test_without_a_console_the_arm_holds_still():
    line = ConsoleClient(ConsoleClientConfig(uri="ws://127.0.0.1:9/robot"), "x" * 24, {})
    line.start()
    assert line.command().mode is Mode.HOLD
    line.close()


def test_the_page_asks_nobody_else_for_anything():
    from real.console.app import STATIC

    for path in STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert (
            "//" not in text.replace("${", "").replace("// ", "").replace('"wss" : "ws"}://', "")
            or ".js" in path.name
        )
        assert "http:" not in text
        assert "https://" not in text


@pytest.mark.parametrize("message", [None, {"kind": "hold", "why": "nothing heard"}])
def test_a_hold_reaches_the_robot_however_soon_a_person_goes_on(tmp_path, message):
    """The robot's side holds by itself until it is told to hold."""

    class Robot:
        """A robot's end; with the sending of commands at their rate left out."""

        def __init__(self) -> None:
            self.scope: dict[str, Any] = {}
            self.client = None
            self.commands: list[ControlCommand] = []
            hello = {"kind": "hello", "role": "robot", "token": "r" * 32, "about": {}}
            self.sends = [hello, *([] if message is None else [message])]

        async def accept(self) -> None: ...

        async def close(self, code: int, why: str) -> None: ...

        async def receive_bytes(self) -> bytes:
            if not self.sends:
                raise OSError
            return pack(self.sends.pop(0))

        async def send_bytes(self, data: bytes) -> None:
            self.commands.append(read_command(unpack(data)))
            # A person answers in the same moment.
            server.arbiter.motion.mode = Mode.POLICY

    server = ConsoleServer(ConsoleConfig(), "p" * 32, "r" * 32, "c" * 32, tmp_path)
    robot = Robot()
    asyncio.run(server.robot(cast(WebSocket, robot)))
    assert [command.mode for command in robot.commands] == [Mode.HOLD] * (1 + bool(message))


def test_a_server_that_is_started_again_knows_the_episodes_that_ended(opened, robot, page, folder):
    report = {
        "success": True,
        "label": "success",
        "steps": 10,
        "corrected": 4,
        "takeovers": 1,
        "seconds": 0.5,
        "dropped": False,
    }
    before = len(logged(folder, "episode ended")) + 1
    robot.send({"kind": "end", "told": {**report, "episode": 0}})
    until(lambda: len(logged(folder, "episode ended")) == before)
    connection = robot.connection
    os.kill(opened.process.pid, signal.SIGKILL)
    until(lambda: robot.connection > connection, 30.0)
    again = Page(opened)
    with contextlib.closing(again.socket):
        state = again.newest()
        assert len(state["episodes"]) == before
        assert state["episodes"][-1] == report
        assert state["counters"]["episodes"] >= 1


SESSION = """
import sys, time
from pathlib import Path
from real.console.process import open_console
from real.console.server import ConsoleConfig

if __name__ == "__main__":
    with open_console(ConsoleConfig(port=0), Path(sys.argv[1])) as opened:
        print(opened.url, flush=True)
        time.sleep(60.0)
"""


def test_a_session_that_is_killed_is_not_said_to_be_over(tmp_path):
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as session:
        assert session.stdout is not None
        address: Any = SimpleNamespace(url=session.stdout.readline().strip())
        page = Page(address)
        page.state()
        session.kill()
        assert page.close_code() == ENDED
    assert page.socket.close_reason == KILLED
