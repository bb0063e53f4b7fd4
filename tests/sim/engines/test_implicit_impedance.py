"""A torque from `implicit_cartesian_torque` moves the arm as MuJoCo's own actuators do."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from robots.control.impedance import ImpedanceGains, implicit_cartesian_torque, posture_target
from sim.engines.arm_engine import controlled_scene
from sim.make import find_task
from sim.scene.view import View

STEPS = 20


def simulated(pull: np.ndarray, gains: ImpedanceGains | None = None) -> tuple[Any, Any, Any, Any]:
    """Model and data, and the view and targets of a start with the target displaced by `pull`."""
    task = find_task("reach")
    model = controlled_scene(task, task.actions).compile()
    data = mujoco.MjData(model)
    data.qpos[:7] = task.robot.q_home + 0.05
    data.qpos[7:9] = 0.04
    layout = task.layout(model, task.robot)
    start = View(layout, data.qpos[None], data.qvel[None], np.zeros((1, 7)), np.zeros((1, 3)))
    target = start.grasp_pose[0] + pull
    hold = posture_target(start.jacobian[0], start.q[0], task.q_posture)
    return model, data, target, hold


def by_torque(model: Any, data: Any, target: np.ndarray, hold: np.ndarray, implicit: bool) -> None:
    """Steps the model without its impedance actuators, with the torque that is computed here."""
    task = find_task("reach")
    layout = task.layout(model, task.robot)
    full = np.zeros((model.nv, model.nv))
    for _ in range(STEPS):
        view = View(layout, data.qpos[None], data.qvel[None], np.zeros((1, 7)), np.zeros((1, 3)))
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_crb(model, data)
        mujoco.mj_fullM(model, data, full)
        data.qfrc_applied[:7] = implicit_cartesian_torque(
            task.gains,
            full[None, :7, :7],
            view.jacobian,
            target[None] - view.grasp_pose,
            view.q,
            view.dq,
            hold[None],
            model.opt.timestep if implicit else 0.0,
        )[0]
        mujoco.mj_step(model, data)


def without_impedance(model: Any) -> None:
    model.actuator_gainprm[:13] = 0.0
    model.actuator_biasprm[:13] = 0.0


@pytest.mark.parametrize(
    "pull",
    [
        np.array([0.02, -0.01, 0.02, 0.0, 0.0, 0.0]),
        np.array([0.0, 0.0, 0.0, 0.05, -0.05, 0.04]),
        # The force of the spring is at its limit.
        np.array([0.10, 0.0, -0.05, 0.0, 0.0, 0.0]),
    ],
)
def test_dampers_on_the_velocity_after_the_step_move_the_arm_as_the_actuators_do(
    pull: np.ndarray,
) -> None:
    model, data, target, hold = simulated(pull)
    data.ctrl[:13] = np.concatenate([target, hold])
    data.ctrl[13:] = 0.04
    for _ in range(STEPS):
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel[:7]).max() > 0.02
    apart = {}
    for implicit in (True, False):
        model, mine, target, hold = simulated(pull)
        without_impedance(model)
        mine.ctrl[13:] = 0.04
        by_torque(model, mine, target, hold, implicit)
        apart[implicit] = np.abs(mine.qpos[:7] - data.qpos[:7]).max()
    assert apart[True] < 2e-3
    assert apart[True] < 0.7 * apart[False]
