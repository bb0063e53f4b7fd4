"""Environments on another machine answer as those of this process, to whoever has the token."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.wire.policy import TOKEN_VARIABLE, pack
from sim.servers import listen
from sim.servers.authentication import prove_as_client, prove_as_listener
from sim.servers.channel import Channel, SilentChannelError
from sim.servers.config import ServerConfig
from sim.servers.listen import Listener
from sim.servers.packages import installed_versions
from sim.servers.vec_env import make_server_env
from sim.vec_env import VecEnvConfig
from tests.real.console.pages import until
from tests.sim.servers.failing import FAR_AWAY
from tests.sim.servers.light_python import light_python
from tests.sim.servers.served import served_walk
from tests.sim.servers.test_server import same
from tests.sim.walk import make_walk

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "a-token-of-some-length"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a listener whose Python has NumPy and msgpack only."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    process = subprocess.Popen(
        [light_python(), "-m", "sim.servers.listen", "127.0.0.1:0", "--most", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    yield f"127.0.0.1:{process.stdout.readline().split()[-1]}"
    process.send_signal(signal.SIGTERM)
    process.wait(20.0)
    process.stdout.close()


def test_remote_environments_are_those_of_this_process(address: str):
    here = make_walk(3, "reset", 5)
    there = served_walk(3, max_steps=5, address=address)
    rng = np.random.default_rng(0)
    try:
        np.testing.assert_array_equal(
            here.reset([4, 5, 6])["place"], there.reset([4, 5, 6])["place"]
        )
        for shape in [(3, 1)] * 7 + [(3, 4, 1)] * 3:
            action = rng.uniform(-1.0, 1.0, shape)
            same(here.step(action), there.step(action))
        one, two = here.restore(here.save()), there.restore(there.save())
        np.testing.assert_array_equal(one["place"], two["place"])
        step = there.step(np.zeros((3, 1)))
        step.reward[:] = 1.0
    finally:
        there.close()


def test_another_token_is_refused(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-of-some-length")
    with pytest.raises(HandoffError, match=rf"another token.*{TOKEN_VARIABLE}"):
        served_walk(1, address=address)
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(HandoffError, match="at least 16"):
        served_walk(1, address=address)


def test_a_dead_server_of_another_machine_is_an_error_with_its_last_output(address: str):
    config = ServerConfig(address=address, engine="tests.sim.servers.failing")
    env = make_server_env(config, "", VecEnvConfig(), {"failure": "exit"}, 2, 1)
    env.reset([1, 2])
    with pytest.raises(HandoffError, match=r"exit code 7.*last output: the last words"):
        env.step(np.full((2, 1), FAR_AWAY))
    env.close()


def test_more_servers_than_allowed_are_refused_until_one_ends(address: str):
    envs = [served_walk(1, address=address) for _ in range(2)]
    with pytest.raises(HandoffError, match="as many servers as it may"):
        served_walk(1, address=address)
    for env in envs:
        env.close()
    # Its process needs a moment to end.
    for _ in range(100):
        try:
            served_walk(1, address=address).close()
        except HandoffError:
            time.sleep(0.1)
            continue
        return
    pytest.fail("a server that has ended still counts")


def test_versions_come_from_the_other_machine(address: str):
    assert installed_versions(ServerConfig(address=address), ["handoff", "no-such-package"]) == {
        "no-such-package": ""
    }


def test_an_address_at_which_nobody_listens_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-of-some-length")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(HandoffError, match=r"cannot be reached .*sim\.servers\.listen"):
            served_walk(1, address=f"127.0.0.1:{port}")
    for wrong in ("nowhere", "host:", "host:x"):
        with pytest.raises(HandoffError, match="expected HOST:PORT"):
            served_walk(1, address=wrong)


def proofs(client: str, listener: str) -> tuple[bool, HandoffError | None]:
    """What a listener and a client with these tokens say about each other."""
    ends = [Channel(end, shared=False) for end in socket.socketpair()]
    accepted: list[bool] = []
    thread = threading.Thread(target=lambda: accepted.append(prove_as_listener(ends[0], listener)))
    thread.start()
    error = None
    try:
        prove_as_client(ends[1], client, "there")
    except HandoffError as raised:
        error = raised
    thread.join()
    for end in ends:
        end.close()
    return accepted[0], error


def test_both_ends_prove_the_token():
    assert proofs("one", "one") == (True, None)
    accepted, error = proofs("one", "two")
    assert not accepted
    assert error is not None


def test_a_listener_without_the_token_is_refused_by_the_client():
    # It accepts everybody, and answers with a proof of its own making.
    ours, theirs = (Channel(end, shared=False) for end in socket.socketpair())

    def pretend() -> None:
        theirs.send({"challenge": os.urandom(32)})
        theirs.receive(5.0)
        theirs.send({"proof": os.urandom(32)})

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(HandoffError, match="another token"):
        prove_as_client(ours, "one", "there")
    thread.join()
    ours.close()
    theirs.close()


def test_a_client_that_sends_its_own_challenge_back_is_refused():
    ours, theirs = (Channel(end, shared=False) for end in socket.socketpair())
    accepted: list[bool] = []
    thread = threading.Thread(target=lambda: accepted.append(prove_as_listener(theirs, "one")))
    thread.start()
    challenge = ours.receive(5.0)[0]["challenge"]
    ours.send({"challenge": challenge, "proof": challenge})
    assert ours.receive(5.0)[0] == {"refused": "token"}
    thread.join()
    assert accepted == [False]
    ours.close()
    theirs.close()


def test_a_large_frame_before_the_proof_is_refused():
    ours, theirs = (Channel(end, shared=False) for end in socket.socketpair())
    ours.send({"challenge": bytes(5000)})
    with pytest.raises(HandoffError, match="at most"):
        prove_as_listener(theirs, "one")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", pack({"message": {}}), b""])
def test_connections_of_other_programs_do_no_harm(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    started: list[object] = []
    monkeypatch.setattr(listen, "_run_server", lambda *arguments, **options: started.append(1))
    listener = Listener("127.0.0.1:0", "a-token-of-some-length")
    thread = threading.Thread(target=listener.serve)
    thread.start()
    with socket.create_connection(("127.0.0.1", listener.port)) as connection:
        connection.sendall(sent)
    channel = Channel(socket.create_connection(("127.0.0.1", listener.port)), shared=False)
    prove_as_client(channel, "a-token-of-some-length", "there")
    # The listener knows the proof a moment after the client.
    until(lambda: started == [1])
    channel.close()
    listener.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert started == [1]


def test_a_port_in_use_and_a_short_token_are_errors():
    with pytest.raises(HandoffError, match="at least 16"):
        Listener("127.0.0.1:0", "short")
    listener = Listener("127.0.0.1:0", "a-token-of-some-length")
    with pytest.raises(HandoffError, match="cannot listen"):
        Listener(f"127.0.0.1:{listener.port}", "a-token-of-some-length")
    with pytest.raises(HandoffError, match="cannot listen"):
        Listener("127.0.0.1:x", "a-token-of-some-length")
    listener.close()


def test_a_silent_listener_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sim.servers.authentication.SECONDS", 0.1)
    ours, theirs = (Channel(end, shared=False) for end in socket.socketpair())
    with pytest.raises(SilentChannelError):
        prove_as_client(ours, "one", "there")
    ours.close()
    theirs.close()
