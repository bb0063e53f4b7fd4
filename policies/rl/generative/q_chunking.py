"""Q-chunking: values of whole chunks, chosen among or distilled from chunks like those of the data.

Source: Li et al., "Reinforcement Learning with Action Chunking", arXiv 2507.07969, and its released
code. Followed is the code: the mean of two critics in target and choice; the choice by the learning
critics, the target by the slow ones; a chunk that reaches over the end of its episode trains no
critic (its last actions were never executed) and only its executed part the behaviour; critics and
actors take their gradients at the same weights. Networks have ReLU, the code GELU. Chunks and their
discounted rewards come from a replay with that `horizon`.

`Sizes.action` counts the entries of a whole chunk, and so does what `act` returns;
`policies.rl.generative.open_loop` executes it.

Shape suffixes: B batch, C critics, F features, N samples per row, D entries of a chunk, O
observation, M rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.random_streams import sequence_seed
from policies.rl.generative.behaviour_model import (
    GenerativeActor,
    best_of,
    executed,
    repeated_noise,
)
from policies.rl.generative.config import QChunkingConfig
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import EnsembleMlp, Features, move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.off_policy.sac import Metrics
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError


class QChunkingNetworks(nn.Module):
    """All weights of the learner."""

    def __init__(self, config: QChunkingConfig, sizes: Sizes) -> None:
        super().__init__()
        self.features = Features(sizes)
        inputs = self.features.size + sizes.action
        self.critic = EnsembleMlp(config.critics, inputs, config.critic, 1)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        entries = sizes.action // config.horizon
        self.behaviour = GenerativeActor(
            self.features.size, config.horizon, entries, config.behaviour
        )
        self.one_step: EnsembleMlp | None = None
        if config.actor == "one_step":
            self.one_step = EnsembleMlp(1, inputs, config.behaviour.network, sizes.action)


class QChunking:
    """The learner; all its chance comes from the seed and the count of its updates.

    Args:
        config: options.
        sizes: of the data; `action` counts the entries of a whole chunk.
        seed: of weights and noise.

    Raises:
        HandoffError: chunks that do not divide into `horizon` actions, or a one-step actor of a
            random sampler.
    """

    def __init__(self, config: QChunkingConfig, sizes: Sizes, seed: int = 0) -> None:
        if sizes.action % config.horizon:
            raise HandoffError(
                f"q_chunking: chunks of {sizes.action} entries do not divide into {config.horizon} actions. "
                f"Sizes.action counts all entries of a chunk."
            )
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = QChunkingNetworks(config, sizes)
        net = self.networks
        if config.actor == "one_step" and net.behaviour.random:
            raise HandoffError(
                "q_chunking: the one-step actor copies a function of one noise, but the behaviour is a diffusion with "
                f"eta {config.behaviour.eta}. Use a flow, or eta 0."
            )
        self.optimizers = {
            "critic": torch.optim.Adam(net.critic.parameters(), config.learning_rate, fused=True),
            "behaviour": torch.optim.Adam(
                net.behaviour.parameters(), config.behaviour.learning_rate, fused=True
            ),
        }
        if net.one_step is not None:
            self.optimizers["one_step"] = torch.optim.Adam(
                net.one_step.parameters(), config.learning_rate, fused=True
            )
        self.updates = 0
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One step of everything per minibatch."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        metrics: Metrics = {}
        for batch in minibatches:
            losses, metrics = self.losses(batch)
            for optimizer in self.optimizers.values():
                optimizer.zero_grad(set_to_none=True)
            torch.stack(list(losses.values())).sum().backward()
            for name in losses:
                self.optimizers[name].step()
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self.updates += 1
        return metrics

    def imitate(self, batch: Transitions) -> Metrics:
        """One step of the behaviour alone; counts as an update."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        loss = self._imitation(self.networks.features(batch.seen.vector_BO), batch)
        self.optimizers["behaviour"].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers["behaviour"].step()
        self.updates += 1
        return {"behaviour_loss": loss.detach()}

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """Whole chunks (M, D) in [-1, 1] for observations (M, O).

        Without `draw` the noise is the same at every call: zero for the one-step actor, a fixed set
        for `best_of`.
        """
        features = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        generator = None
        if draw is not None:
            generator = torch.Generator().manual_seed(int(draw.integers(2**63 - 1)))
        return self.chunk(features, generator).numpy()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers and the count; all that the next update depends on."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def value(self, critic: EnsembleMlp, features_BF: Tensor, chunk_BD: Tensor) -> Tensor:
        """(B,) by `critic`, its members joined as configured."""
        value_CB = critic(torch.cat([features_BF, chunk_BD], dim=1))[..., 0]
        return value_CB.mean(dim=0) if self.config.value == "mean" else value_CB.amin(dim=0)

    @torch.no_grad()
    def chunk(self, features_BF: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, D): the policy's chunks, without gradients."""
        net, rows = self.networks, len(features_BF)
        if net.one_step is not None:
            still = features_BF.new_zeros(rows, self.sizes.action)
            noise_BD = still if generator is None else torch.randn(still.shape, generator=generator)
            return net.one_step(torch.cat([features_BF, noise_BD], dim=1))[0].clamp(-1.0, 1.0)
        samples = self.config.samples
        many_BF = features_BF.repeat_interleave(samples, dim=0)
        chunk_BD = net.behaviour.sample(
            many_BF, repeated_noise(net.behaviour, rows, samples, generator)
        )
        if samples == 1:
            return chunk_BD
        value_B = self.value(net.critic, many_BF, chunk_BD)
        return best_of(value_B.view(rows, samples), chunk_BD.view(rows, samples, -1))

    def losses(self, batch: Transitions) -> tuple[dict[str, Tensor], Metrics]:
        """One loss per optimiser, all at the present weights, and what they tell.

        Raises:
            HandoffError: chunks of another length.
        """
        net = self.networks
        if batch.action_BA.shape[1] != self.sizes.action:
            raise HandoffError(
                f"q_chunking: chunks of {batch.action_BA.shape[1]} entries, expected {self.sizes.action}. "
                f"Was the replay made with horizon {self.config.horizon}?"
            )
        features_BF = net.features(batch.seen.vector_BO)
        with torch.no_grad():
            next_BF = net.features(batch.next_seen.vector_BO)
            next_value_B = self.value(
                net.critic_target, next_BF, self.chunk(next_BF, self._generator)
            )
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        value_CB = net.critic(torch.cat([features_BF, batch.action_BA], dim=1))[..., 0]
        whole_B = executed(batch, self.config.horizon)[:, -1]
        losses = {
            "critic": squared_error(value_CB, target_B, whole_B),
            "behaviour": self._imitation(features_BF, batch),
        }
        metrics = {"q": value_CB.detach().mean(), "target": target_B.mean()}
        if net.one_step is not None:
            losses["one_step"], distance = self._one_step_loss(net.one_step, features_BF)
            metrics["distance"] = distance
        return losses, {
            **metrics,
            **{f"{name}_loss": loss.detach() for name, loss in losses.items()},
        }

    def _imitation(self, features_BF: Tensor, batch: Transitions) -> Tensor:
        valid_BH = executed(batch, self.config.horizon)
        return self.networks.behaviour.loss(features_BF, batch.action_BA, valid_BH, self._generator)

    def _one_step_loss(self, one_step: EnsembleMlp, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Distance from the behaviour's chunk of the same noise, and minus the value, of which the
        critics learn nothing."""
        net = self.networks
        noise_LBHA = net.behaviour.noise(len(features_BF), self._generator)
        wanted_BD = net.behaviour.sample(features_BF, noise_LBHA)
        chunk_BD = one_step(torch.cat([features_BF, noise_LBHA[0].flatten(1)], dim=1))[0]
        distance = (chunk_BD - wanted_BD).square().mean()
        net.critic.requires_grad_(False)
        value_CB = net.critic(torch.cat([features_BF, chunk_BD.clamp(-1.0, 1.0)], dim=1))[..., 0]
        net.critic.requires_grad_(True)
        return self.config.distillation * distance - value_CB.mean(), distance.detach()
