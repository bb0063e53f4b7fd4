# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.engines.gym import GymConfig, GymEngine, RenderedVecEnv
from sim.engines.gym_push_t import PushTVecEnv
from sim.evaluation.agent import RandomAgent
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env
from sim.evaluation.protocol import Protocol
from sim.vec_env import EngineVecEnv, VecEnvConfig


def test_gym_push_t_tells_what_the_environment_says():
    engine = GymEngine(
        "gym_pusht:gym_pusht/PushT-v0",
        1,
        GymConfig(options={"obs_type": "state"}, info=("coverage",)),
    )
    env = EngineVecEnv(engine, VecEnvConfig(guard_steps=0))
    assert {name: (spec.shape, spec.dtype) for name, spec in env.observation_spec.items()} == {
        "observation": ((5,), "float64")
    }
    assert (env.max_steps, env.rate_hz) == (300, 10.0)
    assert (env.action_spec.low, env.action_spec.high) == ((0.0, 0.0), (512.0, 512.0))
    published = PushTVecEnv(1)
    start, same = env.reset([100_000])["observation"], published.reset([100_000])
    np.testing.assert_array_equal((start[:, :2] / 1000.0).astype(np.float32), same["agent"])
    step, same = env.step(np.array([[128.0, 256.0]])), published.step(np.array([[0.128, 0.256]]))
    np.testing.assert_array_equal(
        step.observation["observation"][:, 4:].astype(np.float32),
        same.observation["block_pose"][:, 2:],
    )
    assert round(float(step.info["coverage"][0]), 9) == same.info["coverage"][0]


def test_pictures_are_fields_of_bytes():
    config = GymConfig(options={"obs_type": "pixels_agent_pos", "render_mode": "rgb_array"})
    engine = GymEngine("gym_pusht:gym_pusht/PushT-v0", 1, config)
    spec = engine.observation_spec["pixels"]
    assert (spec.shape, spec.dtype, spec.unit) == ((96, 96, 3), "uint8", "u8")
    engine.reset(np.array([0]), np.array([1]))
    assert engine.read().observation["pixels"].std() > 5


def test_an_environment_that_mujoco_does_not_run_cannot_be_saved():
    engine = GymEngine("gym_pusht:gym_pusht/PushT-v0", 1, GymConfig(options={"obs_type": "state"}))
    engine.reset(np.array([0]), np.array([1]))
    with pytest.raises(HandoffError, match=r"no MuJoCo .*cannot be saved.*saving='replay'"):
        engine.save()


def test_without_mujoco_an_environment_runs_and_cannot_be_saved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    engine = GymEngine("Pendulum-v1", 1, GymConfig(success="never"))
    env = EngineVecEnv(engine, VecEnvConfig())
    env.reset([1])
    env.step(np.zeros((1, 1)))
    with pytest.raises(HandoffError, match="no MuJoCo"):
        env.save()


class GloballyDrawn(gymnasium.Env):
    """Draws its start from NumPy's global generator."""

    metadata = {"render_fps": 20}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.random.uniform(-1.0, 1.0, 1), {}

    def step(self, action: np.ndarray) -> Any:
        return np.zeros(1), 0.0, False, False, {"succeed": bool(action[0] > 0.5)}


gymnasium.register("GloballyDrawn-v0", lambda **options: GloballyDrawn(), max_episode_steps=9)


def test_a_global_generator_is_seeded_by_a_reset_and_goes_on_afterwards():
    engine = GymEngine("GloballyDrawn-v0", 2, GymConfig(global_seed=True))
    np.random.seed(3)
    expected = np.random.uniform(size=2)
    np.random.seed(3)
    starts = []
    for seeds in ([5, 6], [6, 5]):
        engine.reset(np.arange(2), np.array(seeds))
        starts.append(engine.read().observation["observation"])
    np.testing.assert_array_equal(starts[0], starts[1][::-1])
    assert starts[0][0] != starts[0][1]
    np.testing.assert_array_equal(np.random.uniform(size=2), expected)


