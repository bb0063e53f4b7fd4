"""Fine-tunes diffusion and flow policies by DPPO: rollouts with stochastic denoising steps, each
followed by an update."""

from __future__ import annotations

from pathlib import Path

import torch

from policies.families.diffusion import DiffusionPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.denoising.config import DppoFinetuneConfig
from policies.rl.finetuning.denoising.ppo_finetuning import PpoFinetuning
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from robots.interfaces import Progress


class DppoFinetuning(PpoFinetuning):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: policy that is trained in place.
        env: training environments.
        seed: seed of initial weights and sampling.
        statistics: statistics to continue; None begins new ones.
    """

    def __init__(
        self,
        config: DppoFinetuneConfig,
        policy: DiffusionPolicy,
        env: DecisionEnv,
        seed: int,
        statistics: EpisodeStatistics | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        actor = DenoisingActor(policy, config.denoising)
        super().__init__(config.learning, config.critic, policy, actor, env, seed, statistics)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: keeps the number of denoising steps of fine-tuning."""
        return self.policy.config.with_sampler_steps(self.config.denoising.steps)
