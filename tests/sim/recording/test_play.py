"""Play data and demonstrations: what is stored, that it can be repeated, and that play sees more
than the expert."""

from pathlib import Path

import numpy as np
import pytest

from robots.control.actions import JointDelta
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import TASKS, find_task
from sim.recording.batches import STREAM
from sim.recording.config import ExpertDemonstrationsConfig, PlayConfig
from sim.recording.demonstrations import demonstrate
from sim.recording.play import SubGoal, play
from sim.vec_env import EngineVecEnv, VecEnvConfig

CELL = 0.05
"""Width of the grid of gripper and cube positions [m]."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    path = tmp_path_factory.mktemp("play") / "store.zarr"
    play(find_task("pick_cube"), range(8), path, PlayConfig(steps=200, batch=8))
    return EpisodeStore.open(path)


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> list[EpisodeStore]:
    """The expert from the same starts, again and again with more noise, until there are as many
    frames as of play."""
    folder = tmp_path_factory.mktemp("demonstrations")
    for i in range(4):
        demonstrate(
            find_task("pick_cube"),
            range(8),
            folder / f"{i}",
            ExpertDemonstrationsConfig(noise=0.002 * i, batch=8, keep="all"),
        )
    return [EpisodeStore.open(folder / f"{i}") for i in range(4)]


def positions(store: EpisodeStore) -> np.ndarray:
    """(N, 6) positions of gripper and cube at every frame [m]."""
    return np.concatenate(
        [store.column(STREAM, "grasp_pose")[:, :3], store.column(STREAM, "cube_position")], axis=1
    )


def occupied_cells(points: np.ndarray, cell: np.ndarray | float) -> int:
    """How many cells of a grid of width `cell` hold at least one of `points` (T, D): a measure of
    coverage."""
    return len(np.unique(np.floor(np.asarray(points) / cell).astype(np.int64), axis=0))


def moved(cube: np.ndarray) -> float:
    """Share of steps in which the cubes (T, N, 3) move by more than 1 mm."""
    return float((np.linalg.norm(np.diff(cube, axis=0), axis=2) > 1e-3).mean())


def test_play_covers_more_gripper_and_cube_positions_than_as_many_frames_of_the_expert_from_the_same_starts(
    played: EpisodeStore, demonstrated: list[EpisodeStore]
) -> None:
    ours, theirs = positions(played), np.concatenate([positions(store) for store in demonstrated])
    assert len(theirs) >= len(ours)
    for columns in (slice(0, 3), slice(3, 6), slice(0, 6)):
        assert occupied_cells(ours[:, columns], CELL) > 1.2 * occupied_cells(
            theirs[: len(ours), columns], CELL
        )


def test_random_actions_move_the_cube_less_often_than_play(played: EpisodeStore) -> None:
    engine = MujocoEngine(find_task("pick_cube"), 8)
    engine.reset(np.arange(8), np.arange(8))
    rng, everyone = np.random.default_rng(0), np.ones(8, dtype=bool)
    cube = []
    for _ in range(200):
        cube.append(engine.view.position("cube").copy())
        engine.step(rng.uniform(-1.0, 1.0, (8, engine.action_spec.size)), everyone)
    in_play = [played.read(i, STREAM, ["cube_position"])["cube_position"] for i in range(8)]
    shortest = min(len(episode) for episode in in_play)
    share = moved(np.stack([episode[:shortest] for episode in in_play], axis=1))
    assert share > 0.1
    assert moved(np.stack(cube)) < 0.3 * share


def test_play_continues_after_the_task_is_solved(played: EpisodeStore) -> None:
    solved = [i for i in range(8) if played.metadata(i)["success"]]
    assert solved
    assert all(len(played.read(i, STREAM, ["reward"])["reward"]) == 200 for i in solved)


def test_recordings_state_robot_place_stage_and_judge(played: EpisodeStore) -> None:
    about = played.metadata(0)
    expected = {
        "robot": "fr3 mujoco",
        "host": "simulated",
        "source": "play",
        "labelled_by": "task",
    }
    assert expected.items() <= about.items()


def test_play_pursues_every_sub_goal(played: EpisodeStore) -> None:
    assert set(np.unique(played.column(STREAM, "subgoal"))) == {int(goal) for goal in SubGoal}


def test_a_closing_gripper_has_a_closed_target(played: EpisodeStore) -> None:
    subgoal, action = played.column(STREAM, "subgoal"), played.column(STREAM, "action")
    assert (action[subgoal == SubGoal.CLOSE, -1] == -1.0).all()
    assert (action[subgoal == SubGoal.APPROACH, -1] == 1.0).all()


def test_the_same_seed_plays_the_same_beside_any_others(
    played: EpisodeStore, tmp_path: Path
) -> None:
    play(find_task("pick_cube"), [5, 100, 3], tmp_path / "s.zarr", PlayConfig(steps=200, batch=2))
    again = EpisodeStore.open(tmp_path / "s.zarr")
    for episode, seed in ((0, 5), (2, 3)):
        assert again.metadata(episode)["seed"] == seed
        for name, array in again.read(episode, STREAM).items():
            np.testing.assert_array_equal(array, played.read(seed, STREAM)[name])
    one, other = (
        again.read(1, STREAM, ["action"])["action"],
        again.read(2, STREAM, ["action"])["action"],
    )
    assert not np.array_equal(one, other)


def test_stored_actions_lead_through_the_stored_observations(
    demonstrated: list[EpisodeStore],
) -> None:
    store = demonstrated[1]
    rows = store.read(4, STREAM)
    env = EngineVecEnv(MujocoEngine(find_task("pick_cube"), 1), VecEnvConfig(on_end="freeze"))
    observation, solved = env.reset([store.metadata(4)["seed"]]), False
    for k, action in enumerate(rows["action"]):
        np.testing.assert_allclose(
            rows["cube_position"][k], observation["cube_position"][0], atol=1e-4
        )
        step = env.step(action[None].astype(np.float64))
        np.testing.assert_allclose(rows["reward"][k], step.reward[0], atol=1e-2)
        observation, solved = step.observation, step.info["success"][0]
    assert solved


def test_actions_of_play_lead_through_the_stored_observations(played: EpisodeStore) -> None:
    rows, engine = played.read(2, STREAM), MujocoEngine(find_task("pick_cube"), 1)
    engine.reset(np.zeros(1, dtype=int), np.array([played.metadata(2)["seed"]]))
    # Stored actions are rounded to float32, so contacts let the two drift apart in the end.
    for k in range(40):
        np.testing.assert_allclose(
            rows["grasp_pose"][k], engine.read().observation["grasp_pose"][0], atol=1e-4
        )
        engine.step(rows["action"][k][None].astype(np.float64), np.ones(1, dtype=bool))
        np.testing.assert_allclose(rows["reward"][k], engine.read().reward[0], atol=1e-3)


def test_only_successful_demonstrations_are_kept_unless_all_are_asked_for(tmp_path: Path) -> None:
    # 4 cm of noise is twice the tolerance, so that some attempts fail.
    config = ExpertDemonstrationsConfig(noise=0.04, batch=20)
    kept = demonstrate(find_task("reach"), range(20), tmp_path / "kept.zarr", config)
    everything = demonstrate(
        find_task("reach"),
        range(20),
        tmp_path / "all.zarr",
        ExpertDemonstrationsConfig(noise=0.04, batch=20, keep="all"),
    )
    assert 0 < kept.episodes < 20
    assert kept.success_rate == kept.episodes / 20 == everything.success_rate
    assert everything.episodes == 20
    flags = [EpisodeStore.open(tmp_path / "all.zarr").metadata(i)["success"] for i in range(20)]
    assert sum(flags) == kept.episodes
    chosen = EpisodeStore.open(tmp_path / "kept.zarr")
    seeds = [chosen.metadata(i)["seed"] for i in range(kept.episodes)]
    assert seeds == [seed for seed, flag in enumerate(flags) if flag]


def test_demonstrations_in_joint_deltas_have_their_action_space(tmp_path: Path) -> None:
    config = ExpertDemonstrationsConfig(mujoco=MujocoConfig(actions=JointDelta()), batch=4)
    recorded = demonstrate(find_task("reach"), range(4), tmp_path / "s.zarr", config)
    assert recorded.success_rate == 1.0
    field = EpisodeStore.open(tmp_path / "s.zarr").schema.streams[STREAM].fields["action"]
    assert field.shape == (7,)
    assert field.about.startswith("joint_delta")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_played_with_and_demonstrated(name: str, tmp_path: Path) -> None:
    task = find_task(name)
    assert play(task, range(2), tmp_path / "play.zarr", PlayConfig(steps=10)).steps == 20
    config = ExpertDemonstrationsConfig(keep="all")
    assert demonstrate(task, range(1), tmp_path / "expert.zarr", config).episodes == 1


def test_bad_requests_are_refused_with_their_reason(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="distinct seeds"):
        play(find_task("reach"), [1, 1], tmp_path / "a.zarr")
    with pytest.raises(HandoffError, match="at least one"):
        demonstrate(find_task("reach"), [], tmp_path / "a.zarr")
    with pytest.raises(HandoffError, match="weights"):
        play(find_task("reach"), [1], tmp_path / "a.zarr", PlayConfig(weights=(0, 0, 0, 0, 0, 0)))
    with pytest.raises(HandoffError, match="no gripper"):
        play(find_task("reach"), [1], tmp_path / "b.zarr", PlayConfig(weights=(0, 0, 0, 1, 1, 0)))
    with pytest.raises(HandoffError, match="duration"):
        play(find_task("reach"), [1], tmp_path / "a.zarr", PlayConfig(duration=(2.0, 1.0)))
    assert not (tmp_path / "a.zarr").exists()


def test_a_store_names_the_robot_that_it_was_recorded_with(tmp_path: Path) -> None:
    for robot in ("fr3", "panda"):
        demonstrate(find_task("reach", robot=robot), range(2), tmp_path / robot)
        store = EpisodeStore.open(tmp_path / robot, "r")
        assert store.schema.robot == robot
        assert store.num_episodes == 2
