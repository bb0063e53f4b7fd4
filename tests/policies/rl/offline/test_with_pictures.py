"""Offline RL on demonstrations with a camera: learners over vectors see features of the pictures,
offline PPO the encoding of its policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_card, read_weights, save_policy
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_policy
from policies.networks.config import MlpConfig, PictureFeaturesConfig, ResnetEncoderConfig
from policies.policy_config import BehaviourCloningConfig, DiffusionPolicyConfig
from policies.rewards.config import RecordedRewardConfig
from policies.rewards.labels import new_labeller
from policies.rl.offline.config import (
    EdpConfig,
    OfflineAlgorithm,
    TrajectoryWeightedConfig,
)
from policies.rl.offline.recorded import read_recorded
from policies.rl.offline.saved_learner import load_learner
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from tests.policies.rl.offline.test_train_offline import PPO, STATE_ALGORITHMS, trained
from tests.policies.rl.seeing import CAMERA, picture, write_walks

FEATURES = PictureFeaturesConfig(stride=8, cells=(2, 2))
SEEING: dict[str, Any] = {
    "observation_fields": ("twice",),
    "image_fields": ("front",),
    "image_features": FEATURES,
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walks(tmp_path_factory.mktemp("walks") / "demos", episodes=30)


def seeing(algorithm: OfflineAlgorithm) -> Any:
    if isinstance(algorithm, TrajectoryWeightedConfig):
        return replace(algorithm, learner=replace(algorithm.learner, **SEEING))
    return replace(algorithm, **SEEING)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", STATE_ALGORITHMS, ids=lambda one: one.kind)
def test_the_saved_policy_takes_pictures(
    algorithm: OfflineAlgorithm, demos: Path, tmp_path: Path
) -> None:
    trained(seeing(algorithm), demos, tmp_path, RecordedRewardConfig())
    card = read_card(tmp_path)
    assert list(card.sensors) == list(card.model.image_fields) == ["front"]
    assert load_learner(tmp_path).sizes.observation == 1 + 40 * 4
    shown = np.stack([picture(place) for place in (-1.4, 1.4)])[:, None]
    chunk = load_policy(tmp_path)(
        PolicyInput(np.zeros((2, 1, 1), np.float32), {"front": shown}), np.zeros((2, 1, 1))
    )
    assert chunk[0, 0, 0] != chunk[1, 0, 0]


def test_features_stand_beside_the_vector_of_their_own_step(demos: Path) -> None:
    model = BehaviourCloningConfig(
        observation_fields=("place",),
        image_fields=("front",),
        anchor_field=None,
        horizon=1,
        n_action_steps=1,
    )
    label = new_labeller(RecordedRewardConfig())
    episodes = read_recorded(demos, model, label, FEATURES)
    assert episodes.sensors == {}
    assert episodes.observation_MO.shape == (90, 1 + 40 * 4)
    # Equal places have equal pictures, hence equal features; others differ.
    first, same, other = (episodes.observation_MO[row] for row in (0, 6, 1))
    np.testing.assert_allclose(first, same, atol=1e-6)
    assert np.abs(first - other)[1:].max() > 0.1
    frames = read_recorded(demos, model, label).sensors["front"]
    assert len(frames) == 90
    np.testing.assert_array_equal(frames.steps(torch.tensor([1]))[0].numpy(), picture(1.0))


def test_offline_ppo_improves_a_policy_that_sees(demos: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DiffusionPolicyConfig(
        observation_fields=("twice",),
        image_fields=("front",),
        image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=4, features=6),
        anchor_field=None,
        horizon=4,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=5,
        network=MlpConfig(width=16, blocks=1),
    )
    module = DiffusionPolicy(model, Shapes({"twice": (0, 1)}, 1, None, {"front": CAMERA.shape}))
    card = PolicyCard(
        task="walking",
        rate_hz=10.0,
        observation={"twice": FieldSpec(shape=(1,), unit="m")},
        sensors={"front": CAMERA},
        action=FieldSpec(shape=(1,)),
        model=model,
    )
    policy = tmp_path / "policy"
    policy.mkdir()
    save_policy(policy, card, module.state_dict())
    out = tmp_path / "out"
    trained(PPO, demos, out, RecordedRewardConfig(), policy=policy)
    before, after = read_weights(policy), read_weights(out)
    assert before.keys() == after.keys()
    assert not any(
        name.startswith("encoder.") and not torch.equal(before[name], after[name])
        for name in before
    )
    assert list(read_card(out).sensors) == ["front"]


def test_edp_says_why_it_takes_no_pictures() -> None:
    with pytest.raises(HandoffError, match="would leave encoders of pictures untrained"):
        EdpConfig(policy=DiffusionPolicyConfig(image_fields=("front",)))
