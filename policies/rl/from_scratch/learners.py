"""Makes the learners of runs from a replay buffer, and exports their actors.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from policies.rl.actor_export import fast_td3_actor, gsde_actor, mrq_actor, sac_actor
from policies.rl.from_scratch.config import (
    CqnAsAlgorithm,
    FastTd3Algorithm,
    MrqAlgorithm,
    PqlAlgorithm,
    RlpdAlgorithm,
    SacAlgorithm,
)
from policies.rl.mrq.learner import Mrq
from policies.rl.networks.running_normaliser import RunningNormaliser
from policies.rl.off_policy.config import GsdeConfig, SacConfig, SacOptions
from policies.rl.off_policy.fast_td3 import FastTd3, FastTd3Updates
from policies.rl.off_policy.gsde import GsdeSac
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Sizes, Transitions
from robots.wire.actor_card import ActorCard

MinibatchAlgorithm = SacAlgorithm | RlpdAlgorithm | FastTd3Algorithm | PqlAlgorithm
"""Algorithms that learn from uniform minibatches of a replay buffer."""
ReplayAlgorithm = MinibatchAlgorithm | MrqAlgorithm | CqnAsAlgorithm
"""Algorithms that learn from a replay buffer."""


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
    algorithm: MinibatchAlgorithm, sizes: Sizes, num_envs: int, seed: int
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
    learner: FastTd3Updates | StateSac | Mrq,
) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of the deterministic policy."""
    if isinstance(learner, Mrq):
        return mrq_actor(learner)
    if isinstance(learner, FastTd3Updates):
        return fast_td3_actor(learner)
    sac = learner.sac
    return gsde_actor(sac) if isinstance(sac, GsdeSac) else sac_actor(sac)


def _sac_config(options: SacOptions) -> SacConfig:
    shared: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(SacOptions)}
    return SacConfig(**shared)
