"""Handoff's tasks in Isaac Lab keep what every engine must keep, and are the same tasks as in
MuJoCo; each set of environments has a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from flows.virtual_envs.create import read_state
from flows.virtual_envs.usd import usd_command
from robots.errors import HandoffError
from robots.interfaces import VecEnv
from sim.engines.isaac_lab import OWN_TASKS, IsaacLabConfig
from sim.evaluation.agent import ObservedExpertAgent
from sim.make import EnvConfig, find_task, make_vec_env
from sim.servers.config import ServerConfig
from sim.servers.venvs import python_of, venvs_folder
from sim.vec_env import VecEnvConfig
from tests.sim import conformance
from tests.sim.conformance import Check, checks_of
from tests.sim.conformance_entries import Entry, OnEnd, go_to_the_goal

ROOT = Path(__file__).parents[3]
STATE = read_state(venvs_folder() / "isaaclab")
pytestmark = [
    pytest.mark.peers,
    # A start compiles or loads kernels, which takes a minute and more.
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        STATE is None or not STATE.complete, reason="no Isaac Lab: handoff envs create isaaclab"
    ),
]
SERVER = ServerConfig(venv="isaaclab", engine="isaaclab", start_s=1200, response_s=600)


def make(task: str, num_envs: int, on_end: OnEnd, max_steps: int | None) -> VecEnv:
    config = EnvConfig(
        engine="server",
        task=task,
        on_end=on_end,
        max_steps=max_steps,
        isaaclab=IsaacLabConfig(device="cpu"),
        server=SERVER,
    )
    return make_vec_env(config, num_envs)


ENTRIES = [
    Entry(
        f"isaaclab_{task}",
        partial(make, task),
        reuse=True,
        solve=go_to_the_goal if task == "reach" else None,
        solve_steps=60,
        # The checks of other tasks take as long again.
        marks=() if task == "reach" else (pytest.mark.nightly,),
    )
    for task in OWN_TASKS
]


@pytest.fixture(scope="module", autouse=True)
def shared_envs() -> Iterator[None]:
    yield
    conformance.close_idle()


@pytest.mark.parametrize(
    ("entry", "check"),
    [
        pytest.param(entry, check, id=f"{entry.name}-{check.__name__}", marks=entry.marks)
        for entry in ENTRIES
        for check in checks_of(entry)
    ],
)
def test_the_tasks_conform(entry: Entry, check: Check) -> None:
    check(entry)


@pytest.mark.parametrize("task", OWN_TASKS)
def test_a_task_is_the_one_of_mujoco(task: str) -> None:
    """Equal fields, initial states, rewards and, over some steps in the air, equal motion."""
    other = make_vec_env(EnvConfig(task=task, on_end="freeze"), 2)
    with closing(make(task, 2, "freeze", None)) as env, closing(other):
        assert dict(env.observation_spec) == dict(other.observation_spec)
        assert env.action_spec == other.action_spec
        assert env.rate_hz == other.rate_hz
        here, there = env.reset([5, 6]), other.reset([5, 6])
        rng = np.random.default_rng(0)
        for _ in range(4):
            for field, array in there.items():
                # Float32 accelerations of up to 50 rad/s^2, over periods of 50 ms.
                atol = 5e-3 if field == "dq" else 2e-3
                np.testing.assert_allclose(here[field], array, atol=atol, err_msg=field)
            action = rng.uniform(-1.0, 1.0, (2, env.action_spec.size))
            mine, theirs = env.step(action), other.step(action)
            np.testing.assert_allclose(mine.reward, theirs.reward, atol=2e-3)
            here, there = mine.observation, theirs.observation


@pytest.mark.parametrize("task", OWN_TASKS)
def test_the_scripted_expert_solves_the_task(task: str) -> None:
    count = 16
    with closing(make(task, count, "freeze", None)) as env:
        agent = ObservedExpertAgent(find_task(task), env)
        observation = env.reset(range(count))
        agent.reset(range(count))
        solved = np.zeros(count, dtype=bool)
        for _ in range(find_task(task).max_steps):
            step = env.step(agent.act(observation, ~solved))
            solved |= step.info["success"].astype(bool)
            observation = step.observation
        assert solved.mean() >= 0.9


def test_the_wrist_camera_moves_with_the_gripper() -> None:
    config = EnvConfig(
        engine="server",
        task="pick_cube",
        on_end="freeze",
        isaaclab=IsaacLabConfig(device="cpu", cameras=("front", "wrist"), height=48, width=64),
        server=SERVER,
    )
    with closing(make_vec_env(config, 1)) as env:
        first = env.reset([0])
        assert env.observation_spec["image_wrist"].shape == (48, 64, 3)
        action = np.array([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]])[:, : env.action_spec.size]
        observation = first
        for _ in range(5):
            observation = env.step(action).observation
        # The table has a colour, and the wrist sees it from another place; the front camera stands.
        assert first["image_front"].std() > 10
        changed = {
            name: np.abs(observation[name].astype(int) - first[name]).mean()
            for name in ("image_front", "image_wrist")
        }
        assert changed["image_wrist"] > changed["image_front"]


def test_an_unknown_camera_is_refused_by_name() -> None:
    config = EnvConfig(
        engine="server",
        task="reach",
        isaaclab=IsaacLabConfig(device="cpu", cameras=("nose",)),
        server=SERVER,
    )
    with pytest.raises(HandoffError, match=r"camera 'nose'.*front"):
        make_vec_env(config, 1)


def test_more_contacts_than_the_capacity_of_a_task_are_an_error() -> None:
    program = """
