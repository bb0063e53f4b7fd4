"""Adds generalised state-dependent exploration (gSDE) to SAC (Raffin et al., arXiv 2005.05719).

An action before tanh is mu(s) + Theta^T phi(s), where phi is the last hidden layer of the actor and
Theta ~ N(0, S^2) has one standard deviation per feature and action entry. Theta is kept for several
steps, in which the action is a deterministic function of the state, so the robot moves smoothly.

Marginalised over Theta, the action before tanh is N(mu, phi^2 S^2). Updates sample from this
distribution for each row: the loss has the same expectation as with one Theta per batch
(stable-baselines3) and less variance. As there, phi is detached in the variance by default; the SAC
of stable-baselines3 does not detach it (`learn_features`).

Shape suffixes: B batch, N environments, F inputs, P features, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.networks.adam import Adam
from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.off_policy.config import GsdeConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.tanh_gaussian import ActionSample, tanh_normal_log_prob
from policies.rl.replay.transitions import Observations, Sizes
from robots.errors import HandoffError

FLOOR = 1e-6
"""Added to the variance [C]."""


class GsdeActor(nn.Module):
    """Actor with gSDE; replaces `policies.rl.off_policy.tanh_gaussian.TanhGaussian`.

    Args:
        features: number of inputs F.
        actions: entries A of an action.
        config: layers.
        gsde: options of gSDE.
    """

    def __init__(self, features: int, actions: int, config: SacConfig, gsde: GsdeConfig) -> None:
        super().__init__()
        self.actions = actions
        self.learn_features = gsde.learn_features
        self.expln = gsde.expln
        self.network = EnsembleMlp(1, features, config.actor, actions, config.final_scale)
        self.log_std_PA = nn.Parameter(
            torch.full((config.actor.hidden[-1], actions), gsde.log_std_init)
        )

    def deviations(self) -> Tensor:
        """(P, A) standard deviations S: exp of the parameters, or expln, which grows
        logarithmically above 0."""
        if not self.expln:
            return self.log_std_PA.exp()
        negative = self.log_std_PA.clamp(max=0.0).exp()
        return torch.where(
            self.log_std_PA > 0.0, 1.0 + torch.log1p(self.log_std_PA.clamp(min=0.0)), negative
        )

    def mean_and_features(self, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean mu (B, A) before tanh, and features phi (B, P) for exploration, detached unless
        `learn_features`."""
        phi_BP = self.network.hidden(features_BF)[0]
        mean_BA = torch.addmm(self.network.biases[-1][0], phi_BP, self.network.weights[-1][0])
        return mean_BA, phi_BP if self.learn_features else phi_BP.detach()

    def moments(self, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before tanh, marginalised over Theta, (B, A) each."""
        mean_BA, phi_BP = self.mean_and_features(features_BF)
        variance_BA = phi_BP.square() @ self.deviations().square()
        return mean_BA, 0.5 * torch.log(variance_BA + FLOOR)

    def sample(self, features_BF: Tensor, noise_BA: Tensor) -> ActionSample:
        """Reparameterised actions from standard normal `noise_BA`, with an independent Theta per
        row."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        return ActionSample(torch.tanh(raw_BA), tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA))

    def mode(self, features_BF: Tensor) -> Tensor:
        """(B, A) tanh of the mean."""
        return torch.tanh(self.mean_and_features(features_BF)[0])

    def log_prob(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) log-density of given actions, clipped to 1e-6 inside the bounds [nat]."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.atanh(action_BA.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
        return tanh_normal_log_prob((raw_BA - mean_BA) / log_std_BA.exp(), log_std_BA, raw_BA)

    def explore(self, features_NF: Tensor, theta_NPA: Tensor) -> Tensor:
        """(N, A) actions with the given Theta for each row."""
        mean_NA, phi_NP = self.mean_and_features(features_NF)
        return torch.tanh(mean_NA + torch.einsum("np,npa->na", phi_NP, theta_NPA))


class GsdeSac(Sac):
    """SAC with gSDE; the Theta of each environment is resampled after
    `GsdeConfig.steps` steps.

    Args:
        config: options of SAC; gSDE replaces its standard deviations.
        gsde: options of gSDE.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and noise.

    Raises:
        HandoffError: `fixed_std` or `actor_ema` is set.
    """

    def __init__(self, config: SacConfig, gsde: GsdeConfig, sizes: Sizes, seed: int = 0) -> None:
        if config.fixed_std is not None:
            raise HandoffError(
                f"gsde: fixed_std is {config.fixed_std}, but gSDE learns its deviations. Leave `fixed_std` out."
            )
        if config.actor_ema is not None:
            raise HandoffError(
                f"gsde: actor_ema is {config.actor_ema}, but gSDE acts with the current weights. Leave `actor_ema` out."
            )
        super().__init__(config, sizes, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = GsdeActor(self.networks.features.size, self.continuous, config, gsde)
        self.networks.actor = actor  # type: ignore[assignment]
        self.optimizers["actor"] = Adam(actor.parameters(), config.actor_learning_rate)
        self.actor = actor
        self.gsde = gsde
        self._theta_NPA: Tensor | None = None
        self._age = 0

    @torch.no_grad()
    def act_on(self, obs: Observations, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] with the current Theta, or the mode of the policy without
        `rng`.

        Theta is resampled with `rng` after `GsdeConfig.steps` calls, or if the number of rows
        changes.
        """
        if rng is None:
            return super().act_on(obs)
        features_NF = self.features(obs)
        if (
            self._theta_NPA is None
            or len(self._theta_NPA) != len(features_NF)
            or self._age >= self.gsde.steps
        ):
            deviations = self.actor.deviations()
            noise = rng.standard_normal((len(features_NF), *deviations.shape), dtype=np.float32)
            self._theta_NPA = torch.from_numpy(noise) * deviations
            self._age = 0
        self._age += 1
        action = self.actor.explore(features_NF, self._theta_NPA)
        if self.networks.gripper is not None:
            command = self.networks.gripper(features_NF)[0].argmax(dim=1, keepdim=True) - 1
            action = torch.cat([action, command.to(action.dtype)], dim=1)
        return action.numpy()

    def state_dict(self) -> dict[str, Any]:
        """State of `Sac`, the current Theta and its age [steps]."""
        return {**super().state_dict(), "theta": self._theta_NPA, "age": self._age}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        super().load_state_dict(state)
        self._theta_NPA = state["theta"]
        self._age = state["age"]
