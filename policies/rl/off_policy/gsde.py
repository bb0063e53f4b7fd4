"""gSDE: exploration by a random matrix that is kept for a while (Raffin et al., arXiv 2005.05719).

A raw action is mu(s) + Theta^T phi(s) with phi the actor's last hidden layer and Theta ~ N(0, S^2),
one deviation per feature and entry of the action; tanh lies on top. Between draws of Theta the
action is a function of the state, so a robot moves smoothly.

Over Theta, a raw action is N(mu, phi^2 S^2). Updates draw from this law, row by row: the loss has
the same mean as with one Theta for a batch (stable-baselines3), and less variance. As there, phi is
detached in the variance unless `gsde_learn_features` says otherwise; the code of its SAC does let
it learn.

Shape suffixes: B batch, N worlds, F inputs, P features, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.networks.adam import Adam
from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.tanh_gaussian import Draw, tanh_normal_log_prob
from policies.rl.replay.transitions import Observations, Sizes
from robots.errors import HandoffError

FLOOR = 1e-6
"""Added to the variance [C]."""


class GsdeActor(nn.Module):
    """Takes the place of `policies.rl.off_policy.tanh_gaussian.TanhGaussian`.

    Args:
        features: F.
        actions: A.
        config: sizes and gSDE's options.
    """

    def __init__(self, features: int, actions: int, config: SacConfig) -> None:
        super().__init__()
        self.actions, self.learn_features, self.expln = (
            actions,
            config.gsde_learn_features,
            config.gsde_expln,
        )
        self.network = EnsembleMlp(1, features, config.actor, actions, config.final_scale)
        self.log_std_PA = nn.Parameter(
            torch.full((config.actor.hidden[-1], actions), config.gsde_log_std_init)
        )

    def deviations(self) -> Tensor:
        """(P, A) S: exp of the parameters, or expln, which grows slowly above 0."""
        if not self.expln:
            return self.log_std_PA.exp()
        negative = self.log_std_PA.clamp(max=0.0).exp()
        return torch.where(
            self.log_std_PA > 0.0, 1.0 + torch.log1p(self.log_std_PA.clamp(min=0.0)), negative
        )

    def mean_and_features(self, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """mu (B, A) before tanh, and phi (B, P) as exploration sees it."""
        phi_BP = self.network.hidden(features_BF)[0]
        mean_BA = torch.addmm(self.network.biases[-1][0], phi_BP, self.network.weights[-1][0])
        return mean_BA, phi_BP if self.learn_features else phi_BP.detach()

    def moments(self, features_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the deviation before tanh over all Theta, (B, A) each."""
        mean_BA, phi_BP = self.mean_and_features(features_BF)
        variance_BA = phi_BP.square() @ self.deviations().square()
        return mean_BA, 0.5 * torch.log(variance_BA + FLOOR)

    def sample(self, features_BF: Tensor, noise_BA: Tensor) -> Draw:
        """Reparameterised actions for standard normal `noise_BA`, a Theta of its own for every
        row."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        return Draw(torch.tanh(raw_BA), tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA))

    def mode(self, features_BF: Tensor) -> Tensor:
        """(B, A): tanh of the mean."""
        return torch.tanh(self.mean_and_features(features_BF)[0])

    def log_prob(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """(B,) log-density of given actions, which are kept off the bounds by 1e-6 [nat]."""
        mean_BA, log_std_BA = self.moments(features_BF)
        raw_BA = torch.atanh(action_BA.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
        return tanh_normal_log_prob((raw_BA - mean_BA) / log_std_BA.exp(), log_std_BA, raw_BA)

    def explore(self, features_NF: Tensor, theta_NPA: Tensor) -> Tensor:
        """(N, A) actions with the given Theta of every row."""
        mean_NA, phi_NP = self.mean_and_features(features_NF)
        return torch.tanh(mean_NA + torch.einsum("np,npa->na", phi_NP, theta_NPA))


class GsdeSac(Sac):
    """SAC that explores by gSDE: the Theta of every world is drawn anew after `gsde` steps.

    Args:
        config: options; `gsde` at least 1.
        sizes: of the data.
        seed: of weights and noise.

    Raises:
        HandoffError: `gsde` is 0, the deviation is to be fixed, or the acting weights averaged.
    """

    def __init__(self, config: SacConfig, sizes: Sizes, seed: int = 0) -> None:
        if config.gsde < 1 or config.fixed_std is not None:
            raise HandoffError(
                f"gsde: gsde = {config.gsde} steps and fixed_std = {config.fixed_std}; expected at least 1 and None."
            )
        if config.actor_ema is not None:
            raise HandoffError("gsde: it acts with the newest weights. Leave `actor_ema` out.")
        super().__init__(config, sizes, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = GsdeActor(self.networks.features.size, self.continuous, config)
        self.networks.actor = actor  # type: ignore[assignment]
        self.optimizers["actor"] = Adam(actor.parameters(), config.actor_learning_rate)
        self.actor = actor
        self._theta_NPA: Tensor | None = None
        self._age = 0

    @torch.no_grad()
    def act_on(self, seen: Observations, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1]: exploring with the present Theta, or without `draw` the
        policy's mode.

        `draw` is used when Theta is due: after `gsde` calls, or when the number of rows changes.
        """
        if draw is None:
            return super().act_on(seen)
        features_NF = self.features(seen)
        if (
            self._theta_NPA is None
            or len(self._theta_NPA) != len(features_NF)
            or self._age >= self.config.gsde
        ):
            deviations = self.actor.deviations()
            noise = draw.standard_normal((len(features_NF), *deviations.shape), dtype=np.float32)
            self._theta_NPA, self._age = torch.from_numpy(noise) * deviations, 0
        self._age += 1
        action = self.actor.explore(features_NF, self._theta_NPA)
        if self.networks.gripper is not None:
            command = self.networks.gripper(features_NF)[0].argmax(dim=1, keepdim=True) - 1
            action = torch.cat([action, command.to(action.dtype)], dim=1)
        return action.numpy()

    def state_dict(self) -> dict[str, Any]:
        """See `Sac.state_dict`; the present Theta and its age belong to it."""
        return {**super().state_dict(), "theta": self._theta_NPA, "age": self._age}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        super().load_state_dict(state)
        self._theta_NPA, self._age = state["theta"], state["age"]
