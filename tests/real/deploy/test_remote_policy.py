import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from websockets.sync.server import serve

from real.deploy.loop import LoopConfig, run_episode
from real.deploy.remote_policy import RemoteConfig, RemotePolicy
from real.motion.planar_space import Plane, PlaneConfig
from robots.control.noise import chunk_noise
from robots.errors import HandoffError, SafetyError
from robots.interfaces import Policy, PolicyInput
from robots.wire.policy import contract_digest, pack
from tests.policies.served import CONTRACT, TOKEN, fields, flat, served, shifted
from tests.real.fakes import FakeArm, FakeClock, contract


def remote(uri, **options):
    return RemotePolicy(
        RemoteConfig(uri=uri, connect_seconds=30.0, answer_seconds=30.0), TOKEN, **options
    )


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def test_remote_chunks_are_those_of_the_local_policy_bit_for_bit(server):
    observation = np.concatenate([flat(fields(seed)) for seed in range(3)])
    noise = np.stack([chunk_noise(seed, 0, 16, 2) for seed in range(3)])
    with remote(server.uri) as policy:
        chunks = policy(observation, noise)
    for row in range(3):
        np.testing.assert_array_equal(
            chunks[row], shifted(observation[row : row + 1], noise[row : row + 1])[0]
        )
    assert chunks.dtype == np.float32


def test_decided_actions_reach_the_server():
    """A policy whose chunk is the sum of its decided actions and their number."""
    deciding = contract(prefix=2)

    def summed(given, noise):
        total = 0.0 if given.prefix is None else given.prefix.sum()
        return np.full_like(noise, total)

    observation, noise = flat(fields()), chunk_noise(0, 0, 16, 2)[None]
    prefix = np.array([[[0.25, 0.5, 1.0], [0.0, 0.0, 0.0]]], np.float32)
    with served(summed, deciding) as running, remote(running.uri) as policy:
        chunk = policy(PolicyInput(observation, prefix=prefix), noise)
        np.testing.assert_array_equal(chunk, np.full((1, 16, 2), 1.75, np.float32))
        with pytest.raises(HandoffError, match=r"prefix.*\(2, 3\)"):
            policy(PolicyInput(observation, prefix=prefix[:, :1]), noise)


def test_decided_actions_for_a_policy_that_takes_none_are_refused(server):
    prefix = np.zeros((1, 2, 3), np.float32)
    with remote(server.uri) as policy, pytest.raises(HandoffError, match="takes none"):
        policy(PolicyInput(flat(fields()), prefix=prefix), chunk_noise(0, 0, 16, 2)[None])


def test_contract_is_that_of_the_server(server):
    with remote(server.uri, expected=CONTRACT) as policy:
        assert policy.contract == CONTRACT


def test_server_of_another_contract_than_expected_is_refused(server):
    with pytest.raises(HandoffError, match="serves policy pppppppp of task push_t, expected qqqq"):
        remote(server.uri, expected=contract(policy="qqqq"))


def episode(policy: Policy):
    plane, clock = Plane(PlaneConfig()), FakeClock()
    arm = FakeArm(clock, plane.pose(np.array([0.25, 0.25])))

    def observe(state):
        return {"keypoints": np.zeros((9, 2)), "agent": plane.position(state.base_T_ee)}

    config = replace(LoopConfig(), max_steps=12)
    record = run_episode(arm, clock, policy, CONTRACT, observe, config, space=plane, seed=5)
    return np.array(record.reference["position"])


def test_episode_on_the_arm_is_the_same_with_the_policy_far_away(server):
    with remote(server.uri) as policy:
        far = episode(policy)
    np.testing.assert_array_equal(far, episode(shifted))


def test_wrong_token_is_named(server):
    with pytest.raises(HandoffError, match=r"HTTP 401\. Is the token right"):
        RemotePolicy(RemoteConfig(uri=server.uri), "another-token-than-theirs")


