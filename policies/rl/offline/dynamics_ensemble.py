"""An ensemble that predicts what a decision leads to: the model by which RL-100 judges a policy
that it has not run.

Probabilistic networks as in MBPO (Janner et al., arXiv 1906.08253): each member a Gaussian of the
change, trained by its likelihood on rows drawn for it alone; the elites are those that predict
held-out rows best. RL-100: 7 members, 5 elites, 400 x 4.

Shape suffixes: R rows, E members, F features of a state, D entries of a decision.
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
"""Of a standardised change."""
LEAST_ROWS = 20


class Decisions(NamedTuple):
    """R decisions and what they led to, all in the units that a policy sees."""

    seen_RF: Tensor
    done_RD: Tensor
    """The part of a chunk that is executed, also where the episode ended within it."""
    reward_R: Tensor
    discount_R: Tensor
    """g^length, and 0 where the task ended."""
    next_RF: Tensor

    def rows(self, which: Tensor) -> Decisions:
        """Some of them."""
        return Decisions(*(column[which] for column in self))


class DynamicsEnsemble(nn.Module):
    """E Gaussians of the change of state.

    Args:
        config: sizes and training.
        features: F.
        entries: D.
        seed: of weights and chance.
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

    def fit(self, data: Decisions, progress: Progress | None = None) -> dict[str, float]:
        """Learns from scratch units and from where it is the weights; chooses the elites.

        Args:
            data: what decisions led to.
            progress: told every update.

        Returns:
            `error`, the elites' root mean squared error on held-out rows as a share of the spread
            of the changes, and `rows`.

        Raises:
            HandoffError: too few rows to hold some out, or numbers that are not finite.
        """
        config, count = self.config, len(data.reward_R)
        if count < LEAST_ROWS:
            raise HandoffError(f"dynamics: {count} rows, expected at least {LEAST_ROWS}.")
        draw = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(count, generator=draw)
        held, learned = order[: max(2, count // 10)], order[max(2, count // 10) :]
        inputs, change = torch.cat([data.seen_RF, data.done_RD], dim=1), data.next_RF - data.seen_RF
        self._measure("input", inputs[learned])
        self._measure("change", change[learned])
        wanted = (change - self.change_centre) / self.change_scale
        optimizer = torch.optim.AdamW(
            self.network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        for number in range(config.updates):
            # Rows of its own for every member.
            row_EB = learned[
                torch.randint(len(learned), (config.members, config.batch_size), generator=draw)
            ]
            mean_EBF, log_variance_EBF = self._predict(inputs[row_EB])
            error_EBF = (mean_EBF - wanted[row_EB]).square()
            loss = 0.5 * (error_EBF * (-log_variance_EBF).exp() + log_variance_EBF).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if progress is not None:
                progress(number + 1, config.updates, "dynamics")
        with torch.no_grad():
            mean_ERF, _ = self._predict(inputs[held])
            error_E = (mean_ERF - wanted[held]).square().mean(dim=(1, 2))
        if not torch.isfinite(error_E).all():
            raise HandoffError(
                "dynamics: errors are not finite. Are all features finite, and the rate below 1e-2?"
            )
        self.elites = error_E.argsort()[: config.elites]
        return {"error": float(error_E[self.elites].mean().sqrt()), "rows": float(count)}

    @torch.no_grad()
    def step(self, seen_RF: Tensor, done_RD: Tensor, draw: torch.Generator) -> Tensor:
        """(R, F) a state that the decision may lead to: every row by an elite drawn for it, with
        that one's noise."""
        mean_ERF, log_variance_ERF = self._predict(torch.cat([seen_RF, done_RD], dim=1))
        which_R = self.elites[torch.randint(len(self.elites), (len(seen_RF),), generator=draw)]
        row_R = torch.arange(len(seen_RF))
        noise_RF = torch.randn(seen_RF.shape, generator=draw)
        change_RF = (
            mean_ERF[which_R, row_R] + (0.5 * log_variance_ERF[which_R, row_R]).exp() * noise_RF
        )
        return seen_RF + self.change_centre + self.change_scale * change_RF

    def _predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (E, R, F) of the standardised change."""
        mean, raw = self.network((inputs - self.input_centre) / self.input_scale).chunk(2, dim=-1)
        # Softly within bounds, so that no member grows certain without end.
        upper = GREATEST_LOG_VARIANCE - nn.functional.softplus(GREATEST_LOG_VARIANCE - raw)
        return mean, LEAST_LOG_VARIANCE + nn.functional.softplus(upper - LEAST_LOG_VARIANCE)

    def _measure(self, name: str, rows: Tensor) -> None:
        spread = rows.std(dim=0, correction=0)
        getattr(self, f"{name}_centre").copy_(rows.mean(dim=0))
        getattr(self, f"{name}_scale").copy_(
            torch.where(spread > 1e-6, spread, torch.ones_like(spread))
        )
