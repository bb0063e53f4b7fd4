"""ManiSkill as an engine, on the CPU for real."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.spec import check_fields
from sim.engines import maniskill
from sim.engines.maniskill import ManiSkillEngine
from sim.engines.maniskill_task import ManiSkillConfig
from sim.vec_env import EngineVecEnv, VecEnvConfig

pytestmark = pytest.mark.needs("maniskill")

BOTH, FIRST, SECOND = np.array([True, True]), np.array([True, False]), np.array([False, True])
POSE = ManiSkillConfig(control_mode="pd_ee_delta_pose")


@pytest.fixture(scope="module")
def pick():
    """Two environments of PickCube-v1 in end-effector steps."""
    engine = ManiSkillEngine("PickCube-v1", 2, POSE)
    yield engine
    engine.close()


def start(engine, *seeds):
    engine.reset(np.arange(len(seeds)), np.array(seeds))
    return engine.read()


def reach(reading, env_id, closed):
    """(7,) action towards the cube of one environment, with the gripper open or closed."""
    action = np.zeros(7)
    action[:3] = np.clip(8.0 * reading.observation["extra/tcp_to_obj_pos"][env_id], -1, 1)
    action[6] = -1.0 if closed else 1.0
    return action


def grasp(engine, env_id, steps=24):
    """Grasps the cube of one environment and lifts it; returns the actions taken."""
    running, taken = np.arange(engine.num_envs) == env_id, []
    for k in range(steps):
        action = np.zeros((engine.num_envs, 7))
        action[env_id] = reach(engine.read(), env_id, closed=k >= steps - 8)
        if k >= steps - 4:
            action[env_id, :3] = [0.0, 0.0, 1.0]
        engine.step(action, running)
        taken.append(action[env_id])
    return taken


def play(engine, env_id, actions):
    """Observations of one environment, one after each action."""
    observations = []
    for action in actions:
        engine.step(np.tile(action, (engine.num_envs, 1)), np.arange(engine.num_envs) == env_id)
        observations.append(
            {name: array[env_id] for name, array in engine.read().observation.items()}
        )
    return observations


def assert_same(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_misspelt_task_gets_suggestions(pick):
    with pytest.raises(HandoffError, match="'PickCub-v1', did you mean 'PickCube-v1'"):
        ManiSkillEngine("PickCub-v1", 1)


def test_unknown_control_mode_is_listed_with_the_known(pick):
    with pytest.raises(HandoffError, match="pd_joint_delta_pos"):
        ManiSkillEngine("PickCube-v1", 1, ManiSkillConfig(control_mode="pd_wishes"))


def test_missing_assets_are_reported_and_not_downloaded(pick, monkeypatch):
    from mani_skill.utils import assets

    monkeypatch.setattr(assets, "is_data_source_downloaded", lambda name: False)
    with pytest.raises(
        HandoffError, match="'ycb' are not on this machine, and Handoff never downloads them"
    ):
        ManiSkillEngine("PickSingleYCB-v1", 1)


@pytest.mark.parametrize(
    "message",
    ["vk::createInstanceUnique: ErrorIncompatibleDriver", "failed to find a rendering device"],
    ids=["no driver", "a driver too old"],
)
def test_missing_vulkan_is_reported_with_the_remedy(pick, monkeypatch, message):
    def make(**arguments):
        raise RuntimeError(message)

    monkeypatch.setattr(maniskill, "find_task", lambda name, task: (make, 50))
    with pytest.raises(
        HandoffError, match=r"no Vulkan device .* Mesa 25 or later .* VK_ICD_FILENAMES"
    ):
        ManiSkillEngine("PickCube-v1", 1)


def test_seed_beyond_32_bits_is_refused(pick):
    with pytest.raises(HandoffError, match="4294967296"):
        pick.reset(np.array([0]), np.array([2**32]))


def test_observation_is_as_specified(pick):
    observation = start(pick, 1, 2).observation
    check_fields(pick.observation_spec, observation)
    assert pick.observation_spec["extra/obj_pose"].unit == "m"
    assert pick.observation_spec["extra/obj_pose"].shape == (7,)
    assert observation["agent/qpos"].shape == (2, 9)
    assert observation["extra/is_grasped"].dtype == np.float32


def test_action_is_named_and_scaled(pick):
    assert pick.action_spec.names == ("x", "y", "z", "rx", "ry", "rz", "gripper")
    assert pick.action_spec.low == (-1.0,) * 7
    assert pick.action_spec.high == (1.0,) * 7
    assert pick.action_spec.interface == "pd_ee_delta_pose"


def test_rate_and_time_limit_are_those_registered(pick):
    assert (pick.rate_hz, pick.max_steps) == (20.0, 50)


def test_seeds_differ_and_repeat_in_any_environment(pick):
    first = start(pick, 3, 4).observation["extra/obj_pose"]
    second = start(pick, 4, 3).observation["extra/obj_pose"]
    np.testing.assert_array_equal(first, second[::-1])
    assert np.abs(first[0] - first[1]).max() > 1e-3


def test_trajectory_with_a_grasp_repeats_in_another_environment_after_other_episodes(pick):
    start(pick, 3, 5)
    actions = grasp(pick, 0)
    assert pick.read().info["is_grasped"].tolist() == [True, False]
    start(pick, 3, 8)
    alone = play(pick, 0, actions)
    grasp(pick, 1)
    pick.reset(np.array([1]), np.array([3]))
    assert_same(alone, play(pick, 1, actions))


def test_partial_reset_leaves_the_other_environment(pick):
    start(pick, 3, 4)
    play(pick, 1, np.ones((3, 7)))
    before = pick.read()
    pick.reset(np.array([0]), np.array([9]))
    after = pick.read()
    for name, array in before.observation.items():
        np.testing.assert_array_equal(array[1], after.observation[name][1])
    assert after.reward[0] == 0.0
    assert after.reward[1] == before.reward[1] > 0.0


def test_environment_that_does_not_run_stays(pick):
    before = start(pick, 3, 4).observation["agent/qpos"]
    pick.step(np.ones((2, 7)), SECOND)
    after = pick.read().observation["agent/qpos"]
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 1e-3


def test_reading_is_the_callers_to_keep(pick):
    kept = start(pick, 3, 4)
    copies = {name: array.copy() for name, array in kept.observation.items()}
    pick.step(np.ones((2, 7)), BOTH)
    for name, array in kept.observation.items():
        np.testing.assert_array_equal(array, copies[name])


def test_cube_held_at_the_goal_is_success_and_over(pick):
    pick.reset(np.array([0]), np.array([3]))
    grasp(pick, 0)
    for _ in range(25):
        action = np.zeros((2, 7))
        action[0, :3] = np.clip(8.0 * pick.read().observation["extra/obj_to_goal_pos"][0], -1, 1)
        action[0, 6] = -1.0
        pick.step(action, FIRST)
    reading = pick.read()
    assert reading.success[0]
    assert reading.terminated[0]
    assert reading.reward[0] == 1.0


def test_restore_amid_a_grasp_repeats_the_future_bit_for_bit_in_the_other_environment(pick):
    start(pick, 3, 5)
    grasp(pick, 0, steps=20)
    state = pick.save()
    future = np.random.default_rng(0).uniform(-1, 1, size=(8, 7))
    expected = play(pick, 0, future)
    pick.restore(np.array([1, 0]), state)
    assert_same(expected, play(pick, 1, future))


def test_replay_that_does_not_repeat_is_refused(pick):
    start(pick, 3, 5)
    play(pick, 0, np.ones((4, 7)))
    state = pick.save()
    state["actions"][0, 2, 0] = -1.0
    with pytest.raises(HandoffError, match="4 actions from seed 3 lead to another"):
        pick.restore(np.array([0, 1]), state)


def test_state_of_another_kind_is_refused(pick):
    with pytest.raises(HandoffError, match="another `saving`"):
        pick.restore(np.array([0]), {"start": np.zeros(1, dtype=np.int64)})


@pytest.mark.parametrize("task", ["PushT-v1", "PegInsertionSide-v1"])
def test_save_and_restore_repeat_the_future(pick, task):
    engine = ManiSkillEngine(task, 1)
    actions = np.random.default_rng(1).uniform(-1, 1, size=(12, engine.action_spec.size))
    # Downwards, so that the stick or the gripper meets something.
    actions[:, 1] = 1.0
    start(engine, 7)
    play(engine, 0, actions[:6])
    state = engine.save()
    expected = play(engine, 0, actions[6:])
    start(engine, 8)
    engine.restore(np.array([0]), state)
    assert_same(expected, play(engine, 0, actions[6:]))
    engine.close()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Takes back that the tests' process has frozen its objects, which the engine would respect."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_scenes_that_are_rebuilt_are_collected_now_and_then(pick, unfrozen) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    engine = ManiSkillEngine("PegInsertionSide-v1", 1)
    garbage = weakref.ref(Cycle())
    gc.disable()
    try:
        start(engine, 0)
        assert garbage() is not None
        for seed in range(1, maniskill.COLLECTED_RESETS):
            start(engine, seed)
        assert garbage() is None
    finally:
        gc.enable()
        engine.close()
    assert gc.get_freeze_count() == 0


def test_saving_by_state_brings_back_poses_targets_and_steps(pick):
    config = ManiSkillConfig(control_mode="pd_ee_target_delta_pose", saving="state")
    engine = ManiSkillEngine("PickCube-v1", 1, config)
    start(engine, 3)
    play(engine, 0, np.full((4, 7), 0.5))
    state, before = engine.save(), engine.read()
    ahead = play(engine, 0, np.full((2, 7), 0.5))
    start(engine, 4)
    engine.restore(np.array([0]), state)
    restored = engine.save()
    assert state["elapsed"].tolist() == restored["elapsed"].tolist() == [4]
    np.testing.assert_array_equal(
        restored["controller/arm/target_pose"], state["controller/arm/target_pose"]
    )
    for name, array in engine.read().observation.items():
        # The orientation of a kinematic body is normalised anew.
        np.testing.assert_allclose(array, before.observation[name], atol=1e-6, err_msg=name)
    assert engine.read().reward == before.reward
    again = play(engine, 0, np.full((2, 7), 0.5))
    # Free motion; after contacts it would be far more, for their forces are not part of the state.
    np.testing.assert_allclose(again[-1]["agent/qpos"], ahead[-1]["agent/qpos"], atol=1e-3)
    engine.close()


def test_pictures_follow_the_seed_and_a_restore_and_need_no_poses_beside_them(pick):
    engine = ManiSkillEngine(
        "PickCube-v1", 2, ManiSkillConfig(observation="rgb", image_size=(32, 48))
    )
    assert "extra/obj_pose" not in engine.observation_spec
    first = start(engine, 3, 3).observation
    check_fields(engine.observation_spec, first)
    images = first["image_base_camera"]
    assert images.shape == (2, 32, 48, 3)
    assert images.dtype == np.uint8
    assert images.std() > 10
    np.testing.assert_array_equal(images[0], images[1])
    play(engine, 0, np.ones((3, 8)))
    state, moved = engine.save(), engine.read().observation["image_base_camera"][0]
    assert (moved != images[0]).any()
    engine.restore(np.array([1, 0]), state)
    np.testing.assert_array_equal(engine.read().observation["image_base_camera"][1], moved)
    engine.close()


def test_environments_apply_the_time_limit_and_start_anew(pick):
    env = EngineVecEnv(pick, VecEnvConfig(max_steps=3, guard_steps=1))
    begin = env.reset([3, 4])["agent/qpos"]
    steps = [env.step(np.ones((2, 7))) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [
        [False, False],
        [False, False],
        [True, True],
    ]
    assert env.steps.tolist() == [0, 0]
    assert np.abs(steps[2].final_observation["agent/qpos"] - begin).max() > 0.01


def test_own_time_limit_is_off(pick):
    engine = ManiSkillEngine("PushT-v1", 1)
    start(engine, 3)
    observations = play(engine, 0, np.zeros((engine.max_steps + 1, 7)))
    np.testing.assert_allclose(
        observations[-1]["agent/qpos"], observations[-2]["agent/qpos"], atol=1e-3
    )
    assert engine.dump(0)["actors/Tee"].shape == (13,)
    engine.close()


def test_failure_is_over_without_success(pick):
    engine = ManiSkillEngine("MS-CartpoleBalance-v1", 1)
    start(engine, 0)
    for _ in range(60):
        engine.step(np.ones((1, 1)), np.array([True]))
    reading = engine.read()
    assert reading.info["fail"].tolist() == [True]
    assert reading.terminated.tolist() == [True]
    assert reading.success.tolist() == [False]
    engine.close()


def test_actions_of_two_robots_lie_end_to_end(pick):
    engine = ManiSkillEngine("TwoRobotPickCube-v1", 1)
    before = start(engine, 0).observation
    assert engine.action_spec.size == 16
    action = np.zeros((1, 16))
    action[0, 8] = 1.0
    for _ in range(3):
        engine.step(action, np.array([True]))
    after = engine.read().observation
    turned = [
        np.abs(after[f"agent/panda_wristcam-{i}/qpos"] - before[f"agent/panda_wristcam-{i}/qpos"])[
            0, 0
        ]
        for i in (0, 1)
    ]
    assert turned[0] < 0.01 < turned[1]
    engine.close()


def test_task_whose_reset_forgets_the_robot_is_built_anew(pick):
    engine = ManiSkillEngine("Empty-v1", 1)
    before = start(engine, 0).observation["agent/qpos"]
    play(engine, 0, np.ones((3, 8)))
    np.testing.assert_array_equal(start(engine, 0).observation["agent/qpos"], before)
    engine.close()


def test_batch_cannot_replay():
    with pytest.raises(HandoffError, match="saving='state'"):
        ManiSkillEngine(
            "PickCube-v1", 4, ManiSkillConfig(sim_backend="physx_cuda", saving="replay")
        )


class Batch:
    """Three balls on a line as ManiSkill's batch would hold them; 13 numbers of state each, x
    first."""

    control_freq, control_mode, device = 10, "velocity", "cpu"

    def __init__(self, num_envs, **arguments):
        import torch
        from gymnasium import spaces

        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.agent = self
        self.controller = type(
            "Controller", (), {"single_action_space": self.single_action_space, "joints": ()}
        )()
        self.elapsed_steps = torch.zeros(num_envs, dtype=torch.int32)
        self.state = torch.zeros((num_envs, 13))

    def get_info(self):
        return {"elapsed_steps": self.elapsed_steps, "success": self.state[:, 0] > 100}

    def get_obs(self, info=None):
        return {"extra": {"ball_pos": self.state[:, :3]}}

    def reset(self, seed, options):
        import torch

        rows = options["env_idx"]
        self.state[rows, 0] = (
            torch.tensor([float(seed[row]) for row in rows.tolist()])
            + torch.arange(len(rows)) / 10.0
        )
        self.state[rows, 1:], self.elapsed_steps[rows] = 0.0, 0
        return self.get_obs(), self.get_info()

    def step(self, action):
        import torch

        self.state[:, 0] += torch.as_tensor(action[:, 0])
        self.elapsed_steps += 1
        return self.get_obs(), self.state[:, 0], None, None, self.get_info()

    def get_state_dict(self):
        return {"actors": {"ball": self.state.clone()}}

    def set_state_dict(self, state, env_idx):
        import torch

        self.state[env_idx] = torch.as_tensor(state["actors"]["ball"])

    def close(self):
        pass


@pytest.fixture
def batch(pick, monkeypatch):
    monkeypatch.setattr(maniskill, "find_task", lambda name, task: (Batch, 50))
    return ManiSkillEngine("Balls", 3, ManiSkillConfig(sim_backend="physx_cuda"))


def test_batch_resets_each_environment_from_its_own_seed(batch):
    batch.reset(np.array([2, 0]), np.array([7, 5]))
    assert batch.read().observation["extra/ball_pos"][:, 0].tolist() == [5.0, 0.0, 7.0]


def test_batch_gives_environments_that_do_not_run_an_action_of_zeros(batch):
    batch.reset(np.arange(3), np.array([1, 2, 3]))
    batch.step(np.array([[1.0], [np.nan], [0.5]]), np.array([True, False, True]))
    reading = batch.read()
    assert reading.observation["extra/ball_pos"][:, 0].tolist() == [2.0, 2.0, 3.5]
    assert reading.reward.tolist() == [2.0, 2.0, 3.5]


def test_batch_restores_rows_into_other_environments(batch):
    batch.reset(np.arange(3), np.array([1, 2, 3]))
    batch.step(np.full((3, 1), 0.5), np.ones(3, dtype=bool))
    state = batch.save()
    batch.step(np.ones((3, 1)), np.ones(3, dtype=bool))
    batch.restore(np.array([2]), {name: array[:1] for name, array in state.items()})
    reading = batch.read()
    assert reading.observation["extra/ball_pos"][:, 0].tolist() == [2.5, 3.5, 1.5]
    assert reading.reward.tolist() == [2.5, 3.5, 1.5]
    assert batch.save()["elapsed"].tolist() == [2, 2, 1]
