"""D1: DPPO lifts a weak diffusion policy; beside it PPO on a Gaussian from the same demonstrations.

BimodalReach, demonstrations of which 45 % run straight into the obstacle, so that what imitates
them solves about half. 200,000 steps of practice in 50 environments. Asked for, seeds 0 to 4: DPPO
solves at least 90 % at its end, and significantly more (AdaStop) than the policy it began as; and
it is steadier than PPO on a Gaussian whose mean imitated the same
demonstrations: the worst stretch of its practice, once the policy learns, is better (AdaStop). At
first the third was who got further.

At five seeds (9e9a5bd): DPPO 1, 1, 1, 1, 1; imitation .405, .4, .405, .545, .465: met. The Gaussian
1, 1, 1, 1, 1, too; at worst DPPO .548, .536, .584, .62, .572, the Gaussian .408, .488, .648, .696,
.376, so the third is missed either way: every step costs 1 here, and practice tells a Gaussian the
way at once. Settings were chosen with seed 100 in view; there the released clips of .001 to .01 and
rate of 1e-4 had come from .25 to .29 after 20 rollouts.
"""

from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.gaussian_actor import GaussianActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from tests.toy_envs.bimodal_reach import BimodalReach, detours
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.rollout_env import toy_collector
from tests.toy_envs.toy_env import rollouts, success_rate

pytestmark = pytest.mark.slow

NUM_ENVS, DECISIONS, ROLLOUTS = 50, 100, 40
EPISODES = 200
WIDE, SHIFT = np.array([2.0, 1.0], np.float32), np.array([1.0, 0.0], np.float32)
DPPO = OnPolicyConfig(
    ppo=PpoConfig(clip=0.1),
    clip_min=0.01,
    actor_learning_rate=3e-4,
    batch_size=1000,
    epochs=5,
    critic_warmup_rollouts=2,
)
"""Wider clips and a higher rate than released: 5,000 decisions a rollout where DPPO has ten times
as many."""
PPO = OnPolicyConfig(
    ppo=PpoConfig(clip=0.2),
    clip_min=None,
    batch_size=500,
    epochs=5,
    critic_warmup_rollouts=2,
    target_kl=0.1,
)


class Finetuned(NamedTuple):
    """What a run came to."""

    solved: float
    """Share of episodes at its end."""
    curve: list[float]
    """Success of practice, rollout by rollout."""

    @property
    def worst(self) -> float:
        """Mean success of the worst five rollouts in a row, of those behind the critic's
        warm-up."""
        return float(
            np.convolve(self.curve[DPPO.critic_warmup_rollouts :], np.full(5, 0.2), "valid").min()
        )


def see(observation: np.ndarray) -> torch.Tensor:
    """(N, 1, 2) about in [-1, 1]: x is in [0, 1]."""
    return torch.from_numpy(observation * WIDE - SHIFT)[:, None]


def shown(seed: int, straight: float = 0.45) -> tuple[torch.Tensor, torch.Tensor]:
    """What 50 demonstrations saw and did, of which a share runs straight into the obstacle."""
    toy_env = BimodalReach(10, seed)
    steps = rollouts(toy_env, detours(toy_env, seed, straight=straight), 50, demo=True)
    observation, action = (
        np.concatenate([getattr(one, name) for one in steps]) for name in ("observation", "action")
    )
    return see(observation), torch.from_numpy(action.astype(np.float32))


