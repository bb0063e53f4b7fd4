"""Steps of a gripper in the deploy loop: the same coordinates, targets and fields as in the simulated
environments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from real.arm import ArmState
from real.deploy.episode_recorder import LoopRecord
from real.deploy.loop import LoopConfig, run_episode
from real.motion.action_space import LEVER, SETTLING, CartesianSteps, StepReference
from real.motion.governor import GovernorConfig, ReferenceGovernor
from real.motion.planar_space import Plane, PlaneConfig
from real.motion.step_spaces import start_within
from robots.contract import Contract
from robots.control.actions import CartesianDelta, Motion
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.franka.kinematics import rotation_matrix, rotation_vector
from robots.spec import FieldSpec
from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from tests.real.fakes import FakeArm, FakeClock, contract

FR3 = find_robot("fr3")

STEPS = CartesianDelta()
FLANGE_T_EE = np.eye(4)
FLANGE_T_EE[2, 3] = FR3.gripper.tcp_offset


def pose(q: np.ndarray = FR3.q_home) -> np.ndarray:
    return FR3.chain.forward_kinematics(q) @ FLANGE_T_EE


def stepping(steps: CartesianDelta | None = STEPS, **changes: object) -> Contract:
    fields = {
        "task": "pick_cube",
        "observation": {name: FieldSpec(shape=(6,)) for name in ("grasp_pose", "target_offset")},
        "action": FieldSpec(shape=(5,)),
        "action_interface": "cartesian_delta",
        "rate_hz": 20.0,
        "n_obs_steps": 1,
        "horizon": 4,
        "n_action_steps": 4,
        "steps": steps,
    }
    return contract(**(fields | changes))


def state(q: np.ndarray, dq: np.ndarray) -> ArmState:
    zero = np.zeros(7)
    return ArmState(0.0, q, dq, pose(q), zero, zero, np.zeros(6), 1.0, "Move", ())


@pytest.mark.parametrize(
    "vector", [(0.0, 0.0, 0.0), (0.3, -0.2, 1.1), (0.0, 0.0, -1.7), (1e-12, 0.0, 0.0)]
)
def test_rotation_matrix_is_the_inverse_of_the_rotation_vector(
    vector: tuple[float, float, float],
) -> None:
    matrix = rotation_matrix(np.array(vector))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(rotation_vector(matrix), vector, atol=1e-11)


def test_a_target_at_coordinates_is_a_pose_with_these_coordinates() -> None:
    space = CartesianSteps(stepping(), pose(), FR3)
    wanted = np.array([0.42, -0.1, 0.2, 0.7 * LEVER])
    target = space.target(Motion(wanted, np.ones(4), np.ones(4)))
    np.testing.assert_allclose(space.position(target.base_T_ee), wanted, atol=1e-9)
    assert not target.twist.any(), "the dampers act against rest, as in the environments"
    assert not target.acceleration.any()


def test_axes_that_do_not_move_stay_as_the_episode_found_them() -> None:
    tilted = pose()
    tilted[:3, :3] = rotation_matrix(np.array([0.05, -0.03, 0.0])) @ tilted[:3, :3]
    space = CartesianSteps(stepping(), tilted, FR3)
    target = space.target(Motion(space.position(tilted), np.zeros(4), np.zeros(4)))
    np.testing.assert_allclose(target.base_T_ee, tilted, atol=1e-9)


def test_observes_what_the_simulated_environments_observe() -> None:
    env = MujocoEngine(find_task("pick_cube"), 1)
    env.reset(np.array([0]), np.array([7]))
    moved = np.array([[0.4, -0.8, 0.3, 0.9, 0.0]])
    for _ in range(5):
        env.step(moved, np.array([True]))
    obs = {name: array[0] for name, array in env.read().observation.items()}
    q, dq = env.view.q[0].copy(), env.view.dq[0].copy()
    env.reset(np.array([0]), np.array([7]))
    space = CartesianSteps(stepping(), pose(env.view.q[0]), FR3)
    begun = (obs["grasp_pose"] + obs["target_offset"])[[0, 1, 2, 5]] * [1.0, 1.0, 1.0, LEVER]
    shown = space.proprioception(state(q, dq), begun)
    assert shown.keys() >= {"q", "dq", "grasp_pose", "target_offset", "hand_turn", "hand_velocity"}
    for name, value in shown.items():
        assert value.dtype == np.float32
        if name == "target_offset":
            # Roll and pitch, which no action moves, are those of the start on both sides.
            np.testing.assert_allclose(value, obs[name], atol=2e-6)
        else:
            np.testing.assert_allclose(value, obs[name], atol=1e-6, err_msg=name)


def test_an_action_moves_the_target_as_in_the_simulated_environments() -> None:
    space = CartesianSteps(stepping(), pose(), FR3)
    here = space.position(pose())
    action = np.array([1.0, -3.0, 0.5, 1.0, -1.0])
    asked = space.next_target(action, here, here)
    assert here[2] > STEPS.high[2] + STEPS.leash_translation, (
        "the arm begins above the box, and is led into it"
    )
    np.testing.assert_allclose(
        asked - here, [0.02, -0.02, -STEPS.leash_translation, 0.01], atol=1e-9
    )
    far = space.next_target(action, here + np.array([0.029, 0.0, 0.0, 0.0]), here)
    assert far[0] - here[0] == pytest.approx(STEPS.leash_translation)


def test_the_governors_box_holds_the_steps_and_the_start() -> None:
    begun = pose()
    space = CartesianSteps(stepping(), begun, FR3)
    limits = space.governed(GovernorConfig(max_speed=0.8))
    assert limits.max_speed == 0.8
    np.testing.assert_allclose(limits.low, [*STEPS.low, -STEPS.rotation_limit * LEVER])
    np.testing.assert_allclose(limits.high[:2], STEPS.high[:2])
    assert limits.high[2] == pytest.approx(begun[2, 3] + SETTLING)


def test_an_arm_that_settles_above_its_first_pose_begins_an_episode() -> None:
    space = CartesianSteps(stepping(), pose(), FR3)
    limits = space.governed(GovernorConfig(max_speed=0.8))
    settled = space.position(pose()) + np.array([0.0, 0.0, 1e-4, 0.0])
    assert settled[2] > STEPS.high[2], "the arm begins above the steps' box"
    ReferenceGovernor(limits, 0.005, settled, FR3, feeds_velocity=False)
    with pytest.raises(SafetyError, match="outside the keep-in box"):
        ReferenceGovernor(
            limits, 0.005, settled + np.array([0.0, 0.0, 0.01, 0.0]), FR3, feeds_velocity=False
        )


def test_a_start_outside_the_workspace_is_moved_to_the_nearest_place_inside() -> None:
    assert pose()[2, 3] > STEPS.high[2]
    inside = start_within(STEPS, FR3, FLANGE_T_EE, FR3.q_home)
    expected = pose()
    expected[2, 3] = STEPS.high[2]
    np.testing.assert_allclose(pose(inside), expected, atol=1e-5)
    high = replace(STEPS, high=(*STEPS.high[:2], 0.6))
    assert start_within(high, FR3, FLANGE_T_EE, FR3.q_home) is FR3.q_home
    flat = replace(STEPS, axes=("x", "y"))
    assert start_within(flat, FR3, FLANGE_T_EE, FR3.q_home) is FR3.q_home, "no step moves it up"


def test_a_step_is_made_in_one_period_at_constant_velocity() -> None:
    reference = StepReference(np.zeros(2), 0.05)
    reference.push(np.array([0.02, 0.0]))
    way = [reference.sample(0.005 * (i + 1)) for i in range(12)]
    np.testing.assert_allclose(
        [motion.position[0] for motion in way[:10]], 0.002 * np.arange(1, 11), atol=1e-12
    )
    assert way[3].velocity[0] == pytest.approx(0.4)
    np.testing.assert_allclose(way[-1].position, [0.02, 0.0])
    assert not way[-1].velocity.any()


def test_a_new_target_takes_over_where_the_reference_is() -> None:
    reference = StepReference(np.zeros(1), 0.05)
    reference.push(np.array([0.02]))
    halfway = reference.sample(0.025).position
    reference.push(np.array([0.0]))
    assert reference.sample(0.025).position == pytest.approx(halfway)
    assert reference.sample(0.075).position == pytest.approx(0.0)
    assert reference.target == pytest.approx(0.0)


@pytest.mark.parametrize("bad", [np.array([np.nan]), np.zeros(2)])
def test_a_target_that_is_no_point_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(SafetyError, match="expected 1 finite numbers"):
        StepReference(np.zeros(1), 0.05).push(bad)


@pytest.mark.parametrize("changes", [{"steps": None}, {"action_interface": "pd_target"}])
def test_a_contract_that_does_not_say_what_a_step_is_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(HandoffError, match="does not say what a step is"):
        CartesianSteps(stepping(**changes), pose(), FR3)  # type: ignore[arg-type]


def test_steps_survive_the_contracts_json() -> None:
    stated = stepping(replace(STEPS, axes=("x", "z"), translation=0.01))
    assert Contract.from_json(stated.to_json()) == stated
    assert Contract.from_json(contract().to_json()).steps is None


class CountingGripper:
    """Half open, and records its targets."""

    def __init__(self) -> None:
        self.targets: list[float] = []

    def width(self) -> float:
        return 0.04

    def set_width(self, opening: float) -> None:
        self.targets.append(opening)


def loop(
    space: CartesianSteps | Plane, policy_contract: Contract, fingers: CountingGripper | None = None
) -> tuple[FakeArm, LoopRecord]:
    clock = FakeClock()
    arm = FakeArm(clock, pose())
    config = LoopConfig(
        max_steps=6, stream_hz=200.0, governor=GovernorConfig(max_speed=0.8, max_acceleration=9.0)
    )
    if isinstance(space, CartesianSteps):
        config = replace(config, governor=space.governed(config.governor))

    def policy(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.tile(np.array([0.5, 0.0, -1.0, 0.0, -1.0], dtype=np.float32), (1, 4, 1))

    record = run_episode(
        arm,
        clock,
        policy,
        policy_contract,
        lambda state: {},
        config,
        space=space,
        seed=3,
        gripper=fingers,
    )
    return arm, record


def test_the_loop_streams_steps_and_commands_the_gripper() -> None:
    space, fingers = CartesianSteps(stepping(), pose(), FR3), CountingGripper()
    arm, record = loop(space, stepping(), fingers)
    assert len(arm.targets) == 60, "6 policy steps of 50 ms at 200 Hz"
    moved = space.position(arm.targets[-1].base_T_ee) - space.position(pose())
    assert 0.05 < moved[0] <= 0.06 + 1e-9, (
        "six steps of 10 mm along x, which the governor may hold back a little"
    )
    assert moved[2] < -0.08
    assert abs(moved[1]) < 1e-9
    assert fingers.targets == [0.0] * 6
    policy = record.policy
    np.testing.assert_allclose(policy["action"], np.tile([0.5, 0.0, -1.0, 0.0, -1.0], (6, 1)))
    assert policy.keys() == {"grasp_pose", "target_offset", "action", "action_proposed"}
    np.testing.assert_allclose(policy["target_offset"][1][0], 0.5 * STEPS.translation, atol=0.01)


def test_the_gripper_target_moves_as_in_the_environments() -> None:
    fields = {"width": FieldSpec(shape=(1,)), "width_target": FieldSpec(shape=(1,))}
    stated = stepping(observation=fields)
    _, record = loop(CartesianSteps(stated, pose(), FR3), stated, CountingGripper())
    targets = np.array(record.policy["width_target"])[:, 0]
    np.testing.assert_allclose(targets[:5], [0.04, 0.035, 0.03, 0.025, 0.024], atol=1e-6)


def test_a_space_of_other_actions_is_refused_before_the_arm_moves() -> None:
    with pytest.raises(
        HandoffError, match="'cartesian_delta', the loop's space is one of 'pd_target'"
    ):
        loop(Plane(PlaneConfig()), stepping())
