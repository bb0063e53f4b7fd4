"""Contacts of an arm that moves at random and presses, against the memory of batched physics."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np
import pytest

from robots.franka.catalog import ROBOTS
from sim.engines.mujoco import MujocoEngine
from sim.make import TASKS, find_task

N = 4
EVERYONE = np.ones(N, dtype=bool)
ROWS = np.arange(N)


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("task", TASKS)
def test_an_arm_that_presses_stays_within_the_capacity_of_its_task(task: str, robot: str) -> None:
    capacity = find_task(task, robot=robot).capacity
    engine = MujocoEngine(find_task(task, robot=robot), N)
    engine.reset(ROWS, ROWS)
    random = np.random.default_rng(0)
    low, high = np.asarray(engine.action_spec.low), np.asarray(engine.action_spec.high)
    data = mujoco.MjData(engine.model)
    contacts, rows = [], []
    for step in range(60):
        action = random.uniform(low, high, (N, engine.action_spec.size))
        # The third entry is the height, but of push-T's plane, which has none.
        if step % 30 > 5:
            action[:, 2:3] = low[2:3]
        engine.step(action, EVERYONE)
        for state in engine.save()["physics"]:
            mujoco.mj_setState(engine.model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
            mujoco.mj_forward(engine.model, data)
            contacts.append(data.ncon)
            rows.append(data.nefc)
    assert 0 < max(contacts) <= capacity.contacts
    assert 0 < max(rows) <= capacity.constraints
