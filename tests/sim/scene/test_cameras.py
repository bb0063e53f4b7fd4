import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.scene.cameras import CamerasConfig
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
