"""Lost and late packets, by hand and over the network, and several arms at once in lockstep."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from robots.franka import find_robot
from sim.twin.exchange import PacketPath
from sim.twin.protocol import Command, Controller, ErrorBit, Generator, MoveStatus, RobotMode
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import Direction, Twin, TwinConfig, start_twin
from tests.sim.twin.loopback import address
from tests.sim.twin.wire_client import WireClient

FR3 = find_robot("fr3")


def carried(path: PacketPath[int], packets: int) -> list[int | None]:
    return [path.carry(number) for number in range(packets)]


def test_a_packet_arrives_in_its_cycle():
    path: PacketPath[int] = PacketPath()
    assert carried(path, 3) == [0, 1, 2]
    assert not path.active


def test_a_delay_shifts_packets_by_whole_cycles_and_ends_with_the_last_of_them():
    path: PacketPath[int] = PacketPath()
    path.delay(0.003, 0.0)
    assert carried(path, 5) == [None, None, None, 0, 1]
    path.delay(0.0, 0.0)
    # Packet 5 is in time and newer than 2 to 4, which are under way and dropped.
    assert path.carry(5) == 5
    assert path.carry(6) == 6
    assert not path.active


def test_less_than_a_cycle_is_in_time():
    path: PacketPath[int] = PacketPath()
    path.delay(0.0004, 0.0005)
    assert carried(path, 4) == [0, 1, 2, 3]


def test_with_jitter_an_older_packet_never_follows_a_newer_one():
    path: PacketPath[int] = PacketPath()
    path.delay(0.0, 0.01)
    arrived = [number for number in carried(path, 500) if number is not None]
    assert arrived == sorted(set(arrived))
    assert 100 < len(arrived) < 500


def test_the_same_packets_are_lost_in_every_run():
    lost = []
    for _ in range(2):
        path: PacketPath[int] = PacketPath()
        path.lose(0.2)
        lost.append([number for number in range(500) if path.carry(number) is None])
    assert lost[0] == lost[1]
    assert 70 < len(lost[0]) < 130


# Over the network


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    with start_twin(TwinConfig(host=address(44)), PushTWorld) as running:
        yield running


@pytest.fixture
def client(twin: Twin) -> Iterator[WireClient]:
    twin.call("reset", np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]), FR3.q_home)
    with WireClient(twin.host) as client:
        client.read()
        client.answer(client.request(Command.AUTOMATIC_ERROR_RECOVERY))
        yield client
    for direction in ("states", "commands"):
        twin.lose_packets(0.0, direction)
        twin.delay_packets(0.0, 0.0, direction)


def hold(_: int) -> dict[str, object]:
    return {"q_c": FR3.q_home}


def begun(twin: Twin, client: WireClient) -> int:
    """Begins a motion that holds the home posture, and answers its first state."""
    number, status = client.move(Generator.JOINT_POSITION)
    assert status == MoveStatus.MOTION_STARTED
    client.send(**hold(0))
    twin.wait_for_motion()
    return number


@pytest.mark.parametrize("direction", ["commands", "states"])
def test_packets_that_are_always_late_end_the_motion_after_twenty_cycles(
    twin: Twin, client: WireClient, direction: Direction
):
    number = begun(twin, client)
    before = twin.stats()["lost_packets"]
    twin.delay_packets(0.001, 0.0, direction)
    # Of late states, the first cycle has none and the last one's command comes too late.
    client.follow(hold, 21 if direction == "commands" else 19, [])
    twin.advance(0.1)
    assert client.answer(number)[0] == MoveStatus.REFLEX_ABORTED
    assert client.fresh()["errors"][ErrorBit.COMMUNICATION_CONSTRAINTS]
    assert twin.stats()["lost_packets"] - before == 20


@pytest.mark.parametrize("direction", ["commands", "states"])
def test_a_short_delay_costs_its_cycles_and_the_motion_goes_on(
    twin: Twin, client: WireClient, direction: Direction
):
    begun(twin, client)
    before = twin.stats()["lost_packets"]
    client.follow(hold, 1000, [])
    twin.advance(0.020)
    twin.delay_packets(0.005, 0.0, direction)
    twin.advance(0.010)
    twin.delay_packets(0.0, 0.0, direction)
    twin.advance(0.020)
    # Each of the ten delayed packets misses its cycle.
    assert twin.stats()["lost_packets"] - before == 10
    assert client.state["robot_mode"] == RobotMode.MOVE
    client.request(Command.STOP_MOVE)


@pytest.mark.parametrize("direction", ["commands", "states"])
def test_lost_packets_of_either_direction_cost_commands_the_same_ones_in_every_run(
    twin: Twin, direction: Direction
):
    lost = []
    for _ in range(2):
        with WireClient(twin.host) as client:
            client.read()
            begun(twin, client)
            before = twin.stats()["lost_packets"]
            twin.lose_packets(0.1, direction)
            client.follow(hold, 2000, [])
            twin.advance(0.5)
            lost.append(twin.stats()["lost_packets"] - before)
            twin.lose_packets(0.0, direction)
            client.request(Command.STOP_MOVE)
    assert lost[0] == lost[1]
    assert 20 < lost[0] < 90


def test_a_target_that_is_late_still_counts_in_a_motion_that_the_robot_plans(
    twin: Twin, client: WireClient
):
    client.move(Generator.JOINT_POSITION, Controller.JOINT_IMPEDANCE, [1.0] * 7)
    twin.delay_packets(0.050, 0.0, "commands")
    client.read()
    client.send(q_c=FR3.q_home + 0.1)
    twin.advance(0.045)
    np.testing.assert_allclose(client.fresh()["q_d"], FR3.q_home, atol=1e-6)
    twin.advance(1.0)
    np.testing.assert_allclose(client.fresh()["q_d"], FR3.q_home + 0.1, atol=1e-6)


def test_the_first_state_has_the_end_effector(twin: Twin):
    with WireClient(twin.host) as client:
        state = client.read()
        assert state["F_T_EE"][14] > 0.05
        assert state["F_T_EE"][15] == 1.0
        assert state["m_ee"] > 0.0


def test_a_robot_of_another_version_refuses_and_states_its_own(twin: Twin):
    twin.state_version(9)
    with WireClient(twin.host) as client:
        assert (client.connected, client.robot_version) == (1, 9)
    with WireClient(twin.host, version=9) as client:
        assert (client.connected, client.robot_version) == (0, 9)
    twin.state_version()
    with WireClient(twin.host) as client:
        assert (client.connected, client.robot_version) == (0, 10)


def test_three_clients_command_three_arms_at_once_without_a_lost_packet():
    cycles = 400
    with ExitStack() as stack:
        twins = [
            stack.enter_context(start_twin(TwinConfig(host=address(number)), PushTWorld))
            for number in (45, 46, 47)
        ]
        clients = [stack.enter_context(WireClient(twin.host)) for twin in twins]
        ends: list[int] = []
        threads = []
        for number, (twin, client) in enumerate(zip(twins, clients, strict=True), 1):
            twin.call("reset", np.array([0.256, 0.4]), np.array([0.256, 0.3, 0.0]), FR3.q_home)
            client.read()
            begun(twin, client)

            def path(cycle: int, goal: float = 0.01 * number) -> dict[str, object]:
                share = 0.5 * (1.0 - np.cos(np.pi * (cycle + 1) / cycles))
                return {"q_c": FR3.q_home + goal * share}

            threads.append(client.follow(path, cycles, ends))
        # The first cycle takes the command that began.
        pool = stack.enter_context(ThreadPoolExecutor(3))
        list(pool.map(lambda twin: twin.advance(1e-3 * (cycles + 1)), twins))
        for thread in threads:
            thread.join(20.0)
        assert ends == [cycles] * 3
        for number, (twin, client) in enumerate(zip(twins, clients, strict=True), 1):
            stats = twin.stats()
            assert (stats["lost_packets"], stats["motion_ticks"]) == (0.0, cycles + 1)
            np.testing.assert_allclose(client.state["q_d"], FR3.q_home + 0.01 * number, atol=1e-5)
