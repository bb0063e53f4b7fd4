"""The law that the engine computes is the law that is written down."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false
import mujoco
import numpy as np
import pytest

from robots.control.actions import JointTarget
from robots.control.impedance import ImpedanceGains, cartesian_torque, joint_torque
from robots.franka import find_robot
from robots.franka.kinematics import rotation_of
from sim.engines.mujoco import build_model
from sim.make import find_task
from sim.scene.view import Layout, View, memoized

FR3 = find_robot("fr3")

GAINS = ImpedanceGains()


def view_of(model: mujoco.MjModel, data: mujoco.MjData) -> View:
    return View(
        Layout(model, FR3),
        data.qpos[None].copy(),
        data.qvel[None].copy(),
        np.zeros((1, 7)),
        np.zeros((1, 3)),
    )


def moved(model: mujoco.MjModel, seed: int, spread: float = 0.05) -> mujoco.MjData:
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    data.qpos[:7] = FR3.q_home + rng.normal(size=7) * spread
    data.qvel[:7] = rng.normal(size=7) * 0.1
    mujoco.mj_forward(model, data)
    return data


@pytest.mark.parametrize("seed", range(5))
def test_the_engine_computes_the_cartesian_law(seed: int) -> None:
    model = build_model(find_task("reach"), find_task("reach").actions)
    data = moved(model, seed)
    view = view_of(model, data)
    error = np.random.default_rng(seed).normal(size=6) * 0.004
    hold = FR3.q_home + 0.01
    data.ctrl[:13] = [*(view.grasp_pose[0] + error), *hold]
    mujoco.mj_forward(model, data)
    expected = cartesian_torque(GAINS, view.jacobian[0], error, data.qpos[:7], data.qvel[:7], hold)
    np.testing.assert_allclose((data.qfrc_actuator - data.qfrc_gravcomp)[:7], expected, atol=1e-9)


def test_the_engine_computes_the_joint_law() -> None:
    model = build_model(find_task("reach"), JointTarget())
    data = moved(model, 0)
    data.ctrl[:7] = FR3.q_home
    mujoco.mj_forward(model, data)
    expected = joint_torque(GAINS, FR3.q_home, data.qpos[:7], data.qvel[:7])
    np.testing.assert_allclose((data.qfrc_actuator - data.qfrc_gravcomp)[:7], expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_view_sees_what_the_engine_sees(seed: int) -> None:
    model = build_model(find_task("pick_cube"), find_task("pick_cube").actions)
    data = moved(model, seed, spread=0.3)
    view = view_of(model, data)
    site = data.site("grasp")
    np.testing.assert_allclose(view.grasp_position[0], site.xpos, atol=1e-9)
    np.testing.assert_allclose(view.grasp_rotation[0], site.xmat.reshape(3, 3), atol=1e-9)
    J = np.empty((6, model.nv))
    mujoco.mj_jacSite(model, data, J[:3], J[3:], model.site("grasp").id)
    np.testing.assert_allclose(view.jacobian[0], J[:, :7], atol=1e-9)
    np.testing.assert_allclose(view.position("cube")[0], data.body("cube").xpos)
    np.testing.assert_allclose(
        rotation_of(view.quaternion("cube"))[0], data.body("cube").xmat.reshape(3, 3), atol=1e-9
    )


def test_the_frame_grasp_has_the_bases_axes_when_the_gripper_points_down() -> None:
    np.testing.assert_allclose(
        FR3.chain.forward_kinematics(FR3.q_home)[:3, :3] @ FR3.gripper.flange_R_grasp,
        np.eye(3),
        atol=1e-9,
    )


def test_the_gripper_weighs_and_opens_as_published() -> None:
    model = build_model(find_task("reach"), find_task("reach").actions)
    bodies = ("hand", "finger_left", "finger_right")
    assert sum(float(model.body(name).mass[0]) for name in bodies) == pytest.approx(
        FR3.gripper.mass
    )
    assert model.joint("finger_left").range[1] + model.joint("finger_right").range[
        1
    ] == pytest.approx(FR3.gripper.width_max)


def test_the_arm_with_its_gripper_holds_still_at_its_target() -> None:
    """Gravity of arm and gripper is compensated, as by the robot."""
    model = build_model(find_task("reach"), find_task("reach").actions)
    data = mujoco.MjData(model)
    data.qpos[:7] = FR3.q_home
    mujoco.mj_forward(model, data)
    start = view_of(model, data).grasp_pose[0]
    data.ctrl[:13] = [*start, *FR3.q_home]
    for _ in range(200):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(view_of(model, data).grasp_pose[0], start, atol=1e-6)


def test_what_is_asked_of_a_view_again_is_worked_out_once_for_each_of_its_arguments() -> None:
    calls: list[tuple[str, float]] = []

    @memoized
    def height(view: View, name: str, above: float) -> np.ndarray:
        calls.append((name, above))
        return view.position(name)[:, 2] - above

    model = build_model(find_task("pick_cube"), find_task("pick_cube").actions)
    view, next_view = view_of(model, moved(model, 0)), view_of(model, moved(model, 0))
    assert height(view, "cube", 0.1) is height(view, "cube", 0.1)
    np.testing.assert_allclose(height(view, "cube", 0.0) - height(view, "cube", 0.1), 0.1)
    height(next_view, "cube", above=0.1)
    assert calls == [("cube", 0.1), ("cube", 0.0), ("cube", 0.1)], (
        "the next view knows nothing of the one before"
    )
