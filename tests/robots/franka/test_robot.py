"""Robots against published figures, against independent kinematics and against their MuJoCo
models."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS
from robots.franka.chain import KinematicChain
from robots.franka.robot import Robot

FR3, FR3V2, PANDA = (find_robot(name) for name in ("fr3", "fr3v2", "panda"))
every_robot = pytest.mark.parametrize("robot", [find_robot(name) for name in ROBOTS], ids=ROBOTS)

# The state of a real Panda as the FCI documentation prints it for the example echo_robot_state
# ("Getting started", JSON of one state at rest); transforms column by column.
RECORDED_Q = np.array([0.0167305, -0.762614, -0.0207622, -2.34352, -0.0305686, 1.53975, 0.753872])
RECORDED_O_T_EE = np.array(
    [
        [0.998578, 0.0335224, -0.04122, 0.305468],
        [0.0328747, -0.999317, -0.016294, -0.00814133],
        [-0.0417381, 0.0149157, -0.999017, 0.483198],
        [0.0, 0.0, 0.0, 1.0],
    ]
)
RECORDED_F_T_EE = np.array(
    [
        [0.7071, 0.7071, 0.0, 0.0],
        [-0.7071, 0.7071, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.1034],
        [0.0, 0.0, 0.0, 1.0],
    ]
)
RECORDED_TAU_J = np.array([-0.00359774, -5.08582, 0.105732, 21.8135, 0.63253, 2.18121, -0.0481953])
RECORDED_TAU_EXT = np.array(
    [0.00187271, -0.700316, 0.386035, 0.0914781, -0.117258, -0.00667777, -0.0252562]
)


def postures(robot: Robot, count: int) -> np.ndarray:
    """(count, J) joint positions [rad], uniform within the limits."""
    rng = np.random.default_rng(0)
    return rng.uniform(robot.limits.q_min, robot.limits.q_max, size=(count, robot.num_joints))


def compiled(robot: Robot) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(robot.model_xml))


def rotation(axis: str, angle: float) -> np.ndarray:
    """(4, 4) turn by `angle` [rad] about x or z."""
    c, s = np.cos(angle), np.sin(angle)
    about_x = np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1]])
    about_z = np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    return about_x if axis == "x" else about_z


def shift(x: float, z: float) -> np.ndarray:
    """(4, 4) shift along x and z [m]."""
    pose = np.eye(4)
    pose[:3, 3] = [x, 0.0, z]
    return pose


def flange_by_table(q: np.ndarray) -> np.ndarray:
    """(4, 4) base_T_flange, four elementary motions for every row of the published table."""
    right = np.pi / 2
    table = [
        (0.0, 0.333, 0.0),
        (0.0, 0.0, -right),
        (0.0, 0.316, right),
        (0.0825, 0.0, right),
        (-0.0825, 0.384, -right),
        (0.0, 0.0, right),
        (0.088, 0.0, right),
        (0.0, 0.107, 0.0),
    ]
    pose = np.eye(4)
    for (a, d, alpha), theta in zip(table, [*q, 0.0], strict=True):
        pose = pose @ rotation("x", alpha) @ shift(a, 0.0) @ rotation("z", theta) @ shift(0.0, d)
    return pose


@every_robot
def test_flange_equals_the_product_of_the_published_table(robot: Robot) -> None:
    for q in postures(robot, 20):
        np.testing.assert_allclose(
            robot.chain.forward_kinematics(q), flange_by_table(q), atol=1e-12
        )


@every_robot
def test_flange_of_the_upright_arm_is_the_sum_of_the_link_lengths(robot: Robot) -> None:
    pose = robot.chain.forward_kinematics(np.zeros(7))
    np.testing.assert_allclose(pose[:3, 3], [0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107], atol=1e-12)
    np.testing.assert_allclose(pose[:3, :3], np.diag([1, -1, -1]), atol=1e-12)


@every_robot
def test_flange_of_the_arm_with_elbow_and_wrist_at_right_angles(robot: Robot) -> None:
    """The forearm lies level: shoulder offset and forearm add up along x, the offsets above along
    z."""
    q = np.array([0.0, 0.0, 0.0, -np.pi / 2, 0.0, np.pi / 2, 0.0])
    pose = robot.chain.forward_kinematics(q)
    height = 0.333 + 0.316 + 0.0825 - 0.107
    np.testing.assert_allclose(pose[:3, 3], [0.0825 + 0.384 + 0.088, 0.0, height], atol=1e-12)


@every_robot
def test_flange_in_the_ready_posture_stands_at_frankas_published_place(robot: Robot) -> None:
    position = robot.chain.forward_kinematics(robot.q_home)[:3, 3]
    np.testing.assert_allclose(position, [0.306891, 0.0, 0.590282], atol=1e-6)


def test_end_effector_stands_where_a_real_panda_has_reported_it() -> None:
    pose = PANDA.chain.forward_kinematics(RECORDED_Q) @ PANDA.tool.flange_T_ee
    # The state is printed with six digits and with 0.7071 for the root of one half.
    np.testing.assert_allclose(pose, RECORDED_O_T_EE, atol=2e-5)


@every_robot
def test_flange_and_jacobian_equal_those_of_the_mujoco_model(robot: Robot) -> None:
    model = compiled(robot)
    data = mujoco.MjData(model)
    site = model.site(robot.flange_name).id
    for q in postures(robot, 20):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        J = np.empty((6, robot.num_joints))
        mujoco.mj_jacSite(model, data, J[:3], J[3:], site)
        pose = robot.chain.forward_kinematics(q)
        np.testing.assert_allclose(pose[:3, 3], data.site_xpos[site], atol=1e-9)
        np.testing.assert_allclose(pose[:3, :3], data.site_xmat[site].reshape(3, 3), atol=1e-9)
        np.testing.assert_allclose(robot.chain.jacobian(q), J, atol=1e-9)


@every_robot
def test_frames_of_many_arms_equal_those_of_single_arms(robot: Robot) -> None:
    q = postures(robot, 6)
    positions, rotations = robot.chain.batched_joint_frames(q)
    for i, row in enumerate(q):
        frames = robot.chain.joint_frames(row)
        np.testing.assert_allclose(positions[i], frames[:, :3, 3], atol=1e-12)
        np.testing.assert_allclose(rotations[i], frames[:, :3, :3], atol=1e-12)


@pytest.mark.parametrize("robot", [FR3, FR3V2], ids=lambda robot: robot.name)
def test_joint_limits_of_the_research_3_are_the_published_ones(robot: Robot) -> None:
    limits = robot.limits
    assert limits.q_max.tolist() == [2.9007, 1.8361, 2.9007, -0.1169, 2.8763, 4.6216, 3.0508]
    assert limits.q_min.tolist() == [-2.9007, -1.8361, -2.9007, -3.0770, -2.8763, 0.4398, -3.0508]
    assert limits.dq_max.tolist() == [2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26]
    assert limits.ddq_max.tolist() == [10] * 7
    assert limits.dddq_max.tolist() == [5000] * 7
    assert limits.tau_max.tolist() == [87, 87, 87, 87, 12, 12, 12]
    assert limits.dtau_max.tolist() == [1000] * 7
    assert limits.dq_offset is not None
    assert limits.dq_offset.tolist() == [0.6599, 0.2517, 0.2, 0.3533, 0.5757, 0.4878, 0.4628]
    assert limits.ddq_dec is not None
    assert limits.ddq_dec.tolist() == [6.0, 2.585, 3.5, 4.0, 17.0, 5.5, 17.0]
    assert robot.cartesian.velocity.tolist() == [3.0, 2.5, 2.62]
    assert robot.cartesian.acceleration.tolist() == [9.0, 17.0, 10.0]
    assert robot.cartesian.jerk.tolist() == [4500.0, 8500.0, 5000.0]


def test_joint_limits_of_the_panda_are_the_published_ones() -> None:
    limits = PANDA.limits
    assert limits.q_max.tolist() == [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973]
    assert limits.q_min.tolist() == [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]
    assert limits.dq_max.tolist() == [2.175] * 4 + [2.61] * 3
    assert limits.ddq_max.tolist() == [15, 7.5, 10, 12.5, 15, 20, 20]
    assert limits.dddq_max.tolist() == [7500, 3750, 5000, 6250, 7500, 10000, 10000]
    assert limits.tau_max.tolist() == [87, 87, 87, 87, 12, 12, 12]
    assert limits.dtau_max.tolist() == [1000] * 7
    assert PANDA.cartesian.velocity.tolist() == [1.7, 2.5, 2.175]
    assert PANDA.cartesian.acceleration.tolist() == [13.0, 25.0, 10.0]
    assert PANDA.cartesian.jerk.tolist() == [6500.0, 12500.0, 5000.0]


def test_velocity_limit_of_the_fr3_near_a_stop_follows_the_published_formula() -> None:
    q = np.zeros(7)
    q[1] = FR3.limits.q_max[1] - 0.1
    lower, upper = FR3.limits.velocity_limits(q)
    assert upper[1] == pytest.approx(-0.2517 + np.sqrt(2 * 2.585 * 0.1))
    assert lower[1] == -2.62


def test_velocity_limits_of_the_panda_are_the_same_at_all_positions() -> None:
    q = np.stack([PANDA.limits.q_max, PANDA.limits.q_min, PANDA.q_home])
    lower, upper = PANDA.limits.velocity_limits(q)
    np.testing.assert_array_equal(upper, np.tile([2.175] * 4 + [2.61] * 3, (3, 1)))
    np.testing.assert_array_equal(lower, -upper)


@every_robot
def test_limits_and_names_of_the_mujoco_model_equal_the_robots(robot: Robot) -> None:
    model = compiled(robot)
    limits = robot.limits
    torque = np.stack([-limits.tau_max, limits.tau_max], axis=1)
    np.testing.assert_array_equal(model.jnt_range, np.stack([limits.q_min, limits.q_max], axis=1))
    np.testing.assert_array_equal(model.jnt_actfrcrange, torque)
    np.testing.assert_array_equal(model.actuator_ctrlrange, torque)
    np.testing.assert_array_equal(model.dof_armature, robot.armature)
    np.testing.assert_array_equal(model.dof_damping.ravel()[:7], robot.joint_damping)
    assert tuple(model.joint(i).name for i in range(7)) == robot.joint_names
    assert tuple(model.body(i + 1).name for i in range(8)) == robot.link_names


@every_robot
def test_inertials_of_the_mujoco_model_equal_the_robots(robot: Robot) -> None:
    model = compiled(robot)
    for link, name in enumerate(robot.link_names):
        body = model.body(name)
        axes = np.empty(9)
        mujoco.mju_quat2Mat(axes, body.iquat)
        axes = axes.reshape(3, 3)
        assert body.mass[0] == robot.inertials.mass[link]
        np.testing.assert_array_equal(body.ipos, robot.inertials.com[link])
        tensor = axes @ np.diag(body.inertia) @ axes.T
        np.testing.assert_allclose(tensor, robot.inertials.tensor(link), atol=1e-12)


def test_gravity_of_the_arm_stretched_out_is_mass_times_lever() -> None:
    """With q2 = 90 degrees and all else 0 the arm lies along base x at the shoulder's height."""
    model = compiled(FR3)
    data = mujoco.MjData(model)
    data.qpos[1] = np.pi / 2
    mujoco.mj_forward(model, data)
    # Along the stretched arm the frames of links 2..7 lie at 0, .316, .316, .7, .7, .7 m, and the
    # axis that points outward is -y, z, y, z, y, -z in turn.
    com = FR3.inertials.com
    levers = [
        -com[2][1],
        0.316 + com[3][2],
        0.316 + com[4][1],
        0.7 + com[5][2],
        0.7 + com[6][1],
        0.7 - com[7][2],
    ]
    expected = -9.81 * float(np.dot(FR3.inertials.mass[2:], levers))
    assert data.qfrc_gravcomp[1] == pytest.approx(expected, rel=1e-9)


