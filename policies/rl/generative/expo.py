"""EXPO: an expressive base policy that only imitates, a small learned edit of it, and the best of
both by value.

Source: Dong et al., "EXPO: Stable Reinforcement Learning with Expressive Policies", arXiv
2507.07986; its code was not available, so the paper is followed, and `policies.rl.off_policy.sac`
(RLPD) where it is silent. The base policy is trained by imitation on everything in the replay and
never sees a value. The edit, beta times a tanh-Gaussian given state and base action, is trained as
SAC's actor. Acting takes the best of N base samples and their N edited ones by the mean of all
critics; the target takes the best of as many by the minimum of two slow critics, and that minimum
for its value. Actions are clipped to [-1, 1] after the edit. The base takes one step per update, on
its last minibatch.

The edit's density is that of the tanh-Gaussian less A log(beta), and its target entropy moves
along: left at SAC's, a small beta could not reach it and the temperature would grow without bound.

Shape suffixes: B batch, E members, F features, N candidates per row, A action, O observation, M
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from policies.random_streams import sequence_seed
from policies.rl.generative.behaviour_model import (
    GenerativeActor,
    best_of,
    executed,
    repeated_noise,
)
from policies.rl.generative.config import ExpoConfig
from policies.rl.networks.critics import bellman_target, random_subset, squared_error
from policies.rl.networks.ensemble import move_towards
from policies.rl.off_policy.sac import Metrics, Sac
from policies.rl.off_policy.tanh_gaussian import Draw, TanhGaussian
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError


def scaled(draw: Draw, beta: float) -> Draw:
    """`beta` times the actions, whose density is that much greater per entry: A log(beta) less."""
    return Draw(beta * draw.action_BA, draw.log_prob_B - draw.action_BA.shape[1] * math.log(beta))


def edited(base_BA: Tensor, edit_BA: Tensor) -> Tensor:
    """(B, A): base actions with their edits, within [-1, 1]."""
    return (base_BA + edit_BA).clamp(-1.0, 1.0)


def edit_target_entropy(entries: int, beta: float) -> float:
    """A (log(2 beta) - 1/2) [nat]: half a nat per entry below the entropy of the uniform edit, A
    log(2 beta)."""
    return entries * (math.log(2.0 * beta) - 0.5)


class Expo(Sac):
    """SAC's critics and temperature, with an edited base policy for an actor.

    Args:
        config: options.
        sizes: of the data.
        seed: of weights and noise.

    Raises:
        HandoffError: options of the SAC core that have no meaning here.
    """

    def __init__(self, config: ExpoConfig, sizes: Sizes, seed: int = 0) -> None:
        _check(config)
        super().__init__(config.sac, sizes, seed)
        self.expo = config
        net, features = self.networks, self.networks.features.size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            edit = TanhGaussian(features + sizes.action, sizes.action, config.sac)
            base = GenerativeActor(features, 1, sizes.action, config.base)
        net.actor = edit
        net.add_module("base", base)
        self.base = base
        self.optimizers["actor"] = torch.optim.Adam(
            edit.parameters(), config.sac.actor_learning_rate, fused=True
        )
        self.optimizers["base"] = torch.optim.Adam(
            base.parameters(), config.base.learning_rate, fused=True
        )
        if config.sac.target_entropy is None:
            self.target_entropy = edit_target_entropy(sizes.action, config.beta)

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One critic step per minibatch, then one step of edit, temperature and base on the last.

        Base and edit stay as they are during the critic steps, so all next actions are drawn at
        once.
        """
        self._reseed()
        samples = self.expo.samples if self.expo.backup == "max" else 1
        with torch.no_grad():
            next_BF = torch.cat([self.features(batch.next_seen) for batch in minibatches])
            candidate_BNA = self.candidates(next_BF, samples, self._generator)
        rows = [batch.rows for batch in minibatches]
        metrics: Metrics = {}
        for batch, after_BF, some_BNA in zip(
            minibatches, next_BF.split(rows), candidate_BNA.split(rows), strict=True
        ):
            metrics = self._critic_step(batch, after_BF, some_BNA)
        return {
            **metrics,
            **self._update_actor(minibatches[-1]),
            **self._update_base(minibatches[-1]),
        }

    def imitate(self, batch: Transitions) -> Metrics:
        """One step of the base policy alone; counts as an update."""
        self._reseed()
        return self._update_base(batch)

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """Actions (M, A) in [-1, 1] for observations (M, O), each the best of its candidates.

        Without `draw` every call has the same base noise, and edits are their mode.
        """
        features = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        generator = None
        if draw is not None:
            generator = torch.Generator().manual_seed(int(draw.integers(2**63 - 1)))
        candidate_BNA = self.candidates(features, self.expo.samples, generator)
        return best_of(
            self._values(features, candidate_BNA, None, slow=False), candidate_BNA
        ).numpy()

    @torch.no_grad()
    def candidates(
        self, features_BF: Tensor, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """(B, N, A) base samples, followed by the N edited ones if there are edits."""
        rows = len(features_BF)
        many_BF = features_BF.repeat_interleave(samples, dim=0)
        base_BA = self.base.sample(many_BF, repeated_noise(self.base, rows, samples, generator))
        base_BNA = base_BA.view(rows, samples, -1)
        if not self.expo.edits:
            return base_BNA
        edited_BA = edited(base_BA, self.edit(many_BF, base_BA, generator).action_BA)
        return torch.cat([base_BNA, edited_BA.view(rows, samples, -1)], dim=1)

    def edit(self, features_BF: Tensor, base_BA: Tensor, generator: torch.Generator | None) -> Draw:
        """Edits of base actions and their log-density; without a generator the mode."""
        inputs = torch.cat([features_BF, base_BA], dim=1)
        noise_BA = (
            torch.zeros_like(base_BA)
            if generator is None
            else torch.randn(base_BA.shape, generator=generator)
        )
        return scaled(self.networks.actor.sample(inputs, noise_BA), self.expo.beta)

    @torch.no_grad()
    def greatest_value(self, features_BF: Tensor, candidate_BNA: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the target's value of the next states and (B,) which candidate has it, by slow
        critics drawn anew.

        The policy's backup looks at the last candidate alone.
        """
        config = self.config
        members = None
        if config.subset is not None and config.subset < config.critics:
            members = random_subset(config.critics, config.subset, self._generator)
        if self.expo.backup == "policy":
            candidate_BNA = candidate_BNA[:, -1:]
        value_BN = self._values(features_BF, candidate_BNA, members, slow=True)
        return value_BN.max(dim=1)

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,): what the target takes for the next states' value, from candidates drawn anew.

        Raises:
            HandoffError: features of a target encoder; this learner has no pictures.
        """
        if target_BF is not None:
            raise HandoffError("expo: pictures are not supported, its observation is one vector.")
        samples = self.expo.samples if self.expo.backup == "max" else 1
        return self.greatest_value(
            features_BF, self.candidates(features_BF, samples, self._generator)
        )[0]

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """SAC's loss of the edit, at one base sample per row."""
        net = self.networks
        features_BF = self.features(batch.seen)
        base_BA = self.base.sample(features_BF, self.base.noise(batch.rows, self._generator))
        draw = self.edit(features_BF, base_BA, self._generator)
        value_EB = net.critic(torch.cat([features_BF, edited(base_BA, draw.action_BA)], dim=1))[
            ..., 0
        ]
        value_B = (
            value_EB.mean(dim=0) if self.config.actor_value == "mean" else value_EB.amin(dim=0)
        )
        loss = (net.log_temperature.detach().exp() * draw.log_prob_B - value_B).mean()
        return loss, {"actor_loss": loss.detach(), "entropy": -draw.log_prob_B.detach().mean()}

    def _critic_step(self, batch: Transitions, next_BF: Tensor, candidate_BNA: Tensor) -> Metrics:
        next_value_B, best_B = self.greatest_value(next_BF, candidate_BNA)
        target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        value_EB = self.networks.critic(
            torch.cat([self.features(batch.seen), batch.action_BA], dim=1)
        )[..., 0]
        loss = squared_error(value_EB, target_B)
        self._step("critic", loss)
        move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        edited_share = (best_B >= self.expo.samples).float().mean()
        return {
            "critic_loss": loss.detach(),
            "q": value_EB.detach().mean(),
            "target": target_B.mean(),
            "edited": edited_share,
        }

    def _reseed(self) -> None:
        """All chance of an update comes from the seed and its number, which is counted here."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        self.updates += 1

    def _values(
        self, features_BF: Tensor, candidate_BNA: Tensor, members: Tensor | None, *, slow: bool
    ) -> Tensor:
        """(B, N): the minimum of the slow critics `members`, or the mean of all learning ones."""
        rows, samples, _ = candidate_BNA.shape
        inputs = torch.cat(
            [features_BF.repeat_interleave(samples, dim=0), candidate_BNA.flatten(0, 1)], dim=1
        )
        if slow:
            return (
                self.networks.critic_target(inputs, members)[..., 0].amin(dim=0).view(rows, samples)
            )
        return self.networks.critic(inputs)[..., 0].mean(dim=0).view(rows, samples)

    def _update_base(self, batch: Transitions) -> Metrics:
        features_BF = self.features(batch.seen)
        loss = self.base.loss(features_BF, batch.action_BA, executed(batch, 1), self._generator)
        self._step("base", loss)
        return {"base_loss": loss.detach()}


def _check(config: ExpoConfig) -> None:
    sac = config.sac
    named = {
        "gripper": sac.gripper is not None,
        "gsde": sac.gsde > 0,
        "backup_entropy": sac.backup_entropy,
        "actor_ema": sac.actor_ema is not None,
    }
    for name, wanted in named.items():
        if wanted:
            raise HandoffError(
                f"expo: sac.{name} is {getattr(sac, name)}, but the base policy models every entry of an action, edits "
                f"are drawn at every step by the newest weights, and the target has no entropy. Leave it as it is."
            )
    if config.samples < 1 or not 0.0 < config.beta <= 2.0:
        raise HandoffError(
            f"expo: {config.samples} samples and beta {config.beta}, expected at least 1 and above 0, up to 2, which "
            f"spans all actions. Is beta a share of the range?"
        )