def test_success_may_be_called_succeed():
    engine = GymEngine("GloballyDrawn-v0", 2, GymConfig())
    engine.reset(np.arange(2), np.array([1, 2]))
    engine.step(np.array([[1.0], [0.0]]), np.ones(2, bool))
    assert engine.read().success.tolist() == [True, False]


class Drawn(GloballyDrawn):
    """Draws a picture whose red is the number of steps, if it may."""

    metadata = {"render_fps": 20, "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, broken: bool = False):
        self.render_mode, self.broken, self.steps = render_mode, broken, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        return np.zeros(1), 0.0, False, False, {"success": self.steps == 5}

    def render(self) -> Any:
        if self.broken:
            raise RuntimeError("no screen")
        return np.full((32, 48, 3), self.steps, dtype=np.uint8)


gymnasium.register("Drawn-v0", lambda **options: Drawn(**options), max_episode_steps=9)
DRAWN = Protocol(name="drawn", engine="gym", task="Drawn-v0", episodes=2, max_steps=6)


def load_random() -> Any:
    return lambda env: RandomAgent(env.action_spec)


def evaluated(protocol: Protocol, out: Path) -> dict[str, Any]:
    out.mkdir()
    config = EvaluateConfig(batch=2, videos=2)
    return evaluate(
        protocol, config, load_random, partial(make_env, protocol), out, no_progress, {}
    )


def test_an_evaluation_of_an_id_has_videos_of_what_the_environment_draws(tmp_path: Path):
    metrics = evaluated(DRAWN, tmp_path / "out")
    assert [(each["file"], each["exact"]) for each in metrics["videos"]] == [
        ("success-100000.mp4", True),
        ("success-100001.mp4", True),
    ]
    assert (tmp_path / "out" / "success-100000.mp4").stat().st_size > 0
    # Pictures are of the moment, one before every action and one after the last.
    env = make_env(DRAWN, 1, pictures=True)
    assert isinstance(env, RenderedVecEnv)
    env.reset([0])
    assert env.render(0).shape == (32, 48, 3)
    env.step(np.zeros((1, 1)))
    assert env.render(0).max() == 1


def test_an_environment_that_cannot_draw_leaves_the_evaluation_with_the_reason(tmp_path: Path):
    protocol = replace(DRAWN, options={"gym": {"options": {"broken": True}}})
    metrics = evaluated(protocol, tmp_path / "out")
    assert metrics["success"]["k"] == 2
    assert "cannot be rendered (no screen)" in metrics["no_videos"]


class Hidden(gymnasium.Env):
    """A MuJoCo environment with a list that a saved state misses."""

    metadata = {"render_fps": 20}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, truncates: bool = False):
        self.model = mujoco.MjModel.from_xml_string("<mujoco/>")
        self.data = mujoco.MjData(self.model)
        self.truncates, self.hidden = truncates, [0.0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.hidden[0] = 0.0
        return np.zeros(1), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.hidden[0] += float(action[0])
        return np.array(self.hidden), 0.0, self.hidden[0] > 2.0, self.truncates, {"number": 3.0}


gymnasium.register("Hidden-v0", lambda **options: Hidden(**options), max_episode_steps=9)
gymnasium.register("Endless-v0", lambda **options: Hidden(**options))


def test_hidden_state_is_found_out_before_anything_is_saved():
    engine = GymEngine("Hidden-v0", 1, GymConfig(success="never"))
    engine.reset(np.array([0]), np.array([1]))
    with pytest.raises(HandoffError, match="does not reproduce the same steps"):
        engine.save()


def test_a_refusal_to_save_is_found_out_once(monkeypatch: pytest.MonkeyPatch):
    env = EngineVecEnv(GymEngine("Hidden-v0", 1, GymConfig(success="never")))
    env.reset([1])
    env.step(np.zeros((1, 1)))
    monkeypatch.setattr(env.engine, "_make", None)
    env.step(np.zeros((1, 1)))
    with pytest.raises(HandoffError, match="does not reproduce the same steps"):
        env.save()


def test_replay_saves_hidden_state():
    env = EngineVecEnv(GymEngine("Hidden-v0", 1, GymConfig(success="never", saving="replay")))
    env.reset([1])
    env.step(np.array([[0.5]]))
    state = env.save()
    env.step(np.array([[0.25]]))
    assert env.restore(state)["observation"].tolist() == [[0.5]]


def test_success_may_be_the_end_itself():
    env = EngineVecEnv(
        GymEngine("Hidden-v0", 1, GymConfig(success="terminated")), VecEnvConfig(on_end="freeze")
    )
    env.reset([1])
    step = env.step(np.full((1, 4, 1), 0.9))
    assert (step.executed[0], step.terminated[0], step.info["success"][0]) == (3, True, True)


def test_missing_success_is_an_error():
    engine = GymEngine("Hidden-v0", 1)
    engine.reset(np.array([0]), np.array([1]))
    with pytest.raises(HandoffError, match=r"has no success, only \['number'\]"):
        engine.step(np.zeros((1, 1)), np.array([True]))


def test_missing_info_is_an_error():
    engine = GymEngine("Hidden-v0", 1, GymConfig(success="never", info=("number", "coverage")))
    engine.reset(np.array([0]), np.array([1]))
    with pytest.raises(
        HandoffError, match=r"no info 'coverage', the environment reports \['number'\]"
    ):
        engine.step(np.zeros((1, 1)), np.array([True]))


def test_an_environment_that_truncates_by_itself_is_refused():
    engine = GymEngine("Hidden-v0", 1, GymConfig(success="never", options={"truncates": True}))
    engine.reset(np.array([0]), np.array([1]))
    with pytest.raises(HandoffError, match="environment 0 truncated its episode itself"):
        engine.step(np.zeros((1, 1)), np.array([True]))


def test_an_environment_without_a_time_limit_needs_one():
    with pytest.raises(HandoffError, match="registered without a time limit"):
        GymEngine("Endless-v0", 1)
    assert GymEngine("Endless-v0", 1, GymConfig(max_steps=7)).max_steps == 7


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Nowhere-v0", "cannot be made"),
        ("no_such_package:Nowhere-v0", "cannot be made"),
        ("CartPole-v1", "actions are a Discrete, only Box"),
        ("FrozenLake-v1", "observation 'observation' is a Discrete, only Box"),
    ],
)
def test_what_cannot_be_an_environment_says_why(env_id: str, message: str):
    with pytest.raises(HandoffError, match=message):
        GymEngine(env_id, 1)


def test_a_misspelt_option_is_reported():
    with pytest.raises(HandoffError, match=r"cannot be made.*obs_typ"):
        GymEngine("gym_pusht:gym_pusht/PushT-v0", 1, GymConfig(options={"obs_typ": "state"}))


def test_a_package_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(HandoffError, match=r"cannot be made.*Is its package installed"):
        GymEngine("gymnasium_robotics:FetchPickAndPlace-v4", 1)


def test_fetch_moves_along_its_action():
    env = EngineVecEnv(
        GymEngine("gymnasium_robotics:FetchPickAndPlace-v4", 1), VecEnvConfig(guard_steps=0)
    )
    assert (env.max_steps, env.rate_hz) == (50, 25.0)
    assert sorted(env.observation_spec) == ["achieved_goal", "desired_goal", "observation"]
    start = env.reset([1])["observation"][0, :3]
    step = env.step(np.array([[1.0, 0.0, 0.0, 0.0]]))
    # One unit leads the gripper 5 cm away; after one period it is on the way.
    moved = step.observation["observation"][0, :3] - start
    assert 0.0 < moved[0] < 0.05
    assert np.abs(moved[1:]).max() < 0.3 * moved[0]
    assert (step.reward[0], step.info["success"][0]) == (-1.0, False)
