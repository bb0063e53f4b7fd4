"""Files that read, under a protocol, at the twin and behind a server: they hear what the worlds ask
for.

Of the words "pick up the red cube" the policy knows c, c, b and the newline: 3 + 3 + 2 + 10 = 18;
of a blue one one more b, 20.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config.protocols import push_t_published, read_protocol
from flows.deployment.config import DeployTaskConfig
from flows.evaluation.agents import make_agent
from flows.serve import open_policy
from flows.stages import deploy_task
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.language.text import INSTRUCTION, decode
from robots.spec import FieldSpec
from sim.evaluation.evaluate import make_env
from sim.evaluation.protocol import Sampling
from sim.make import find_task
from sim.twin.twin import TwinConfig
from tests.policies.served import ask, served
from tests.real.fakes import contract
from tests.real.onnx_models import save_policy, save_reading_policy
from tests.sim.twin.loopback import address

READ = {"red": 0.018, "green": 0.018, "blue": 0.020, "yellow": 0.018}
"""What the policy answers to each cube's name."""


def reads(**changes: Any) -> Contract:
    stated = find_task("pick_by_name")
    size = len(stated.actions.spec(stated.robot).low) + stated.use_gripper
    told = contract(
        task=stated.name,
        observation={"grasp_pose": stated.observations["grasp_pose"].spec},
        action=FieldSpec(shape=(size,)),
        rate_hz=stated.rate_hz,
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        action_interface="cartesian_delta",
        steps=stated.actions,
        instruction=True,
    )
    return replace(told, **changes)


def answered(path: Path, instruction: str | None = None) -> tuple[list[str], np.ndarray]:
    """Which cubes eight worlds ask for, and what the policy does first in each."""
    protocol = read_protocol("pick_by_name")
    entrant = make_agent(str(path), protocol, instruction)
    env = make_env(protocol, 8)
    agent = entrant.load()(env)
    seeds = range(100_000, 100_008)
    observation = env.reset(seeds)
    agent.reset(seeds)
    action = agent.act(observation, np.ones(8, bool))
    assert np.ptp(action, axis=1).max() == 0.0
    return [line.split()[3] for line in decode(observation[INSTRUCTION])], action[:, 0]


def test_under_a_protocol_every_world_has_its_own_say(tmp_path: Path) -> None:
    save_reading_policy(tmp_path / "policy.onnx", reads(), said="aa")
    asked, action = answered(tmp_path / "policy.onnx")
    assert len(set(asked)) > 1
    assert "blue" in asked
    np.testing.assert_allclose(action, [READ[name] for name in asked], rtol=1e-6)


def test_words_of_the_command_line_take_the_place_of_the_worlds(tmp_path: Path) -> None:
    save_reading_policy(tmp_path / "policy.onnx", reads())
    _, action = answered(tmp_path / "policy.onnx", "aac")
    np.testing.assert_allclose(action, np.full(8, 0.015), rtol=1e-6)


def test_silent_worlds_leave_the_policy_to_its_own_words_or_the_name_of_its_task(
    tmp_path: Path,
) -> None:
    save_reading_policy(tmp_path / "policy.onnx", reads(), said="aa")
    save_reading_policy(tmp_path / "other.onnx", reads())
    protocol = read_protocol("pick_by_name")
    told = [
        make_agent(str(tmp_path / name), protocol).execution
        for name in ("policy.onnx", "other.onnx")
    ]
    assert [execution["instruction"] for execution in told] == ["aa", "pick by name"]
    assert [execution["listens"] for execution in told] == [True, True]


def test_a_file_that_does_not_read_takes_no_words(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy.onnx")
    assert (
        make_agent(str(tmp_path / "policy.onnx"), push_t_published()).execution["listens"] is False
    )
    with pytest.raises(HandoffError, match="told 'go on', but the policy reads no instructions"):
        make_agent(str(tmp_path / "policy.onnx"), push_t_published(), "go on")


def test_tokens_one_after_another_are_one_step_to_a_protocol(tmp_path: Path) -> None:
    save_reading_policy(tmp_path / "policy.onnx", reads(sampler="tokens-28"))
    ruled = replace(read_protocol("pick_by_name"), sampling=Sampling(denoising_steps=1))
    assert make_agent(str(tmp_path / "policy.onnx"), ruled).execution["denoising_steps"] == 1


def test_at_the_twin_the_policy_hears_the_task_and_its_words_are_recorded(tmp_path: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    bundle.mkdir()
    out.mkdir()
    save_reading_policy(bundle / "policy.onnx", reads())
    config = DeployTaskConfig(starts=2, max_steps=3, videos=0, twin=TwinConfig(host=address(61)))
    assert deploy_task.run(config, {"bundle": bundle}, out, no_progress)["faults"] == 0
    store = EpisodeStore.open(out / "store.zarr", "r")
    env = make_env(read_protocol("pick_by_name"), 2)
    expected = decode(env.reset([100_000, 100_001])[INSTRUCTION])
    for start, words in enumerate(expected):
        episode = store.read(start, "policy")
        assert decode(episode[INSTRUCTION]) == (words,) * 3
        np.testing.assert_allclose(episode["action_proposed"], READ[words.split()[3]], rtol=1e-5)


def test_a_server_answers_to_the_prompt_and_without_one_to_the_policys_own_words(
    tmp_path: Path,
) -> None:
    save_reading_policy(tmp_path / "policy.onnx", reads(), said="a")
    policy, told = open_policy(tmp_path)
    shown = {
        "grasp_pose": np.zeros((1, *told.observation["grasp_pose"].shape), np.float32),
        "seed": 1,
        "chunk": 0,
    }
    with served(policy, told) as running, running.client() as connection:
        spoken, unspoken = ask(connection, {**shown, "prompt": "cc"}), ask(connection, shown)
    np.testing.assert_allclose(spoken["prediction"], 0.016, rtol=1e-6)
    np.testing.assert_allclose(unspoken["prediction"], 0.011, rtol=1e-6)
