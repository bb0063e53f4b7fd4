"""Motions that the robot plans itself: the plan against limits and numbers by hand, and over the
network with a client of our own, because no Python client that is installed sends them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from robots.franka import find_robot
from sim.twin.protocol import (
    Command,
    Controller,
    ErrorBit,
    Generator,
    MoveStatus,
    RobotMode,
)
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from sim.twin.unit.checks import PERIOD, check_joint_reference
from sim.twin.unit.point_to_point import PointToPoint
from tests.sim.twin.loopback import address
from tests.sim.twin.wire_client import WireClient

FR3 = find_robot("fr3")
VELOCITY = [0.655] * 4 + [1.315] * 3
"""Those of libfranka's example [rad/s]."""


def planner(velocity: float = 10.0) -> PointToPoint:
    return PointToPoint(FR3.limits, FR3.q_home, np.full(7, velocity))


def test_a_short_way_takes_the_time_of_constant_acceleration_and_ends_exactly():
    plan = planner()
    goal = FR3.q_home + 0.1
    plan.go_to(goal)
    steps = 0
    while True:
        q, dq, _ = plan.step()
        steps += 1
        if np.array_equal(q, goal) and not dq.any():
            break
    # 5 rad/s^2 up and down: 2 sqrt(0.1 / 5) = 0.2828 s, and two cycles of smoothing.
    assert steps * PERIOD == pytest.approx(0.2828 + 0.002, abs=0.001)


def test_a_long_way_is_covered_at_the_requested_velocity():
    plan = planner(0.3)
    plan.go_to(FR3.q_home + 0.3)
    states = np.stack([plan.step() for _ in range(1500)])
    assert states[:, 1].max() == pytest.approx(0.3, abs=1e-9)
    np.testing.assert_array_equal(states[-1, 0], FR3.q_home + 0.3)


@pytest.mark.parametrize("name", ["fr3", "panda"])
def test_targets_at_any_time_keep_all_limits_of_the_robot(name: str):
    robot = find_robot(name)
    limits = robot.limits
    plan = PointToPoint(limits, robot.q_home, limits.dq_max)
    random = np.random.default_rng(0)
    last = np.stack([robot.q_home, np.zeros(7), np.zeros(7)])
    for step in range(6000):
        if step % 170 == 0:
            plan.go_to(random.uniform(limits.q_min, limits.q_max))
        reference = plan.step()
        assert check_joint_reference(limits, reference, last) is None
        last = reference


def test_a_stopped_plan_brakes_and_stays():
    plan = planner()
    plan.go_to(FR3.q_home + 1.0)
    moving = np.stack([plan.step() for _ in range(200)])
    speed = moving[-1, 1].max()
    plan.stop()
    steps = 0
    reference = moving[-1]
    while not plan.stopped:
        reference = plan.step()
        steps += 1
    # 1 rad/s at 5 rad/s^2.
    assert steps * PERIOD == pytest.approx(speed / 5.0, abs=0.004)
    plan.go_to(FR3.q_home)
    np.testing.assert_array_equal(plan.step()[0], reference[0])


# Over the network


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    with start_twin(TwinConfig(host=address(43)), PushTWorld) as running:
        yield running


@pytest.fixture
def client(twin: Twin) -> Iterator[WireClient]:
    twin.call("reset", np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]), FR3.q_home)
    with WireClient(twin.host) as client:
        client.read()
        yield client
    time.sleep(0.05)


def test_sparse_targets_are_reached_one_after_the_other(twin: Twin, client: WireClient):
    """As `AsyncPositionControlHandler` does: read now and then, send a target, read the feedback."""
    number, status = client.move(Generator.JOINT_POSITION, maximum_velocity=VELOCITY)
    assert status == MoveStatus.MOTION_STARTED
    state = client.fresh()
    assert state["robot_mode"] == RobotMode.MOVE
    assert state["motion_generator_mode"] == Generator.JOINT_POSITION
    assert state["controller_mode"] == Controller.JOINT_IMPEDANCE
    # Without a target it holds, and nobody waits for a command.
    twin.advance(0.1)
    np.testing.assert_allclose(client.fresh()["q_d"], FR3.q_home, atol=1e-6)
    for goal in (FR3.q_home + 0.2, FR3.q_home - 0.1):
        client.read()
        client.send(q_c=goal)
        twin.advance(0.02)
        assert np.abs(client.fresh()["dq_d"]).max() > 0.01
        twin.advance(1.5)
        state = client.fresh()
        np.testing.assert_allclose(state["q_d"], goal, atol=1e-6)
        np.testing.assert_allclose(state["q"], goal, atol=2e-3)
        assert np.abs(state["dq_d"]).max() == 0.0
    assert twin.stats()["lost_packets"] == 0
    client.send(motion_generation_finished=1)
    twin.advance(0.01)
    assert client.answer(number)[0] == MoveStatus.SUCCESS
    assert client.fresh()["robot_mode"] == RobotMode.IDLE