def imitating(
    seed: int,
    updates: int = 2000,
    straight: float = 0.45,
    objective: Literal["diffusion", "flow"] = "diffusion",
    width: int = 128,
) -> DiffusionPolicy:
    """A diffusion or flow policy of the demonstrations."""
    torch.manual_seed(seed)
    config = DiffusionPolicyConfig(
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        train_timesteps=20,
        objective=objective,
        inference_steps=10,
        clip=1.0,
        network=MlpConfig(width=width, blocks=2),
    )
    policy = DiffusionPolicy(config, Shapes.of_vector(2, 2, None))
    obs, action = shown(seed, straight)
    optimizer = torch.optim.AdamW(policy.denoiser.parameters(), 1e-3)
    draw = np.random.default_rng([seed, 1])
    for _ in range(updates):
        rows = torch.from_numpy(draw.integers(0, len(obs), 256))
        batch = Batch(
            ObservationTensors(obs[rows]),
            action[rows, None],
            torch.zeros(256, 1, dtype=torch.bool),
        )
        optimizer.zero_grad()
        policy.loss(batch, draw).backward()
        optimizer.step()
    return policy


def critic(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((2, 128), (128, 128)):
        layers += [nn.Linear(before, after), nn.Mish()]
    return nn.Sequential(*layers, nn.Linear(128, 1))


def finetuned(
    seed: int, actor, config: OnPolicyConfig, rollouts_made: int = ROLLOUTS
) -> list[float]:
    """Learns; returns the success of practice, rollout by rollout."""
    value = critic(seed)
    collector = toy_collector(
        BimodalReach(NUM_ENVS, 1000 + seed), actor, value, see, config.discount, seed
    )
    learner = OnPolicyLearner(config, actor, value, seed)
    curve = []
    for _ in range(rollouts_made):
        rollout = collector.rollout(DECISIONS)
        collector.statistics.flush()
        newest = collector.statistics.ended[-NUM_ENVS:]
        curve.append(float(np.mean([one.success for one in newest] or [0.0])))
        learner.update(rollout)
    return curve


def solved(seed: int, actor) -> float:
    """Share of episodes solved without the last noise."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: np.ndarray) -> np.ndarray:
        return (
            actor.decide(see(observation), generator, deterministic=True)[0].reshape(-1, 2).numpy()
        )

    return success_rate(BimodalReach(50, 2000 + seed), act, EPISODES)


def dppo(seed: int, rollouts_made: int = ROLLOUTS) -> Finetuned:
    actor = DenoisingActor(imitating(seed), DppoConfig(steps=10, frozen_steps=5))
    curve = finetuned(seed, actor, DPPO, rollouts_made)
    return Finetuned(solved(seed, actor), curve)


def gaussian_ppo(seed: int) -> Finetuned:
    torch.manual_seed(seed)
    mean = nn.Sequential(
        nn.Flatten(),
        nn.Linear(2, 128),
        nn.Mish(),
        nn.Linear(128, 128),
        nn.Mish(),
        nn.Linear(128, 2),
    )
    obs, action = shown(seed)
    optimizer, draw = torch.optim.Adam(mean.parameters(), 1e-3), np.random.default_rng([seed, 1])
    for _ in range(2000):
        rows = torch.from_numpy(draw.integers(0, len(obs), 256))
        optimizer.zero_grad()
        mse_loss(mean(obs[rows]), action[rows]).backward()
        optimizer.step()
    actor = GaussianActor(mean, 2, std=0.3)
    curve = finetuned(seed, actor, PPO)
    return Finetuned(solved(seed, actor), curve)


@pytest.fixture(scope="module")
def scores() -> dict[str, list[float]]:
    found = runs(
        {"dppo": dppo, "imitation": partial(dppo, rollouts_made=0), "gaussian": gaussian_ppo}
    )
    columns = {name: [one.solved for one in finetuned] for name, finetuned in found.items()}
    return columns | {
        f"{name} at worst": [one.worst for one in found[name]] for name in ("dppo", "gaussian")
    }


def test_dppo_lifts_a_weak_policy(scores: dict[str, list[float]]) -> None:
    assert np.mean(scores["dppo"]) >= 0.9
    assert better(scores, "dppo", "imitation")


def test_dppo_trains_more_steadily_than_a_gaussian(scores: dict[str, list[float]]) -> None:
    assert better(scores, "dppo at worst", "gaussian at worst")
