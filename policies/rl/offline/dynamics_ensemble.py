"""Learns an ensemble of dynamics models, with which RL-100 evaluates a policy off-policy.

The models are probabilistic networks as in MBPO (Janner et al., arXiv 1906.08253). Each member
predicts a Gaussian over the state change and is trained by maximum likelihood on separately sampled
rows; the elites are the members with the lowest error on held-out rows. RL-100 uses 7 members, 5
elites and 400 x 4 units.

Shape suffixes: R rows, E members, F features of a state, D entries of the executed actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.offline.config import DynamicsConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

LEAST_LOG_VARIANCE, GREATEST_LOG_VARIANCE = -10.0, 1.0
"""Bounds of the log-variance of a standardised state change."""
LEAST_ROWS = 20
"""Minimum number of rows for `DynamicsEnsemble.fit`."""


class ChunkTransitions(NamedTuple):
    """R transitions over one chunk each, in the normalised units of the policy."""

    obs_RF: Tensor
    """Observations before the chunk."""
    action_RD: Tensor
    """Executed part of the chunk, complete even if the episode ended within it."""
    reward_R: Tensor
    """Discounted sum of rewards."""
    discount_R: Tensor
    """g^length, or 0 if the task terminated."""
    next_obs_RF: Tensor
    """Observations after the chunk."""

    def rows(self, index: Tensor) -> ChunkTransitions:
        """Selected rows."""
        return ChunkTransitions(*(column[index] for column in self))


class DynamicsEnsemble(nn.Module):
    """Ensemble of E Gaussian models of the state change.

    Args:
        config: options of networks and training.
        features: features F of a state.
        entries: entries D of the executed actions.
        seed: seed of initial weights, the split and minibatches.
    """

    input_centre: Tensor
    input_scale: Tensor
    change_centre: Tensor
    change_scale: Tensor
    elites: Tensor

    def __init__(self, config: DynamicsConfig, features: int, entries: int, seed: int = 0) -> None:
        super().__init__()
        if not 1 <= config.elites <= config.members:
            raise HandoffError(
                f"dynamics: {config.elites} elites of {config.members} members, expected 1 to all."
            )
        self.config = config
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = EnsembleMlp(
                config.members, features + entries, config.network, 2 * features
            )
        for name, size in (("input", features + entries), ("change", features)):
            self.register_buffer(f"{name}_centre", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.register_buffer("elites", torch.arange(config.elites))

    def fit(self, data: ChunkTransitions, progress: Progress | None = None) -> dict[str, float]:
        """Trains the models and selects the elites; refits the normalisation and continues from the
        current weights.

        Args:
            data: transitions.
            progress: called after every update.

        Returns:
            `error`, the root mean squared error of the elites on held-out rows relative to the
            standard deviation of the changes, and `rows`.

        Raises:
            HandoffError: there are fewer than `LEAST_ROWS` rows, or errors are not finite.
        """
        config, count = self.config, len(data.reward_R)
        if count < LEAST_ROWS:
            raise HandoffError(f"dynamics: {count} rows, expected at least {LEAST_ROWS}.")
        generator = torch.Generator().manual_seed(self.seed)
        # Held-out split and normalisation.
        order = torch.randperm(count, generator=generator)
        held_out, training = order[: max(2, count // 10)], order[max(2, count // 10) :]
        inputs, change = (
            torch.cat([data.obs_RF, data.action_RD], dim=1),
            data.next_obs_RF - data.obs_RF,
        )
        self._set_normalisation("input", inputs[training])
        self._set_normalisation("change", change[training])
        target = (change - self.change_centre) / self.change_scale
        # Maximum likelihood.
        optimizer = torch.optim.AdamW(
            self.network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        for number in range(config.updates):
            # Separately sampled rows for each member.
            row_EB = training[
                torch.randint(
                    len(training), (config.members, config.batch_size), generator=generator
                )
            ]
            mean_EBF, log_variance_EBF = self._predict(inputs[row_EB])
            error_EBF = (mean_EBF - target[row_EB]).square()
            loss = 0.5 * (error_EBF * (-log_variance_EBF).exp() + log_variance_EBF).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if progress is not None:
                progress(number + 1, config.updates, "dynamics")
        # Held-out errors and elites.
        with torch.no_grad():
            mean_ERF, _ = self._predict(inputs[held_out])
            error_E = (mean_ERF - target[held_out]).square().mean(dim=(1, 2))
        if not torch.isfinite(error_E).all():
            raise HandoffError(
                "dynamics: errors are not finite. Are all features finite, and is the learning rate below 1e-2?"
            )
        self.elites = error_E.argsort()[: config.elites]
        return {"error": float(error_E[self.elites].mean().sqrt()), "rows": float(count)}

    @torch.no_grad()
    def step(self, obs_RF: Tensor, action_RD: Tensor, generator: torch.Generator) -> Tensor:
        """(R, F) sampled next states, each from a randomly selected elite and its Gaussian."""
        mean_ERF, log_variance_ERF = self._predict(torch.cat([obs_RF, action_RD], dim=1))
        elite_R = self.elites[torch.randint(len(self.elites), (len(obs_RF),), generator=generator)]
        row_R = torch.arange(len(obs_RF))
        noise_RF = torch.randn(obs_RF.shape, generator=generator)
        change_RF = (
            mean_ERF[elite_R, row_R] + (0.5 * log_variance_ERF[elite_R, row_R]).exp() * noise_RF
        )
        return obs_RF + self.change_centre + self.change_scale * change_RF

    def _predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (E, R, F) of the standardised change."""
        mean, raw = self.network((inputs - self.input_centre) / self.input_scale).chunk(2, dim=-1)
        # Soft bounds keep the predicted variance from collapsing.
        upper = GREATEST_LOG_VARIANCE - nn.functional.softplus(GREATEST_LOG_VARIANCE - raw)
        return mean, LEAST_LOG_VARIANCE + nn.functional.softplus(upper - LEAST_LOG_VARIANCE)

    def _set_normalisation(self, name: str, rows: Tensor) -> None:
        spread = rows.std(dim=0, correction=0)
        getattr(self, f"{name}_centre").copy_(rows.mean(dim=0))
        getattr(self, f"{name}_scale").copy_(
            torch.where(spread > 1e-6, spread, torch.ones_like(spread))
        )
