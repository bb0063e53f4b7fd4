"""A task's table at the twin: hand-written linear policies control arm and gripper through the
whole deployment."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.deployment.config import DeployConfig, DeployTaskConfig, robot_of_bundle
from flows.reports.results import describe
from real.franka.gripper import GripperDriverConfig
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.spec import FieldSpec
from sim.make import EnvConfig, find_task, make_vec_env
from sim.twin.twin import TwinConfig
from tests.flows.recipe_stages import deployed, options
from tests.real.fakes import contract
from tests.real.onnx_models import save_linear_policy
from tests.sim.twin.loopback import address

HURRY = 30.0
"""Action per metre of distance to the target."""


def contract_for(task: str, fields: tuple[str, ...], robot: str = "fr3") -> Contract:
    definition = find_task(task, robot=robot)
    size = len(definition.actions.spec(definition.robot).low) + definition.use_gripper
    return contract(
        task=task,
        observation={name: definition.observations[name].spec for name in fields},
        action=FieldSpec(shape=(size,)),
        rate_hz=definition.rate_hz,
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        action_interface="cartesian_delta",
        steps=definition.actions,
        robot=robot,
    )


def save_bundle(folder: Path, contract: Contract, weights: np.ndarray) -> dict[str, Path]:
    bundle = folder / "bundle"
    bundle.mkdir()
    save_linear_policy(bundle / "policy.onnx", contract, weights)
    return {"bundle": bundle}


def towards(contract: Contract, goal: str) -> np.ndarray:
    """Weights (O + 1, A) of a policy that moves to the position field `goal` only."""
    sizes = [int(np.prod(spec.shape)) for spec in contract.observation.values()]
    first = dict(zip(contract.observation, np.cumsum([0, *sizes[:-1]]), strict=True))
    weights = np.zeros((sum(sizes) + 1, contract.action.shape[0]))
    for axis in range(3):
        weights[first[goal] + axis, axis] = HURRY
        weights[[first["grasp_pose"] + axis, first["target_offset"] + axis], axis] = -HURRY
    return weights


def run(
    folder: Path, number: int, inputs: dict[str, Path], **changes: Any
) -> tuple[dict[str, Any], EpisodeStore]:
    config = replace(
        DeployTaskConfig(starts=2, videos=0, twin=TwinConfig(host=address(number))), **changes
    )
    out = folder / "out"
    out.mkdir()
    metrics = deployed(config, inputs["bundle"], out)
    return metrics, EpisodeStore.open(out / "store.zarr", "r")


def test_an_end_effector_that_moves_to_its_goal_reaches_it(tmp_path: Path) -> None:
    stated = contract_for("reach", ("grasp_pose", "target_offset", "goal"))
    metrics, store = run(
        tmp_path, 41, save_bundle(tmp_path, stated, towards(stated, "goal")), videos=1
    )
    assert (metrics["success"]["k"], metrics["success"]["n"], metrics["faults"]) == (2, 2, 0)
    assert (metrics["lost_packets"], metrics["command_success_rate"]) == (0, 1.0)
    assert 0.0 < metrics["tracking_rms_m"] < 0.05
    assert (tmp_path / "out" / "paths.png").stat().st_size > 10_000
    assert (
        metrics.get("pictures") == ["twin_start_100000.mp4"] or "OpenGL" in metrics["no_pictures"]
    )
    assert describe("deploy", metrics).startswith("solved 2 of 2 starts, ")
    episode = store.read(0, "policy")
    assert episode.keys() == {
        "grasp_pose",
        "target_offset",
        "goal",
        "qpos",
        "goal_state",
        "action",
        "action_proposed",
    }
    gone = np.linalg.norm(episode["grasp_pose"][-1, :3] - episode["goal"][-1])
    assert gone < np.linalg.norm(episode["grasp_pose"][0, :3] - episode["goal"][0])
    assert store.read(0, "reference")["position"].shape[1] == 3
    assert store.metadata(1)["seed"] == 100_001


def test_policy_of_a_panda_drives_a_panda_as_its_bundle_says(tmp_path: Path) -> None:
    stated = contract_for("reach", ("grasp_pose", "target_offset", "goal"), robot="panda")
    metrics, store = run(tmp_path, 49, save_bundle(tmp_path, stated, towards(stated, "goal")))
    assert (metrics["success"]["k"], metrics["success"]["n"], metrics["faults"]) == (2, 2, 0)
    assert (metrics["lost_packets"], metrics["command_success_rate"]) == (0, 1.0)
    assert store.schema.robot == "panda"
    assert store.metadata(0)["robot"] == "panda twin"
    state, panda = store.read(0, "robot"), find_robot("panda")
    flange_T_ee = np.eye(4)
    flange_T_ee[2, 3] = panda.gripper.tcp_offset
    pose = panda.chain.forward_kinematics(state["q"][-1]) @ flange_T_ee
    np.testing.assert_allclose(state["base_T_ee"][-1], pose, atol=1e-5)


def test_robot_of_a_bundle_comes_from_its_contract_or_else_from_the_configuration() -> None:
    stated = contract_for("reach", ("goal",), robot="panda")
    arm = DeployTaskConfig().arm
    assert robot_of_bundle(stated, arm).name == "panda"
    assert robot_of_bundle(replace(stated, robot=""), arm).name == "fr3"
    assert robot_of_bundle(replace(stated, robot=""), replace(arm, robot="fr3v2")).name == "fr3v2"
    with pytest.raises(HandoffError, match="trained with the robot 'panda', the arm is 'fr3v2'"):
        robot_of_bundle(stated, replace(arm, robot="fr3v2"))
    with pytest.raises(HandoffError, match="robot: 'ur5e' is not known"):
        robot_of_bundle(replace(stated, robot="ur5e"), arm)


def test_the_gripper_closes_and_the_policy_observes_it(tmp_path: Path) -> None:
    stated = contract_for("flip_switch", ("grasp_pose", "width", "width_target"))
    weights = np.zeros((9, 5))
    weights[-1, -1] = -1.0
    metrics, store = run(
        tmp_path, 42, save_bundle(tmp_path, stated, weights), starts=1, max_steps=24
    )
    assert metrics["faults"] == 0
    episode = store.read(0, "policy")
    width, target = episode["width"][:, 0], episode["width_target"][:, 0]
    assert width[0] == pytest.approx(0.08, abs=1e-3)
    assert width[-1] < 0.005
    assert target[1] == pytest.approx(0.075, abs=2e-3)
    assert (target <= width + 1e-3).all(), "while the gripper closes, its target leads its width"


def test_steps_move_the_arm_as_fast_as_in_simulation(tmp_path: Path) -> None:
    """Where the target keeps its largest lead, the speed is that of the impedance law and its
    damping alone."""
    stated = contract_for("pick_cube", ("grasp_pose", "target_offset"))
    weights = np.zeros((13, 5))
    weights[-1, :3] = 0.5, -0.3, -1.0
    inputs = save_bundle(tmp_path, stated, weights)
    _, store = run(tmp_path, 50, inputs, starts=1, max_steps=22)
    at_the_arm = store.read(0, "policy")
    env = make_vec_env(EnvConfig(task="pick_cube"), 1)
    observation, simulated = env.reset([store.metadata(0)["seed"]]), []
    for action in at_the_arm["action"]:
        simulated.append(observation["grasp_pose"][0, :3])
        observation = env.step(action[None]).observation
    env.close()
    steps = [np.diff(path[10:], axis=0) for path in (at_the_arm["grasp_pose"][:, :3], simulated)]
    np.testing.assert_allclose(steps[0].mean(0), steps[1].mean(0), rtol=0.03, atol=1e-4)


def test_a_task_without_a_goal_is_recorded_and_drawn(tmp_path: Path) -> None:
    stated = contract_for("open_drawer", ("grasp_pose",))
    inputs = save_bundle(tmp_path, stated, np.zeros((7, 5)))
    metrics, store = run(tmp_path, 48, inputs, starts=1, max_steps=3, videos=1)
    assert (metrics["success"]["k"], metrics["faults"]) == (0, 0)
    assert store.read(0, "policy").keys() == {"grasp_pose", "qpos", "action", "action_proposed"}
    assert (
        metrics.get("pictures") == ["twin_start_100000.mp4"] or "OpenGL" in metrics["no_pictures"]
    )


def test_two_runs_give_bit_identical_robot_states(tmp_path: Path) -> None:
    stated = contract_for("pick_cube", ("grasp_pose", "target_offset", "cube_position", "width"))
    weights = towards(stated, "cube_position")
    weights[-1, 2], weights[-1, 4] = 0.05 * HURRY, -1.0
    inputs = save_bundle(tmp_path, stated, weights)
    recorded = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _, store = run(tmp_path / name, 43, inputs, starts=1, max_steps=20)
        recorded.append(store.read(0, "robot"))
    one, two = recorded
    assert {name: one[name].tobytes() == two[name].tobytes() for name in one} == dict.fromkeys(
        one, True
    )


def test_a_start_that_the_robot_ends_counts_as_not_solved_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    stated = contract_for("pick_cube", ("grasp_pose", "target_offset", "cube_position"))
    weights = towards(stated, "cube_position")
    weights[-1, -1] = -1.0
    inputs = save_bundle(tmp_path, stated, weights)
    timid = replace(DeployTaskConfig().arm, collision_force=(5.0,) * 6)
    metrics, store = run(tmp_path, 44, inputs, arm=timid)
    assert (metrics["success"]["k"], metrics["faults"]) == (0, 2)
    assert "cartesian_reflex" in metrics["per_start"][0]["fault"]
    assert "cartesian_reflex" in store.metadata(1)["fault"]
    phrase = "solved 0 of 2 starts, 2 ended by a fault (cartesian_reflex 2), "
    assert describe("deploy", metrics).startswith(phrase)


def test_a_policy_that_diverges_never_reaches_the_arm(tmp_path: Path) -> None:
    stated = contract_for("reach", ("grasp_pose", "target_offset", "goal"))
    inputs = save_bundle(tmp_path, stated, np.full((16, 3), np.nan))
    metrics, store = run(tmp_path, 45, inputs, starts=1)
    assert "expected finite" in metrics["per_start"][0]["fault"]
    assert metrics["tracking_rms_m"] is None
    assert store.num_episodes == 0


def test_a_gripper_that_refuses_a_command_ends_the_start(tmp_path: Path) -> None:
    stated = contract_for("flip_switch", ("grasp_pose",))
    weights = np.zeros((7, 5))
    weights[-1, -1] = -1.0
    metrics, _ = run(
        tmp_path,
        46,
        save_bundle(tmp_path, stated, weights),
        starts=1,
        gripper=GripperDriverConfig(speed=math.nan),
    )
    assert "gripper at" in metrics["per_start"][0]["fault"]
    assert "refused a command" in metrics["per_start"][0]["fault"]


def test_a_contract_without_action_steps_is_one_clear_error(tmp_path: Path) -> None:
    stated = replace(contract_for("reach", ("grasp_pose", "target_offset", "goal")), steps=None)
    with pytest.raises(HandoffError, match="does not define the action steps"):
        run(tmp_path, 47, save_bundle(tmp_path, stated, towards(stated, "goal")))


@pytest.mark.parametrize("name", ["switch_diwa", "drawer_diwa", "pick_rl100"])
def test_recipes_of_tasks_end_at_their_own_table(name: str) -> None:
    assert isinstance(options(name)["twin"].table, DeployTaskConfig)


def test_the_demo_has_the_table_of_push_t() -> None:
    assert isinstance(options("demo")["twin"].table, DeployConfig)
