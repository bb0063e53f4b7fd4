"""Learning check of SERL, which is RLPD on pictures: what only a camera sees is found, through the
critics' encoder.

PictureReach with its sparse reward: the goal is in the picture alone. Claims, fixed with the seeds
(0 to 4) before any
run: with 20 demonstrations and 6,000 steps of practice the deterministic policy solves at least 80
% of 100 fresh episodes in the mean of the seeds; the same learner whose camera does not see the
goal at most 30 %.

Reduced against the released code: 32 x 32 pixels, two convolutions, networks of 64 units, batch
128, four critics of ten, two critic steps per update; in return larger rates and a target that
follows faster.
"""

from functools import partial

import numpy as np
import pytest
import torch

from policies.rl.networks.config import EncoderConfig, MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from policies.rl.off_policy.online import Learner, MinibatchSampler, learn_online
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Observations, Sizes
from robots.wire.steps import Steps
from tests.toy_envs.comparison import better, compare
from tests.toy_envs.picture_reach import CAMERA, PictureReach, photographed, picture
from tests.toy_envs.toy_env import Act, demonstrations, success_rate

pytestmark = pytest.mark.slow

STEPS, DEMOS, NUM_ENVS, DISCOUNT = 6_000, 20, 10, 0.95
ONLINE = OnlineConfig(batch_size=128, updates_per_step=0.5, minibatches=2, training_starts=200)
NETWORK = MlpSizes(hidden=(64, 64), activation="tanh")
SERL = SacConfig(
    critic=NETWORK,
    actor=NETWORK,
    critics=4,
    subset=2,
    learning_rate=1e-3,
    actor_learning_rate=1e-3,
    temperature_learning_rate=1e-3,
    tau=0.01,
    encoder=EncoderConfig(
        channels=(16, 32), embeddings=8, picture_width=64, vector_width=16, shift=2
    ),
)
SIZES = Sizes(observation=2, action=2, pictures=(CAMERA,))


def looking(learner: Sac, goal_shown: bool, draw: np.random.Generator | None = None) -> Act:
    """The learner, who sees the point's place and the picture."""

    def act(observation_N4: np.ndarray) -> np.ndarray:
        shown = torch.from_numpy(picture(observation_N4, goal_shown))
        return learner.act_on(
            Observations(torch.from_numpy(observation_N4[:, :2]), {CAMERA[0]: shown}), draw
        )

    return act


def empty() -> Replay:
    return Replay(ReplayConfig(capacity=STEPS, discount=DISCOUNT), 2, 2, (CAMERA,))


def success(seed: int, goal_shown: bool) -> float:
    """Share of 100 fresh episodes that the deterministic policy solves after a run."""
    learner, demos = Sac(SERL, SIZES, seed), empty()
    learner.networks.features.fit(torch.full((2,), -0.5), torch.full((2,), 0.5))
    for steps in demonstrations(PictureReach(1, 1000 + seed), DEMOS):
        demos.append(photographed(steps, goal_shown))
    toy_env = PictureReach(NUM_ENVS, seed)

    def collect(acting: Learner, draw: np.random.Generator) -> Steps:
        steps, _ = toy_env.transition(looking(learner, goal_shown, draw)(toy_env.observe()))
        return photographed(steps, goal_shown)

    learn_online(learner, MinibatchSampler(ONLINE, empty(), demos), collect, ONLINE, STEPS, seed)
    return success_rate(PictureReach(50, 2000 + seed), looking(learner, goal_shown), 100)


def test_what_the_camera_sees_is_found() -> None:
    scores = compare(
        {"seen": partial(success, goal_shown=True), "not seen": partial(success, goal_shown=False)}
    )
    assert np.mean(scores["seen"]) >= 0.8
    assert np.mean(scores["not seen"]) <= 0.3
    assert better(scores, "seen", "not seen")
