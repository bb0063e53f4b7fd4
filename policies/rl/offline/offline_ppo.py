"""Implements the offline stage of RL-100: PPO over denoising chains at recorded states, gated by
off-policy evaluation.

Lei et al., arXiv 2510.14830. Denoising chains are sampled from the current policy at states of the
data, and resampled every few updates. All denoising steps of a chain have the same advantage, the
minimum Q of its chunk minus V, both learned from the data only (IQL). At regular intervals the
policy is evaluated off-policy: it acts for a few chunks in an ensemble of learned dynamics models,
and its value J is the mean of the minimum Q along the way. A policy that has not improved by a
margin is reverted.

Where paper and released code differ: the code updates its reference on improvement and never
reverts a policy; this follows the paper, which does. `gate: false` is the ablation. The noise of
chains is that of `policies.samplers.chain`, at least .1 wherever it is added, and log-probabilities
are summed over a chunk (see `RL100_CHAIN`).

Shape suffixes: B batch, R rows, T observation steps, O observation, F = T * O, H horizon, A action,
D executed entries, K denoising steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.rl.offline.config import ExpectileCriticsConfig, OfflinePpoConfig
from policies.rl.offline.dynamics_ensemble import ChunkTransitions, DynamicsEnsemble
from policies.rl.offline.iql import InSampleCritics, IqlCritics, shrink_final_layers
from policies.rl.on_policy.config import PpoConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.ppo_loss import standardised, surrogate
from policies.rl.on_policy.rollout import Trace
from policies.rl.replay.transitions import Observations, Sizes, without_person
from robots.errors import HandoffError
from robots.interfaces import Progress

ExecutedActions = Callable[[Tensor], Tensor]
"""Selects the executed part of a chunk: (R, H, A) to (R, D)."""


class GateResult(NamedTuple):
    """Result of one evaluation by the gate."""

    updates: int
    """Updates so far, including reverted ones."""
    value: float
    """Value J of the evaluated policy."""
    best: float
    """Value J of the accepted policy after this evaluation."""
    accepted: bool
    """Whether the evaluated policy was accepted; otherwise it was reverted."""


Watch = Callable[[GateResult], None]
"""Callback for each evaluation by the gate."""


def fit_critics(
    config: ExpectileCriticsConfig,
    data: ChunkTransitions,
    updates: int,
    batch_size: int,
    seed: int,
    sizes: Sizes | None = None,
    progress: Progress | None = None,
) -> InSampleCritics:
    """Trains Q and V on recorded chunks with IQL.

    Args:
        config: options of the critics.
        data: recorded chunks.
        updates: number of updates, each of V, then Q, then the targets.
        batch_size: rows per update.
        seed: seed of initial weights and minibatches.
        sizes: sizes with relative and scaled features; None uses the observations only.
        progress: called after every update.
    """
    sizes = sizes or Sizes(observation=data.obs_RF.shape[1], action=data.action_RD.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = InSampleCritics(sizes, config.critics, config.critic, config.value_network)
    shrink_final_layers(networks)
    learner = IqlCritics(config, networks)
    generator = torch.Generator().manual_seed(seed)
    for number in range(updates):
        rows = data.rows(torch.randint(len(data.reward_R), (batch_size,), generator=generator))
        batch = without_person(
            obs=Observations(rows.obs_RF),
            action_BA=rows.action_RD,
            reward_B=rows.reward_R,
            discount_B=rows.discount_R,
            next_obs=Observations(rows.next_obs_RF),
        )
        learner.update([batch])
        if progress is not None:
            progress(number + 1, updates, "critics")
    return learner.networks.requires_grad_(False)


class OfflinePpo:
    """Offline PPO learner of a diffusion policy.

    Args:
        config: options.
        policy: policy, trained in place.
        critics: Q and V of the data.
        dynamics: learned dynamics models for the evaluation.
        executed: selects the executed part of a chunk.
        seed: seed of all random numbers.
    """

    def __init__(
        self,
        config: OfflinePpoConfig,
        policy: DiffusionPolicy,
        critics: InSampleCritics,
        dynamics: DynamicsEnsemble,
        executed: ExecutedActions,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.policy = policy
        self._critics = critics
        self._dynamics = dynamics
        self._executed = executed
        self._seed = seed
        self._actor = DenoisingActor(policy, config.denoising)
        self._trained = [
            parameter for parameter in self._actor.parameters() if parameter.requires_grad
        ]
        self._optimizer = torch.optim.Adam(self._trained, config.learning_rate)

    def improve(self, obs: Tensor, watch: Watch | None = None) -> list[GateResult]:
        """Trains the policy at recorded states; it ends as the last accepted policy.

        Args:
            obs: normalised observations of the data, (R, T, O).
            watch: called after each evaluation has been applied; may read the policy.

        Returns:
            Results of all evaluations.

        Raises:
            HandoffError: a loss or a value is not finite.
        """
        config, generator = self.config, torch.Generator().manual_seed(self._seed)
        best, results = self.value(obs), []
        snapshot = self._snapshot()
        for begin in range(0, config.updates, config.gate_every):
            # PPO updates with a linearly decreasing clip range.
            fraction = begin / config.updates
            clip = PpoConfig(clip=config.clip + fraction * (config.last_clip - config.clip))
            end = min(begin + config.gate_every, config.updates)
            for first in range(begin, end, config.redraw_every):
                self._learn(obs, min(config.redraw_every, end - first), clip, generator)
            # Gate: accept or revert.
            value = self.value(obs)
            accepted = not config.gate or value >= best + config.margin * abs(best)
            if accepted:
                best, snapshot = value, self._snapshot()
            else:
                self._restore(snapshot)
            results.append(GateResult(end, value, best, accepted))
            if watch is not None:
                watch(results[-1])
        return results

    @torch.no_grad()
    def value(self, obs: Tensor) -> float:
        """Value J: mean of the minimum Q over the first chunks from recorded states (R, T, O) in
        the learned dynamics.

        States and noise are the same in every call, so values of different policies are comparable.

        Raises:
            HandoffError: the value is not finite.
        """
        config, generator = self.config, torch.Generator().manual_seed(self._seed + 1)
        current = obs[torch.randint(len(obs), (config.judged_rows,), generator=generator)]
        total = 0.0
        for _ in range(config.judged_steps):
            action_RD = self._executed(
                self._actor.decide(current, generator, deterministic=True).chunk_BHA
            )
            features = current.flatten(1)
            total += float(
                self._critics.action_value(
                    self._critics.encode(Observations(features)), action_RD
                ).mean()
            )
            current = self._dynamics.step(features, action_RD, generator).unflatten(
                1, current.shape[1:]
            )
        if not total - total == 0.0:
            raise HandoffError(
                "rl100: the value of the policy is not finite. Do the critics or the dynamics diverge?"
            )
        return total / config.judged_steps

    def _learn(
        self, obs: Tensor, updates: int, clip: PpoConfig, generator: torch.Generator
    ) -> None:
        """Samples denoising chains from the current policy and makes PPO updates on them."""
        config, denoising_steps = self.config, self._actor.denoising_steps
        rows = obs[torch.randint(len(obs), (config.chains,), generator=generator)]
        output = self._actor.decide(rows, generator)
        advantage_R = standardised(self._advantage(rows, output.chunk_BHA))
        for _ in range(updates):
            index_B = torch.randint(
                config.chains * denoising_steps, (config.batch_size,), generator=generator
            )
            row_B, step_B = index_B // denoising_steps, index_B % denoising_steps
            trace: Trace = {name: value[row_B, step_B] for name, value in output.trace.items()}
            log_prob_B = self._actor.log_prob(rows[row_B], step_B, trace)
            result = surrogate(
                clip, log_prob_B, output.log_prob_BK[row_B, step_B], advantage_R[row_B]
            )
            if not torch.isfinite(result.loss):
                raise HandoffError(
                    "rl100: the loss of the offline stage is not finite. Is the learning rate too high?"
                )
            self._optimizer.zero_grad(set_to_none=True)
            result.loss.backward()
            nn.utils.clip_grad_norm_(self._trained, config.max_grad_norm)
            self._optimizer.step()

    @torch.no_grad()
    def _advantage(self, obs: Tensor, chunk_RHA: Tensor) -> Tensor:
        features = self._critics.encode(Observations(obs.flatten(1)))
        return self._critics.action_value(
            features, self._executed(chunk_RHA)
        ) - self._critics.state_value(features)

    def _snapshot(self) -> tuple[dict, dict]:
        return deepcopy(self.policy.denoiser.state_dict()), deepcopy(self._optimizer.state_dict())

    def _restore(self, snapshot: tuple[dict, dict]) -> None:
        weights, optimizer = snapshot
        self.policy.denoiser.load_state_dict(weights)
        self._optimizer.load_state_dict(deepcopy(optimizer))
