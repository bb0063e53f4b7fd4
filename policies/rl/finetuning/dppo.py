"""Fine-tunes diffusion and flow policies by DPPO: rollouts with stochastic denoising steps, each
followed by an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy_config import PolicyConfig
from policies.rl.collection.collector import Collector
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.base import OnlineFinetuning
from policies.rl.finetuning.collapse import CollapseDetector
from policies.rl.finetuning.config import DppoFinetuneConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo import OnPolicyLearner
from robots.interfaces import Progress


class DppoFinetuning(OnlineFinetuning):
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
        self.policy = policy
        self.rollouts = 0
        self._actor = DenoisingActor(policy, config.denoising)
        self._critic = _critic(self._actor.reference, config.critic)
        self._collector = Collector(env, self._actor, self._critic, config.learning.discount, seed)
        self._collector.statistics = statistics or self._collector.statistics
        self._learner = OnPolicyLearner(config.learning, self._actor, self._critic, seed)
        self._collapse = CollapseDetector(self._actor.parameters())

    @property
    def statistics(self) -> EpisodeStatistics:
        """See `FinetuneMethod.statistics`."""
        return self._collector.statistics

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`."""
        update = self._learner.update(self._collector.rollout(decisions))
        self.rollouts += 1
        self._collapse.check(
            self.rollouts,
            update,
            policy_trains=self.rollouts > self.config.learning.critic_warmup_rollouts,
        )
        names = ("kl", "clipped", "ratio", "explained", "value_loss")
        return {name: getattr(update, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "reference": self._actor.reference.state_dict(),
            "critic": self._critic.state_dict(),
            "learner": self._learner.state_dict(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self._actor.reference.load_state_dict(state["reference"])
        self._critic.load_state_dict(state["critic"])
        self._learner.load_state_dict(state["learner"])
        self._collector.load_state_dict(state["collector"])
        self._collector.begin()
        self.rollouts = self._learner.rollouts

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: keeps the number of denoising steps of fine-tuning."""
        return self.policy.config.with_sampler_steps(self.config.denoising.steps)


class InstructedCritic(nn.Module):
    """Values of observations with instructions.

    It reads what the encoder makes of both, so that it begins with the features that an instruction
    selects, and does not train them.

    Args:
        encoder: frozen encoder of the initial policy, which is no part of the critic's state.
        network: maps the encoded observation (B, steps, outputs) to values (B, 1).
    """

    def __init__(self, encoder: ObservationEncoder, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        # In a tuple, a module is not registered.
        self._encoder = (encoder,)

    def forward(self, obs: Any) -> Tensor:
        """Values (B, 1) of a TensorDict of vectors and instructions."""
        with torch.no_grad():
            encoded_BTO = self._encoder[0](observation_tensors(obs))
        return self.network(encoded_BTO)


def _critic(policy: DiffusionPolicy, hidden: tuple[int, ...]) -> nn.Module:
    """An untrained critic of the observations of `policy`, which is frozen."""
    if not policy.language_conditioned:
        return _network(policy.encoded_shape, hidden)
    encoder = policy.encoder
    return InstructedCritic(encoder, _network((encoder.steps, encoder.outputs), hidden))


def _network(shape: tuple[int, int], hidden: tuple[int, ...]) -> nn.Module:
    history, observation = shape
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, units in zip((history * observation, *hidden), hidden, strict=False):
        layers += [nn.Linear(inputs, units), nn.Mish()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))
