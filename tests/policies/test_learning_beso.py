"""Learning check of BESO with a negative control: a commanded side of an obstacle.

Demonstrations go from (0, 0) to (1, 0) m, half of them over a disc of 0.2 m at (0.5, 0), half of
them under it. The goal is a point above or below the disc. At the start only the goal determines
the side of an episode, so a policy that ignores it should take both equally often, and so should
one trained with goals that are independent of the side.

Every window is a whole path: otherwise one in sixteen shows the start, and one in ten of these the
start without a goal. The smallest noise level is the one released for Block-push. Kitchen's 0.005
puts the second of three steps at 0.07, where the network was trained on paths of either side only:
it leaves a path between the two unchanged.

Not reached: without guidance three steps arrive less often than fifty, 0.92 against 1.00, where
five points were meant to be the limit; from Kitchen's 0.005, 0.82 against 1.00.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from policies.families.beso import BesoPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module
from policies.policy_config import BesoConfig
from policies.training.config import TrainingConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from robots.spec import FieldSpec

pytestmark = pytest.mark.slow

LENGTH = 16
EPISODES = 100
MODEL = BesoConfig(
    observation_fields=("goal", "agent"),
    goal="field",
    goal_fields=("goal",),
    n_obs_steps=1,
    horizon=LENGTH,
    n_action_steps=1,
    sigma_min=0.05,
    layers=3,
    heads=4,
    width=64,
    attention_dropout=0.0,
)
TRAINING = TrainingConfig(
    steps=4000, learning_rate=1e-3, batch_size=128, ema_max=0.999, precision="fp32"
)
ROLLOUTS = 200
"""Per goal."""
VIA = 0.425
"""Height of the goal above or below the disc's centre [m]."""


def write_ways(demos: Path, commanded: np.ndarray) -> Path:
    """A store with EPISODES paths, over the disc and under it in turn, and the commanded side (+1
    or -1) of each."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, LENGTH)
    heights = np.resize([1.0, -1.0], EPISODES) * rng.uniform(0.35, 0.5, EPISODES)
    point = FieldSpec(shape=(2,), unit="m", frame="board")
    schema = EpisodeSchema(
        name="ways",
        streams={
            "policy": StreamSpec(
                rate_hz=10.0, fields={"goal": point, "agent": point, "action": point}
            )
        },
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for height, side in zip(heights, commanded, strict=True):
            action = np.stack([x, height * np.sin(np.pi * x)], axis=1)
            agent = np.concatenate([np.zeros((1, 2)), action[:-1]])
            goal = np.broadcast_to(np.array([0.5, side * VIA]), action.shape)
            writer.append({"policy": {"goal": goal, "agent": agent, "action": action}}, {})
    return demos


def trained(tmp_path_factory: pytest.TempPathFactory, sides: list[float]) -> BesoPolicy:
    demos = write_ways(tmp_path_factory.mktemp("ways"), np.resize(sides, EPISODES))
    out = tmp_path_factory.mktemp("policy")
    pretrain(PretrainConfig(policy=MODEL, training=TRAINING), demos, out, no_progress)
    module, _ = load_module(out)
    assert isinstance(module, BesoPolicy)
    return module


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> BesoPolicy:
    return trained(tmp_path_factory, [1.0, -1.0])


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> BesoPolicy:
    """Trained with goals of other episodes, so that each goal occurs with as many paths over the
    disc as under it."""
    return trained(tmp_path_factory, [1.0, 1.0, -1.0, -1.0])


def rollouts(
    policy: BesoPolicy, guidance: float, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per rollout whether it was commanded over the disc, and whether it arrived over it and under
    it."""
    commanded_over = np.repeat([True, False], ROLLOUTS)
    goal = np.stack([np.full(2 * ROLLOUTS, 0.5), np.where(commanded_over, VIA, -VIA)], axis=1)
    observation = np.concatenate([goal, np.zeros_like(goal)], axis=1, dtype=np.float32)[:, None]
    noise = np.random.default_rng(1).standard_normal((2 * ROLLOUTS, LENGTH, 2), dtype=np.float32)
    policy.guidance = guidance
    policy.set_sampler_steps(steps)
    with torch.no_grad():
        path = policy(torch.from_numpy(observation), torch.from_numpy(noise)).numpy()
    through = (np.hypot(path[..., 0] - 0.5, path[..., 1]) < 0.2).any(axis=1)
    arrived = np.hypot(path[:, -1, 0] - 1.0, path[:, -1, 1]) < 0.1
    over = path[:, LENGTH // 2, 1] > 0
    return commanded_over, over & arrived & ~through, ~over & arrived & ~through


def obeyed(policy: BesoPolicy, guidance: float, steps: int = 3) -> float:
    """Fraction of the rollouts that arrive on the commanded side."""
    commanded_over, over, under = rollouts(policy, guidance, steps)
    return float(np.where(commanded_over, over, under).mean())


def test_guidance_takes_the_commanded_way(policy: BesoPolicy):
    assert obeyed(policy, guidance=1.5) >= 0.95


def test_without_guidance_both_ways_are_taken_equally_often(policy: BesoPolicy):
    _, over, under = rollouts(policy, guidance=0.0, steps=3)
    assert 0.35 <= over.mean() <= 0.65
    assert 0.35 <= under.mean() <= 0.65


def test_three_steps_obey_as_often_as_fifty(policy: BesoPolicy):
    assert obeyed(policy, 1.5) >= obeyed(policy, 1.5, steps=50) - 0.05


def test_goals_without_meaning_in_training_are_reached_at_random(misled: BesoPolicy):
    assert 0.35 <= obeyed(misled, guidance=1.5) <= 0.65
