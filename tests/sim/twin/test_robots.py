"""Runs the twin as each robot: the data that the client receives, the limits of the control unit,
and a real client that drives a Panda."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest

from real.arm import PoseTarget
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.impedance import ImpedanceConfig
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS
from robots.franka.kinematics import inverse_kinematics
from robots.franka.urdf_limits import check_urdf
from sim.tasks.push_t.geometry import flange_target
from sim.twin.protocol import COMMAND, Controller, ErrorBit, Generator
from sim.twin.push_t_world import PushTWorld
from sim.twin.task_world import TaskWorld
from sim.twin.twin import TwinConfig, start_twin
from sim.twin.unit.arm_model import urdf_of_arm
from sim.twin.unit.control_unit import ControlUnit
from tests.sim.twin.loopback import address
from tests.sim.twin.still_world import StillWorld

PANDA = find_robot("panda")
AGENT, BLOCK = np.array([0.256, 0.400]), np.array([0.256, 0.300, 0.0])


@pytest.mark.parametrize("name", ROBOTS)
def test_client_reads_name_and_limits_of_the_robot_from_its_urdf(name: str) -> None:
    robot = find_robot(name)
    urdf = urdf_of_arm(mujoco.MjModel.from_xml_path(str(robot.model_xml)), robot)
    root = ElementTree.fromstring(urdf)
    assert root.attrib["name"] == name
    assert [link.attrib["name"] for link in root.findall("link")] == [f"link{i}" for i in range(9)]
    check_urdf(robot, urdf)


def test_velocity_limit_of_the_panda_hardly_depends_on_the_position_for_its_client() -> None:
    """libfranka computes `-offset + sqrt(2 deceleration (stop - q))` from the URDF."""
    urdf = urdf_of_arm(mujoco.MjModel.from_xml_path(str(PANDA.model_xml)), PANDA)
    for limit in ElementTree.fromstring(urdf).iter("position_based_velocity_limits"):
        offset, deceleration = (
            float(limit.attrib[key]) for key in ("velocity_offset", "deceleration_limit")
        )
        assert -offset + np.sqrt(2.0 * deceleration * 1e-5) > PANDA.limits.dq_max.max()


def test_control_unit_holds_the_limits_of_its_own_robot() -> None:
    """1.80 rad of joint 2 is within an FR3's limits and beyond a Panda's."""
    refused = []
    for name in ("fr3", "panda"):
        world = PushTWorld(name)
        unit = ControlUnit(world)
        unit.reference[0, 1] = 1.80 - 1e-6
        unit.begin(1, Controller.JOINT_IMPEDANCE, Generator.JOINT_POSITION)
        command = np.zeros(1, COMMAND)
        command["q_c"] = unit.reference[0]
        command["q_c"][0, 1] = 1.80
        unit.cycle(command)
        refused.append([ErrorBit(int(bit)) for bit in np.flatnonzero(unit.errors)])
    assert refused == [[], [ErrorBit.COMMANDED_POSITION_LIMITS]]


def test_robot_whose_joints_the_protocol_has_no_room_for_is_refused() -> None:
    world = StillWorld(None)
    world.robot = SimpleNamespace(name="ur5e", num_joints=6)  # type: ignore[assignment]
    with pytest.raises(HandoffError, match="ur5e has 6 joints, the FCI protocol expects 7"):
        ControlUnit(world)


@pytest.mark.parametrize("name", ["reach", "pick_cube", "open_drawer"])
def test_task_table_carries_the_robot_that_is_asked_for(name: str) -> None:
    world = TaskWorld(name, "panda")
    assert world.robot is PANDA
    assert world.model.joint(0).name == "panda_joint1"
    before = world.q.copy()
    for _ in range(100):
        world.step(np.zeros(7))
    np.testing.assert_allclose(world.q, before, atol=1e-3)
    np.testing.assert_allclose(
        world.base_T_ee, PANDA.chain.forward_kinematics(world.q) @ world.flange_T_ee, atol=1e-9
    )


def test_franky_drives_the_twin_as_a_panda_without_losing_a_packet() -> None:
    pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    settings = TwinConfig(host=address(71))
    with start_twin(settings, partial(PushTWorld, "panda")) as twin:
        twin.call("reset", AGENT, BLOCK)
        config = FrankaConfig(host=twin.host, realtime="ignore", robot="panda")
        with FrankaArm(config, twin, twin.wait_for_motion) as arm:
            state = arm.preflight()
            np.testing.assert_allclose(
                state.base_T_ee,
                PANDA.chain.forward_kinematics(state.q) @ arm.flange_T_ee,
                atol=1e-6,
            )
            lifted = inverse_kinematics(PANDA, flange_target(AGENT, height=0.05), state.q)
            assert arm.move_to_joints(lifted)
            np.testing.assert_allclose(arm.state().q, lifted, atol=1e-3)
            arm.start()
            pose, twist = arm.state().base_T_ee.copy(), np.zeros(6)
            twist[0] = 0.05
            for _ in range(250):
                pose[0, 3] += 0.05 * 0.004
                arm.set_target(PoseTarget(pose, twist, np.zeros(6)))
                twin.advance(0.004)
            np.testing.assert_allclose(arm.state().base_T_ee[:3, 3], pose[:3, 3], atol=2e-3)
        assert twin.stats()["lost_packets"] == 0


def test_driver_configured_for_an_fr3_refuses_the_panda() -> None:
    pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    settings = TwinConfig(host=address(72))
    with start_twin(settings, partial(PushTWorld, "panda")) as twin:
        config = FrankaConfig(host=twin.host, realtime="ignore", impedance=ImpedanceConfig())
        with (
            pytest.raises(SafetyError, match="fr3: the connected arm is 'panda'"),
            FrankaArm(config, twin, twin.wait_for_motion),
        ):
            pass
