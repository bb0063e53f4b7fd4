"""Implements Q-chunking: Q-functions over action chunks, with a best-of-N or a distilled policy.

Source: Li et al., "Reinforcement Learning with Action Chunking", arXiv 2507.07969, and its released
code, which this follows. Bellman target and selection use the mean of two critics: the target
critics for the target, the trained critics for the selection. A chunk that extends past the end of
its episode is masked in the critic loss, since its last actions were not executed; in the imitation
loss only these actions are masked. Gradients of critics and actors are computed at the same
weights. Networks use ReLU, the code GELU. Chunks and their discounted rewards come from a replay
with the same `horizon`.

`Sizes.action` is the size of a whole chunk, and `act` returns whole chunks.

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
    NEXT_BASE,
    GenerativeActor,
    executed_mask,
    given_samples,
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
    """All networks of the learner."""

    def __init__(self, config: QChunkingConfig, sizes: Sizes) -> None:
        super().__init__()
        self.features = Features(sizes)
        inputs = self.features.size + sizes.action
        self.critic = EnsembleMlp(config.critics, inputs, config.critic, 1)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        entries = sizes.action // config.horizon
        self.behaviour: GenerativeActor | None = None
        self.one_step: EnsembleMlp | None = None
        if config.behaviour is None:
            return
        self.behaviour = GenerativeActor(
            self.features.size, config.horizon, entries, config.behaviour
        )
        if config.actor == "one_step":
            self.one_step = EnsembleMlp(1, inputs, config.behaviour.network, sizes.action)


class QChunking:
    """Q-chunking learner.

    Random numbers depend only on the seed and the number of updates, so updates are reproducible.

    Args:
        config: options.
        sizes: sizes of observations and actions; `action` is the size of a whole chunk.
        seed: seed of initial weights and noise.

    Raises:
        HandoffError: chunks do not divide into `horizon` actions, or a one-step actor is combined
            with a stochastic sampler.
    """

    def __init__(self, config: QChunkingConfig, sizes: Sizes, seed: int = 0) -> None:
        if sizes.action % config.horizon:
            raise HandoffError(
                f"q_chunking: chunks of {sizes.action} entries do not divide into {config.horizon} actions. "
                f"Sizes.action is the size of a whole chunk."
            )
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = QChunkingNetworks(config, sizes)
        net = self.networks
        _check_one_step(config, net.behaviour)
        self.optimizers = {
            "critic": torch.optim.Adam(net.critic.parameters(), config.learning_rate, fused=True)
        }
        if net.behaviour is not None and config.behaviour is not None:
            self.optimizers["behaviour"] = torch.optim.Adam(
                net.behaviour.parameters(), config.behaviour.learning_rate, fused=True
            )
        if net.one_step is not None:
            self.optimizers["one_step"] = torch.optim.Adam(
                net.one_step.parameters(), config.learning_rate, fused=True
            )
        self.updates = 0
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One step of critics, behaviour model and one-step actor per minibatch."""
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
        """One imitation step of the behaviour model only; counts as an update."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        features_BF = self.networks.features(batch.obs.vector_BO)
        loss = self._imitation(self.behaviour, features_BF, batch)
        self.optimizers["behaviour"].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers["behaviour"].step()
        self.updates += 1
        return {"behaviour_loss": loss.detach()}

    @property
    def behaviour(self) -> GenerativeActor:
        """The behaviour model.

        Raises:
            HandoffError: it is trained elsewhere.
        """
        if self.networks.behaviour is None:
            raise HandoffError(
                "q_chunking: the learner has no behaviour model, its samples must be given."
            )
        return self.networks.behaviour

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(M, D) whole chunks in [-1, 1] for observation vectors (M, O).

        Without `rng` the noise is fixed, so acting is deterministic: zero for the one-step actor,
        the same samples in every call for `best_of`.
        """
        features = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        generator = None
        if rng is not None:
            generator = torch.Generator().manual_seed(int(rng.integers(2**63 - 1)))
        return self.chunk(features, generator).numpy()

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers and number of updates."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def value(self, critic: EnsembleMlp, features_BF: Tensor, chunk_BD: Tensor) -> Tensor:
        """(B,) values of chunks by `critic`, aggregated over its members as configured."""
        value_CB = critic(torch.cat([features_BF, chunk_BD], dim=1))[..., 0]
        return value_CB.mean(dim=0) if self.config.value == "mean" else value_CB.amin(dim=0)

    @torch.no_grad()
    def chunk(self, features_BF: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, D) chunks of the policy, without gradients."""
        net, rows = self.networks, len(features_BF)
        if net.one_step is not None:
            zeros_BD = features_BF.new_zeros(rows, self.sizes.action)
            noise_BD = (
                zeros_BD if generator is None else torch.randn(zeros_BD.shape, generator=generator)
            )
            return net.one_step(torch.cat([features_BF, noise_BD], dim=1))[0].clamp(-1.0, 1.0)
        samples, behaviour = self.config.samples, self.behaviour
        repeated_BF = features_BF.repeat_interleave(samples, dim=0)
        noise = repeated_noise(behaviour, rows, samples, generator)
        chunk_BD = behaviour.sample(repeated_BF, noise)
        chunk_BND = chunk_BD.view(rows, samples, -1)
        return chunk_BND[torch.arange(rows), self.best_index(features_BF, chunk_BND)]

    @torch.no_grad()
    def best_index(self, features_BF: Tensor, chunk_BND: Tensor) -> Tensor:
        """(B,) index of the chunk with the greatest value by the trained critics."""
        rows, samples, _ = chunk_BND.shape
        if samples == 1:
            return torch.zeros(rows, dtype=torch.int64)
        repeated_BF = features_BF.repeat_interleave(samples, dim=0)
        value_B = self.value(self.networks.critic, repeated_BF, chunk_BND.flatten(0, 1))
        return value_B.view(rows, samples).argmax(dim=1)

    def losses(self, batch: Transitions) -> tuple[dict[str, Tensor], Metrics]:
        """One loss per optimiser, all at the current weights, and metrics.

        Raises:
            HandoffError: chunks have another size.
        """
        net = self.networks
        if batch.action_BA.shape[1] != self.sizes.action:
            raise HandoffError(
                f"q_chunking: chunks of {batch.action_BA.shape[1]} entries, expected {self.sizes.action}. "
                f"Does the replay have horizon {self.config.horizon}?"
            )
        features_BF = net.features(batch.obs.vector_BO)
        with torch.no_grad():
            next_BF = net.features(batch.next_obs.vector_BO)
            if net.behaviour is None:
                given_BND = given_samples(batch, NEXT_BASE)
                best_B = self.best_index(next_BF, given_BND)
                next_BD = given_BND[torch.arange(batch.rows), best_B]
            else:
                next_BD = self.chunk(next_BF, self._generator)
            next_value_B = self.value(net.critic_target, next_BF, next_BD)
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        value_CB = net.critic(torch.cat([features_BF, batch.action_BA], dim=1))[..., 0]
        complete_B = executed_mask(batch, self.config.horizon)[:, -1]
        losses = {"critic": squared_error(value_CB, target_B, complete_B)}
        if net.behaviour is not None:
            losses["behaviour"] = self._imitation(net.behaviour, features_BF, batch)
        metrics = {"q": value_CB.detach().mean(), "target": target_B.mean()}
        if net.one_step is not None:
            losses["one_step"], distance = self._one_step_loss(net.one_step, features_BF)
            metrics["distance"] = distance
        return losses, {
            **metrics,
            **{f"{name}_loss": loss.detach() for name, loss in losses.items()},
        }

    def _imitation(
        self, behaviour: GenerativeActor, features_BF: Tensor, batch: Transitions
    ) -> Tensor:
        valid_BH = executed_mask(batch, self.config.horizon)
        return behaviour.loss(features_BF, batch.action_BA, valid_BH, self._generator)

    def _one_step_loss(self, one_step: EnsembleMlp, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the one-step actor: weighted distance to the chunk of the behaviour model for the
        same noise, minus the critics' value, without gradients of the critics; and that
        distance."""
        net, behaviour = self.networks, self.behaviour
        noise_LBHA = behaviour.noise(len(features_BF), self._generator)
        target_BD = behaviour.sample(features_BF, noise_LBHA)
        chunk_BD = one_step(torch.cat([features_BF, noise_LBHA[0].flatten(1)], dim=1))[0]
        distance = (chunk_BD - target_BD).square().mean()
        net.critic.requires_grad_(False)
        value_CB = net.critic(torch.cat([features_BF, chunk_BD.clamp(-1.0, 1.0)], dim=1))[..., 0]
        net.critic.requires_grad_(True)
        return self.config.distillation * distance - value_CB.mean(), distance.detach()


def _check_one_step(config: QChunkingConfig, behaviour: GenerativeActor | None) -> None:
    if config.actor != "one_step":
        return
    if behaviour is None:
        raise HandoffError(
            "q_chunking: a one-step actor needs a behaviour model of its own, but behaviour is None."
        )
    if behaviour.stochastic:
        raise HandoffError(
            "q_chunking: a one-step actor needs a deterministic sampler, but the behaviour model is a diffusion with "
            f"eta {behaviour.config.eta}. Use a flow, or eta 0."
        )