def test_no_server_there_is_a_clear_error():
    with pytest.raises(HandoffError, match="cannot be reached"):
        remote("ws://127.0.0.1:1")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:8000", "nonsense"])
def test_address_of_another_kind_is_a_clear_error(uri):
    with pytest.raises(HandoffError, match="not an address such as ws://"):
        remote(uri)


def test_error_of_the_server_reaches_the_caller_and_the_connection_lives_on(server):
    observation, noise = flat(fields()), chunk_noise(0, 0, 16, 2)[None]
    lost = observation.copy()
    lost[..., -2:] = np.nan
    with remote(server.uri) as policy:
        with pytest.raises(HandoffError, match=r"agent: value at index .* is nan"):
            policy(lost, noise)
        assert policy(observation, noise).shape == (1, 16, 2)


def test_input_of_another_shape_is_not_even_sent(server):
    with remote(server.uri) as policy, pytest.raises(HandoffError, match=r"expected \(1, 2, 20\)"):
        policy(np.zeros((1, 1, 20), np.float32), np.zeros((1, 16, 2), np.float32))


def test_server_that_stops_is_named_as_lost():
    with served() as running, remote(running.uri) as policy:
        running.stop()
        with pytest.raises(HandoffError, match="the connection is closed"):
            policy(flat(fields()), chunk_noise(0, 0, 16, 2)[None])


@contextmanager
def scripted(metadata, *answers):
    """A server that sends the given answers, one per request, and then none."""

    def converse(connection):
        connection.send(metadata)
        for frame, _ in enumerate(connection):
            if frame < len(answers):
                connection.send(answers[frame])

    with serve(converse, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(30.0)


def greeting(**changes):
    from robots.config import to_plain

    metadata = {
        "protocol": "handoff-policy/1",
        "contract": to_plain(CONTRACT),
        "digest": contract_digest(CONTRACT),
    }
    return pack({**metadata, **changes})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (greeting(protocol="handoff-policy/2"), "has protocol 'handoff-policy/2'"),
        (pack({}), "has protocol None"),
        (pack([1]), "has protocol None"),
        ("text", "has protocol None"),
        (b"\xc1", "not a msgpack value"),
        (greeting(digest="0" * 64), "does not match its digest"),
        (greeting(contract={"version": 2, "task": "x"}), "missing key 'contract.observation'"),
        (greeting(contract={"version": 1}), "version 1, this build reads 2"),
    ],
)
def test_server_of_another_kind_is_refused(metadata, message):
    with scripted(metadata) as uri, pytest.raises(HandoffError, match=message):
        remote(uri)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ("out of memory", HandoffError, "out of memory"),
        (pack({}), HandoffError, "no 'prediction'"),
        (
            pack({"prediction": np.zeros((8, 2), np.float32)}),
            HandoffError,
            "no 'prediction' of shape",
        ),
        (
            pack({"prediction": np.zeros((16, 2), np.int32)}),
            HandoffError,
            "no 'prediction' of shape",
        ),
        (pack({"prediction": np.full((16, 2), np.nan, np.float32)}), SafetyError, "is not finite"),
        (b"\xc1", HandoffError, "not a msgpack value"),
    ],
)
def test_answer_that_is_no_finite_chunk_is_refused(answer, error, message):
    with (
        scripted(greeting(), answer) as uri,
        remote(uri) as policy,
        pytest.raises(error, match=message),
    ):
        policy(flat(fields()), chunk_noise(0, 0, 16, 2)[None])


def test_late_answer_closes_the_connection_for_good():
    config = RemoteConfig(connect_seconds=30.0, answer_seconds=0.05)
    with scripted(greeting()) as uri, RemotePolicy(replace(config, uri=uri), TOKEN) as policy:
        with pytest.raises(HandoffError, match=r"no answer within 0\.05 s"):
            policy(flat(fields()), chunk_noise(0, 0, 16, 2)[None])
        with pytest.raises(HandoffError, match=r"the connection is closed \("):
            policy(flat(fields()), chunk_noise(0, 0, 16, 2)[None])
