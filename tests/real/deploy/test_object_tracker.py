"""A tracker over a real websocket: fresh poses only."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from websockets.sync.server import serve

from real.deploy.object_tracker import RemoteTracker, TrackerConfig
from robots.errors import HandoffError, SafetyError
from robots.wire.policy import pack
from tests.real.console.pages import until

POSE = [0.2, 0.3, 0.5]


class Lab:
    """Sends `word` to whoever connects, a hundred times a second, until it is `silent`."""

    def __init__(self, word=None):
        self.word = pack({"pose": POSE}) if word is None else word
        self.silent = threading.Event()
        self.connections = 0

    def handle(self, connection):
        self.connections += 1
        number = self.connections
        while number == self.connections and not self.silent.is_set():
            connection.send(self.word)
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
    with running(lab) as uri, RemoteTracker(TrackerConfig(uri=uri)) as tracker:
        np.testing.assert_array_equal(tracker.pose(), POSE)
        lab.word = pack({"pose": np.array([0.1, 0.1, 0.0])})
        until(lambda: tracker.pose()[0] == 0.1)


def test_a_pose_that_is_old_is_refused():
    lab = Lab()
    with running(lab) as uri, RemoteTracker(TrackerConfig(uri=uri, max_age=0.1)) as tracker:
        lab.silent.set()
        time.sleep(0.25)
        with pytest.raises(SafetyError, match=r"newest pose is 0\.\d+ s old, limit 0.1 s"):
            tracker.pose()


def test_a_lost_connection_is_made_again():
    lab = Lab()
    with running(lab) as uri, RemoteTracker(TrackerConfig(uri=uri, wait=0.01)) as tracker:
        lab.connections += 1  # the first handler returns, which closes its connection
        until(lambda: lab.connections >= 3)
        np.testing.assert_array_equal(tracker.pose(), POSE)


@pytest.mark.parametrize(
    "word",
    [
        pack({"pose": [0.1, 0.2]}),
        pack({"pose": [0.1, 0.2, float("nan")]}),
        pack([1, 2, 3]),
        "hello",
        b"\xc1",
    ],
)
def test_frames_without_a_pose_are_no_pose(word):
    with running(Lab(word)) as uri, pytest.raises(HandoffError, match=r"no pose within 0\.4 s"):
        RemoteTracker(TrackerConfig(uri=uri, first_seconds=0.4, wait=0.01)).__enter__()


@pytest.mark.parametrize("uri", ["ws://127.0.0.1:9", "somewhere"])
def test_nobody_there_is_one_clear_error(uri):
    with pytest.raises(HandoffError, match="Is it running, and is the board in view"):
        RemoteTracker(TrackerConfig(uri=uri, first_seconds=0.5, wait=0.01)).__enter__()
