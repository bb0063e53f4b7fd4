"""The energy tank: a reference puts no more energy into the arm than the tank has."""

from __future__ import annotations

import numpy as np
import pytest

from real.motion.energy_tank import EnergyTankConfig
from robots.errors import HandoffError, SafetyError
from sim.engines.mujoco import MujocoEngine
from sim.make import EnvConfig, make_vec_env
from sim.vec_env import EngineVecEnv
from tests.real.motion.point_arm import PointArm, play, stream_to

SIZE = EnergyTankConfig(size=10.0)
"""Recommended in docs/concepts/safety.md."""
AHEAD = np.array([0.03, 0.0, 0.0])


def beat(tank: EnergyTankConfig | None, cycles: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets swing 30 mm about a wall, four steps each way.

    Returns:
        Work that the reference has done on the springs, without what they gave back [J], and the
        level of the tank [J], after every cycle.
    """
    arm = PointArm()
    arm.wall = arm.position[0] + 0.01
    at_wall = arm.position.copy()
    at_wall[0] = arm.wall
    stream = stream_to(arm, tank=tank)
    work, total, levels = 0.0, [], []
    for _ in range(cycles):
        for side in (1.0, -1.0):
            for _ in range(4):
                stream.set_target(at_wall + side * AHEAD)
                for _ in range(10):
                    before = stream.last.streamed.position
                    lead = before - arm.position
                    stream.send()
                    stream.pass_tick()
                    moved = stream.last.streamed.position - before
                    done = (arm.stiffness @ lead) @ moved + moved @ arm.stiffness @ moved / 2.0
                    work += max(float(done), 0.0)
        total.append(work)
        levels.append(float(stream.last.monitored.get("tank_energy", 0.0)))
    return np.array(total), np.array(levels)


def test_swinging_against_a_wall_drains_the_tank_and_then_ends_the_episode() -> None:
    free, _ = beat(None, 8)
    per_cycle = free[-1] / 8
    assert np.ptp(np.diff(free)[2:]) < 0.05 * per_cycle, "the control: it goes on without end"
    size = 3.5 * per_cycle
    tank = EnergyTankConfig(size=size, recovery=0.0, blocked_seconds=60.0)
    work, levels = beat(tank, 8)
    assert np.diff(levels)[:2] == pytest.approx(-per_cycle, rel=0.1)
    assert work[-1] <= size + 0.02
    assert levels[-1] == pytest.approx(0.0, abs=0.02)
    with pytest.raises(SafetyError, match=r"energy tank: 0\.\d\d of 5 J are left"):
        beat(EnergyTankConfig(size=5.0, recovery=0.0), 10)


def test_what_the_damping_takes_out_does_not_pay_for_blows() -> None:
    """With all of it recovered, the energy that the wall takes still drains the tank."""
    _, levels = beat(EnergyTankConfig(size=5.0, blocked_seconds=60.0), 20)
    assert (np.diff(levels)[levels[1:] > 1.0] < 0.0).all()
    assert levels[-1] < 0.5


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_reference_does_the_energy_is_bounded(seed: int) -> None:
    """Work on the springs, less what the damping took: no more than the tank had, up to the cost of
    a tick."""
    rng = np.random.default_rng(seed)
    arm = PointArm()
    arm.wall = arm.position[0] + 0.02
    tank = EnergyTankConfig(size=3.0, blocked_seconds=60.0)
    stream, free = stream_to(arm, tank=tank), PointArm(arm.wall)
    other = stream_to(free)
    spent = {id(arm): 0.0, id(free): 0.0}
    lowest = 3.0
    for _ in range(300):
        ahead = rng.uniform(-0.03, 0.03, 3) + AHEAD / 2.0
        for each, its in ((arm, stream), (free, other)):
            its.set_target(its.last.measured + ahead)
            for _ in range(10):
                before = its.last.streamed.position
                lead = before - each.position
                loss = float(each.velocity @ each.damping @ each.velocity)
                its.send()
                its.pass_tick()
                moved = its.last.streamed.position - before
                work = (each.stiffness @ lead) @ moved + moved @ each.stiffness @ moved / 2.0
                after = float(each.velocity @ each.damping @ each.velocity)
                spent[id(each)] += max(float(work), 0.0) - (loss + after) / 2.0 * its.period
        lowest = min(lowest, float(stream.last.monitored["tank_energy"]))
    assert spent[id(free)] > 10.0, "the control: without a tank it grows with the time"
    assert spent[id(arm)] < 3.2
    assert lowest > -0.2, "braking is paid for in advance"


def test_on_an_empty_tank_the_reference_moves_towards_the_arm_only() -> None:
    arm = PointArm()
    arm.wall = arm.position[0]
    stream = stream_to(arm, tank=EnergyTankConfig(size=0.2, recovery=0.0, blocked_seconds=60.0))
    play(arm, stream, np.tile(arm.position + AHEAD, (20, 1)))
    lead = stream.last.streamed.position[0] - arm.position[0]
    # 0.2 J wind a spring of 2000 N/m up by 14 mm.
    assert lead == pytest.approx(np.sqrt(2.0 * 0.2 / 2000.0), rel=0.02)
    play(arm, stream, np.tile(arm.position - AHEAD, (20, 1)))
    assert stream.last.streamed.position[0] < arm.wall + 0.001
    assert abs(arm.contact[0]) < 2.0, "it has let go of the wall"


def test_a_trickle_lets_the_reference_go_on_slowly() -> None:
    arm, still = PointArm(), PointArm()
    for each, power in ((arm, 0.5), (still, 0.0)):
        tank = EnergyTankConfig(size=0.05, recovery=0.0, refill_power=power, blocked_seconds=60.0)
        stream = stream_to(each, tank=tank)
        for _ in range(60):
            play(each, stream, (stream.last.measured + AHEAD)[None])
    gone = arm.position[0] - arm.start[0, 3]
    assert still.position[0] - still.start[0, 3] < 0.02
    # 0.5 W move against 120 Ns/m with at most 65 mm/s, for 3 s.
    assert 0.05 < gone < 0.065 * 3.0


def recorded(task: str, seed: int) -> np.ndarray:
    """(T, 3) positions of the gripper's target [m] when the scripted expert solves the task in
    simulation."""
    env = make_vec_env(EnvConfig(task=task), 1)
    assert isinstance(env, EngineVecEnv)
    assert isinstance(env.engine, MujocoEngine)
    env.reset([seed])
    path = []
    for _ in range(120):
        step = env.step(env.engine.expert_action())
        observation = step.final_observation
        path.append((observation["grasp_pose"] + observation["target_offset"])[0, :3])
        if step.terminated[0] or step.truncated[0]:
            break
    env.close()
    return np.array(path, dtype=np.float64)


@pytest.mark.parametrize("task", ["reach", "pick_cube", "open_drawer", "flip_switch"])
def test_free_motions_of_the_experts_are_as_without_a_tank(task: str) -> None:
    path = recorded(task, 100_000)
    assert len(path) > 8
    held, free = PointArm(), PointArm()
    path = path + (held.position - path[0])
    stream = stream_to(held, tank=SIZE)
    references = play(held, stream, path)
    np.testing.assert_allclose(references, play(free, stream_to(free), path), rtol=0.0, atol=1e-9)
    assert float(stream.last.monitored["tank_energy"]) > 9.0
    small = PointArm()
    slowed = play(small, stream_to(small, tank=EnergyTankConfig(size=0.02)), path)
    assert np.abs(slowed - references).max() > 1e-3, "the control: a small tank slows it down"


def test_options_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(HandoffError, match="initial has no effect without a size"):
        EnergyTankConfig(initial=3.0)
    with pytest.raises(HandoffError, match=r"initial 12\.0 J is more than its size of 10\.0 J"):
        EnergyTankConfig(size=10.0, initial=12.0)