from dataclasses import replace
import numpy as np
from robots.errors import HandoffError
from sim.engines.isaac_lab import IsaacLabConfig, IsaacLabEngine
from sim.isaac import environment
from sim.tasks.task import Capacity
small = replace(environment.find_task("pick_cube", "fr3"), capacity=Capacity(1, 4))
environment.find_task = lambda name, robot: small
engine = IsaacLabEngine("pick_cube", 2, IsaacLabConfig(device="cpu"))
try:
    engine.reset(np.arange(2), np.arange(2))
    for _ in range(5):
        engine.step(np.zeros((2, engine.action_spec.size)), np.ones(2, dtype=bool))
except HandoffError as error:
    print(error)
"""
    python = str(python_of(venvs_folder() / "isaaclab"))
    done = subprocess.run(
        [python, "-s", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "isaaclab pick_cube: environment 0 exceeded 1 contacts or 4" in done.stdout


def test_the_arm_as_usd_keeps_gravity_compensation_limits_and_visual_twins(tmp_path: Path) -> None:
    printed: list[str] = []
    usd_command("fr3", out=tmp_path, venv="isaaclab", say=printed.append)
    assert printed == [str(tmp_path / "fr3.usdc")]
    program = """
import sys
from pxr import Usd, UsdPhysics
stage = Usd.Stage.Open(sys.argv[1])
prims = list(stage.Traverse())
bodies = [p for p in prims if p.HasAPI(UsdPhysics.RigidBodyAPI)]
shapes = {p.GetName() for p in prims if p.HasAPI(UsdPhysics.CollisionAPI)}
names = {p.GetName() for p in prims}
print(len(bodies), sum(p.GetAttribute("mjc:gravcomp").Get() == 1.0 for p in bodies))
print(len(shapes), sum(f"{name}_visual" in names for name in shapes))
joint = UsdPhysics.RevoluteJoint([p for p in prims if p.GetName() == "fr3_joint4"][0])
print(joint.GetLowerLimitAttr().Get(), joint.GetUpperLimitAttr().Get())
"""
    python = str(python_of(venvs_folder() / "isaaclab"))
    done = subprocess.run(
        [python, "-s", "-c", program, printed[0]], capture_output=True, text=True, check=True
    )
    bodies, shapes, limits = (line.split() for line in done.stdout.splitlines()[-3:])
    assert bodies == ["11", "11"]
    assert shapes == ["15", "15"]
    robot = find_task("reach").robot
    expected = np.rad2deg([robot.limits.q_min[3], robot.limits.q_max[3]])
    np.testing.assert_allclose([float(value) for value in limits], expected, atol=0.1)


@pytest.mark.parametrize("task", OWN_TASKS)
def test_the_protocols_differ_from_those_of_mujoco_in_the_engine_only(task: str) -> None:
    there = read_protocol(task)
    here = read_protocol(f"isaaclab_{task}")
    assert (here.task, here.max_steps, here.seeds) == (there.task, there.max_steps, there.seeds)
    assert here.robot == there.robot
    assert here.score == there.score
    assert VecEnvConfig(max_steps=here.max_steps).max_steps == find_task(task).max_steps
