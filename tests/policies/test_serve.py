import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import numpy as np
import onnx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from flows.__main__ import main
from flows.serve import open_policy
from policies.serve import PolicyServer, ServeConfig, choose_token, frame_limit
from robots.contract import Contract
from robots.control.noise import chunk_noise
from robots.control.training_range import input_range
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.policies.conftest import TINY
from tests.policies.served import CONTRACT, TOKEN, ask, encode, fields, flat, served, shifted
from tests.real import onnx_models
from tests.real.fakes import contract
from tests.test_architecture import HEAVY, loaded_after

ROOT = Path(__file__).resolve().parents[2]


def local(observation, noise, policy=shifted):
    return policy(flat(observation), noise[None])[0]


def test_first_frame_tells_protocol_contract_and_digest(server):
    with server.connect() as connection:
        metadata = msgpack.unpackb(connection.recv(timeout=30.0))
    assert metadata["protocol"] == "handoff-policy/1"
    assert metadata["contract"]["observation"]["keypoints"]["shape"] == [9, 2]
    assert metadata["contract"]["rate_hz"] == 10.0
    assert len(metadata["digest"]) == 64


def test_chunk_is_that_of_the_local_policy_bit_for_bit(client):
    noise = chunk_noise(3, 4, 16, 2)
    answer = ask(client, {**fields(), "noise": noise})
    np.testing.assert_array_equal(answer["prediction"], local(fields(), noise))
    assert answer["prediction"].dtype == np.float32
    assert (answer["seed"], answer["chunk"]) == (None, None)


def test_actions_begin_at_the_newest_observation(client):
    answer = ask(client, fields())
    np.testing.assert_array_equal(answer["actions"], answer["prediction"][1:])


def test_answers_tell_their_own_time_and_the_whole_of_the_one_before(client):
    first, second = (ask(client, fields())["server_timing"] for _ in range(2))
    assert first.keys() == {"infer_ms", "wait_ms"}
    assert second.keys() == {"infer_ms", "wait_ms", "prev_total_ms"}
    assert second["prev_total_ms"] >= first["infer_ms"] + first["wait_ms"]


def test_noise_is_drawn_from_the_seed_and_number_of_the_request(client):
    answer = ask(client, {**fields(), "seed": 7, "chunk": 2})
    np.testing.assert_array_equal(answer["prediction"], local(fields(), chunk_noise(7, 2, 16, 2)))
    assert (answer["seed"], answer["chunk"]) == (7, 2)


def test_noise_of_the_server_is_numbered_and_reported():
    with served(seed=11) as running, running.client() as connection:
        for chunk in range(3):
            answer = ask(connection, fields())
            assert (answer["seed"], answer["chunk"]) == (11, chunk)
            np.testing.assert_array_equal(
                answer["prediction"], local(fields(), chunk_noise(11, chunk, 16, 2))
            )


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        TOKEN,
        "Api-Key",
        "Api-Key ",
        "Api-Key token-of-the-test",
        f"Bearer {TOKEN}",
        f"Api-Key {TOKEN}s",
    ],
)
def test_connection_without_the_token_is_refused_with_401(server, authorization):
    with pytest.raises(InvalidStatus) as caught:
        server.connect(authorization)
    assert caught.value.response.status_code == 401


def test_a_page_of_another_site_is_refused_even_with_the_token(server):
    with pytest.raises(InvalidStatus) as caught:
        server.connect(f"Api-Key {TOKEN}", origin="https://evil.example")
    assert caught.value.response.status_code == 403


def test_half_open_connections_are_closed_and_others_served(server, client):
    lines = [socket.create_connection(("127.0.0.1", server.port), 5.0) for _ in range(50)]
    for line in lines:
        line.sendall(b"GET / HTTP/1.1\r\nHost: local")
    assert ask(client, fields())["actions"].shape == (15, 2)
    for line in lines:
        line.settimeout(20.0)
        assert line.recv(1) == b""
        line.close()


