# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false
import mujoco
import numpy as np
import pytest

from robots.franka import fr3


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(fr3.MODEL_XML))


def test_compiled_position_limits_equal_the_constants(model: mujoco.MjModel) -> None:
    np.testing.assert_array_equal(model.jnt_range, np.stack([fr3.Q_MIN, fr3.Q_MAX], axis=1))
    assert [model.joint(i).name for i in range(7)] == list(fr3.JOINT_NAMES)


def test_compiled_torque_limits_equal_the_constants(model: mujoco.MjModel) -> None:
    limits = np.stack([-fr3.TAU_MAX, fr3.TAU_MAX], axis=1)
    np.testing.assert_array_equal(model.actuator_ctrlrange, limits)
    np.testing.assert_array_equal(model.jnt_actfrcrange, limits)
    assert [model.actuator(i).name for i in range(7)] == [f"fr3_torque{i}" for i in range(1, 8)]


@pytest.mark.parametrize("link", range(8))
def test_compiled_inertials_equal_the_constants(model: mujoco.MjModel, link: int) -> None:
    body = model.body(f"fr3_link{link}")
    axes = np.empty(9)
    mujoco.mju_quat2Mat(axes, body.iquat)
    axes = axes.reshape(3, 3)
    assert body.mass[0] == fr3.LINK_MASS[link]
    np.testing.assert_array_equal(body.ipos, fr3.LINK_COM[link])
    np.testing.assert_allclose(
        axes @ np.diag(body.inertia) @ axes.T, fr3.link_inertia(link), atol=1e-12
    )


def test_compiled_joint_dynamics_equal_the_constants(model: mujoco.MjModel) -> None:
    np.testing.assert_array_equal(model.dof_armature, fr3.ARMATURE)
    np.testing.assert_array_equal(model.dof_damping.ravel()[:7], fr3.JOINT_DAMPING)
    assert model.opt.timestep == 0.001


def test_gravity_of_the_arm_stretched_out_is_mass_times_lever(model: mujoco.MjModel) -> None:
    """With q2 = 90 degrees and all else 0 the arm lies along base x at the shoulder's height."""
    data = mujoco.MjData(model)
    data.qpos[1] = np.pi / 2
    mujoco.mj_forward(model, data)
    # Along the stretched arm the frames of links 2..7 lie at 0, .316, .316, .7, .7, .7 m, and the
    # axis that points outward is -y, z, y, z, y, -z in turn.
    com = fr3.LINK_COM
    levers = [
        -com[2][1],
        0.316 + com[3][2],
        0.316 + com[4][1],
        0.7 + com[5][2],
        0.7 + com[6][1],
        0.7 - com[7][2],
    ]
    expected = -9.81 * float(np.dot(fr3.LINK_MASS[2:], levers))
    assert data.qfrc_gravcomp[1] == pytest.approx(expected, rel=1e-9)


def test_the_arm_holds_still_without_command_since_the_robot_carries_its_own_weight(
    model: mujoco.MjModel,
) -> None:
    data = mujoco.MjData(model)
    data.qpos[:] = fr3.Q_HOME
    for _ in range(200):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(data.qpos, fr3.Q_HOME, atol=1e-9)


def test_the_commanded_torque_excludes_gravity_and_the_joint_torque_includes_it(
    model: mujoco.MjModel,
) -> None:
    data = mujoco.MjData(model)
    data.qpos[:] = fr3.Q_HOME
    data.ctrl[:] = [1, 2, 3, 4, 5, 6, 7]
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.qfrc_actuator, data.ctrl + data.qfrc_gravcomp)


def test_velocity_limits_at_mid_range_are_the_rectangular_ones() -> None:
    lower, upper = fr3.velocity_limits(np.zeros(7))
    assert (upper[0], lower[0]) == (2.62, -2.62)


def test_velocity_limit_near_the_stop_follows_the_published_formula() -> None:
    q = np.zeros(7)
    q[1] = fr3.Q_MAX[1] - 0.1
    lower, upper = fr3.velocity_limits(q)
    assert upper[1] == pytest.approx(-0.2517 + np.sqrt(0.517))
    assert lower[1] == -2.62


def test_no_velocity_is_permitted_into_a_stop() -> None:
    lower, upper = fr3.velocity_limits(np.stack([fr3.Q_MAX, fr3.Q_MIN]))
    np.testing.assert_array_equal(upper[0], 0.0)
    np.testing.assert_array_equal(lower[1], 0.0)
