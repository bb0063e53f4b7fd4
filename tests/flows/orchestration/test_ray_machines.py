"""A Ray cluster of three machines: this one, which learns and simulates nothing, and two network
namespaces, whose links are cut and slowed down."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flows.orchestration.ray_pool import run_on_ray
from flows.runner.isolate import StageProcessError
from flows.runner.stage import Stage
from flows.storage.shared_runs import Runs
from policies.rl.collection.split_chunk_env import make_chunk_env
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.processes.cluster import connect
from sim.processes.config import ClusterConfig, PlacementConfig
from sim.processes.ray_process import RaySimulator
from sim.processes.vec_env import place_vec_env
from tests.flows.waiting_stage import BEGUN, WaitingConfig
from tests.policies.rl.collection.test_pipelined_collector import DECISIONS
from tests.policies.rl.on_policy.test_token_actor import LEARNING, reading
from tests.second_machine import SecondMachine, second_machine
from tests.toy_envs.word_line import WordLine

NUM_ENVS = 6
PORTS = count(30_000 + 4 * (os.getpid() % 500))
"""Ports of the head nodes; a test has a cluster of its own."""
LONG = 240.0
"""Time limit of a wait [s], reached only by a defect."""
NOTICED = 10.0
"""Time within which a cut link must be noticed [s]."""
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-token-that-all-machines-have-0123456789",
    "RAY_USAGE_STATS_ENABLED": "0",
    # As docs/guides/clusters.md has them.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
ROOM = ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]

pytestmark = [pytest.mark.needs("second machine"), pytest.mark.nightly]


@pytest.fixture
def machines() -> Iterator[tuple[SecondMachine, SecondMachine]]:
    with second_machine(0) as first, second_machine(1) as second:
        yield first, second


@pytest.fixture
def cluster(machines: tuple[SecondMachine, SecondMachine], tmp_path_factory: Any) -> Iterator[str]:
    """Address of a head node without cores, which is this machine."""
    import ray
    from ray._private import authentication_test_utils as token

    ray.shutdown()
    here, port = machines[0].here, next(PORTS)
    # The path of a socket below it must be short.
    folder = tmp_path_factory.mktemp("r")
    command = ["ray", "start", "--head", f"--node-ip-address={here}", f"--port={port}", *ROOM]
    command += ["--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (VARIABLES | {"RAY_ADDRESS": f"{here}:{port}"}).items():
            patch.setenv(name, value)
        # Ray reads its variables when it is imported, which another test may have done.
        token.reset_auth_token_state()
        head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await_port(here, port)
            yield f"{here}:{port}"
        finally:
            ray.shutdown()
            end(head)
    token.reset_auth_token_state()


@pytest.fixture
def nodes(
    cluster: str, machines: tuple[SecondMachine, SecondMachine]
) -> Iterator[tuple[SecondMachine, SecondMachine]]:
    """Two machines that simulate; both are nodes when the test begins."""
    import ray

    started: list[subprocess.Popen[Any]] = []
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        # One after another: the machines share a file system, in which Ray numbers its sockets.
        for number, machine in enumerate(machines, start=2):
            command = ["ray", "start", f"--address={cluster}", "--num-cpus=2", *ROOM]
            command += [f"--node-ip-address={machine.there}"]
            started.append(machine.start(command, **quiet))
            await_nodes(number)
        yield machines
    finally:
        for process in started:
            end(process)
        ray.shutdown()


def await_port(host: str, port: int) -> None:
    deadline = time.monotonic() + LONG
    while True:
        with suppress(OSError), socket.create_connection((host, port), 1.0):
            return
        assert time.monotonic() < deadline, "the head does not listen"
        time.sleep(0.2)


def await_nodes(number: int) -> None:
    """Waits until the cluster has a number of nodes, the head among them."""
    deadline = time.monotonic() + LONG
    while len(found := alive()) != number:
        assert time.monotonic() < deadline, f"{found}, not {number} nodes"
        time.sleep(0.2)


def alive() -> set[str]:
    """Addresses of the nodes of the cluster."""
    import ray

    with suppress(HandoffError):
        connect("auto", "test", logs=False)
    if not ray.is_initialized():
        return set()

    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a node with everything that it has started."""
    with suppress(psutil.NoSuchProcess):
        whole = [*psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        for child in whole:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait(LONG)


def finetuned(placement: PlacementConfig, act: Any = None) -> tuple[dict[str, Any], set[str]]:
    """Weights after three rollouts of PPO, before the second of which `act` is called, and the
    nodes that simulated at the end."""
    env = place_vec_env(placement, WordLine, NUM_ENVS)
    try:
        policy = reading()
        vec_env = make_chunk_env(env, policy, 3, count(1000), 0.99)
        practice = VlaFinetuning(VlaFinetuneConfig(learning=LEARNING), policy, vec_env, 0)
        for number in range(3):
            if number == 1 and act is not None:
                act()
            practice.rollout(DECISIONS)
        clients = [shard.simulator for shard in getattr(env, "shards", ())]
        nodes = {each.where["node"] for each in clients if isinstance(each, RaySimulator)}
        return policy.state_dict(), nodes
    finally:
        env.close()


def hybrid(cluster: ClusterConfig | None) -> PlacementConfig:
    return PlacementConfig(kind="hybrid", parts=2, simulators=2, cluster=cluster)


def equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


def test_a_machine_with_another_token_does_not_join(
    cluster: str, nodes: tuple[SecondMachine, SecondMachine]
) -> None:
    code = f"import ray; ray.init(address='{cluster}'); print('joined')"
    other = {"RAY_AUTH_TOKEN": "another-token-of-the-same-length-0123456"}
    process = nodes[0].start(
        [sys.executable, "-c", code], other, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert "joined" not in output.read()
    assert process.wait(LONG) != 0


def test_simulators_of_two_machines_learn_what_one_machine_learns(
    nodes: tuple[SecondMachine, SecondMachine],
) -> None:
    """The links are slow from the second rollout on."""
    here, _ = finetuned(hybrid(None))

    def slow() -> None:
        for machine in nodes:
            machine.limit(8.0)

    there, simulated = finetuned(hybrid(ClusterConfig()), slow)
    assert len(simulated) == 2, "spread over the machines"
    equal(here, there)


def test_a_cut_link_costs_time_and_changes_no_weight(
    nodes: tuple[SecondMachine, SecondMachine], caplog: pytest.LogCaptureFixture
) -> None:
    cut: list[float] = []

    def lose() -> None:
        nodes[0].cut()
        cut.append(time.time())

    here, _ = finetuned(hybrid(None))
    there, simulated = finetuned(hybrid(ClusterConfig()), lose)
    [lost] = [record for record in caplog.records if "continue in another actor" in record.message]
    assert lost.levelno == logging.WARNING
    assert lost.created - cut[0] < NOTICED
    assert len(simulated) == 1, "the machine that is left"
    equal(here, there)


def test_a_stage_whose_machine_is_cut_off_ends_in_time(
    nodes: tuple[SecondMachine, SecondMachine], tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    stage = Stage(
        "wait",
        "nothing",
        "tests.flows.waiting_stage",
        WaitingConfig(folder=str(folder)),
        pool="ray",
    )
    cut: list[float] = []

    def lose() -> None:
        deadline = time.monotonic() + LONG
        while not (folder / BEGUN).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for machine in nodes:
            machine.cut()
        cut.append(time.monotonic())

    thread = threading.Thread(target=lose)
    thread.start()
    with pytest.raises(StageProcessError, match=r"stage wait: its Ray worker on \S+ was lost"):
        run_on_ray(stage, {}, Runs(tmp_path), no_progress)
    thread.join()
    assert time.monotonic() - cut[0] < NOTICED
