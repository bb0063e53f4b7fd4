"""ImaginedVecEnv behaves as other environments do: seeds, chunks, terminations and limits; and a
policy can be fine-tuned in it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.finetuning.config import DppoFinetuneConfig, FinetuneConfig
from policies.rl.finetuning.finetune import finetune
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig, PpoConfig
from policies.world_model.imagined_env import ImaginedVecEnv
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.toy_play import PUSH, SOLVED


@pytest.fixture
def model(toy_model) -> Path:
    return toy_model[0]


def pushes(num_envs: int, steps: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num_envs, steps, 1))


def test_an_imagined_rollout_depends_on_its_seed_and_actions_not_on_its_neighbours(model: Path):
    action = pushes(3)
    together, alone = ImaginedVecEnv(model, 3, 50), ImaginedVecEnv(model, 1, 50)
    together.reset([4, 5, 6])
    alone.reset([5])
    for step in range(6):
        many, one = together.step(action[:, step]), alone.step(action[1:2, step])
        for name in many.observation:
            np.testing.assert_allclose(
                many.observation[name][1], one.observation[name][0], rtol=1e-5, atol=1e-5
            )


def test_a_chunk_is_its_actions_one_after_another(model: Path):
    action = pushes(4)
    chunked, single = ImaginedVecEnv(model, 4, 5), ImaginedVecEnv(model, 4, 5)
    for envs in (chunked, single):
        envs.reset([0, 1, 2, 3])
    result = chunked.step(action)
    steps = [single.step(action[:, step]) for step in range(6)]
    np.testing.assert_allclose(
        result.observation["point"], steps[-1].observation["point"], atol=1e-6
    )
    np.testing.assert_array_equal(result.reward, np.stack([one.reward for one in steps], axis=1))
    np.testing.assert_array_equal(result.executed, np.sum([one.executed for one in steps], axis=0))
    assert (result.executed <= 5).all()
    assert (result.terminated | result.truncated).all()


def test_pushing_solves_it_once_and_then_the_environment_is_frozen(model: Path):
    envs = ImaginedVecEnv(model, 20, 50)
    envs.reset(range(20))
    steps = [envs.step(np.ones((20, 1))) for _ in range(25)]
    last = steps[-1]
    assert last.terminated.mean() > 0.9
    reward = np.stack([one.reward for one in steps])
    np.testing.assert_array_equal(reward.sum(axis=0), last.terminated)
    np.testing.assert_array_equal(last.info["success"], last.terminated)
    assert last.observation["point"][last.terminated].min() > SOLVED - 3.0 * PUSH
    again = envs.step(np.full((20, 1), np.nan))
    np.testing.assert_array_equal(again.executed[last.terminated], 0)
    np.testing.assert_array_equal(again.observation["point"], last.observation["point"])


def test_pushing_away_never_solves_it(model: Path):
    envs = ImaginedVecEnv(model, 20, 30)
    envs.reset(range(20))
    last = [envs.step(np.full((20, 1), -1.0)) for _ in range(30)][-1]
    # A few begin within reach of what the classifier is in doubt of.
    assert last.terminated.mean() < 0.2
    assert (last.terminated | last.truncated).all()


def test_actions_are_held_within_what_was_played(model: Path):
    bold, bounded = ImaginedVecEnv(model, 2, 50), ImaginedVecEnv(model, 2, 50)
    for envs in (bold, bounded):
        envs.reset([0, 1])
    most = bounded.action_spec.high[0]
    one, other = bold.step(np.full((2, 1), 50.0)), bounded.step(np.full((2, 1), most))
    np.testing.assert_array_equal(one.observation["point"], other.observation["point"])


def test_some_environments_are_reset_while_others_continue(model: Path):
    envs = ImaginedVecEnv(model, 3, 50)
    envs.reset([0, 1, 2])
    before = envs.step(np.ones((3, 1))).observation["point"].copy()
    fresh = envs.reset([7], [1])["point"]
    np.testing.assert_array_equal(fresh[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(fresh[1], ImaginedVecEnv(model, 1, 50).reset([7])["point"][0])


def test_what_is_no_action_is_refused(model: Path):
    envs = ImaginedVecEnv(model, 2, 50)
    envs.reset([0, 1])
    with pytest.raises(HandoffError, match=r"actions of shape \(2, 3\)"):
        envs.step(np.zeros((2, 3)))
    with pytest.raises(HandoffError, match="an action is not finite"):
        envs.step(np.full((2, 1), np.nan))
    with pytest.raises(HandoffError, match="1 seeds for 2 environments"):
        envs.reset([0])
    with pytest.raises(HandoffError, match="0 environments of 50 steps"):
        ImaginedVecEnv(model, 0, 50)
    with pytest.raises(HandoffError, match="cannot be saved"):
        envs.save()


def test_a_policy_improves_on_imagined_rollouts_alone(model: Path, tmp_path: Path):
    """An untrained policy; only imagined rewards move the point to the goal."""
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        anchor_field=None,
        horizon=4,
        n_action_steps=4,
        train_timesteps=20,
        inference_steps=5,
        clip=1.0,
        network=MlpConfig(width=32, blocks=1),
    )
    module = DiffusionPolicy(config, Shapes({"point": (0, 1), "wall": (1, 2)}, 1, None, {}))
    one = FieldSpec(shape=(1,))
    card = PolicyCard(
        task="toy",
        rate_hz=10.0,
        observation={"point": one, "wall": one},
        action=one,
        model=module.config,
    )
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    save_policy(before, card, module.state_dict())
    learning = OnPolicyConfig(
        ppo=PpoConfig(clip=0.2),
        clip_min=None,
        critic_warmup_rollouts=1,
        actor_learning_rate=2e-3,
        batch_size=200,
        target_kl=None,
    )
    practice = DppoFinetuneConfig(denoising=DppoConfig(steps=5), learning=learning, critic=(32,))
    options = FinetuneConfig(algorithm=practice, rollouts=25, decisions=10, first_seed=0)
    finetune(options, before, lambda: ImaginedVecEnv(model, 16, 20), after, no_progress)
    curve = [json.loads(line) for line in (after / "finetune.jsonl").read_text().splitlines()]
    assert curve[-1]["success"] > curve[1]["success"] + 0.2
    old, new = (load_module(folder)[0].state_dict() for folder in (before, after))
    assert any(not torch.equal(old[name], new[name]) for name in old)
