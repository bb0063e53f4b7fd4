"""Exported language-conditioned policies, under a protocol, at the twin and behind a server: they
receive the environments' instructions.

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
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, decode
from robots.spec import FieldSpec
from sim.evaluation.evaluate import make_env
from sim.evaluation.protocol import Sampling
from sim.make import find_task
from sim.twin.twin import TwinConfig
from tests.flows.recipe_stages import deployed
from tests.policies.served import ask, served
from tests.real.fakes import contract
from tests.real.onnx_models import save_language_policy, save_policy
from tests.sim.twin.loopback import address

ACTIONS = {"red": 0.018, "green": 0.018, "blue": 0.020, "yellow": 0.018}
"""The policy's action for each cube's name."""


def language_contract(**changes: Any) -> Contract:
    task = find_task("pick_by_name")
    size = len(task.actions.spec(task.robot).low) + task.use_gripper
    stated = contract(
        task=task.name,
        observation={"grasp_pose": task.observations["grasp_pose"].spec},
        action=FieldSpec(shape=(size,)),
        rate_hz=task.rate_hz,
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        action_interface="cartesian_delta",
        steps=task.actions,
        instruction=True,
    )
    return replace(stated, **changes)


def first_actions(path: Path, instruction: str | None = None) -> tuple[list[str], np.ndarray]:
    """The cubes that eight environments name, and the policy's first action in each."""
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


def test_under_a_protocol_every_environment_has_its_own_instruction(tmp_path: Path) -> None:
    save_language_policy(tmp_path / "policy.onnx", language_contract(), said="aa")
    cubes, action = first_actions(tmp_path / "policy.onnx")
    assert len(set(cubes)) > 1
    assert "blue" in cubes
    np.testing.assert_allclose(action, [ACTIONS[name] for name in cubes], rtol=1e-6)


def test_an_instruction_of_the_command_line_replaces_that_of_the_environments(
    tmp_path: Path,
) -> None:
    save_language_policy(tmp_path / "policy.onnx", language_contract())
    _, action = first_actions(tmp_path / "policy.onnx", "aac")
    np.testing.assert_allclose(action, np.full(8, 0.015), rtol=1e-6)


def test_without_an_instruction_of_the_environment_the_policy_has_its_own_or_the_name_of_its_task(
    tmp_path: Path,
) -> None:
    save_language_policy(tmp_path / "policy.onnx", language_contract(), said="aa")
    save_language_policy(tmp_path / "other.onnx", language_contract())
    protocol = read_protocol("pick_by_name")
    executions = [
        make_agent(str(tmp_path / name), protocol).execution
        for name in ("policy.onnx", "other.onnx")
    ]
    assert [execution["instruction"] for execution in executions] == ["aa", "pick by name"]
    assert [execution["listens"] for execution in executions] == [True, True]


def test_a_policy_without_language_takes_no_instruction(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy.onnx")
    assert (
        make_agent(str(tmp_path / "policy.onnx"), push_t_published()).execution["listens"] is False
    )
    with pytest.raises(HandoffError, match="instruction 'go on', but the policy is not"):
        make_agent(str(tmp_path / "policy.onnx"), push_t_published(), "go on")


def test_tokens_one_after_another_are_one_step_to_a_protocol(tmp_path: Path) -> None:
    save_language_policy(tmp_path / "policy.onnx", language_contract(sampler="tokens-28"))
    ruled = replace(read_protocol("pick_by_name"), sampling=Sampling(denoising_steps=1))
    assert make_agent(str(tmp_path / "policy.onnx"), ruled).execution["denoising_steps"] == 1


def test_at_the_twin_the_policy_receives_the_instruction_and_it_is_recorded(tmp_path: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    bundle.mkdir()
    out.mkdir()
    save_language_policy(bundle / "policy.onnx", language_contract())
    config = DeployTaskConfig(starts=2, max_steps=3, videos=0, twin=TwinConfig(host=address(61)))
    assert deployed(config, bundle, out)["faults"] == 0
    store = EpisodeStore.open(out / "store.zarr", "r")
    env = make_env(read_protocol("pick_by_name"), 2)
    expected = decode(env.reset([100_000, 100_001])[INSTRUCTION])
    for start, words in enumerate(expected):
        episode = store.read(start, "policy")
        assert decode(episode[INSTRUCTION]) == (words,) * 3
        np.testing.assert_allclose(episode["action_proposed"], ACTIONS[words.split()[3]], rtol=1e-5)


def test_a_server_uses_the_prompt_and_without_one_the_policys_own_instruction(
    tmp_path: Path,
) -> None:
    save_language_policy(tmp_path / "policy.onnx", language_contract(), said="a")
    policy, stated = open_policy(tmp_path)
    request = {
        "grasp_pose": np.zeros((1, *stated.observation["grasp_pose"].shape), np.float32),
        "seed": 1,
        "chunk": 0,
    }
    with served(policy, stated) as running, running.client() as connection:
        with_prompt = ask(connection, {**request, "prompt": "cc"})
        without_prompt = ask(connection, request)
    np.testing.assert_allclose(with_prompt["prediction"], 0.016, rtol=1e-6)
    np.testing.assert_allclose(without_prompt["prediction"], 0.011, rtol=1e-6)