def test_a_target_that_changes_on_the_way_is_a_smooth_turn(twin: Twin, client: WireClient):
    client.move(Generator.JOINT_POSITION, maximum_velocity=VELOCITY)
    client.read()
    client.send(q_c=FR3.q_home + 0.5)
    twin.advance(0.3)
    client.read()
    client.send(q_c=FR3.q_home)
    twin.advance(2.0)
    np.testing.assert_allclose(client.fresh()["q_d"], FR3.q_home, atol=1e-6)
    assert client.state["robot_mode"] == RobotMode.MOVE


def test_a_motion_that_is_finished_on_its_way_brakes_first(twin: Twin, client: WireClient):
    number, _ = client.move(Generator.JOINT_POSITION, maximum_velocity=VELOCITY)
    client.read()
    client.send(q_c=FR3.q_home + 1.0)
    twin.advance(0.4)
    client.read()
    # libfranka's stopControl sends zeros with this flag.
    client.send(motion_generation_finished=1)
    twin.advance(0.005)
    assert client.fresh()["robot_mode"] == RobotMode.MOVE
    twin.advance(0.5)
    assert client.answer(number)[0] == MoveStatus.SUCCESS
    state = client.fresh()
    assert state["robot_mode"] == RobotMode.IDLE
    assert (np.abs(state["q_d"] - FR3.q_home) < 0.9).all()


def test_a_target_beyond_a_stop_is_a_reflex(twin: Twin, client: WireClient):
    number, _ = client.move(Generator.JOINT_POSITION, maximum_velocity=VELOCITY)
    client.read()
    client.send(q_c=FR3.limits.q_max + 0.01)
    twin.advance(0.01)
    assert client.answer(number)[0] == MoveStatus.REFLEX_ABORTED
    assert client.fresh()["errors"][ErrorBit.COMMANDED_POSITION_LIMITS]
    assert client.answer(client.request(Command.AUTOMATIC_ERROR_RECOVERY))[0] == 0


@pytest.mark.parametrize(
    ("generator", "controller", "velocity"),
    [
        (Generator.JOINT_VELOCITY, Controller.JOINT_IMPEDANCE, VELOCITY),
        (Generator.CARTESIAN_POSITION, Controller.JOINT_IMPEDANCE, VELOCITY),
        (Generator.JOINT_POSITION, Controller.EXTERNAL, VELOCITY),
        (Generator.JOINT_POSITION, Controller.JOINT_IMPEDANCE, [0.0] * 7),
        (Generator.JOINT_POSITION, Controller.JOINT_IMPEDANCE, [3.0] * 7),
        (Generator.JOINT_POSITION, Controller.JOINT_IMPEDANCE, [float("nan")] * 7),
    ],
)
def test_what_the_robot_does_not_plan_is_an_invalid_argument(
    client: WireClient, generator: Generator, controller: Controller, velocity: list[float]
):
    _, status = client.move(generator, controller, velocity)
    assert status == MoveStatus.INVALID_ARGUMENT


def test_two_runs_are_the_same(twin: Twin, client: WireClient):
    ends = []
    for _ in range(2):
        twin.call("reset", np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0]), FR3.q_home)
        number, _ = client.move(Generator.JOINT_POSITION, maximum_velocity=VELOCITY)
        for step in range(10):
            client.read()
            client.send(q_c=FR3.q_home + 0.02 * (step % 4))
            twin.advance(0.02)
        ends.append(client.fresh()["q"].tobytes())
        client.send(motion_generation_finished=1)
        twin.advance(0.5)
        assert client.answer(number)[0] == MoveStatus.SUCCESS
    assert ends[0] == ends[1]
