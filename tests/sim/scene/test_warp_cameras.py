"""Pictures of mujoco-warp's environments show what MuJoCo's show."""

import os
from dataclasses import replace

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.errors import HandoffError
from robots.interfaces import Observation
from sim.engines.warp import WarpConfig, WarpEngine
from sim.evaluation.evaluate import make_env
from sim.make import EnvConfig, find_task, make_vec_env
from sim.scene.cameras import CamerasConfig
from sim.scene.model_draws import ModelDraws
from sim.scene.randomize import Range
from sim.vec_env import EngineVecEnv

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

N = 3
# Not in the order of the scene's cameras.
CAMERAS = CamerasConfig(names=("wrist", "front"), height=48, width=64, latency=0.045)
FIELDS = ("image_wrist", "image_front")


def pictures(observation: Observation) -> np.ndarray:
    """(cameras, N, height, width, 3)."""
    return np.stack([observation[name] for name in FIELDS]).astype(float)


@pytest.fixture(scope="module")
def shown() -> dict[str, list[np.ndarray]]:
    """Pictures of a start and of two steps, with randomised cameras and lights."""
    found = {}
    for engine in ("mujoco", "warp"):
        config = EnvConfig(engine=engine, task="pick_cube", randomized=True, cameras=CAMERAS)  # type: ignore[arg-type]
        env = make_vec_env(config, N)
        actions = np.random.default_rng(0).uniform(-1.0, 1.0, (2, N, env.action_spec.size))
        seen = [pictures(env.reset([4, 5, 6]))]
        seen += [pictures(env.step(action).observation) for action in actions]
        assert env.observation_spec["image_front"].shape == (48, 64, 3)
        env.close()
        found[engine] = seen
    return found


def test_they_are_those_of_mujoco(shown: dict[str, list[np.ndarray]]) -> None:
    for drawn, cast in zip(shown["mujoco"], shown["warp"], strict=True):
        error = np.abs(drawn - cast)
        # Edges of objects and the shine of surfaces differ, by up to 3 of 255 on average.
        assert error.mean(axis=(2, 3, 4)).max() < 3.0
        assert (error.max(axis=-1) > 40.0).mean(axis=(2, 3)).max() < 0.01
        # Other starts, cameras and lights differ by more.
        others = np.abs(drawn - np.roll(cast, 1, axis=1))
        assert others.mean(axis=(2, 3, 4)).min() > 3.0


def test_pictures_show_the_scene_as_it_was_a_latency_ago() -> None:
    period = CamerasConfig(names=("front",), height=24, width=24, latency=0.05)
    now = CamerasConfig(names=("front",), height=24, width=24)
    late, current = (
        EngineVecEnv(WarpEngine(find_task("reach"), N, WarpConfig(cameras=cameras)))
        for cameras in (period, now)
    )
    seen = [[env.reset([1, 2, 3])["image_front"]] for env in (late, current)]
    action = np.ones((N, late.action_spec.size))
    state = None
    for step in range(3):
        for env, frames in zip((late, current), seen, strict=True):
            frames.append(env.step(action).observation["image_front"])
        if step == 1:
            state = late.save()
    np.testing.assert_array_equal(seen[0][1:], seen[1][:-1])
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert not np.array_equal(seen[1][1], seen[1][2])
    # A saved state has the earlier positions, too.
    assert state is not None
    other = EngineVecEnv(WarpEngine(find_task("reach"), N, WarpConfig(cameras=period)))
    other.reset([7, 8, 9])
    other.restore(state)
    again = other.step(action).observation["image_front"]
    np.testing.assert_array_equal(again, seen[0][-1])
    assert isinstance(other.engine, WarpEngine)
    assert other.engine.picture_age == pytest.approx(0.05)


def test_a_protocol_is_replayed_with_pictures_for_its_videos() -> None:
    protocol = replace(read_protocol("warp_pick_cube"), episodes=1)
    env = make_env(protocol, 1, pictures=True)
    shown = env.reset([3])["image_front"]
    assert shown.shape[0] == 1
    assert shown.std() > 10.0
    env.close()


def test_what_it_cannot_render_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"no camera \['side'\]; the scene has"):
        WarpEngine(find_task("reach"), 1, WarpConfig(cameras=CamerasConfig(names=("side",))))
    model = WarpEngine(find_task("reach"), 1).model
    for item in (
        Range(what="background", names=("*",), low=0.5, high=1.5),
        Range(what="light", names=("headlight",), low=0.5, high=1.5),
    ):
        ModelDraws([item], model, 1)
        with pytest.raises(HandoffError, match=f"share textures and headlight, .* {item.what}"):
            ModelDraws([item], model, 1, pictured=True)
