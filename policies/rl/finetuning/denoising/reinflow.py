"""Fine-tunes flow policies by ReinFlow: rollouts with learned noise in every Euler step, each
followed by an update; the fine-tuned policy has no noise."""

from __future__ import annotations

from pathlib import Path

import torch

from policies.families.diffusion import DiffusionPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.denoising.config import ReinFlowFinetuneConfig
from policies.rl.finetuning.denoising.ppo_finetuning import PpoFinetuning
from policies.rl.finetuning.denoising.reinflow_actor import ReinFlowActor
from robots.interfaces import Progress


class ReinFlowFinetuning(PpoFinetuning):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: flow policy that is trained in place.
        env: training environments.
        seed: seed of initial weights and sampling.
    """

    figures = (*PpoFinetuning.figures, "entropy")

    def __init__(
        self,
        config: ReinFlowFinetuneConfig,
        policy: DiffusionPolicy,
        env: DecisionEnv,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        policy.set_sampler_steps(config.steps)
        actor = ReinFlowActor(policy, config)
        super().__init__(config.learning, config.critic, policy, actor, env, seed)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: the sampler keeps the steps of fine-tuning, and loses their
        noise."""
        return self.policy.config.with_sampler_steps(self.config.steps)
