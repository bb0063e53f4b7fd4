"""RL from scratch with cameras: features of pictures are entries of the observation vector, and the
saved policy takes pictures."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.checkpoint import read_card, read_weights
from policies.load import load_module, load_policy
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.networks.config import PictureFeaturesConfig
from policies.networks.images.efficientnet_lite import pretrained_trunk
from policies.networks.images.picture_features import PictureEncoder
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import (
    CqnAsAlgorithm,
    FastTd3Algorithm,
    FromScratchConfig,
    MrqAlgorithm,
    PpoAlgorithm,
    PqlAlgorithm,
    ReplayOptions,
    RlpdAlgorithm,
    RlpdLearnerConfig,
    SacAlgorithm,
    StreamAcAlgorithm,
)
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GsdeConfig
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, Progress, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.seeing import SeeingWalking, picture, write_walks

LAYERS = MlpSizes(hidden=(16,), layer_norm=False)
FEATURES = PictureFeaturesConfig(stride=8, cells=(2, 2))
SHORT: dict[str, Any] = {
    "collections": 6,
    "batch_size": 8,
    "capacity": 20,
    "learning_starts": 2,
    "random_collections": 0,
    "save_every": 3,
}
PPO = PpoAlgorithm(
    rollouts=4, rollout_steps=4, actor=LAYERS, critic=LAYERS, epochs=1, batch_size=8, save_every=1
)
STREAM_AC = StreamAcAlgorithm(hidden=(16,), steps=12, save_every=6)
RLPD = RlpdAlgorithm(
    **SHORT, learner=RlpdLearnerConfig(critic=LAYERS, actor=LAYERS, critics=2), minibatches=2
)
CQN_AS = CqnAsAlgorithm(
    **SHORT,
    learner=CqnAsConfig(
        horizon=1, learning_rate=0.01, tau=0.5, critic=CoarseToFineConfig(features=16, units=16)
    ),
)
OFF_POLICY: dict[str, ReplayOptions] = {
    "sac": SacAlgorithm(**SHORT),
    "gsde": SacAlgorithm(**SHORT, exploration=GsdeConfig()),
    "rlpd": RLPD,
    "fast_td3": FastTd3Algorithm(**SHORT),
    "pql": PqlAlgorithm(**SHORT),
    "mrq": MrqAlgorithm(**SHORT),
    "cqn_as": CQN_AS,
}
READS_DEMOS = ("rlpd", "cqn_as")
CONFIG = FromScratchConfig(
    algorithm=PPO, fields=("twice",), image_fields=("front",), image_features=FEATURES, first_seed=0
)


def learned(
    config: FromScratchConfig, out: Path, progress: Progress, demos: Path | None = None
) -> dict[str, Any]:
    num_envs = 1 if isinstance(config.algorithm, StreamAcAlgorithm) else 3
    make = partial(SeeingWalking, num_envs)
    return train_from_scratch(config, "walking", make, out, progress, demos=demos)


@pytest.mark.parametrize("name", ["ppo", "stream_ac", *OFF_POLICY])
def test_the_saved_policy_takes_pictures(name: str, tmp_path: Path) -> None:
    algorithm = {"ppo": PPO, "stream_ac": STREAM_AC, **OFF_POLICY}[name]
    out = tmp_path / "out"
    out.mkdir()
    demos = write_walks(tmp_path / "demos") / "store.zarr" if name in READS_DEMOS else None
    learned(replace(CONFIG, algorithm=algorithm), out, no_progress, demos)
    card, weights = read_card(out), read_weights(out)
    assert list(card.sensors) == list(card.model.image_fields) == ["front"]
    assert list(card.observation) == ["twice"]
    # The encoder is the pretrained one.
    expected = pretrained_trunk(FEATURES.stride).state_dict()
    assert all(torch.equal(weights[f"pictures.trunk.{key}"], expected[key]) for key in expected)
    # The same vector with other pictures is another observation.
    shown = np.stack([picture(place) for place in (-1.5, 1.5)])[:, None]
    chunk = load_policy(out)(
        PolicyInput(np.zeros((2, 1, 1), np.float32), {"front": shown}), np.zeros((2, 1, 1))
    )
    assert chunk.shape == (2, 1, 1)
    assert chunk[0, 0, 0] != chunk[1, 0, 0]


def test_a_killed_run_ends_with_the_weights_it_would_have_had(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    learned(CONFIG, whole, no_progress)
    run_until_killed(2, learned, CONFIG, killed)
    learned(CONFIG, killed, no_progress)
    expected, got = (load_module(folder)[0].state_dict() for folder in (whole, killed))
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_environments_observe_the_features_of_their_own_pictures() -> None:
    """Also those that were reset, while the others' pictures are not encoded again."""
    env = SeeingWalking(3)
    encoder = PictureEncoder(FEATURES, ["front"], env.observation_spec)
    state_env = StateEnv(env, ("place",), CountedSeeds(0), RewardShaping(), encoder)
    state_env.begin()
    for step in range(7):
        place_N = env.place.copy()
        shown = encoder({"front": np.stack([picture(place) for place in place_N])})
        np.testing.assert_array_equal(state_env.observation[:, 0], place_N.astype(np.float32))
        np.testing.assert_allclose(state_env.observation[:, 1:], shown, atol=1e-5)
        # The environments move at different speeds, so they end at different steps.
        steps = state_env.step(np.array([[0.5], [-0.9], [0.1 * step]], np.float32))
        np.testing.assert_allclose(steps.observation[:, 1:], shown, atol=1e-5)
    assert state_env.statistics.episodes > 0
    assert state_env.entries == 1 + encoder.size


def test_a_camera_among_the_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"\['front'\] are pictures.*List cameras under image_f"):
        learned(replace(CONFIG, fields=("front",)), tmp_path, no_progress)
