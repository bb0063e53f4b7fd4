"""Dreams behave as worlds do: seeds, chunks, ends and limits; and a policy can practise in them."""

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
from policies.rl.finetuning.config import DppoPracticeConfig, FinetuneConfig
from policies.rl.finetuning.finetune import finetune
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig, PpoConfig
from policies.world_model.imagined_env import Dreams
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.toy_play import PUSH, SOLVED


@pytest.fixture
def model(toy_model) -> Path:
    return toy_model[0]


def pushes(worlds: int, steps: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (worlds, steps, 1))


def test_a_dream_depends_on_its_seed_and_actions_not_on_its_neighbours(model: Path):
    action = pushes(3)
    together, alone = Dreams(model, 3, 50), Dreams(model, 1, 50)
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
    chunked, single = Dreams(model, 4, 5), Dreams(model, 4, 5)
    for dreams in (chunked, single):
        dreams.reset([0, 1, 2, 3])
    told = chunked.step(action)
    made = [single.step(action[:, step]) for step in range(6)]
    np.testing.assert_allclose(told.observation["point"], made[-1].observation["point"], atol=1e-6)
    np.testing.assert_array_equal(told.reward, np.stack([one.reward for one in made], axis=1))
    np.testing.assert_array_equal(told.executed, np.sum([one.executed for one in made], axis=0))
    assert (told.executed <= 5).all()
    assert (told.terminated | told.truncated).all()


def test_pushing_on_solves_it_once_and_then_the_dream_stands_still(model: Path):
    dreams = Dreams(model, 20, 50)
    dreams.reset(range(20))
    made = [dreams.step(np.ones((20, 1))) for _ in range(25)]
    last = made[-1]
    assert last.terminated.mean() > 0.9
    reward = np.stack([one.reward for one in made])
    np.testing.assert_array_equal(reward.sum(axis=0), last.terminated)
    np.testing.assert_array_equal(last.info["success"], last.terminated)
    assert last.observation["point"][last.terminated].min() > SOLVED - 3.0 * PUSH
    again = dreams.step(np.full((20, 1), np.nan))
    np.testing.assert_array_equal(again.executed[last.terminated], 0)
    np.testing.assert_array_equal(again.observation["point"], last.observation["point"])


def test_pushing_away_never_solves_it(model: Path):
    dreams = Dreams(model, 20, 30)
    dreams.reset(range(20))
    last = [dreams.step(np.full((20, 1), -1.0)) for _ in range(30)][-1]
    # A few begin within reach of what the classifier is in doubt of.
    assert last.terminated.mean() < 0.2
    assert (last.terminated | last.truncated).all()


def test_actions_are_held_within_what_was_played(model: Path):
    bold, bounded = Dreams(model, 2, 50), Dreams(model, 2, 50)
    for dreams in (bold, bounded):
        dreams.reset([0, 1])
    most = bounded.action_spec.high[0]
    one, other = bold.step(np.full((2, 1), 50.0)), bounded.step(np.full((2, 1), most))
    np.testing.assert_array_equal(one.observation["point"], other.observation["point"])


def test_some_worlds_begin_anew_while_others_go_on(model: Path):
    dreams = Dreams(model, 3, 50)
    dreams.reset([0, 1, 2])
    before = dreams.step(np.ones((3, 1))).observation["point"].copy()
    fresh = dreams.reset([7], [1])["point"]
    np.testing.assert_array_equal(fresh[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(fresh[1], Dreams(model, 1, 50).reset([7])["point"][0])


def test_what_is_no_action_is_refused(model: Path):
    dreams = Dreams(model, 2, 50)
    dreams.reset([0, 1])
    with pytest.raises(HandoffError, match=r"actions of shape \(2, 3\)"):
        dreams.step(np.zeros((2, 3)))
    with pytest.raises(HandoffError, match="an action is not finite"):
        dreams.step(np.full((2, 1), np.nan))
    with pytest.raises(HandoffError, match="1 seeds for 2 worlds"):
        dreams.reset([0])
    with pytest.raises(HandoffError, match="0 worlds of 50 steps"):
        Dreams(model, 0, 50)
    with pytest.raises(HandoffError, match="not saved"):
        dreams.save()


def test_a_policy_improves_in_dreams_alone(model: Path, tmp_path: Path):
    """It knows nothing; what moves the point to the goal is what dreams pay."""
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
        least_clip=None,
        critic_warm_up=1,
        actor_rate=2e-3,
        batch_size=200,
        target_kl=None,
    )
    practice = DppoPracticeConfig(walk=DppoConfig(steps=5), learning=learning, critic=(32,))
    options = FinetuneConfig(practice=practice, rollouts=25, decisions=10, first_seed=0)
    finetune(options, before, lambda: Dreams(model, 16, 20), after, no_progress)
    curve = [json.loads(line) for line in (after / "practice.jsonl").read_text().splitlines()]
    assert curve[-1]["success"] > curve[1]["success"] + 0.2
    old, new = (load_module(folder)[0].state_dict() for folder in (before, after))
    assert any(not torch.equal(old[name], new[name]) for name in old)
