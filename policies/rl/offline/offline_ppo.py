"""RL-100's offline stage: PPO over the denoising chain on recorded states, accepted or reverted by
a model's judgement.

Lei et al., arXiv 2510.14830. Chains are drawn by the policy as it is, at states of the data, anew
every few updates. All steps of a chain have the same advantage, the least Q of its chunk less V,
both learned from the data alone (IQL). Now and then the policy is judged by off-policy evaluation:
it decides for a few steps in an ensemble of learned dynamics, and its value is the mean of the
least Q on the way. A policy that is not better by a margin is taken back.

Where paper and released code differ: the code moves its reference on improvement and never takes a
policy back; the paper, which is followed, does. `gate: false` is the ablation. The last chain's
noise is that of `policies.samplers.chain`, at least .1 wherever it is added, and log-probabilities
are summed over a chunk (see `RL100_CHAIN`).

Shape suffixes: B batch, R rows, T observed steps, O observation, F = T * O, H horizon, A action, D
executed entries, K denoising steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.rl.offline.config import IqlConfig, OfflinePpoConfig
from policies.rl.offline.dynamics_ensemble import Decisions, DynamicsEnsemble
from policies.rl.offline.iql import InSampleCritics, IqlCritics
from policies.rl.on_policy.config import PpoConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.ppo_loss import standardised, surrogate
from policies.rl.on_policy.rollout import Trace
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from robots.interfaces import Progress

Executed = Callable[[Tensor], Tensor]
"""(R, H, A) to (R, D): what a world sees of a chunk."""

FIRST_SCALE = 0.01
"""Of the critics' last layers."""


class Judgement(NamedTuple):
    """Of one period between two looks at the gate."""

    updates: int
    """Up to its end, those that were taken back included."""
    value: float
    """J of the policy at its end."""
    best: float
    """J of the accepted one."""
    accepted: bool


Watch = Callable[[Judgement], None]


