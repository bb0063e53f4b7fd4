"""A server that is killed is replaced, and its environments go on as if nothing had happened."""

import itertools
import os
import signal

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.servers import recovery
from sim.servers.vec_env import ServerVecEnv
from tests.sim.servers.failing import FAR_AWAY
from tests.sim.servers.served import served_walk
from tests.sim.servers.test_server import same
from tests.sim.walk import make_walk

NUM_ENVS = 3


def kill(env: ServerVecEnv) -> None:
    (pid,) = env.pids
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def actions(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).uniform(-1.0, 1.0, (count, NUM_ENVS, 1)))


@pytest.mark.parametrize("save_every", [1, 3, 64])
def test_a_killed_server_changes_no_result(
    save_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SAVE_EVERY", save_every)
    here, there = make_walk(NUM_ENVS, "reset", 5), served_walk(NUM_ENVS, max_steps=5)
    try:
        here.reset(range(NUM_ENVS))
        there.reset(range(NUM_ENVS))
        for number, action in enumerate(actions(14)):
            if number in (1, 8, 9):
                kill(there)
            same(here.step(action), there.step(action))
            if number == 5:
                one, two = here.reset([9], [1]), there.reset([9], [1])
                np.testing.assert_array_equal(one["place"], two["place"])
        for name, array in here.save().items():
            np.testing.assert_array_equal(array, there.save()[name])
    finally:
        there.close()


def test_a_server_killed_before_a_reset_or_a_restore_is_replaced() -> None:
    here, there = make_walk(NUM_ENVS, "reset", 5), served_walk(NUM_ENVS, max_steps=5)
    try:
        kill(there)
        np.testing.assert_array_equal(
            here.reset(range(NUM_ENVS))["place"], there.reset(range(NUM_ENVS))["place"]
        )
        state = there.save()
        same(here.step(actions(1)[0]), there.step(actions(1)[0]))
        kill(there)
        there.restore(state)
        kill(there)
        here.restore(state)
        same(here.step(actions(1)[0]), there.step(actions(1)[0]))
    finally:
        there.close()


@pytest.mark.parametrize("save_every", [2, 64])
def test_starts_are_used_in_order_across_servers(
    save_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As fine-tuning sends them: seeds for environments that end, two at every second step.
    monkeypatch.setattr(recovery, "SAVE_EVERY", save_every)

    def places(killed: tuple[int, ...]) -> list[np.ndarray]:
        env = served_walk(NUM_ENVS, on_end="freeze", max_steps=2)
        env.reset(range(NUM_ENVS))
        found = []
        for number, action in enumerate(actions(9)):
            if number in killed:
                kill(env)
            given = env.shards[0].simulator.ended
            env.send([action], starts=range(100 + given, 120 + given))
            result = env.receive()
            found.append((result.reset_observation or result.steps[-1].observation)["place"])
        assert env.shards[0].simulator.ended == 4 * NUM_ENVS
        env.close()
        return found

    np.testing.assert_array_equal(places(()), places((3, 4, 8)))


def test_environments_that_cannot_be_saved_are_repeated_from_their_last_common_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "SAVE_EVERY", 2)
    monkeypatch.setattr(recovery, "MOST_REQUESTS", 6)
    here = make_walk(NUM_ENVS, "reset", 50)
    there = served_walk(NUM_ENVS, {"can_save": False})
    try:
        for seeds in ([1, 2, 3], [4, 5, 6]):
            here.reset(seeds)
            there.reset(seeds)
            for action in actions(4):
                same(here.step(action), there.step(action))
        kill(there)
        same(here.step(actions(1)[0]), there.step(actions(1)[0]))
        # A seventh request exceeds what is kept.
        same(here.step(actions(1)[0]), there.step(actions(1)[0]))
        kill(there)
        with pytest.raises(
            HandoffError, match=r"SIGKILL.*was not restarted: its engine cannot save"
        ):
            there.step(actions(1)[0])
        with pytest.raises(HandoffError, match="SIGKILL"):
            there.reset([1, 2, 3])
    finally:
        there.close()


def test_without_restarts_a_killed_server_is_an_error() -> None:
    env = served_walk(NUM_ENVS, restarts=0)
    env.reset(range(NUM_ENVS))
    (pid,) = env.pids
    kill(env)
    with pytest.raises(HandoffError, match=rf"process {pid}\): it was killed by SIGKILL"):
        env.step(actions(1)[0])
    env.close()


def test_an_engine_that_ends_its_process_again_and_again_is_given_up() -> None:
    env = served_walk(NUM_ENVS, {"failure": "exit"}, engine="tests.sim.servers.failing", restarts=2)
    env.reset(range(NUM_ENVS))
    with pytest.raises(HandoffError, match=r"exit code 7.*the last words.*restarted 2 times"):
        env.step(np.full((NUM_ENVS, 1), FAR_AWAY))
    with pytest.raises(HandoffError, match="restarted 2 times"):
        env.reset(range(NUM_ENVS))
    env.close()


def test_a_refused_request_is_refused_again_and_the_environments_go_on() -> None:
    env, calm = (
        served_walk(NUM_ENVS, {"failure": "refuse"}, engine="tests.sim.servers.failing")
        for _ in range(2)
    )
    for each in (env, calm):
        each.reset(range(NUM_ENVS))
        with pytest.raises(HandoffError, match="too far"):
            each.step(np.full((NUM_ENVS, 1), FAR_AWAY))
    kill(env)
    same(env.step(actions(1)[0]), calm.step(actions(1)[0]))
    env.close()
    calm.close()


def test_an_engine_that_does_not_repeat_itself_is_not_replaced() -> None:
    env = served_walk(NUM_ENVS, {"failure": "unrepeatable"}, engine="tests.sim.servers.failing")
    env.reset(range(NUM_ENVS))
    env.step(actions(1)[0])
    kill(env)
    with pytest.raises(HandoffError, match=r"does not repeat the response to 'steps'"):
        env.step(actions(1)[0])
    env.close()


def test_a_replacement_is_not_sent_what_the_caller_changed_later() -> None:
    # Actions and states belong to the caller, who may write to them after the request.
    here, there = make_walk(NUM_ENVS, "reset", 5), served_walk(NUM_ENVS, max_steps=5)
    here.reset(range(NUM_ENVS))
    there.reset(range(NUM_ENVS))
    state = {name: array.copy() for name, array in there.save().items()}
    there.restore(state)
    action = actions(1)[0]
    same(here.step(action), there.step(action))
    for array in itertools.chain([action], state.values()):
        array[...] = 0
    kill(there)
    same(here.step(action), there.step(action))
    there.close()
