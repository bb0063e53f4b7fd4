"""Implements EXPO: an expressive base policy trained by imitation, a learned edit of its actions,
and a selection among both by value.

Source: Dong et al., "EXPO: Stable Reinforcement Learning with Expressive Policies", arXiv
2507.07986. Its code was not available, so this follows the paper, and `policies.rl.off_policy.sac`
(RLPD) where the paper gives no details. The base policy is trained by imitation on the whole replay
and gets no gradient from values. The edit, beta times a tanh-Gaussian given state and base action,
is trained like SAC's actor. Acting selects the best of N base samples and their N edited ones by
the mean of all critics; the Bellman target selects the best of as many by the minimum of two target
critics and uses that minimum as value. Actions are clipped after the edit. The base policy takes
one step per update, on the last minibatch; with `base: null` it is trained elsewhere, and its
samples come with the minibatches.

The log-density of an edit is that of the tanh-Gaussian minus A log(beta), and the target entropy is
shifted accordingly: a small beta could not reach SAC's target entropy, and the temperature would
grow without bound.

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
    BASE,
    NEXT_BASE,
    GenerativeActor,
    executed_mask,
    given_samples,
    repeated_noise,
)
from policies.rl.generative.config import ExpoConfig
from policies.rl.networks.critics import bellman_target, random_subset, squared_error
from policies.rl.networks.ensemble import move_towards
from policies.rl.off_policy.sac import Metrics, Sac
from policies.rl.off_policy.tanh_gaussian import ActionSample, TanhGaussian
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError


def scaled_edit(sample: ActionSample, beta: float) -> ActionSample:
    """Actions multiplied by `beta`, with the log-density reduced by A log(beta)."""
    return ActionSample(
        beta * sample.action_BA, sample.log_prob_B - sample.action_BA.shape[1] * math.log(beta)
    )


def apply_edit(base_BA: Tensor, edit_BA: Tensor, limit: float = 1.0) -> Tensor:
    """(B, A) base actions plus edits, clipped to [-limit, limit]."""
    return (base_BA + edit_BA).clamp(-limit, limit)


def edit_target_entropy(entries: int, beta: float) -> float:
    """Target entropy A (log(2 beta) - 1/2) of an edit [nat], half a nat per entry below that of the
    uniform distribution over edits."""
    return entries * (math.log(2.0 * beta) - 0.5)


class Expo(Sac):
    """EXPO learner: critics and temperature of SAC, with an edited base policy as actor.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and noise.

    Raises:
        HandoffError: `sac` has options that EXPO does not support, or `samples` or `beta` is out of
            range.
    """

    def __init__(self, config: ExpoConfig, sizes: Sizes, seed: int = 0) -> None:
        _check(config)
        super().__init__(config.sac, sizes, seed)
        self.expo = config
        net, features = self.networks, self.networks.features.size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            edit = TanhGaussian(features + sizes.action, sizes.action, config.sac)
            base = (
                None
                if config.base is None
                else GenerativeActor(features, 1, sizes.action, config.base)
            )
        net.actor = edit
        self._base = base
        self.optimizers["actor"] = torch.optim.Adam(
            edit.parameters(), config.sac.actor_learning_rate, fused=True
        )
        if base is not None and config.base is not None:
            net.add_module("base", base)
            self.optimizers["base"] = torch.optim.Adam(
                base.parameters(), config.base.learning_rate, fused=True
            )
        if config.sac.target_entropy is None:
            self.target_entropy = edit_target_entropy(sizes.action, config.beta)

    @property
    def base(self) -> GenerativeActor:
        """The base policy.

        Raises:
            HandoffError: it is trained elsewhere.
        """
        if self._base is None:
            raise HandoffError("expo: the learner has no base policy, its samples must be given.")
        return self._base

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One critic step per minibatch, then one step of edit, temperature and base policy on the
        last minibatch.

        Base policy and edit do not change during the critic steps, so the next actions of all
        minibatches are sampled at once.
        """
        self._reseed()
        samples = self.expo.samples if self.expo.backup == "max" else 1
        with torch.no_grad():
            next_BF = torch.cat([self.features(batch.next_obs) for batch in minibatches])
            base_BNA = self._base_samples(minibatches, NEXT_BASE, next_BF, samples)
            candidate_BNA = self.with_edits(next_BF, base_BNA, self._generator)
        rows = [batch.rows for batch in minibatches]
        metrics: Metrics = {}
        for batch, batch_next_BF, batch_candidate_BNA in zip(
            minibatches, next_BF.split(rows), candidate_BNA.split(rows), strict=True
        ):
            metrics = self._critic_step(batch, batch_next_BF, batch_candidate_BNA)
        metrics = {**metrics, **self._update_actor(minibatches[-1])}
        return metrics if self._base is None else metrics | self._update_base(minibatches[-1])

    def imitate(self, batch: Transitions) -> Metrics:
        """One imitation step of the base policy only; counts as an update."""
        self._reseed()
        return self._update_base(batch)

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(M, A) actions in [-1, 1] for observation vectors (M, O), the best candidate of each.

        Without `rng` the base noise is fixed and edits are the mode, so acting is deterministic.
        """
        features = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        generator = None
        if rng is not None:
            generator = torch.Generator().manual_seed(int(rng.integers(2**63 - 1)))
        candidate_BNA = self.candidates(features, self.expo.samples, generator)
        best_B = self.best_index(features, candidate_BNA)
        return candidate_BNA[torch.arange(len(features)), best_B].numpy()

    @torch.no_grad()
    def best_index(self, features_BF: Tensor, candidate_BNA: Tensor) -> Tensor:
        """(B,) index of the candidate with the greatest mean value of all critics."""
        return self._values(features_BF, candidate_BNA, None, use_target=False).argmax(dim=1)

    @torch.no_grad()
    def candidates(
        self, features_BF: Tensor, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """(B, N, A) base samples or, with edits, (B, 2 N, A) base samples followed by their
        edits."""
        return self.with_edits(
            features_BF, self._sample_base(features_BF, samples, generator), generator
        )

    @torch.no_grad()
    def with_edits(
        self, features_BF: Tensor, base_BNA: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(B, 2 N, A) base samples followed by their edits; without edits the base samples."""
        if not self.expo.edits:
            return base_BNA
        rows, samples, _ = base_BNA.shape
        repeated_BF, base_BA = (
            features_BF.repeat_interleave(samples, dim=0),
            base_BNA.flatten(0, 1),
        )
        edit_BA = self.edit(repeated_BF, base_BA, generator).action_BA
        edited_BA = apply_edit(base_BA, edit_BA, self.expo.limit)
        return torch.cat([base_BNA, edited_BA.view(rows, samples, -1)], dim=1)

    def edit(
        self, features_BF: Tensor, base_BA: Tensor, generator: torch.Generator | None
    ) -> ActionSample:
        """Edits of base actions and their log-density; the mode without a generator."""
        inputs = torch.cat([features_BF, base_BA], dim=1)
        noise_BA = (
            torch.zeros_like(base_BA)
            if generator is None
            else torch.randn(base_BA.shape, generator=generator)
        )
        return scaled_edit(self.networks.actor.sample(inputs, noise_BA), self.expo.beta)

    @torch.no_grad()
    def target_value(self, features_BF: Tensor, candidate_BNA: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) values of the next states for the Bellman target, and (B,) indices of the selected
        candidates, by randomly selected target critics.

        With the backup `policy` only the last candidate is used.
        """
        config = self.config
        members = None
        if config.subset is not None and config.subset < config.critics:
            members = random_subset(config.critics, config.subset, self._generator)
        if self.expo.backup == "policy":
            candidate_BNA = candidate_BNA[:, -1:]
        value_BN = self._values(features_BF, candidate_BNA, members, use_target=True)
        return value_BN.max(dim=1)

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,) values of the next states for the Bellman target, from newly sampled candidates.

        Raises:
            HandoffError: features of a target encoder are given; images are not supported.
        """
        if target_BF is not None:
            raise HandoffError("expo: images are not supported, only observation vectors.")
        samples = self.expo.samples if self.expo.backup == "max" else 1
        return self.target_value(
            features_BF, self.candidates(features_BF, samples, self._generator)
        )[0]

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Actor loss of SAC for the edit of one base sample per row, and metrics."""
        net = self.networks
        features_BF = self.features(batch.obs)
        base_BA = self._base_samples([batch], BASE, features_BF, 1)[:, 0]
        sample = self.edit(features_BF, base_BA, self._generator)
        action_BA = apply_edit(base_BA, sample.action_BA, self.expo.limit)
        value_EB = net.critic(torch.cat([features_BF, action_BA], dim=1))[..., 0]
        value_B = (
            value_EB.mean(dim=0) if self.config.actor_value == "mean" else value_EB.amin(dim=0)
        )
        loss = (net.log_temperature.detach().exp() * sample.log_prob_B - value_B).mean()
        return loss, {"actor_loss": loss.detach(), "entropy": -sample.log_prob_B.detach().mean()}

    def _critic_step(self, batch: Transitions, next_BF: Tensor, candidate_BNA: Tensor) -> Metrics:
        next_value_B, best_B = self.target_value(next_BF, candidate_BNA)
        target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        value_EB = self.networks.critic(
            torch.cat([self.features(batch.obs), batch.action_BA], dim=1)
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

    def _base_samples(
        self, parts: Sequence[Transitions], entry: str, features_BF: Tensor, samples: int
    ) -> Tensor:
        """(B, N, A) base samples for minibatches with these features: sampled, or random ones of
        those that are given."""
        if self._base is not None:
            return self._sample_base(features_BF, samples, self._generator)
        given_BNA = torch.cat([given_samples(part, entry) for part in parts])
        if given_BNA.shape[1] == samples:
            return given_BNA
        return given_BNA[:, random_subset(given_BNA.shape[1], samples, self._generator)]

    def _sample_base(
        self, features_BF: Tensor, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """(B, N, A) samples of the own base policy."""
        rows, base = len(features_BF), self.base
        repeated_BF = features_BF.repeat_interleave(samples, dim=0)
        base_BA = base.sample(repeated_BF, repeated_noise(base, rows, samples, generator))
        return base_BA.view(rows, samples, -1)

    def _reseed(self) -> None:
        """Seeds the random numbers of an update by its number, and counts the update."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        self.updates += 1

    def _values(
        self,
        features_BF: Tensor,
        candidate_BNA: Tensor,
        members: Tensor | None,
        *,
        use_target: bool,
    ) -> Tensor:
        """(B, N) minimum over the target critics `members`, or mean over all trained critics."""
        rows, samples, _ = candidate_BNA.shape
        inputs = torch.cat(
            [features_BF.repeat_interleave(samples, dim=0), candidate_BNA.flatten(0, 1)], dim=1
        )
        if use_target:
            return (
                self.networks.critic_target(inputs, members)[..., 0].amin(dim=0).view(rows, samples)
            )
        return self.networks.critic(inputs)[..., 0].mean(dim=0).view(rows, samples)

    def _update_base(self, batch: Transitions) -> Metrics:
        features_BF = self.features(batch.obs)
        loss = self.base.loss(
            features_BF, batch.action_BA, executed_mask(batch, 1), self._generator
        )
        self._step("base", loss)
        return {"base_loss": loss.detach()}


def _check(config: ExpoConfig) -> None:
    sac = config.sac
    unsupported = {
        "gripper": sac.gripper is not None,
        "backup_entropy": sac.backup_entropy,
        "actor_ema": sac.actor_ema is not None,
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise HandoffError(
                f"expo: sac.{name} is {getattr(sac, name)}. EXPO does not support it: the base policy "
                "models all entries of "
                f"an action, edits are sampled at every step with the current weights, and the target has no entropy. "
                f"Leave it at its default."
            )
    if config.samples < 1 or not 0.0 < config.beta <= 2.0 * config.limit:
        raise HandoffError(
            f"expo: {config.samples} samples and beta {config.beta}, expected at least 1 sample and 0 < beta <= "
            f"{2.0 * config.limit:g}, which spans all actions. Is beta in action units?"
        )
