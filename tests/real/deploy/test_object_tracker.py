"""A tracker over a real websocket: fresh poses only."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from websockets.sync.server import serve

from real.deploy.object_tracker import RemoteTracker
from real.deploy.tracked_field import TrackerConfig, board_field
from robots.errors import HandoffError, SafetyError
from robots.wire.policy import pack
from tests.real.console.pages import until

POSE = [0.2, 0.3, 0.5]


def board_tracker(config: TrackerConfig) -> RemoteTracker:
    return RemoteTracker(config, [board_field(config)])


class Lab:
    """Sends the message, with the next number of a picture if it is a map, a hundred times a second
    to whoever connects, until it is `silent`."""

    def __init__(self, word=None, first=None):
        self.word = {"pose": POSE} if word is None else word
        self.first = first
        self.frame = 0
        self.stuck = False
        self.silent = threading.Event()
        self.connections = 0

    def handle(self, connection):
        self.connections += 1
        number = self.connections
        if self.first is not None:
            connection.send(pack(self.first))
        while number == self.connections and not self.silent.is_set():
            self.frame += not self.stuck
            word = self.word
            if isinstance(word, dict):
                word = pack({**({} if "age" in word else {"frame": self.frame}), **word})
            connection.send(word)
            time.sleep(0.01)
        if self.silent.is_set():
            time.sleep(0.3)


@contextmanager
def running(lab: Lab) -> Iterator[str]:
    with serve(lab.handle, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


def test_the_newest_pose_is_told():
    lab = Lab()
    with running(lab) as uri, board_tracker(TrackerConfig(uri=uri)) as tracker:
        np.testing.assert_array_equal(tracker.read("pose"), POSE)
        lab.word = {"pose": np.array([0.201, 0.3, 0.5])}
        until(lambda: tracker.read("pose")[0] == 0.201)


def test_a_pose_that_is_old_is_refused():
    lab = Lab()
    with running(lab) as uri, board_tracker(TrackerConfig(uri=uri, max_age=0.1)) as tracker:
        lab.silent.set()
        time.sleep(0.25)
        with pytest.raises(SafetyError, match=r"newest pose is 0\.\d+ s old, limit 0.1 s"):
            tracker.read("pose")


def test_a_lost_connection_is_made_again():
    lab = Lab()
    with running(lab) as uri, board_tracker(TrackerConfig(uri=uri, wait=0.01)) as tracker:
        lab.connections += 1  # the first handler returns, which closes its connection
        until(lambda: lab.connections >= 3)
        np.testing.assert_array_equal(tracker.read("pose"), POSE)


@pytest.mark.parametrize(
    "word",
    [
        {"pose": [0.1, 0.2]},
        {"pose": [0.1, 0.2, float("nan")]},
        {"pose": POSE, "frame": None},
        {"pose": POSE, "frame": 1.5},
        {"pose": POSE, "age": -1.0},
        {"pose": POSE, "age": float("nan")},
        {"pose": [9.0, 0.2, 0.0]},
        {"pose": [0.2, 0.2, 1e6]},
        pack([1, 2, 3]),
        "hello",
        b"\xc1",
    ],
)
def test_frames_without_a_pose_are_no_pose(word):
    with running(Lab(word)) as uri, pytest.raises(HandoffError, match=r"no pose within 0\.4 s"):
        board_tracker(TrackerConfig(uri=uri, first_seconds=0.4, wait=0.01)).__enter__()


@pytest.mark.parametrize("uri", ["ws://127.0.0.1:9", "somewhere"])
def test_nobody_there_is_one_clear_error(uri):
    with pytest.raises(HandoffError, match="Is it running, and is what it tracks in view"):
        board_tracker(TrackerConfig(uri=uri, first_seconds=0.5, wait=0.01)).__enter__()


@pytest.fixture
def tracked() -> Iterator[tuple[Lab, RemoteTracker]]:
    lab = Lab()
    with (
        running(lab) as uri,
        board_tracker(TrackerConfig(uri=uri, max_age=0.1, wait=0.01)) as tracker,
    ):
        yield lab, tracker


def refused(tracker: RemoteTracker) -> str:
    """Waits until the newest pose is too old; returns the message."""
    messages: list[str] = []

    def is_old() -> bool:
        try:
            tracker.read("pose")
        except SafetyError as error:
            messages.append(str(error))
        return bool(messages)

    until(is_old, 3.0)
    return messages[0]


def test_a_tracker_that_repeats_its_last_picture_is_as_old_as_it(tracked):
    lab, tracker = tracked
    lab.stuck = True
    assert "it repeats an old picture" in refused(tracker)


def test_a_standing_picture_with_a_rising_age_is_old(tracked):
    lab, tracker = tracked
    lab.word = {"pose": POSE, "age": 0.2, "frame": lab.frame}
    assert "it repeats an old picture" in refused(tracker)


def test_a_message_that_is_sent_again_and_again_is_no_news():
    lab = Lab({"pose": POSE, "age": 0.01})
    with running(lab) as uri, board_tracker(TrackerConfig(uri=uri, max_age=0.1)) as tracker:
        assert "it repeats an old picture" in refused(tracker)


def test_the_age_that_a_tracker_tells_counts():
    lab = Lab({"pose": POSE, "age": 0.3})
    with running(lab) as uri, board_tracker(TrackerConfig(uri=uri, max_age=0.25)) as tracker:
        assert "newest pose is 0.3" in refused(tracker)


@pytest.mark.parametrize("pose", [[9.0, 0.3, 0.5], [-0.01, 0.3, 0.5], [0.2, 0.52, 0.5]])
def test_a_pose_off_the_board_is_not_taken(tracked, pose):
    lab, tracker = tracked
    lab.word = {"pose": pose}
    assert "is off the board, [0.0, 0.0] to [0.512, 0.512]" in refused(tracker)


@pytest.mark.parametrize("pose", [[0.45, 0.3, 0.5], [0.2, 0.3, 3.6]])
def test_a_jump_is_not_taken_at_once_and_later_it_is(tracked, pose):
    lab, tracker = tracked
    lab.word = {"pose": pose}
    seen: list[str] = []

    def arrives() -> bool:
        try:
            return tracker.read("pose").tolist() == pose
        except SafetyError as error:
            seen.append(str(error))
            return False

    until(arrives, 3.0)
    assert any("rad from that of" in text for text in seen)


def test_an_angle_that_passes_a_whole_turn_is_no_jump(tracked):
    lab, tracker = tracked
    turned = [*POSE[:2], POSE[2] - 2.0 * np.pi]
    lab.word = {"pose": turned}
    until(lambda: tracker.read("pose").tolist() == turned, 3.0)


def test_a_tracker_that_was_started_again_counts_anew(tracked):
    lab, tracker = tracked
    until(lambda: lab.frame > 20)
    lab.frame = 0
    lab.connections += 1
    until(lambda: lab.connections >= 3)
    time.sleep(0.2)
    np.testing.assert_array_equal(tracker.read("pose"), POSE)


def test_a_token_that_nobody_asks_for_is_no_pose():
    with running(Lab(first={"token": ""})) as uri, board_tracker(TrackerConfig(uri=uri)) as tracker:
        np.testing.assert_array_equal(tracker.read("pose"), POSE)


def test_a_tracker_at_another_computer_needs_a_token(monkeypatch):
    monkeypatch.delenv("HANDOFF_TRACKER_TOKEN", raising=False)
    with pytest.raises(HandoffError, match=r"192\.168\.1\.20.* needs a token"):
        board_tracker(TrackerConfig(uri="ws://192.168.1.20:8765"))


def test_a_token_is_wanted_where_there_is_one(monkeypatch):
    monkeypatch.setenv("HANDOFF_TRACKER_TOKEN", "x" * 24)
    with (
        running(Lab(first={"token": "x" * 24})) as uri,
        board_tracker(TrackerConfig(uri=uri)) as tracker,
    ):
        np.testing.assert_array_equal(tracker.read("pose"), POSE)
    for first in (None, {"token": "y" * 24}, {"token": 5}):
        with (
            running(Lab(first=first)) as uri,
            pytest.raises(HandoffError, match="does not show the token of"),
        ):
            board_tracker(TrackerConfig(uri=uri, first_seconds=0.3, wait=0.01)).__enter__()
