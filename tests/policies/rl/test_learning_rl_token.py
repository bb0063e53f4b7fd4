"""Learning check of RL tokens with a negative control, on a frozen policy of two modes.

The bed is that of `test_learning_dsrl`: demonstrations pass an obstacle above and below alike, and
a wall closes the way below, so the policy that imitates all of them solves about half. Score: share
of 200 episodes that the policy solves with its edits, with seeds 0 to 4. Asked for: significantly
more (AdaStop at alpha .05) than

- `base`: the pretrained policy by itself;
- `shuffled`: the same fine-tuning with the rewards of every minibatch shuffled, so that critics and
  actor are trained, but have nothing to learn from.

A mean of 90 % was asked for, too, and is missed: with seed 2 the edits do not find the way.
Settings were chosen with seed 100, which solves all.

With seeds 0 to 4 RL tokens solve 1, 1, .435, 1 and 1, the base .465, .66, .255, .59 and .255, the
shuffled rewards .395, .695, .27, .29 and .275: met, but for the mean of .887. A seed takes 42
CPU-seconds.
"""

import pytest
import torch

from policies.rl.finetuning.rl_token.config import RlTokenFinetuneConfig, TokenTrainingConfig
from policies.rl.finetuning.rl_token.finetuning import RlTokenFinetuning
from policies.rl.finetuning.rl_token.learner import RefinementBatch
from policies.rl.networks.config import MlpSizes
from policies.training.config import TrainingConfig
from tests.policies.rl.test_learning_dsrl import base, finetuned, solved
from tests.toy_envs.comparison import better, runs

pytestmark = pytest.mark.slow

SMALL = MlpSizes(hidden=(64, 64), activation="relu")
RL_TOKEN = RlTokenFinetuneConfig(
    token=TokenTrainingConfig(
        width=8, heads=2, training=TrainingConfig(steps=300, learning_rate=1e-3, batch_size=64)
    ),
    critic=SMALL,
    actor=SMALL,
    limit=1.0,
    bc_weight=0.05,
    noise=0.2,
    discount=0.95,
    learning_rate=1e-3,
    tau=0.02,
    batch_size=128,
    updates=200,
)


class Shuffled(RlTokenFinetuning):
    """Learns from rewards of other decisions."""

    def minibatch(self, generator: torch.Generator) -> RefinementBatch:
        batch = super().minibatch(generator)
        order = torch.randperm(len(batch.reward_B), generator=generator)
        return batch._replace(reward_B=batch.reward_B[order], discount_B=batch.discount_B[order])


def scores_of(seed: int) -> dict[str, float]:
    """Share of episodes solved by every arm, all of which begin with the same policy."""
    policy = base(seed)
    return {
        "base": solved(policy, seed),
        "rl_token": finetuned(policy, seed, RL_TOKEN, RlTokenFinetuning),
        "shuffled": finetuned(policy, seed, RL_TOKEN, Shuffled),
    }


@pytest.fixture(scope="module")
def scores() -> dict[str, list[float]]:
    seeds = runs({"all arms": scores_of})["all arms"]
    return {name: [scores[name] for scores in seeds] for name in seeds[0]}


def test_an_actor_corrects_a_frozen_policy_that_fails_half_of_the_time(
    scores: dict[str, list[float]],
) -> None:
    assert better(scores, "rl_token", "base")


def test_it_learns_from_the_rewards(scores: dict[str, list[float]]) -> None:
    assert better(scores, "rl_token", "shuffled")
