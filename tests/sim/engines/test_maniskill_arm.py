"""ManiSkill's scenes with the observations, actions and expert of a task of Handoff."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.config import validate
from robots.control.actions import CartesianDelta, JointDelta, PdTarget
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import check_fields
from sim.engines.maniskill_arm import ManiSkillArmEngine
from sim.engines.maniskill_task import ManiSkillArm, ManiSkillConfig
from sim.evaluation.evaluate import EvaluateConfig, make_env
from sim.evaluation.protocol import Protocol, protocol_statement, vector_fields
from sim.make import EnvConfig, find_task, make_vec_env
from sim.recording.batches import STREAM
from sim.recording.config import ExpertDemonstrationsConfig
from sim.recording.demonstrations import demonstrate
from sim.servers.config import ServerConfig

pytestmark = pytest.mark.needs("maniskill")

TASK = find_task("pick_cube", robot="panda")
PICK = ManiSkillConfig(
    arm=ManiSkillArm(
        environment="PickCube-v1", bodies={"cube": "extra/obj_pose"}, goal="extra/goal_pos"
    )
)
SPACE = CartesianDelta(high=(0.78, 0.28, 0.45))
BOTH = np.array([True, True])


def with_arm(**changes: object) -> ManiSkillConfig:
    assert PICK.arm is not None
    return replace(PICK, arm=replace(PICK.arm, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pick() -> Iterator[ManiSkillArmEngine]:
    """Two environments."""
    engine = ManiSkillArmEngine(TASK, 2, PICK, SPACE)
    yield engine
    engine.close()


def start(engine: ManiSkillArmEngine) -> None:
    engine.reset(np.arange(engine.num_envs), np.arange(engine.num_envs))


def test_fields_are_those_of_the_task_and_agree_with_maniskills(pick: ManiSkillArmEngine) -> None:
    start(pick)
    assert dict(pick.observation_spec) == {k: t.spec for k, t in TASK.observations.items()}
    observation = pick.read().observation
    check_fields(pick.observation_spec, observation)
    own = pick.inner.read().observation
    base = np.array([-0.615, 0.0, 0.0])
    for name, expected in (
        ("cube_position", own["extra/obj_pose"][:, :3] - base),
        ("goal", own["extra/goal_pos"] - base),
        ("goal_offset", own["extra/obj_to_goal_pos"]),
        ("q", own["agent/qpos"][:, :7]),
    ):
        np.testing.assert_allclose(observation[name], expected, atol=1e-6, err_msg=name)
    # The kinematics of the two models of the Panda differ by rounding alone.
    tcp = own["extra/tcp_pose"][:, :3] - base
    np.testing.assert_allclose(observation["grasp_pose"][:, :3], tcp, atol=1e-4)
    np.testing.assert_allclose(observation["cube_offset"], own["extra/tcp_to_obj_pos"], atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_step_moves_the_gripper_along_its_axis_by_the_size_of_the_step(
    pick: ManiSkillArmEngine, axis: int
) -> None:
    start(pick)
    before = pick.read().observation["grasp_pose"]
    action = np.zeros((2, 5))
    action[:, axis], action[:, -1] = 1.0, 1.0
    pick.step(action, BOTH)
    action[:, axis] = 0.0
    for _ in range(15):
        pick.step(action, BOTH)
    moved = pick.read().observation["grasp_pose"] - before
    expected = np.zeros(6)
    expected[axis] = SPACE.translation
    np.testing.assert_allclose(moved, np.tile(expected, (2, 1)), atol=2.5e-3)


def test_the_gripper_follows_its_entry(pick: ManiSkillArmEngine) -> None:
    start(pick)
    action = np.zeros((2, 5))
    action[0, -1], action[1, -1] = -1.0, 1.0
    for _ in range(25):
        pick.step(action, BOTH)
    width = pick.read().observation["width"][:, 0]
    assert width[0] < 0.004
    assert width[1] > 0.076


def test_the_tasks_expert_solves_maniskills_own_task(pick: ManiSkillArmEngine) -> None:
    start(pick)
    solved = np.zeros(2, dtype=bool)
    for _ in range(70):
        pick.step(pick.expert_action(), ~solved)
        solved |= pick.read().success
    assert solved.all()


def test_its_expert_solves_it_with_steps_of_the_joints_too() -> None:
    engine = ManiSkillArmEngine(TASK, 1, PICK, JointDelta())
    engine.reset(np.array([0]), np.array([0]))
    solved = False
    for _ in range(100):
        engine.step(engine.expert_action(), np.array([True]))
        solved = solved or bool(engine.read().success[0])
    engine.close()
    assert solved


def test_a_restored_environment_goes_on_as_the_saved_one(pick: ManiSkillArmEngine) -> None:
    start(pick)
    for _ in range(5):
        pick.step(pick.expert_action(), BOTH)
    state, action = pick.save(), pick.expert_action()
    pick.step(action, BOTH)
    expected = pick.read().observation
    # Into the other environment each.
    pick.restore(np.array([1, 0]), state)
    pick.step(action[::-1], BOTH)
    for name, array in pick.read().observation.items():
        np.testing.assert_array_equal(array[::-1], expected[name], err_msg=name)
    with pytest.raises(HandoffError, match="no targets of this controller"):
        pick.restore(np.array([0]), {k: v for k, v in state.items() if k != "arm_target"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_arm(bodies={}), r"bodies lacks \['cube'\]"),
        (with_arm(bodies={"cube": "extra/obj_pose", "mug": "x"}), r"unknown \['mug'\]"),
        (with_arm(goal=None), "goal of the task has 3 entries"),
        (with_arm(goal="extra/aim"), "observes no 'extra/aim'"),
        (replace(PICK, control_mode="pd_joint_pos_vel"), "control_mode is 'pd_joint_pos_vel'"),
        (replace(PICK, observation="rgb"), "without the state"),
        (
            replace(PICK, options={"sim_config": {"control_freq": 10}}),
            r"runs at 10 Hz.*control_freq: 20",
        ),
        # A Panda with a stick.
        (with_arm(environment="PushT-v1"), "of a Franka Emika Robot"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_with_the_option(
    config: ManiSkillConfig, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        ManiSkillArmEngine(TASK, 1, config)


def test_actions_on_a_board_are_refused() -> None:
    with pytest.raises(HandoffError, match="pd_target"):
        ManiSkillArmEngine(TASK, 1, PICK, PdTarget())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"randomized": True}, r"ignores \['randomized'\]"),
        (
            {"engine": "server", "server": ServerConfig(venv="x", engine="maniskill")},
            "not a server",
        ),
        ({"resident": True, "on_end": "freeze"}, r"ignores \['resident'\]"),
    ],
)
def test_options_without_effect_are_refused(changes: dict[str, object], message: str) -> None:
    config = EnvConfig(engine="maniskill", task="pick_cube", robot="panda", maniskill=PICK)
    with pytest.raises(HandoffError, match=message):
        make_vec_env(replace(config, **changes), 1)  # type: ignore[arg-type]


def test_the_protocol_has_robot_fields_and_code_of_the_task() -> None:
    protocol = read_protocol("maniskill_pick_cube")
    assert (protocol.has_arm_task, protocol.robot) == (True, "panda")
    assert set(vector_fields(protocol) or ()) == set(TASK.observations)
    code = protocol_statement(protocol)["code"]
    assert {"sim.tasks.pick_cube", "sim.engines.maniskill_arm"} <= set(code)
    with pytest.raises(HandoffError, match="task: 'pick_cup'"):
        replace(protocol, task="pick_cup")


def test_maniskills_own_ids_stay_without_robot_and_fields() -> None:
    protocol = validate(
        Protocol, {"name": "own", "engine": "maniskill", "task": "PushT-v1", "max_steps": 5}, "own"
    )
    assert (protocol.has_arm_task, protocol.robot, vector_fields(protocol)) == (False, "", None)


def test_pictures_are_observed_beside_the_tasks_fields_for_videos() -> None:
    env = make_env(read_protocol("maniskill_pick_cube"), 1, pictures=True)
    observation = env.reset([0])
    env.close()
    picture = observation["image_base_camera"]
    assert picture.shape == (1, 240, 240, 3)
    assert picture.std() > 5.0
    assert set(TASK.observations) < set(observation)
    assert EvaluateConfig().videos > 0


def test_its_expert_is_recorded_with_the_steps_of_its_actions(tmp_path: Path) -> None:
    simulator = EnvConfig(engine="maniskill", actions=SPACE, maniskill=PICK)
    config = ExpertDemonstrationsConfig(noise=0.003, settle=2, simulator=simulator, batch=2)
    recorded = demonstrate(TASK, range(2), tmp_path / "store", config)
    assert recorded.episodes == 2
    store = EpisodeStore.open(tmp_path / "store")
    assert (store.schema.name, store.schema.robot) == ("pick_cube", "panda")
    about = store.metadata(0)
    assert about["robot"] == "panda maniskill"
    assert about["action_steps"]["high"] == [0.78, 0.28, 0.45]
    assert {"action_expert", "cube_offset"} <= set(store.schema.streams[STREAM].fields)


def test_a_simulator_without_experts_is_refused(tmp_path: Path) -> None:
    simulator = EnvConfig(engine="maniskill", maniskill=ManiSkillConfig())
    config = ExpertDemonstrationsConfig(simulator=simulator)
    with pytest.raises(HandoffError, match="no scripted expert of pick_cube"):
        demonstrate(TASK, range(1), tmp_path / "store", config)


@pytest.mark.parametrize(
    "simulator", [EnvConfig(task="pick_cube"), EnvConfig(workers=2), EnvConfig(max_steps=3)]
)
def test_what_the_recording_decides_is_refused_in_the_simulator(simulator: EnvConfig) -> None:
    with pytest.raises(HandoffError, match="the recording decides it"):
        ExpertDemonstrationsConfig(simulator=simulator)
