"""No arm moves before the pages have recent pictures of every camera, nor after they have none."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from real.cameras.camera_process import frame
from real.console.client import ConsoleClient
from real.console.control.arbiter import ArbiterConfig
from real.console.control.commands import Mode
from real.console.control.picture_watch import PictureWatch
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from robots.wire.policy import pack
from tests.real.console.pages import Page, until

GREY = np.full((4, 4, 3), 128, np.uint8)


class Watch:
    """A watch with a time of its own."""

    def __init__(self, seconds: float | None = 1.0) -> None:
        self.time = 10.0
        self.watch = PictureWatch(seconds, lambda: self.time)


@pytest.fixture
def watched() -> Watch:
    return Watch()


def test_without_cameras_nothing_is_awaited(watched: Watch):
    assert watched.watch.trouble() == ""
    watched.watch.announce(())
    assert watched.watch.trouble() == ""


def test_cameras_that_are_still_to_be_named_are_awaited(watched: Watch):
    watched.watch.await_cameras(None)
    assert watched.watch.trouble() == "Waiting for the first pictures."
    watched.watch.announce(("front", "wrist"))
    assert watched.watch.trouble() == "Waiting for the first picture of 'front'."
    watched.watch.picture("front")
    assert watched.watch.trouble() == "Waiting for the first picture of 'wrist'."
    watched.watch.picture("wrist")
    assert watched.watch.trouble() == ""


def test_a_process_that_cannot_draw_is_not_awaited(watched: Watch):
    watched.watch.await_cameras(None)
    # A camera of its own process is none that is drawn.
    watched.watch.announce((), draws=False)
    assert watched.watch.trouble() == "Waiting for the first pictures."
    watched.watch.announce(())
    assert watched.watch.trouble() == ""


def test_an_old_picture_is_named_with_its_age(watched: Watch):
    watched.watch.announce(("front",))
    watched.watch.picture("front")
    watched.time += 0.9
    assert watched.watch.trouble() == ""
    watched.time += 0.6
    assert watched.watch.trouble() == "No picture of 'front' for 1.5 s."
    watched.watch.announce(("front",))
    assert watched.watch.trouble() == "No picture of 'front' for 1.5 s."
    watched.watch.picture("front")
    assert watched.watch.trouble() == ""


def test_the_next_stage_does_not_wait_for_cameras_that_send_already(watched: Watch):
    watched.watch.announce(("front",))
    watched.watch.picture("front")
    watched.watch.await_cameras(None)
    assert watched.watch.trouble() == ""


def test_a_console_may_move_an_arm_without_pictures():
    watched = Watch(None)
    watched.watch.await_cameras(None)
    assert watched.watch.trouble() == ""


def camera(opened: OpenConsole) -> ClientConnection:
    connection = connect(opened.uri)
    hello = {"kind": "hello", "role": "camera", "token": opened.camera_token, "cameras": ["front"]}
    connection.send(pack(hello))
    return connection


def test_the_arm_waits_for_pictures_and_holds_when_they_stop(tmp_path: Path):
    """Through a server: who joins later sees the newest picture at once."""
    limits = ArbiterConfig(watchdog=2.0)
    with (
        open_console(
            ConsoleConfig(port=0, picture_seconds=1.5, arbiter=limits), tmp_path
        ) as opened,
        contextlib.ExitStack() as stack,
    ):
        about = {"task": "reach", "stage": "test", "rate_hz": 20.0, "cameras": None}
        robot = ConsoleClient(opened.client_config(), opened.robot_token, about)
        robot.start()
        stack.callback(robot.close)
        page = Page(opened)
        stack.callback(page.socket.close)
        until(lambda: page.newest()["robot"])
        page.go()
        until(lambda: page.newest()["why"] == "Waiting for the first pictures.")
        assert page.newest()["trouble"]
        front = camera(opened)
        until(lambda: page.newest()["why"] == "Waiting for the first picture of 'front'.")
        front.send(frame("front", GREY))
        until(lambda: not page.newest()["trouble"])
        # What was in the way at the first Enter is there no more.
        assert page.newest()["why"] == "Ready. Press Enter to start."
        page.go()
        until(lambda: robot.command().mode is Mode.POLICY)
        later = Page(opened, "bob")
        assert later.frame()[1:6] == b"front"
        later.socket.close()
        # No more pictures come, although the camera's process lives.
        until(lambda: robot.command().mode is Mode.HOLD)
        until(lambda: page.newest()["why"].startswith("No picture of 'front' for"))
        front.close()
