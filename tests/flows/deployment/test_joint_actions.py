"""Policies whose actions move the joints, at the twin behind the unmodified client: hand-written
linear policies go through contract, coordinates, governor and driver as learned ones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.deployment.config import DeployTaskConfig, DeployTaskSession
from flows.deployment.session import check_policy
from real.motion.fence import FenceConfig, KeepOutPlane
from real.motion.joint_space import LEVER
from real.motion.step_spaces import with_law
from robots.contract import Contract
from robots.control.actions import JointDelta, JointTarget, StepSpace
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.kinematics import batched_jacobian
from robots.spec import FieldSpec
from sim.make import find_task
from tests.flows.deployment.test_task_table import contract_for, run, save_bundle
from tests.real.fakes import contract

FR3 = find_robot("fr3")
FIELDS = ("q", "grasp_pose", "target_offset", "goal")
HURRY = 4.0
"""Share of the distance to the goal that a policy moves per second."""


def joint_contract(steps: StepSpace, fields: tuple[str, ...] = FIELDS) -> Contract:
    """The contract of a policy of reach whose actions are those."""
    task = find_task("reach")
    return contract(
        task="reach",
        observation={name: task.observations[name].spec for name in fields},
        action=FieldSpec(shape=(7 + task.use_gripper,)),
        rate_hz=task.rate_hz,
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        action_interface=steps.kind,
        steps=steps,
        robot="fr3",
    )


def towards_goal(stated: Contract) -> np.ndarray:
    """Weights (O + 1, A) of a policy that moves the joints as the pose of the start would move the
    hand to the goal."""
    positions, rotations = FR3.chain.batched_joint_frames(FR3.q_home[None])
    flange_T_ee = np.eye(4)
    flange_T_ee[2, 3] = FR3.gripper.tcp_offset
    hand = (FR3.chain.forward_kinematics(FR3.q_home) @ flange_T_ee)[:3, 3]
    J = batched_jacobian(positions, rotations, hand[None])[0]
    # (7, 3) joint motion for a motion of the hand that keeps its rotation.
    moved = np.linalg.pinv(J, rcond=0.05)[:, :3]
    sizes = [int(np.prod(spec.shape)) for spec in stated.observation.values()]
    first = dict(zip(stated.observation, np.cumsum([0, *sizes[:-1]]), strict=True))
    weights = np.zeros((sum(sizes) + 1, stated.action.shape[0]))
    gain = HURRY / stated.rate_hz
    steps = stated.steps
    if isinstance(steps, JointDelta):
        gain /= steps.step
    for axis in range(3):
        weights[first["goal"] + axis, :7] = gain * moved[:, axis]
        weights[first["grasp_pose"] + axis, :7] = -gain * moved[:, axis]
        if isinstance(steps, JointDelta):
            # The target moves, not the arm.
            weights[first["target_offset"] + axis, :7] = -gain * moved[:, axis]
    if isinstance(steps, JointTarget):
        weights[first["q"] : first["q"] + 7, :7] = np.eye(7)
    return weights


@pytest.mark.parametrize(("steps", "number"), [(JointDelta(), 151), (JointTarget(), 152)])
def test_a_policy_of_the_joints_reaches_its_goal(
    tmp_path: Path, steps: StepSpace, number: int
) -> None:
    stated = joint_contract(steps)
    inputs = save_bundle(tmp_path, stated, towards_goal(stated))
    metrics, store = run(tmp_path, number, inputs, starts=1)
    assert metrics["faults"] == 0, metrics["fault_reasons"]
    assert metrics["success"]["k"] == 1
    assert (metrics["lost_packets"], metrics["command_success_rate"]) == (0, 1.0)
    episode = store.read(0, "policy")
    assert episode["action"].shape[1] == stated.action.shape[0]
    assert store.schema.streams["policy"].fields["action"].interface == steps.kind
    reference = store.read(0, "reference")
    assert reference["position"].shape[1] == 7
    # The coordinates are joint positions times a lever of 0.2 m.
    q = store.read(0, "robot", ["q"])["q"]
    np.testing.assert_allclose(reference["measured"][-1] / LEVER, q[-1], atol=2e-3)


BELOW = 100_001
"""Seed of a start whose goal is so low that the policy, which knows one pose, runs into the
table."""
TABLE = FenceConfig(
    planes=(KeepOutPlane(name="table", normal=(0.0, 0.0, 1.0), offset=0.0),), tool=0.05
)
"""A hand that is tilted touches the table with the edges of its fingers first."""


def test_a_fence_keeps_a_policy_of_the_joints_off_the_table(tmp_path: Path) -> None:
    """Nothing else does: the box of a governor in joint space knows no table."""
    stated = joint_contract(JointDelta())
    inputs = save_bundle(tmp_path, stated, towards_goal(stated))
    lowest = {}
    for name, fence in (("free", FenceConfig()), ("fenced", TABLE)):
        loop = replace(DeployTaskConfig().loop, fence=fence)
        folder = tmp_path / name
        folder.mkdir()
        metrics, store = run(
            folder, 153, inputs, starts=1, first_seed=BELOW, loop=loop, max_steps=60
        )
        lowest[name] = float(store.read(0, "robot", ["base_T_ee"])["base_T_ee"][:, 2, 3].min())
        assert ("reflex" in str(metrics["fault_reasons"])) == (name == "free")
    assert lowest["free"] < 0.03
    assert lowest["fenced"] > TABLE.tool - 0.003


def session(**options: Any) -> DeployTaskSession:
    usual = DeployTaskSession()
    return replace(usual, **options)


def test_a_session_takes_policies_of_the_joints() -> None:
    for steps in (JointDelta(), JointTarget()):
        stated = joint_contract(steps)
        check_policy(session(), stated)
        followed = with_law(session().arm, stated)
        assert followed.impedance.controller == "joint"
    assert with_law(session().arm, contract_for("reach", ("goal",))) == session().arm


def test_the_cartesian_law_cannot_follow_joints() -> None:
    arm = session().arm
    arm = replace(arm, impedance=replace(arm.impedance, controller="cartesian"))
    with pytest.raises(HandoffError, match=r"which the joint law follows\. Leave it out"):
        check_policy(session(arm=arm), joint_contract(JointDelta()))


def test_a_real_arm_needs_a_fence_for_a_policy_of_the_joints() -> None:
    stated = joint_contract(JointDelta(), ("q", "grasp_pose"))
    at_arm = session(host="172.16.0.2")
    with pytest.raises(HandoffError, match="which no workspace of the gripper bounds"):
        check_policy(at_arm, stated)
    check_policy(replace(at_arm, loop=replace(at_arm.loop, fence=TABLE)), stated)
