"""Learning check of FPO and ReinFlow on flow policies, with negative controls and DPPO beside them.

BimodalReach as in `test_learning_dppo`: 45 % of the demonstrations run straight into the obstacle,
so that the flow policy that imitates them solves about half. Every arm fine-tunes a copy of this
policy in 12 rollouts of 3,000 decisions in 50 environments, by the method of the stage `finetune`.
Score: share of 200 episodes that the fine-tuned policy solves by its own sampler, with seeds 1 to
5. Asked for: FPO and ReinFlow solve at least 90 % in the mean, and significantly more (AdaStop at
alpha .05) than

- `base`: the policy before fine-tuning;
- `fpo shuffled`, `reinflow shuffled`: the same fine-tuning with the advantages of every rollout
  shuffled, so that updates are as large and learn nothing about the task.

Beside them, in the same number of decisions and epochs: FPO with the options of FPO++, and DPPO of
the same flow policy by the noise of Flow-SDE. `... learned` is the mean success in the rollouts
after the critic's warm-up, exploration included.

Settings were chosen with seed 100. Without a limit on the divergence and on gradients, and with a
wider network, ReinFlow with seed 0 fell from 1 to 0 in one update; both limits were set then, so
seed 0 is not reported.

| seed | 1 | 2 | 3 | 4 | 5 |
|---|---|---|---|---|---|
| base | .395 | .385 | .73 | .705 | .52 |
| fpo | .995 | .87 | .995 | .98 | 1 |
| reinflow | 1 | .99 | 1 | 1 | .995 |
| fpo shuffled | .72 | .205 | .81 | .56 | .695 |
| reinflow shuffled | .25 | .375 | .57 | .39 | .425 |
| fpo++ | .92 | .37 | .99 | 1 | .99 |
| flow dppo | .93 | .99 | 1 | 1 | .995 |
| fpo learned | .878 | .582 | .96 | .95 | .922 |
| reinflow learned | .73 | .69 | .9 | .89 | .752 |
| fpo++ learned | .758 | .47 | .872 | .944 | .786 |
| flow dppo learned | .722 | .722 | .838 | .872 | .63 |

Met. The published orderings, ReinFlow above DPPO and FPO++ above FPO, are not shown: no two of
these four differ by AdaStop. A seed takes 62 CPU-seconds.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.rl.finetuning.base import FinetuneAlgorithm
from policies.rl.finetuning.config import (
    DppoFinetuneConfig,
    FpoFinetuneConfig,
    ReinFlowFinetuneConfig,
)
from policies.rl.finetuning.denoising.dppo import DppoFinetuning
from policies.rl.finetuning.denoising.fpo import FpoFinetuning
from policies.rl.finetuning.denoising.ppo_finetuning import PpoFinetuning
from policies.rl.finetuning.denoising.reinflow import ReinFlowFinetuning
from policies.rl.on_policy.config import DppoConfig, PpoConfig
from policies.rl.on_policy.rollout import Rollout, Table
from robots.interfaces import no_progress
from tests.policies.rl.test_learning_dppo import DPPO, imitating, see
from tests.toy_envs.bimodal_reach import BimodalReach
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.rollout_env import ToyRolloutEnv
from tests.toy_envs.toy_env import success_rate

pytestmark = pytest.mark.slow

NUM_ENVS, DECISIONS, ROLLOUTS, EPISODES = 50, 60, 12, 200
CRITIC, WIDTH = (64, 64), 64
STEPWISE = replace(DPPO, batch_size=600, target_kl=0.01, max_grad_norm=1.0)
"""Batches for 3,000 decisions a rollout, five epochs of them as in `test_learning_dppo`, and the
limit on the divergence of ReinFlow's Kitchen."""
ONE_RATIO = replace(STEPWISE, ppo=PpoConfig(clip=0.05), clip_min=None, denoising_discount=1.0)
"""The same with one clip range."""
FPO = FpoFinetuneConfig(steps=5, learning=ONE_RATIO, critic=CRITIC)
FPO_PLUS_PLUS = replace(
    FPO,
    per_sample=True,
    prediction="velocity",
    learning=replace(ONE_RATIO, ppo=PpoConfig(clip=0.2, negative="quadratic")),
)
REINFLOW = ReinFlowFinetuneConfig(learning=replace(ONE_RATIO, entropy_coef=0.03), critic=CRITIC)
FLOW_DPPO = DppoFinetuneConfig(denoising=DppoConfig(steps=4), learning=STEPWISE, critic=CRITIC)