def health(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30.0)
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    return response.status, response.read()


def test_health_needs_no_token(server):
    assert health(server) == (200, b"OK\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "robot.local"])
def test_no_start_on_an_address_of_others_without_a_token(host):
    with pytest.raises(HandoffError, match="a token must be given"):
        choose_token(host, None)
    assert choose_token(host, TOKEN) == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_token_for_the_own_machine_is_generated(host):
    assert len(choose_token(host, None)) >= 32
    assert choose_token(host, None) != choose_token(host, None)


def test_short_token_is_refused():
    with pytest.raises(HandoffError, match="expected at least 16"):
        PolicyServer(shifted, CONTRACT, ServeConfig(), "short")


def test_contract_with_a_field_named_noise_is_refused():
    clashing = contract(observation={"noise": FieldSpec(shape=(2,))})
    with pytest.raises(HandoffError, match=r"\['noise'\]"):
        PolicyServer(shifted, clashing, ServeConfig(), TOKEN)


def test_port_in_use_is_a_clear_error(server):
    second = PolicyServer(shifted, CONTRACT, ServeConfig(port=server.port), TOKEN)
    with pytest.raises(HandoffError, match=f"port {server.port}"):
        asyncio.run(second.run())


WRONG = {
    "missing field": ({"agent": None}, "missing ['agent']"),
    "unknown field": ({"wrist": np.zeros(2)}, "unknown ['wrist']"),
    "shape": ({"agent": np.zeros((2, 3))}, "agent: shape (2, 3)"),
    "history": ({"agent": np.zeros((1, 2))}, "agent: 1 steps, expected (2, 2), 2 observed steps"),
    "kind": ({"agent": np.zeros((2, 2), complex)}, "dtype '<c16' is not accepted"),
    "not finite": ({"agent": np.full((2, 2), np.nan)}, "agent: value at index (0, 0) is nan"),
    "list": ({"agent": [[0.0, 0.0], [0.0, 0.0]]}, "agent: is a list"),
    "object": (
        {"agent": {b"__ndarray__": True, b"data": b"x", b"dtype": "|O", b"shape": [1]}},
        "'|O' is not accepted",
    ),
    "noise shape": ({"noise": np.zeros((8, 2))}, "noise: shape (8, 2)"),
    "noise and seed": ({"noise": np.zeros((16, 2)), "seed": 1}, "noise: comes with seed"),
    "seed alone": ({"seed": 1}, "chunk: is None"),
    "negative seed": ({"seed": -1, "chunk": 0}, "seed: is -1"),
    "truth as chunk": ({"seed": 1, "chunk": True}, "chunk: is True"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_request_that_does_not_fit_gets_an_error_and_the_next_an_answer(client, changes, message):
    request = {name: value for name, value in {**fields(), **changes}.items() if value is not None}
    assert message in ask(client, request)
    assert ask(client, fields())["actions"].shape == (15, 2)


@pytest.mark.parametrize(
    "frame",
    ["text", b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xc4\x05agent\x01", b"\xdf\xff\xff\xff\xff"],
)
def test_frame_that_is_no_observation_gets_an_error_and_the_next_an_answer(client, frame):
    client.send(frame)
    assert "message:" in str(client.recv(timeout=30.0))
    assert ask(client, fields())["actions"].shape == (15, 2)


def test_frame_beyond_the_limit_closes_its_connection_only(server):
    with server.client() as connection, server.client() as other:
        connection.send(b"\x00" * (frame_limit(CONTRACT) + 1))
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=30.0)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        assert ask(other, fields())["actions"].shape == (15, 2)


def test_two_clients_at_once_get_their_own_answers(server):
    noise, failures = chunk_noise(0, 0, 16, 2), []

    def converse(first):
        with server.client() as connection:
            for seed in range(first, first + 20):
                answer = ask(connection, {**fields(seed), "noise": noise})
                if not np.array_equal(answer["prediction"], local(fields(seed), noise)):
                    failures.append(seed)

    threads = [threading.Thread(target=converse, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


class Held:
    """A policy that waits until it is let go, and counts how many are inside."""

    def __init__(self):
        self.entered, self.go, self.inside, self.most = threading.Event(), threading.Event(), 0, 0

    def __call__(self, observation, noise):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        self.go.wait(60.0)
        self.inside -= 1
        return shifted(observation, noise)


def first_answer(connections):
    """The first frame that comes on any of the connections, and the others."""
    for _ in range(600):
        for connection in connections:
            try:
                return connection.recv(timeout=0.05), [
                    other for other in connections if other is not connection
                ]
            except TimeoutError:
                continue
    raise AssertionError("nobody was answered")


def test_one_request_runs_one_waits_and_the_third_gets_a_busy_error():
    policy, request = Held(), encode(fields())
    with served(policy, queue=1) as running:
        clients = [running.client() for _ in range(3)]
        clients[0].send(request)
        assert policy.entered.wait(30.0)
        for connection in clients[1:]:
            connection.send(request)
        refusal, (waiting,) = first_answer(clients[1:])
        assert "busy, 1 requests are queued" in str(refusal)
        policy.go.set()
        for connection in (clients[0], waiting):
            assert isinstance(connection.recv(timeout=30.0), bytes)
        for connection in clients:
            connection.close()
    assert policy.most == 1


def test_one_client_too_many_gets_try_again_later():
    with served(clients=1) as running, running.client() as connection, running.connect() as other:
        with pytest.raises(ConnectionClosed) as caught:
            other.recv(timeout=30.0)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1013
        assert ask(connection, fields())["actions"].shape == (15, 2)


@pytest.mark.parametrize(
    "error", [ValueError("no"), StopIteration(), HandoffError("no"), MemoryError("no")]
)
def test_policy_that_fails_is_an_error_to_the_one_who_asked(error):
    failing = [True]

    def policy(observation, noise):
        if failing.pop():
            failing.append(False)
            raise error
        failing.append(False)
        return shifted(observation, noise)

    with served(policy) as running, running.client() as connection:
        expected = "no" if isinstance(error, HandoffError) else "policy: failed with"
        assert expected in ask(connection, fields())
        assert ask(connection, fields())["actions"].shape == (15, 2)


@pytest.mark.parametrize("chunk", [np.full((1, 16, 2), np.nan), np.zeros((1, 8, 2)), [None]])
def test_chunk_that_is_not_finite_or_of_another_shape_is_not_sent(chunk):
    with served(lambda observation, noise: chunk) as running, running.client() as connection:
        assert "policy:" in ask(connection, fields())


def test_request_under_way_is_answered_before_the_server_stops():
    policy = Held()
    with served(policy, stop_seconds=60.0) as running, running.client() as connection:
        connection.send(encode(fields()))
        assert policy.entered.wait(30.0)
        running.server.stop()
        assert health(running) == (503, b"stopping\n")
        policy.go.set()
        assert isinstance(connection.recv(timeout=30.0), bytes)
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=30.0)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001


def test_policy_that_hangs_does_not_keep_the_server_from_stopping():
    policy = Held()
    with served(policy, stop_seconds=0.2) as running, running.client() as connection:
        connection.send(encode(fields()))
        assert policy.entered.wait(30.0)
        running.stop()
        assert "stopped before this request was answered" in str(connection.recv(timeout=30.0))
        assert not policy.go.is_set()
    policy.go.set()


def test_command_makes_up_a_token_and_serves_an_onnx_file_until_sigterm(tmp_path):
    onnx_models.save_policy(tmp_path / "policy.onnx")
    command = [sys.executable, "-m", "flows", "serve", str(tmp_path), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "HANDOFF_TOKEN"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            uri = line[line.index("ws://") :].strip()
            headers = {"Authorization": f"Api-Key {process.stdout.readline().split()[1]}"}
            with connect(
                uri, additional_headers=headers, compression=None, proxy=None
            ) as connection:
                connection.recv(timeout=30.0)
                noise = chunk_noise(1, 0, 16, 2)
                answer = ask(connection, {**fields(), "noise": noise})
                policy, _ = open_policy(tmp_path)
                np.testing.assert_array_equal(answer["prediction"], local(fields(), noise, policy))
                process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed) as caught:
                    connection.recv(timeout=30.0)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1001
            assert process.wait(30.0) == 0
            assert process.stdout.read().splitlines() == ["stopped; the connections are closed."]
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("token", "host", "message"),
    [
        ("", "0.0.0.0", "a token must be given"),
        ("short", "127.0.0.1", "5 characters, expected at least 16"),
    ],
)
def test_command_refuses_to_start_without_a_fit_token(
    tmp_path, monkeypatch, capsys, token, host, message
):
    monkeypatch.setenv("HANDOFF_TOKEN", token)
    onnx_models.save_policy(tmp_path / "policy.onnx")
    assert main(["serve", str(tmp_path), "--host", host, "--port", "0"]) == 1
    assert message in capsys.readouterr().err


def test_saved_policy_is_served_as_it_computes_by_itself(tmp_path):
    from policies.checkpoint import PolicyCard, save_policy
    from policies.families.diffusion import DiffusionPolicy
    from policies.load import load_policy

    point = FieldSpec(shape=(2,), unit="m")
    card = PolicyCard(
        task="point",
        rate_hz=10.0,
        observation={"goal": point, "agent": point},
        action=point,
        model=TINY,
    )
    save_policy(tmp_path, card, DiffusionPolicy(TINY, card.shapes).state_dict())
    policy, loaded_contract = open_policy(tmp_path, "pd_target")
    observation = {
        name: np.array([[0.1, 0.2], [0.2, 0.3]], np.float32) for name in ("goal", "agent")
    }
    noise = chunk_noise(5, 0, 4, 2)
    with served(policy, loaded_contract) as running, running.client() as connection:
        answer = ask(connection, {**observation, "seed": 5, "chunk": 0})
    stacked = np.concatenate([observation["goal"], observation["agent"]], axis=1)[None]
    np.testing.assert_array_equal(
        answer["prediction"], load_policy(tmp_path)(stacked, noise[None])[0]
    )
    assert isinstance(loaded_contract, Contract)
    assert (loaded_contract.task, loaded_contract.sampler, loaded_contract.action_interface) == (
        "point",
        "ddim-4",
        "pd_target",
    )


def test_a_file_that_was_changed_after_its_export_is_not_served(tmp_path):
    path = tmp_path / "policy.onnx"
    onnx_models.save_policy(path)
    model = onnx.load(path)
    model.graph.node[1].op_type = "Sub"
    onnx.save(model, path)
    with pytest.raises(HandoffError, match="was changed after its export"):
        open_policy(tmp_path)


def test_a_client_with_other_units_gets_an_error_in_place_of_actions(tmp_path):
    metres = np.array([[0.0] * 18, [0.5] * 18], np.float32)
    onnx_models.save_policy(
        tmp_path / "policy.onnx", training_range={"keypoints": input_range("m", metres)}
    )
    with served(*open_policy(tmp_path)) as running, running.client() as connection:
        given = fields()
        answer = ask(connection, {**given, "keypoints": given["keypoints"] + 250.0})
        assert isinstance(answer, str)
        assert "keypoints[0, 0] is 2" in answer
        assert "other units, such as pixels" in answer
        assert "actions" in ask(connection, given)


def test_path_that_holds_no_policy_is_a_clear_error(tmp_path):
    with pytest.raises(HandoffError, match=r"neither an \.onnx file nor a directory"):
        open_policy(tmp_path / "nothing")
    with pytest.raises(HandoffError, match="no policy is here"):
        open_policy(tmp_path)


def test_help_imports_nothing_heavy():
    assert loaded_after("serve", "--help").isdisjoint({*HEAVY, "websockets", "msgpack", "numpy"})
