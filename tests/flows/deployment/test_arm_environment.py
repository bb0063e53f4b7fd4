"""An arm as an environment of one: a simulated arm behind the robot's protocols, at which sessions
demonstrate and learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.artifacts import Episodes
from flows.deployment.arm_environment.engine import FAULT, TwinEngine
from flows.deployment.arm_environment.environment import open_session_env
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.session.config import HilEnvConfig
from flows.session.environment import make_session_env, session_origin
from flows.session.simulated_arm import SimulatedArm
from flows.stages.data import demonstrate
from flows.stages.learn import correct
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.scene.cameras import CamerasConfig
from sim.twin.twin import TwinConfig
from sim.vec_env import EngineVecEnv
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

ARM = SimulatedArm(twin=TwinConfig(host=address(131)))
REACH = HilEnvConfig(task="reach", arm=ARM)


@pytest.fixture(scope="module")
def at_arm() -> Iterator[tuple[EngineVecEnv, TwinEngine]]:
    env, engine = open_session_env(REACH, on_end="freeze")
    assert isinstance(engine, TwinEngine)
    with closing(env):
        yield env, engine


def solve(
    env: EngineVecEnv,
    expert: Callable[[], np.ndarray],
    seed: int,
    at: tuple[int, Callable[[], object]] | None = None,
) -> tuple[Any, np.ndarray]:
    """The expert's last step, and the hand's path (T, 3) [m]; something happens `at` a step."""
    path = [env.reset([seed])["grasp_pose"][0, :3]]
    while True:
        if at is not None and len(path) == at[0]:
            at[1]()
        step = env.step(expert())
        path.append(step.final_observation["grasp_pose"][0, :3])
        if step.terminated[0] or step.truncated[0]:
            return step, np.array(path)


def test_the_hand_moves_as_in_simulation(at_arm: tuple[EngineVecEnv, TwinEngine]) -> None:
    """Within 15 mm, less than one step of 20 mm, on the same way to the same goal."""
    env, engine = at_arm
    simulated, its_engine = make_session_env(replace(REACH, arm=None), on_end="freeze")
    with closing(simulated):
        for seed in (100, 101):
            step, path = solve(env, engine.expert_action, seed)
            assert step.info["success"][0]
            assert not step.info[FAULT][0]
            _, expected = solve(simulated, its_engine.expert_action, seed)
            both = min(len(path), len(expected))
            assert np.abs(path[:both] - expected[:both]).max() < 0.015
            assert abs(len(path) - len(expected)) <= 3


def test_the_specifications_are_those_of_the_task(
    at_arm: tuple[EngineVecEnv, TwinEngine],
) -> None:
    env, engine = at_arm
    simulated, _ = make_session_env(replace(REACH, arm=None), on_end="freeze")
    with closing(simulated):
        assert env.observation_spec == simulated.observation_spec
        assert env.action_spec == simulated.action_spec
        observation, expected = env.reset([7]), simulated.reset([7])
        for name, value in expected.items():
            assert observation[name].dtype == value.dtype
            np.testing.assert_allclose(observation[name], value, atol=2e-3, err_msg=name)
    origin = session_origin(REACH, engine, "training", live=False).entries()
    assert (origin["robot"], origin["host"]) == ("fr3 twin", "twin")


def test_a_fault_ends_the_episode_unsolved_and_the_next_one_goes_on(
    at_arm: tuple[EngineVecEnv, TwinEngine],
) -> None:
    env, engine = at_arm

    def push() -> None:
        engine._twin.call("push", [0.0, 0.0, -250.0], 0.2)

    step, path = solve(env, engine.expert_action, 102, at=(4, push))
    assert len(path) < 15
    assert step.terminated[0]
    assert step.info[FAULT][0]
    assert not step.info["success"][0]
    assert step.reward[0] == 0.0
    assert "joint_reflex" in str(engine.fault)
    step, _ = solve(env, engine.expert_action, 102)
    assert engine.fault is None
    assert step.info["success"][0]


def test_it_says_that_it_cannot_be_saved(at_arm: tuple[EngineVecEnv, TwinEngine]) -> None:
    with pytest.raises(HandoffError, match="the state of an arm cannot be saved"):
        at_arm[1].save()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "push_t", "observation_fields": ("agent",)}, "no steps of a gripper's pose"),
        ({"randomized": True}, "randomized varies the simulation"),
        ({"task": "reach_by_name", "instruction": "reach the red marker"}, "draws one per episode"),
        ({"observation_fields": ("qq",)}, r"no fields \['qq'\]"),
    ],
)
def test_what_an_arm_does_not_support_is_refused(changes: dict[str, Any], message: str) -> None:
    arm = replace(ARM, twin=TwinConfig(host=address(132)))
    with pytest.raises(HandoffError, match=message):
        open_session_env(replace(REACH, **{"arm": arm, **changes}), on_end="freeze")


def test_its_pictures_are_as_old_as_the_cameras_say() -> None:
    """While the hand comes down, a picture 45 ms old shows it higher."""
    arm = replace(ARM, twin=TwinConfig(host=address(133)))
    pictures = {}
    for latency in (0.0, 0.045):
        cameras = CamerasConfig(names=("front",), height=64, width=64, latency=latency)
        try:
            env, engine = open_session_env(
                replace(REACH, arm=arm, cameras=cameras), on_end="freeze"
            )
        except HandoffError as error:
            if "OpenGL" in str(error):
                pytest.skip(str(error))
            raise
        with closing(env):
            env.reset([100])
            shown = [env.step(engine.expert_action()).observation["image_front"] for _ in range(6)]
            pictures[latency] = np.stack(shown).astype(int)
            assert shown[-1].std() > 1.0
    new, old = pictures[0.0], pictures[0.045]
    # An old picture is nearer to the one of the step before, 50 ms earlier.
    to_now, to_before = np.abs(old[1:] - new[1:]).mean(), np.abs(old[1:] - new[:-1]).mean()
    assert to_before < to_now


def test_a_session_demonstrates_and_learns_at_the_arm(tmp_path: Path) -> None:
    made = {stage.name: stage for stage in stages(read_recipe("hil/smoke"), fetch=False)}
    arm = replace(ARM, twin=TwinConfig(host=address(134)))
    config = made["demos"].config
    config = replace(config, env=replace(config.env, arm=arm), episodes=2)
    demos = tmp_path / "demos"
    demos.mkdir()
    assert demonstrate.run(config, demos, no_progress).metrics["episodes"] == 2
    stored = EpisodeStore.open(demos / "store.zarr", "r")
    assert {stored.metadata(i)["host"] for i in range(2)} == {"twin"}
    settings = made["corrected"].config
    # The task's own reward: a classifier is tested elsewhere.
    algorithm = replace(settings.algorithm, reward="task")
    settings = replace(settings, env=replace(settings.env, arm=arm), steps=80, algorithm=algorithm)
    out = tmp_path / "corrected"
    out.mkdir()
    metrics = correct.run(settings, out, no_progress, demos=Episodes(demos)).metrics
    assert metrics["steps"] >= 80
    learned = EpisodeStore.open(out / "store.zarr", "r")
    assert learned.num_episodes >= 1
    assert learned.metadata(0)["robot"] == "fr3 twin"
