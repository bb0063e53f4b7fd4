# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import cast

import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.scene.cameras import CamerasConfig, camera_calibrations
from sim.vec_env import EngineVecEnv, VecEnvConfig

pytestmark = pytest.mark.needs("opengl")


@pytest.fixture(scope="module")
def env():
    config = MujocoConfig(cameras=CamerasConfig(height=96, width=128))
    env = EngineVecEnv(
        MujocoEngine(find_task("pick_cube"), 3, config), VecEnvConfig(on_end="freeze")
    )
    yield env
    env.close()


def reddish(image: np.ndarray) -> np.ndarray:
    """(H, W) where the picture shows the red cube."""
    r, g, b = (image[..., i].astype(int) for i in range(3))
    return (r > 100) & (g < 0.55 * r) & (b < 0.55 * r)


def test_pictures_have_the_stated_size_and_kind(env: EngineVecEnv) -> None:
    observation = env.reset([0, 1, 2])
    for name in ("image_front", "image_wrist"):
        assert observation[name].shape == (3, 96, 128, 3)
        assert observation[name].dtype == np.uint8
        assert env.observation_spec[name].shape == (96, 128, 3)


def test_the_cube_appears_where_it_lies(env: EngineVecEnv) -> None:
    """The front camera looks back at the arm: what lies at +y is to the right, what lies nearer the
    camera is lower."""
    observation = env.reset([0, 1, 2])
    centres = []
    for i in range(3):
        rows, columns = np.nonzero(reddish(observation["image_front"][i]))
        assert len(rows) > 5
        centres.append([columns.mean(), rows.mean()])
    cube = observation["cube_position"]
    assert np.argsort(np.array(centres)[:, 0]).tolist() == np.argsort(cube[:, 1]).tolist()
    assert np.argsort(np.array(centres)[:, 1]).tolist() == np.argsort(cube[:, 0]).tolist()


@pytest.mark.parametrize("name", ["image_front", "image_wrist"])
def test_the_cube_appears_where_the_calibration_projects_it(env: EngineVecEnv, name: str) -> None:
    """The cube's shaded sides pull the centre of its picture by a few pixels."""
    observation = env.reset([0, 1, 2])
    engine = cast(MujocoEngine, env.engine)
    assert engine.config.cameras is not None
    camera = camera_calibrations(engine.model, engine.config.cameras)[name]
    assert (camera.width, camera.height) == (128, 96)
    visible = 0
    for i in range(3):
        link = link_pose(engine, engine.qpos[i], camera.frame)
        assert camera.position is not None
        assert camera.quaternion is not None
        base_T_camera = link @ homogeneous(camera.position, camera.quaternion)
        point = np.linalg.inv(base_T_camera) @ [*observation["cube_position"][i], 1.0]
        assert point[2] > 0.0, "the cube is in front of the camera"
        column, row = (
            camera.focal_length[axis] * point[axis] / point[2] + camera.principal_point[axis]
            for axis in (0, 1)
        )
        rows, columns = np.nonzero(reddish(observation[name][i]))
        if not (8 < column < 120 and 8 < row < 88):
            continue
        visible += 1
        assert abs(columns.mean() + 0.5 - column) < 4.0
        assert abs(rows.mean() + 0.5 - row) < 4.0
    assert visible > 0


def link_pose(engine: MujocoEngine, qpos: np.ndarray, name: str) -> np.ndarray:
    """(4, 4) pose of a link in the base frame."""
    data = mujoco.MjData(engine.model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(engine.model, data)
    body = data.body(name)
    return homogeneous(body.xpos, body.xquat)


def homogeneous(position: Sequence[float], quaternion: Sequence[float]) -> np.ndarray:
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, np.asarray(quaternion, dtype=np.float64))
    pose = np.eye(4)
    pose[:3, :3] = matrix.reshape(3, 3)
    pose[:3, 3] = position
    return pose


def test_the_same_seed_gives_the_same_images_in_any_environment(env: EngineVecEnv) -> None:
    first = env.reset([7, 8, 9])
    second = env.reset([9, 8, 7])
    np.testing.assert_array_equal(first["image_front"][0], second["image_front"][2])
    np.testing.assert_array_equal(first["image_wrist"][0], second["image_wrist"][2])


def test_randomised_light_and_camera_change_the_picture() -> None:
    pictures = []
    for randomized in (False, True):
        config = MujocoConfig(cameras=CamerasConfig(names=("front",)), randomized=randomized)
        engine = EngineVecEnv(MujocoEngine(find_task("pick_cube"), 1, config))
        pictures.append(engine.reset([3])["image_front"].astype(int))
        engine.close()
    assert np.abs(pictures[0] - pictures[1]).mean() > 1.0


def test_an_unknown_camera_is_refused_by_name() -> None:
    with pytest.raises(HandoffError, match=r"no camera \['side'\]"):
        MujocoEngine(
            find_task("pick_cube"), 1, MujocoConfig(cameras=CamerasConfig(names=("side",)))
        )


def falling(latency: float, steps: int = 6) -> tuple[EngineVecEnv, list[np.ndarray]]:
    """Two arms that move down, and their pictures at the start and after every step."""
    cameras = CamerasConfig(names=("wrist",), height=48, width=48, latency=latency)
    engine = MujocoEngine(find_task("pick_cube"), 2, MujocoConfig(cameras=cameras))
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    pictures = [env.reset([3, 4])["image_wrist"]]
    pictures += [down(env) for _ in range(steps)]
    return env, pictures


def down(env: EngineVecEnv) -> np.ndarray:
    action = np.zeros((2, env.action_spec.size))
    action[:, 2] = -1.0
    return env.step(action).observation["image_wrist"]


@pytest.mark.parametrize("periods", [1, 3])
def test_a_late_picture_shows_the_scene_as_it_was(periods: int) -> None:
    """In whole control periods, for which the pictures without latency show what was to see."""
    env, prompt = falling(0.0)
    late_env, late = falling(periods / env.rate_hz)
    env.close()
    late_env.close()
    assert np.abs(prompt[-1].astype(int) - prompt[-2]).mean() > 1.0, "the arms move"
    for step, picture in enumerate(late):
        np.testing.assert_array_equal(picture, prompt[max(0, step - periods)])


def test_a_latency_may_end_within_a_period_and_is_saved_with_the_state() -> None:
    env, late = falling(0.03)
    prompt_env, prompt = falling(0.0)
    prompt_env.close()
    assert (late[-1] != prompt[-1]).any()
    assert (late[-1] != prompt[-2]).any(), "30 ms of 50 ms"
    state = env.save()
    after = [down(env) for _ in range(2)]
    restored = env.restore(state)["image_wrist"]
    np.testing.assert_array_equal(restored, late[-1])
    np.testing.assert_array_equal([down(env) for _ in range(2)], after)
    env.reset([5, 6])
    np.testing.assert_array_equal(env.restore(state)["image_wrist"], late[-1])
    env.close()


def test_a_state_that_was_saved_without_latency_is_refused() -> None:
    env, _ = falling(0.0, steps=0)
    late_env, _ = falling(0.03, steps=0)
    with pytest.raises(HandoffError, match="latency of the cameras"):
        late_env.restore(env.save())
    env.close()
    late_env.close()
