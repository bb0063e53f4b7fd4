"""Makes the learners of runs from a replay buffer, and exports their actors.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from policies.normalize import MomentStatistics
from policies.rl.actor_export import fast_td3_actor, gsde_actor, sac_actor
from policies.rl.from_scratch.config import (
    FastTd3Algorithm,
    PqlAlgorithm,
    RlpdAlgorithm,
    SacAlgorithm,
)
from policies.rl.networks.ensemble import Features
from policies.rl.off_policy.config import GsdeConfig, SacConfig, SacOptions
from policies.rl.off_policy.fast_td3 import NORMALISER_FLOOR, FastTd3, FastTd3Updates
from policies.rl.off_policy.gsde import GsdeSac
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Sizes, Transitions
from robots.wire.actor_card import ActorCard

ReplayAlgorithm = SacAlgorithm | RlpdAlgorithm | FastTd3Algorithm | PqlAlgorithm
"""Algorithms that learn from a replay buffer."""


class RunningNormaliser:
    """Running mean and standard deviation of observations, written into the features of a
    network.

    Args:
        features: features whose normalisation is set.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._statistics = MomentStatistics(tuple(features.centre.shape))

    def update(self, vector_NO: np.ndarray) -> None:
        """Adds observations (N, O) in physical units."""
        self._statistics.update(vector_NO)
        self._features.centre.copy_(torch.from_numpy(self._statistics.mean))
        deviation = self._statistics.deviation + NORMALISER_FLOOR
        self._features.half_range.copy_(torch.from_numpy(deviation))

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        statistics = self._statistics
        moments = {
            name: torch.from_numpy(np.array(getattr(statistics, name)))
            for name in ("mean", "squares")
        }
        return {"count": statistics.count, **moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`; the features are restored with their network."""
        self._statistics.count = state["count"]
        self._statistics.mean = state["mean"].numpy().copy()
        self._statistics.squares = state["squares"].numpy().copy()


class StateSac:
    """SAC on observation vectors that are normalised by their running mean and deviation.

    Args:
        sac: the learner.
    """

    def __init__(self, sac: Sac) -> None:
        self.sac = sac
        self.normaliser = RunningNormaliser(sac.networks.features)

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.sac.updates

    @property
    def policy_updates(self) -> int:
        """Number of updates of the actor, one per update."""
        return self.sac.updates

    def observe(self, vector_NO: np.ndarray, began_N: np.ndarray, rng: np.random.Generator) -> None:
        """Updates the normalisation before a step of all environments; see `FastTd3.observe`."""
        self.normaliser.update(vector_NO)

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """See `policies.rl.off_policy.online.Learner.act`."""
        return self.sac.act(vector_NO, rng)

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Any]:
        """See `policies.rl.off_policy.online.Learner.update`."""
        return self.sac.update(minibatches)

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        return {"sac": self.sac.state_dict(), "normaliser": self.normaliser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.sac.load_state_dict(state["sac"])
        self.normaliser.load_state_dict(state["normaliser"])


def make_learner(
    algorithm: ReplayAlgorithm, sizes: Sizes, num_envs: int, seed: int
) -> FastTd3 | StateSac:
    """New learner.

    Args:
        algorithm: the algorithm with its options.
        sizes: sizes of observation vectors and actions.
        num_envs: number of environments.
        seed: seed of initial weights and noise.
    """
    if isinstance(algorithm, FastTd3Algorithm | PqlAlgorithm):
        return FastTd3(algorithm.learner, sizes, num_envs, seed)
    exploration = algorithm.exploration
    if isinstance(exploration, GsdeConfig):
        return StateSac(GsdeSac(_sac_config(algorithm.learner), exploration, sizes, seed))
    config = replace(
        _sac_config(algorithm.learner),
        log_std_min=exploration.log_std_min,
        log_std_max=exploration.log_std_max,
    )
    return StateSac(Sac(config, sizes, seed))


def exported_actor(
    learner: FastTd3Updates | StateSac,
) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of the deterministic policy."""
    if isinstance(learner, FastTd3Updates):
        return fast_td3_actor(learner)
    sac = learner.sac
    return gsde_actor(sac) if isinstance(sac, GsdeSac) else sac_actor(sac)


def _sac_config(options: SacOptions) -> SacConfig:
    shared: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(SacOptions)}
    return SacConfig(**shared)
