"""Tasks' terms and the arm's commands as functions of tensors: what NumPy says, and laid out for
another device."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from robots.control.actions import JointDelta, JointTarget
from sim.device.tracing import Traced
from sim.engines.arm_engine import ArmEngine
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import TASKS, find_task
from sim.scene.view import View
from sim.tasks.terms import control, next_target, read_terms
from tests.nightly import in_every_run

N = 5
TRACED = [name for name in TASKS if name != "push_t"]
SHORT = ("reach", "reach_by_name", "lift_cube", "pick_by_name", "open_drawer")
"""Tasks that are traced within ten seconds."""


def state(engine: ArmEngine) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return engine.qpos, engine.qvel, engine._target, engine._goal


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]


def moved(engine: MujocoEngine, seed: int) -> np.ndarray:
    """Brings the environments somewhere else; returns actions."""
    rng = np.random.default_rng(seed)
    engine.reset(np.arange(N), np.arange(N) + N * seed)
    for _ in range(4):
        engine.step(rng.uniform(-1.0, 1.0, (N, engine.action_spec.size)), np.ones(N, bool))
    return rng.uniform(-1.0, 1.0, (N, engine.action_spec.size))


def assert_equal(answer: Any, expected: Any) -> None:
    for here, there in zip(pytree.tree_leaves(answer), pytree.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(here.numpy(), there, atol=1e-9)


def assert_lies_elsewhere(traced: Traced) -> None:
    """Lays the function out for torch's device without memory, which refuses what lies on the host,
    as a GPU does."""
    device = torch.device("meta")
    answer = traced.on(device)(*[one.to(device) for one in traced._example])
    assert all(leaf.device == device for leaf in pytree.tree_leaves(answer))


@pytest.mark.parametrize("name", in_every_run(TRACED, *SHORT))
def test_a_tasks_terms_say_on_tensors_what_they_say_on_arrays(name: str) -> None:
    task = find_task(name)
    engine = MujocoEngine(task, N)
    engine.reset(np.arange(N), np.arange(N))

    def read(qpos: Any, qvel: Any, target: Any, goal: Any) -> Any:
        output = read_terms(task, View(engine.layout, qpos, qvel, target, goal), sparse=False)
        return output.observation, output.reward, output.success, output.failure

    traced = Traced(read, tensors(*state(engine)))
    here = traced.on(torch.device("cpu"))
    for seed in (1, 2):
        moved(engine, seed)
        assert_equal(here(*tensors(*state(engine))), read(*state(engine)))
    assert_lies_elsewhere(traced)


@pytest.mark.parametrize(
    "space", [None, JointDelta(), JointTarget()], ids=["cartesian", "joint_delta", "joint_target"]
)
def test_a_command_is_the_same_on_tensors(space: JointDelta | JointTarget | None) -> None:
    engine = MujocoEngine(find_task("pick_cube"), N, MujocoConfig(actions=space))
    action = moved(engine, 1)

    def command(qpos: Any, qvel: Any, target: Any, goal: Any, action: Any) -> Any:
        view = View(engine.layout, qpos, qvel, target, goal)
        measured = view.grasp_pose if space is None else view.q
        targets = next_target(
            engine.actions,  # type: ignore[arg-type]
            target,
            measured,
            view.width,
            action,
            engine.period,
            engine.task.robot,
        )
        jacobian = view.jacobian if space is None else None
        return targets, control(targets, jacobian, view.q, engine.task.q_posture, gripper=True)

    traced = Traced(command, tensors(*state(engine), action))
    action = moved(engine, 2)
    assert_equal(
        traced.on(torch.device("cpu"))(*tensors(*state(engine), action)),
        command(*state(engine), action),
    )
    assert_lies_elsewhere(traced)


def test_the_device_without_memory_refuses_an_array_that_lies_on_the_host_and_tells_no_number() -> (
    None
):
    there = torch.ones(3, device="meta")
    with pytest.raises(RuntimeError, match="device"):
        torch.add(there, torch.ones(3))
    with pytest.raises(RuntimeError):
        bool(there.sum() > 0.0)


def test_an_array_stays_read_only_also_where_torch_has_compiled_before() -> None:
    """torch looks up once per process how it wraps an array."""
    figures = np.arange(3.0)
    figures.setflags(write=False)
    torch.compile(lambda x: x + 1.0, backend="eager")(torch.ones(3))
    traced = Traced(lambda x: x + figures, [torch.ones(3)])
    assert not figures.flags.writeable
    assert traced.on(torch.device("cpu"))(torch.ones(3)).tolist() == [1.0, 2.0, 3.0]


def test_an_argument_may_be_an_answer() -> None:
    here = Traced(lambda x: {"more": x + 1.0, "same": x}, [torch.ones(3)]).on(torch.device("cpu"))
    assert {name: one.tolist() for name, one in here(torch.zeros(3)).items()} == {
        "more": [1.0] * 3,
        "same": [0.0] * 3,
    }
