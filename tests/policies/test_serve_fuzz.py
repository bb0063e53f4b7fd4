"""No client message stops the server or prevents the answer to the next request."""

import socket

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.served import TOKEN, ask, encode, fields, served


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client() as connection:
        yield connection


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner)
    ),
    max_leaves=8,
)
VALID = encode(fields())
PARTS = st.sampled_from(
    [None, 0, -1, 2**40, "<f4", "|O", "O,O", b"", b"\x00" * 16, [2, 2], [2**62], [-1], []]
)
CRAFTED = st.fixed_dictionaries(
    {b"__ndarray__": PARTS, b"data": PARTS, b"dtype": PARTS, b"shape": PARTS}
)
FRAMES = st.one_of(
    st.binary(max_size=64),
    st.integers(0, len(VALID) - 1).map(lambda end: VALID[:end]),
    st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)).map(
        lambda change: VALID[: change[0]] + bytes([change[1]]) + VALID[change[0] + 1 :]
    ),
    st.sampled_from([b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9"]).map(
        lambda head: head + b"\xff\xff\xff\xff"
    ),
    st.dictionaries(st.sampled_from(["agent", "keypoints", "noise", "seed", "chunk"]), VALUES).map(
        msgpack.packb
    ),
    st.fixed_dictionaries({"agent": CRAFTED, "keypoints": VALUES}).map(msgpack.packb),
    VALUES.map(msgpack.packb),
)


@settings(max_examples=150, deadline=None)
@given(frame=FRAMES)
def test_whatever_a_frame_holds_the_same_client_is_served_after_it(client, frame):
    client.send(frame)
    client.recv(timeout=30.0)
    assert ask(client, fields())["actions"].shape == (15, 2)


@settings(max_examples=30, deadline=None)
@given(data=st.binary(min_size=1, max_size=300), upgrade=st.booleans())
def test_whatever_bytes_come_on_the_socket_the_next_client_is_served(server, data, upgrade):
    handshake = (
        f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Api-Key {TOKEN}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as raw:
        raw.sendall((handshake if upgrade else b"") + data)
    with server.client() as connection:
        assert ask(connection, fields())["actions"].shape == (15, 2)
