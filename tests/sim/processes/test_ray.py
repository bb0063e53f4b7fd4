"""Environments on a real Ray cluster of two nodes of this machine; one is killed, and the numbers
stay what they were."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from policies.rl.collection.split_chunk_env import make_chunk_env
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from robots.errors import HandoffError
from sim.processes import ray_process
from sim.processes.config import ClusterConfig, PlacementConfig
from sim.processes.ray_process import RaySimulator
from sim.processes.vec_env import ProcessVecEnv, place_vec_env
from tests.policies.rl.collection.test_pipelined_collector import DECISIONS
from tests.policies.rl.on_policy.test_token_actor import LEARNING, reading
from tests.sim.processes.test_vec_env import (
    Refusing,
    chunks,
    refuses_and_continues,
    same,
    same_step,
    unmade,
)
from tests.toy_envs.word_line import WordLine

NUM_ENVS = 6
HERE = ClusterConfig()
MEMORY = 100 * 2**20
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""A node that is gone is one after two seconds."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head of two cores, and whatever else a test adds."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {
        "num_cpus": 2,
        "object_store_memory": MEMORY,
        "include_dashboard": False,
        "_system_config": QUICK,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    os.environ["RAY_ADDRESS"] = str(cluster.address)
    try:
        yield cluster
    finally:
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def second(nodes: Any) -> Iterator[Any]:
    """A second node of two cores, for one test."""
    node = nodes.add_node(num_cpus=2, object_store_memory=MEMORY)
    nodes.wait_for_nodes()
    yield node
    if node in nodes.worker_nodes:
        nodes.remove_node(node, allow_graceful=False)


def kill(node: Any) -> None:
    """The power goes: everything of a node at once."""
    roots = [
        psutil.Process(process.process.pid)
        for kind in node.all_processes.values()
        for process in kind
    ]
    for process in [child for root in roots for child in root.children(recursive=True)] + roots:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def simulators(env: ProcessVecEnv) -> list[RaySimulator]:
    unique = {id(shard.simulator): shard.simulator for shard in env.shards}
    assert all(isinstance(simulator, RaySimulator) for simulator in unique.values())
    return list(unique.values())  # type: ignore[arg-type]


@pytest.mark.parametrize(("parts", "number"), [(1, 1), (2, 2)])
def test_environments_of_a_cluster_equal_those_of_this_process(
    second: Any, parts: int, number: int
) -> None:
    here, there = WordLine(NUM_ENVS), ProcessVecEnv(WordLine, NUM_ENVS, parts, number, HERE)
    try:
        assert len({simulator.where["node"] for simulator in simulators(there)}) == number, (
            "spread over the nodes"
        )
        same(here.reset(range(NUM_ENVS)), there.reset(range(NUM_ENVS)))
        for chunk in chunks(8):
            one = here.step(chunk)
            same_step(one, there.step(chunk))
            over = np.flatnonzero(one.terminated | one.truncated)
            if len(over):
                same(
                    here.reset(over.tolist(), over.tolist()),
                    there.reset(over.tolist(), over.tolist()),
                )
        state = here.save()
        same(state, there.save())
        there.step(chunks(1)[0])
        observed = there.restore(state)
        same(here.restore(state), observed)
        observed["place"][:] = 0.0
    finally:
        there.close()


@pytest.mark.parametrize("save_every", [3, 64])
def test_a_node_that_is_killed_changes_no_number(
    second: Any, save_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_process, "SAVE_EVERY", save_every)

    def finetuned(placement: PlacementConfig, killed: Any = None) -> tuple[Any, list[RaySimulator]]:
        env = place_vec_env(placement, WordLine, NUM_ENVS)
        try:
            policy = reading()
            vec_env = make_chunk_env(env, policy, 3, count(1000), 0.99)
            practice = VlaFinetuning(VlaFinetuneConfig(learning=LEARNING), policy, vec_env, 0)
            for number in range(3):
                if number == 1 and killed is not None:
                    kill(killed)
                practice.rollout(DECISIONS)
            return policy.state_dict(), simulators(env) if isinstance(
                env, ProcessVecEnv
            ) and killed else []
        finally:
            env.close()

    where = {"kind": "hybrid", "parts": 2, "simulators": 2}
    undisturbed, _ = finetuned(PlacementConfig(**where))
    weights, simulated = finetuned(PlacementConfig(**where, cluster=HERE), second)
    lost = [simulator for simulator in simulated if simulator.deaths]
    assert len(lost) == 1, "the one that was there, and it began anew once"
    assert lost[0].deaths == 1
    assert lost[0].where["node"] != second.node_id
    assert lost[0]._saved is not None or save_every > 3
    for name, weight in undisturbed.items():
        assert torch.equal(weight, weights[name]), name


def test_a_node_that_is_killed_beside_the_pipeline_is_reported_and_replaced(
    second: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = WordLine(NUM_ENVS)
    there = ProcessVecEnv(WordLine, NUM_ENVS, 2, 2, HERE)
    try:
        here.reset(range(NUM_ENVS))
        there.reset(range(NUM_ENVS))
        for part, actions in zip(there.parts, np.array_split(chunks(1)[0], 2), strict=True):
            part.send([actions])
        kill(second)
        steps = [part.receive().steps[0] for part in there.parts]
        place = np.concatenate([step.observation["place"] for step in steps])
        np.testing.assert_array_equal(place, here.step(chunks(1)[0]).observation["place"])
        # Responses may have been there before the node was gone; a request sent now is lost for
        # certain.
        same_step(here.step(chunks(2)[1]), there.step(chunks(2)[1]))
        assert "its environments continue in another actor" in caplog.text
    finally:
        there.close()


def test_what_an_environment_raises_is_raised_here_and_the_environments_continue(
    nodes: Any,
) -> None:
    env = ProcessVecEnv(Refusing, NUM_ENVS, 2, 2, HERE)
    refuses_and_continues(env)
    with pytest.raises(HandoffError, match="environments are closed"):
        env.shards[0].simulator.request(0, "save", (), {})


def test_environments_that_end_their_process_again_and_again_are_given_up(nodes: Any) -> None:
    env = ProcessVecEnv(Refusing, NUM_ENVS, 1, 1, HERE)
    try:
        env.reset(range(NUM_ENVS))
        with pytest.raises(
            HandoffError, match="simulator 0: its actor died 4 times at the same request"
        ):
            env.step(np.full((NUM_ENVS, 3, 2), 5.0))
        with pytest.raises(HandoffError, match="died 4 times"):
            env.reset(range(NUM_ENVS))
    finally:
        env.close()


def broken(num_envs: int) -> WordLine:
    raise ZeroDivisionError(num_envs)


@pytest.mark.parametrize(
    ("make", "about"),
    [(unmade, "unmade: 3 environments"), (broken, "Traceback .*ZeroDivisionError: 3")],
)
def test_environments_that_cannot_be_made_say_why(nodes: Any, make: Any, about: str) -> None:
    with pytest.raises(HandoffError, match=f"(?s)simulator 0: {about}"):
        ProcessVecEnv(make, NUM_ENVS, 2, 1, HERE)


def test_other_code_on_a_node_is_refused(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_process, "code_version", lambda module: "0" * 64)
    with pytest.raises(
        HandoffError,
        match=r"simulator 0: .* has the code of tests.toy_envs.word_line .*, here 000000000000",
    ):
        ProcessVecEnv(WordLine, NUM_ENVS, 1, 1, HERE)


def test_a_cluster_without_room_says_what_there_is(nodes: Any) -> None:
    with pytest.raises(
        HandoffError,
        match=r"no room for 3 simulators within 1 s: each needs 1 CPU .* have 2 CPU",
    ):
        ProcessVecEnv(WordLine, NUM_ENVS, 1, 3, ClusterConfig(patience_s=1.0))
    room = ProcessVecEnv(WordLine, NUM_ENVS, 1, 2, HERE)
    room.close()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere", "auto"])
def test_an_address_without_a_cluster_is_reported(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(HandoffError, match=f"no Ray cluster at '{address}' .*ray start --head"):
        ProcessVecEnv(WordLine, NUM_ENVS, 1, 1, ClusterConfig(address=address))


@pytest.mark.parametrize("wrong", [{"cores": 0.0}, {"gpus": -1.0}, {"patience_s": 0.0}])
def test_invalid_cluster_configurations_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(HandoffError, match="placement: a cluster with"):
        ClusterConfig(**wrong)  # type: ignore[arg-type]


def test_collocated_environments_need_no_cluster() -> None:
    with pytest.raises(HandoffError, match="placement: a cluster for collocated environments"):
        PlacementConfig(cluster=HERE)
