"""A policy server in a thread of the test, and connections by an independent client
implementation."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
from websockets.sync.client import connect

from policies.serve import PolicyServer, ServeConfig
from tests.real.fakes import contract

TOKEN = "token-of-the-tests"
CONTRACT = contract()


def shifted(observation, noise):
    """A policy that depends on every input: the newest agent position, a tenth of the noise, the
    mean keypoint."""
    chunk = observation[:, -1:, -2:] + np.float32(0.1) * noise + observation[:, :, :18].mean()
    return chunk.astype(np.float32)


def fields(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "keypoints": rng.standard_normal((2, 9, 2), dtype=np.float32),
        "agent": rng.standard_normal((2, 2), dtype=np.float32),
    }


def flat(observation):
    rows = [observation["keypoints"].reshape(2, 18), observation["agent"]]
    return np.concatenate(rows, axis=1)[None]


class Served:
    def __init__(self, server, port, thread):
        self.server, self.port, self.thread = server, port, thread
        self.uri = f"ws://127.0.0.1:{port}"

    def connect(self, authorization=f"Api-Key {TOKEN}", **options):
        headers = {"Authorization": authorization} if authorization else {}
        return connect(
            self.uri,
            additional_headers=headers,
            compression=None,
            proxy=None,
            close_timeout=5.0,
            **options,
        )

    def client(self):
        """A connection that has read the metadata."""
        connection = self.connect()
        connection.recv(timeout=30.0)
        return connection

    def stop(self):
        self.server.stop()
        self.thread.join(30.0)
        assert not self.thread.is_alive()


@contextmanager
def served(policy=shifted, contract=CONTRACT, **changes):
    server = PolicyServer(policy, contract, replace(ServeConfig(port=0), **changes), TOKEN)
    ready, ports = threading.Event(), []

    def tell(port):
        ports.append(port)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(server.run(tell)), daemon=True)
    thread.start()
    assert ready.wait(30.0)
    running = Served(server, ports[0], thread)
    try:
        yield running
    finally:
        running.stop()


def encode(value) -> bytes:
    """One frame in openpi's form, written without our encoder."""
    frame = msgpack.packb(_plain(value))
    assert frame is not None
    return frame


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        entries = {
            "__ndarray__": True,
            "data": value.tobytes(),
            "dtype": value.dtype.str,
            "shape": value.shape,
        }
        return {name.encode(): entry for name, entry in entries.items()}
    return value


def decode(value):
    """Reads openpi's form without our decoder."""
    if isinstance(value, dict) and b"__ndarray__" in value:
        return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
    return (
        {name: decode(entry) for name, entry in value.items()} if isinstance(value, dict) else value
    )


def ask(connection, request) -> Any:
    """The decoded answer, or the text of an error."""
    connection.send(encode(request))
    frame = connection.recv(timeout=30.0)
    return frame if isinstance(frame, str) else decode(msgpack.unpackb(frame))