def fit_critics(
    config: IqlConfig,
    data: Decisions,
    updates: int,
    batch_size: int,
    seed: int,
    shown: Sizes | None = None,
    progress: Progress | None = None,
) -> InSampleCritics:
    """Q and V of recorded decisions, by `updates` steps of IQL.

    Args:
        config: see there.
        data: to learn from.
        updates: of V, then Q, then the targets.
        batch_size: rows of each.
        seed: of weights and rows.
        shown: what the networks are shown of the features beside themselves; None: nothing.
        progress: told every update.
    """
    sizes = shown or Sizes(observation=data.seen_RF.shape[1], action=data.done_RD.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = InSampleCritics(sizes, config.critics, config.critic, config.value_network)
    begin_at_zero(networks)
    learner = IqlCritics(config, networks)
    draw = torch.Generator().manual_seed(seed)
    for number in range(updates):
        some = data.rows(torch.randint(len(data.reward_R), (batch_size,), generator=draw))
        nobody = torch.zeros(batch_size, dtype=torch.bool)
        batch = Transitions(
            seen=Observations(some.seen_RF),
            action_BA=some.done_RD,
            reward_B=some.reward_R,
            discount_B=some.discount_R,
            next_seen=Observations(some.next_RF),
            demo_B=nobody,
            intervention_B=nobody,
            toggles_B=torch.zeros(batch_size),
        )
        learner.update([batch])
        if progress is not None:
            progress(number + 1, updates, "critics")
    return learner.networks.requires_grad_(False)


@torch.no_grad()
def begin_at_zero(networks: InSampleCritics) -> None:
    """Scales the last layers down, so that all values begin near 0.

    An offset of all values is forgotten at (1 - g) tau per update alone: of initial values of size
    1 a few thousand updates, where IQL has a million, leave more than a sparse reward is worth.
    """
    for network in (networks.critic, networks.critic_target, networks.value):
        network.weights[-1].mul_(FIRST_SCALE)


class OfflinePpo:
    """The learner.

    Args:
        config: how.
        policy: learns in place.
        critics: judge decisions.
        dynamics: tells what they lead to.
        executed: of a chunk.
        seed: of all chance.
    """

    def __init__(
        self,
        config: OfflinePpoConfig,
        policy: DiffusionPolicy,
        critics: InSampleCritics,
        dynamics: DynamicsEnsemble,
        executed: Executed,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.policy = policy
        self._critics = critics
        self._dynamics = dynamics
        self._executed = executed
        self._seed = seed
        self._actor = DenoisingActor(policy, config.walk)
        self._trained = [
            parameter for parameter in self._actor.parameters() if parameter.requires_grad
        ]
        self._optimizer = torch.optim.Adam(self._trained, config.learning_rate)

    def improve(self, seen: Tensor, watch: Watch | None = None) -> list[Judgement]:
        """Learns at recorded states (R, T, O), normalised; the policy is at last the one that was
        accepted last.

        Args:
            seen: of the data.
            watch: told every judgement when it has been acted upon; may look at the policy.

        Raises:
            HandoffError: a loss or a judgement that is not finite.
        """
        config, draw = self.config, torch.Generator().manual_seed(self._seed)
        best, judged = self.value(seen), []
        kept = self._snapshot()
        for begin in range(0, config.updates, config.gate_every):
            share = begin / config.updates
            clip = PpoConfig(clip=config.clip + share * (config.last_clip - config.clip))
            end = min(begin + config.gate_every, config.updates)
            for first in range(begin, end, config.redraw_every):
                self._learn(seen, min(config.redraw_every, end - first), clip, draw)
            value = self.value(seen)
            accepted = not config.gate or value >= best + config.margin * abs(best)
            if accepted:
                best, kept = value, self._snapshot()
            else:
                self._restore(kept)
            judged.append(Judgement(end, value, best, accepted))
            if watch is not None:
                watch(judged[-1])
        return judged

    @torch.no_grad()
    def value(self, seen: Tensor) -> float:
        """J: mean of the least Q over the first decisions from recorded states (R, T, O) in the
        learned dynamics.

        Always the same states and the same noise, so that two policies differ by what they do.

        Raises:
            HandoffError: it is not finite.
        """
        config, draw = self.config, torch.Generator().manual_seed(self._seed + 1)
        here = seen[torch.randint(len(seen), (config.judged_rows,), generator=draw)]
        total = 0.0
        for _ in range(config.judged_steps):
            done = self._executed(self._actor.decide(here, draw, deterministic=True).chunk_BHA)
            features = here.flatten(1)
            total += float(
                self._critics.action_value(self._critics.seen(Observations(features)), done).mean()
            )
            here = self._dynamics.step(features, done, draw).unflatten(1, here.shape[1:])
        if not total - total == 0.0:
            raise HandoffError(
                "rl100: the judged value of the policy is not finite. Do critics or dynamics diverge?"
            )
        return total / config.judged_steps

    def _learn(self, seen: Tensor, updates: int, clip: PpoConfig, draw: torch.Generator) -> None:
        """Draws chains of the policy as it is, and makes some updates on them."""
        config, parts = self.config, self._actor.parts
        rows = seen[torch.randint(len(seen), (config.chains,), generator=draw)]
        made = self._actor.decide(rows, draw)
        advantage_R = standardised(self._advantage(rows, made.chunk_BHA))
        for _ in range(updates):
            pick = torch.randint(config.chains * parts, (config.batch_size,), generator=draw)
            row_B, part_B = pick // parts, pick % parts
            trace: Trace = {name: value[row_B, part_B] for name, value in made.trace.items()}
            log_prob_B = self._actor.log_prob(rows[row_B], part_B, trace)
            found = surrogate(clip, log_prob_B, made.log_prob_BK[row_B, part_B], advantage_R[row_B])
            if not torch.isfinite(found.loss):
                raise HandoffError(
                    "rl100: the loss of the offline stage is not finite. Is the actor's rate too high?"
                )
            self._optimizer.zero_grad(set_to_none=True)
            found.loss.backward()
            nn.utils.clip_grad_norm_(self._trained, config.max_grad_norm)
            self._optimizer.step()

    @torch.no_grad()
    def _advantage(self, seen: Tensor, chunk_RHA: Tensor) -> Tensor:
        features = self._critics.seen(Observations(seen.flatten(1)))
        return self._critics.action_value(
            features, self._executed(chunk_RHA)
        ) - self._critics.state_value(features)

    def _snapshot(self) -> tuple[dict, dict]:
        return deepcopy(self.policy.denoiser.state_dict()), deepcopy(self._optimizer.state_dict())

    def _restore(self, kept: tuple[dict, dict]) -> None:
        weights, optimizer = kept
        self.policy.denoiser.load_state_dict(weights)
        self._optimizer.load_state_dict(deepcopy(optimizer))
