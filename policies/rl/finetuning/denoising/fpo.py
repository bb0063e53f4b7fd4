"""Fine-tunes flow policies by FPO: rollouts with the policy's own sampler, each followed by an
update on ratios of flow-matching losses."""

from __future__ import annotations

from pathlib import Path

import torch

from policies.families.diffusion import DiffusionPolicy
from policies.families.vla import VlaPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.denoising.config import FpoFinetuneConfig
from policies.rl.finetuning.denoising.fpo_actor import FpoActor
from policies.rl.finetuning.denoising.ppo_finetuning import PpoFinetuning
from robots.interfaces import Progress


class FpoFinetuning(PpoFinetuning):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: flow policy that is trained in place.
        env: training environments.
        seed: seed of initial weights and sampling.
    """

    def __init__(
        self,
        config: FpoFinetuneConfig,
        policy: DiffusionPolicy | VlaPolicy,
        env: DecisionEnv,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.config = config
        if config.steps is not None:
            policy.set_sampler_steps(config.steps)
        actor = FpoActor(policy, config)
        super().__init__(config.learning, config.critic, policy, actor, env, seed)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: the sampler keeps the steps of fine-tuning."""
        model = self.policy.config
        return model if self.config.steps is None else model.with_sampler_steps(self.config.steps)