def test_gravity_torques_of_the_panda_are_those_that_a_real_one_has_reported() -> None:
    """At rest the robot's own model of gravity is its joint torque less the external one."""
    model = compiled(PANDA)
    data = mujoco.MjData(model)
    data.qpos[:] = RECORDED_Q
    mujoco.mj_forward(model, data)
    tool = PANDA.tool
    flange = PANDA.chain.forward_kinematics(RECORDED_Q)
    J = PANDA.chain.jacobian(RECORDED_Q)
    lever = flange[:3, :3] @ tool.com
    J_com = J[:3] + np.cross(J[3:].T, lever).T
    gravity = data.qfrc_gravcomp + 9.81 * tool.mass * J_com[2]
    np.testing.assert_allclose(gravity, RECORDED_TAU_J - RECORDED_TAU_EXT, atol=0.2)


@every_robot
def test_arm_holds_still_without_command_because_the_robot_carries_its_own_weight(
    robot: Robot,
) -> None:
    model = compiled(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = robot.q_home
    for _ in range(200):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(data.qpos, robot.q_home, atol=1e-9)


@every_robot
def test_commanded_torque_excludes_gravity_and_joint_torque_includes_it(robot: Robot) -> None:
    model = compiled(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = robot.q_home
    data.ctrl[:] = [1, 2, 3, 4, 5, 6, 7]
    mujoco.mj_forward(model, data)
    assert np.abs(data.qfrc_gravcomp).max() > 10.0
    np.testing.assert_allclose(data.qfrc_actuator, data.ctrl + data.qfrc_gravcomp)


def test_gripper_is_the_default_end_effector_that_a_real_robot_has_reported() -> None:
    tool = PANDA.tool
    np.testing.assert_allclose(tool.flange_T_ee, RECORDED_F_T_EE, atol=1e-5)
    assert tool.mass == 0.73
    np.testing.assert_array_equal(PANDA.gripper.com, [-0.01, 0.0, 0.03])
    np.testing.assert_array_equal(PANDA.gripper.inertia, [0.001, 0.0025, 0.0017])


@every_robot
def test_gripper_keeps_the_limits_of_its_data_sheet(robot: Robot) -> None:
    gripper = robot.gripper
    assert (gripper.width_max, gripper.speed_max, gripper.force_max) == (0.08, 0.1, 70.0)


def test_frame_grasp_has_the_bases_axes_when_the_gripper_points_straight_down() -> None:
    """In the ready posture the seventh joint turns the gripper's own 45 degrees back."""
    flange = FR3.chain.forward_kinematics(FR3.q_home)[:3, :3]
    np.testing.assert_allclose(flange @ FR3.gripper.flange_R_grasp, np.eye(3), atol=1e-12)


def test_tool_in_flange_axes_is_the_gripper_turned_by_its_yaw() -> None:
    tool = FR3.tool
    half = np.sqrt(0.5)
    np.testing.assert_allclose(tool.com, [-0.01 * half, 0.01 * half, 0.03], atol=1e-12)
    # A turn by 45 degrees makes both axes' moments their mean, and half their difference the
    # product.
    expected = [[0.00175, 0.00075, 0.0], [0.00075, 0.00175, 0.0], [0.0, 0.0, 0.0017]]
    np.testing.assert_allclose(tool.inertia, expected, atol=1e-12)


@every_robot
def test_every_group_of_figures_names_its_source(robot: Robot) -> None:
    groups = (robot.chain, robot.limits, robot.cartesian, robot.inertials, robot.gripper)
    assert all(len(group.source) > 20 for group in groups)


@every_robot
def test_robot_is_found_by_its_name(robot: Robot) -> None:
    assert find_robot(robot.name) is robot


def test_catalogue_lists_every_robot_that_has_a_model() -> None:
    models = {file.stem for file in FR3.model_xml.parent.glob("*.xml")}
    assert models == set(ROBOTS)


def test_unknown_robot_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(HandoffError, match="'pandas' is not known, did you mean 'panda'"):
        find_robot("pandas")
    with pytest.raises(HandoffError, match=f"there are {', '.join(ROBOTS)}"):
        find_robot("ur5e")


@every_robot
def test_figures_cannot_be_written_to(robot: Robot) -> None:
    with pytest.raises(ValueError, match="read-only"):
        robot.q_home[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        robot.limits.q_max[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        robot.chain.parent_T_joint[0, 0, 3] = 1.0


def test_robot_with_a_joint_missing_from_one_figure_is_refused() -> None:
    short = replace(PANDA.limits, q_max=np.ones(6))
    with pytest.raises(
        HandoffError, match=r"panda: limits.q_max has the shape \(6,\), expected \(7,\)"
    ):
        replace(PANDA, limits=short)


def test_robot_with_a_ready_posture_beyond_its_limits_is_refused() -> None:
    with pytest.raises(
        HandoffError, match=r"q_home of joint4 is 0.0000 rad, expected between -3.0718 and -0.0698"
    ):
        replace(PANDA, q_home=np.zeros(7))


def test_robot_with_half_of_the_position_dependent_limit_is_refused() -> None:
    half = replace(FR3.limits, ddq_dec=None)
    with pytest.raises(
        HandoffError, match=r"one of limits.dq_offset and limits.ddq_dec is missing"
    ):
        replace(FR3, limits=half)


def test_chain_with_an_angle_in_degrees_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"alpha is 91.0 rad, expected a multiple of pi / 2"):
        KinematicChain(dh=np.array([[0.0, 0.333, 91.0]]), flange_offset=0.1, source="a test")


def test_chain_with_a_column_too_many_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"dh has the shape \(1, 4\)"):
        KinematicChain(dh=np.zeros((1, 4)), flange_offset=0.1, source="a test")


def test_importing_a_robot_loads_no_heavy_library() -> None:
    code = "import sys, robots.franka.panda; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "mujoco", "zarr", "scipy", "pydantic", "franky", "onnxruntime"}
    assert heavy.isdisjoint(loaded.stdout.split())
