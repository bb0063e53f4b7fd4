"""Small flow policies, and tables of their own decisions, for tests of FPO and ReinFlow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.finetuning.denoising.config import FpoFinetuneConfig, ReinFlowFinetuneConfig
from policies.rl.finetuning.denoising.fpo_actor import FpoActor
from policies.rl.finetuning.denoising.reinflow_actor import ReinFlowActor
from policies.rl.on_policy.config import LearnedNoiseConfig, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.ppo import OnPolicyLearner
from policies.rl.on_policy.rollout import Table, WorkerShard

ROWS, STEPS, TIMESTEPS = 400, 4, 12
LEARNING = OnPolicyConfig(
    ppo=PpoConfig(clip=0.2),
    clip_min=None,
    denoising_discount=1.0,
    epochs=3,
    batch_size=100,
    actor_learning_rate=1e-3,
    target_kl=None,
    critic_warmup_rollouts=0,
)
FPO = FpoFinetuneConfig(samples=5, learning=LEARNING, critic=(16,))
FPO_PLUS_PLUS = replace(
    FPO,
    per_sample=True,
    prediction="velocity",
    times="trained",
    learning=replace(LEARNING, ppo=PpoConfig(clip=0.2, negative="quadratic")),
)
REINFLOW = ReinFlowFinetuneConfig(
    steps=STEPS, noise=LearnedNoiseConfig(hidden=(8,)), learning=LEARNING, critic=(16,)
)


def flow_policy(
    objective: str = "flow", horizon: int = 3, steps: int = STEPS, **options: Any
) -> DiffusionPolicy:
    """An untrained policy of chunks of `horizon` actions of two entries, whose output has weights
    of normal size."""
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        objective=objective,  # type: ignore[arg-type]
        n_obs_steps=1,
        horizon=horizon,
        n_action_steps=horizon,
        train_timesteps=TIMESTEPS,
        inference_steps=steps,
        network=MlpConfig(width=32, blocks=1),
        **options,
    )
    return DiffusionPolicy(config, Shapes.of_vector(2, 2, None)).eval()


def new_actor(config: FpoFinetuneConfig | ReinFlowFinetuneConfig) -> FpoActor | ReinFlowActor:
    """An actor of a `flow_policy`."""
    torch.manual_seed(1)
    if isinstance(config, FpoFinetuneConfig):
        return FpoActor(flow_policy(), config)
    return ReinFlowActor(flow_policy(), config)


def observations(rows: int = ROWS) -> Tensor:
    """(rows, 1, 2) observations."""
    return torch.rand((rows, 1, 2), generator=torch.Generator().manual_seed(3)) * 2.0 - 1.0


def decided_table(actor: FpoActor | ReinFlowActor, sign: float = 1.0) -> Table:
    """Decisions of the actor, whose advantage is the mean entry of their chunk, standardised, times
    `sign`."""
    obs = observations()
    decided = actor.decide(obs, torch.Generator().manual_seed(4))
    mean_R = decided.chunk_BHA.mean(dim=(1, 2))
    advantage_R = sign * (mean_R - mean_R.mean()) / mean_R.std()
    return Table(
        obs=obs,
        trace=decided.trace,
        log_prob_RKU=decided.log_prob_BK.reshape(ROWS, 1, -1),
        advantage_RU=advantage_R[:, None],
        shard=WorkerShard(ROWS, 1, 1, 0),
    )


def mean_entry(actor: FpoActor | ReinFlowActor) -> float:
    """Mean entry of chunks that the policy samples, always from the same noise."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        return float(actor.decide(observations(), generator).chunk_BHA.mean())


def learned(actor: FpoActor | ReinFlowActor, table: Table, updates: int = 1) -> Any:
    """Updates the actor on one table; returns the statistics of the last update."""
    learner = OnPolicyLearner(actor.config.learning, actor, None)
    return [learner.learn(table) for _ in range(updates)][-1]
