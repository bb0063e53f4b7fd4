"""Messages arrive as they were sent, through shared memory or inside the frame, and no bytes of
another side do harm."""

import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robots.errors import HandoffError
from robots.wire.policy import pack
from sim.servers import channel as channels
from sim.servers.channel import Channel, ClosedChannelError, SilentChannelError


@pytest.fixture(params=["shared", "remote"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    one, two = (Channel(end, shared=request.param == "shared") for end in socket.socketpair())
    yield one, two
    one.close()
    two.close()


def arrays(size: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    return {
        "a": rng.normal(size=(size, 2)),
        "none": np.zeros((0, 4), np.float32),
        "bytes": rng.integers(0, 255, (size, 5), dtype=np.uint8),
        "flags": rng.random(size) > 0.5,
        "across": rng.normal(size=(2, size)).T,
        "number": np.array(7, np.int64),
    }


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
        assert (array.dtype, array.shape) == (two[name].dtype, two[name].shape)


def test_messages_and_arrays_arrive_as_they_were_sent(pair: tuple[Channel, Channel]):
    here, there = pair
    kept = []
    for size in (3, 5, 3, 4000, 5):
        sent = arrays(size)
        here.send({"call": "steps", "size": size}, sent)
        message, received = there.receive(5.0)
        assert message == {"call": "steps", "size": size}
        same(sent, received)
        kept.append((sent, received))
        there.send({"answer": "arrays"}, {"b": sent["a"] + 1.0})
        same({"b": sent["a"] + 1.0}, here.receive(5.0)[1])
    for sent, received in kept:
        same(sent, received)
    here.send({"call": "save"})
    assert there.receive(5.0) == ({"call": "save"}, {})


def test_received_arrays_belong_to_the_receiver(pair: tuple[Channel, Channel]):
    here, there = pair
    here.send({}, arrays())
    _, received = there.receive(5.0)
    received["a"][:] = 0.0
    here.send({}, arrays())
    same(arrays(), there.receive(5.0)[1])


def test_a_layout_is_sent_once(monkeypatch: pytest.MonkeyPatch):
    one, two = (Channel(end, shared=True) for end in socket.socketpair())
    sizes = []
    monkeypatch.setattr(
        channels, "pack", lambda frame: sizes.append(len(pack(frame))) or pack(frame)
    )
    for _ in range(3):
        one.send({}, arrays())
        two.receive(5.0)
    assert sizes[1] == sizes[2] < 30 < sizes[0]
    for size in range(1, channels.MOST_LAYOUTS + 9):
        for _ in range(2):
            one.send({}, {"a": np.full(size, 1.0)})
            same({"a": np.full(size, 1.0)}, two.receive(5.0)[1])
    assert len(two._received_layouts) == channels.MOST_LAYOUTS
    one.close()
    two.close()


def test_closing_leaves_no_descriptor(pair: tuple[Channel, Channel]):
    before = len(os.listdir("/proc/self/fd"))
    for shared in (True, False):
        one, two = (Channel(end, shared=shared) for end in socket.socketpair())
        for size in (3, 4000):
            one.send({}, arrays(size))
            two.receive(5.0)
        for end in (one, two, one):
            end.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_of_objects_are_not_sent(pair: tuple[Channel, Channel]):
    with pytest.raises(HandoffError, match="object"):
        pair[0].send({}, {"a": np.array([{}, None])})


def test_no_answer_and_a_closed_connection_are_different_errors(pair: tuple[Channel, Channel]):
    here, there = pair
    with pytest.raises(SilentChannelError):
        here.receive(0.05)
    there.end_requests()
    with pytest.raises(ClosedChannelError):
        here.receive(5.0)
    there.close()
    with pytest.raises(ClosedChannelError):
        here.send({}, {})


def test_a_side_that_does_not_receive_is_an_error_in_time():
    ends = socket.socketpair()
    here = Channel(ends[0], shared=False, seconds=0.1)
    with pytest.raises(SilentChannelError, match="does not receive"):
        here.send({}, {"a": np.zeros(10**6)})
    for end in ends:
        end.close()


def receive(frame: bytes, *, shared: bool, descriptor: int | None = None) -> None:
    ends = socket.socketpair()
    there = Channel(ends[1], shared=shared)

    def send() -> None:
        header = len(frame).to_bytes(8, "big")
        if descriptor is None:
            ends[0].sendall(header + frame)
        else:
            socket.send_fds(ends[0], [header], [descriptor])
            ends[0].sendall(frame)
        ends[0].close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        there.receive(5.0)
    finally:
        thread.join()
        there.close()


ENTRY = ["a", "<f8", [4], 0, 32]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"message": 3}, "without a message"),
        ([], "without a message"),
        ({"message": {}, "number": 0}, "was not sent"),
        ({"message": {}, "number": "x"}, "was not sent"),
        ({"message": {}, "layout": [ENTRY]}, "beyond the shared memory"),
        ({"message": {}, "layout": 7}, "invalid layout"),
        ({"message": {}, "layout": [ENTRY[:3]]}, "invalid layout"),
        ({"message": {}, "layout": [["a", "<f8", [4], -64, 32]]}, "invalid layout"),
        ({"message": {}, "layout": [["a", "<f8", [-4], 0, 32]]}, "invalid layout"),
        ({"message": {}, "layout": [["a", "<f8", [5], 0, 32]]}, "invalid layout"),
        ({"message": {}, "layout": [["a", "|O", [4], 0, 32]]}, "only numbers"),
        ({"message": {}, "layout": [["a", "what", [4], 0, 32]]}, "invalid layout"),
        ({"message": {}, "arrays": {"a": 3}}, "whose arrays are none"),
    ],
)
def test_an_invalid_frame_is_refused(frame: object, message: str):
    with pytest.raises(HandoffError, match=message):
        receive(pack(frame), shared=True)


def test_memory_that_is_smaller_than_stated_is_refused():
    descriptor = os.memfd_create("small")
    os.truncate(descriptor, 4096)
    try:
        frame = {"message": {}, "block": 10**9, "layout": [ENTRY]}
        with pytest.raises(HandoffError, match="cannot be opened"):
            receive(pack(frame), shared=True, descriptor=descriptor)
    finally:
        os.close(descriptor)


@given(frame=st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_clear_error(frame: bytes):
    for shared in (True, False):
        try:
            receive(frame, shared=shared)
        except HandoffError:
            continue


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read():
    ends = socket.socketpair()
    there = Channel(ends[1], shared=False)
    ends[0].sendall((2**62).to_bytes(8, "big"))
    with pytest.raises(HandoffError, match="at most"):
        there.receive(5.0)
    for end in ends:
        end.close()