class Env(ToyRolloutEnv):
    """`ToyRolloutEnv` as the method is given it: chunks of one action."""

    device = torch.device("cpu")
    entries = 2


def shuffled(rollout: Rollout, finetuning: PpoFinetuning) -> Table:
    """Rows with the advantages of other decisions."""
    table = finetuning.learner.table(rollout)
    generator = torch.Generator().manual_seed(finetuning.rollouts)
    order = torch.randperm(len(table.advantage_RU), generator=generator)
    return table._replace(advantage_RU=table.advantage_RU[order])


class ShuffledFpo(FpoFinetuning):
    """Learns from advantages of other decisions."""

    def table(self, rollout: Rollout) -> Table:
        return shuffled(rollout, self)


class ShuffledReinFlow(ReinFlowFinetuning):
    """Learns from advantages of other decisions."""

    def table(self, rollout: Rollout) -> Table:
        return shuffled(rollout, self)


def solved(policy: DiffusionPolicy, seed: int) -> float:
    """Share of episodes that the policy solves by its own sampler."""
    rng = np.random.default_rng([seed, 9])

    @torch.no_grad()
    def act(observation: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal((len(observation), 1, 2), dtype=np.float32)
        chunk = policy.sample(ObservationTensors(see(observation)), torch.from_numpy(noise))
        return chunk[:, 0].numpy()

    return success_rate(BimodalReach(50, 2000 + seed), act, EPISODES)


def finetuned(
    base: DiffusionPolicy, seed: int, config: FinetuneAlgorithm, method: type[PpoFinetuning]
) -> tuple[float, float]:
    """Share of episodes that a copy of the policy solves after fine-tuning, and mean success in the
    rollouts in which it learned."""
    policy = deepcopy(base)
    env = Env(BimodalReach(NUM_ENVS, 1000 + seed), see, config.reward_discount())
    run = method(config, policy, env, seed)  # type: ignore[arg-type]
    curve = []
    for _ in range(ROLLOUTS):
        run.rollout(DECISIONS)
        run.statistics.flush()
        newest = run.statistics.ended[-NUM_ENVS:]
        curve.append(float(np.mean([one.success for one in newest])))
    with TemporaryDirectory() as out:
        model = run.finish("", Path(out), no_progress)
    policy.set_sampler_steps(model.inference_steps)  # type: ignore[union-attr]
    return solved(policy, seed), float(np.mean(curve[DPPO.critic_warmup_rollouts :]))


def scores_of(seed: int) -> dict[str, float]:
    """Share of episodes solved by every arm, and as `... learned` mean success in its rollouts."""
    flow = imitating(seed, objective="flow", width=WIDTH).eval()
    arms = {
        "fpo": (FPO, FpoFinetuning),
        "fpo++": (FPO_PLUS_PLUS, FpoFinetuning),
        "reinflow": (REINFLOW, ReinFlowFinetuning),
        "flow dppo": (FLOW_DPPO, DppoFinetuning),
        "fpo shuffled": (FPO, ShuffledFpo),
        "reinflow shuffled": (REINFLOW, ShuffledReinFlow),
    }
    results = {name: finetuned(flow, seed, *arm) for name, arm in arms.items()}
    return {
        "base": solved(flow, seed),
        **{name: result[0] for name, result in results.items()},
        **{f"{name} learned": result[1] for name, result in results.items()},
    }


@pytest.fixture(scope="module")
def scores() -> dict[str, list[float]]:
    seeds = runs({"all arms": scores_of}, seeds=range(1, 6))["all arms"]
    return {name: [scores[name] for scores in seeds] for name in seeds[0]}


@pytest.mark.parametrize("method", ["fpo", "reinflow"])
def test_it_lifts_a_weak_flow_policy(method: str, scores: dict[str, list[float]]) -> None:
    assert np.mean(scores[method]) >= 0.9
    assert better(scores, method, "base")


@pytest.mark.parametrize("method", ["fpo", "reinflow"])
def test_it_learns_from_the_advantages(method: str, scores: dict[str, list[float]]) -> None:
    assert better(scores, method, f"{method} shuffled")
