"""Holds what all runs of RL from scratch share: environments, curve, checkpoints and the saved
policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from policies.card import PolicyCard
from policies.families.coarse_to_fine import save_critic
from policies.families.rl_actor import save_actor
from policies.networks.images.picture_features import DevicePictureEncoder, PictureEncoder
from policies.policy_config import CoarseToFinePolicyConfig, LearnedActorConfig, PolicyConfig
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import FromScratchConfig
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.training.resumable_run import ResumableRun
from robots.config import to_plain
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard
from robots.wire.learner import Parameters

STATE = "reinforce.pt"
CURVE = "reinforce.jsonl"

TrainingEnv = TypeVar("TrainingEnv", StateEnv, DeviceStateEnv)
"""Environments of a run: on the host, or on a device."""


class SavedActor(NamedTuple):
    """The policy of a run."""

    card: ActorCard
    arrays: dict[str, np.ndarray]
    version: int
    """Number of updates."""


class SavedCritic(NamedTuple):
    """The policy of a run of CQN-AS."""

    config: CqnAsConfig
    weights: dict[str, Tensor]
    """Normalisation and target critic."""


class ScratchRun(Generic[TrainingEnv]):
    """Environments and curve of one run.

    Args:
        config: options of the training.
        env: the environments.
        seeds: their episode seeds.
        out: folder of the run.
        step: entry of the curve under whose number the others are logged.
        demos: number of demonstrated steps, part of the run's identity.
        pictures: encoder of the pictures; None without cameras.
    """

    def __init__(
        self,
        config: FromScratchConfig,
        env: TrainingEnv,
        seeds: CountedSeeds,
        out: Path,
        *,
        step: str,
        demos: int = 0,
        pictures: PictureEncoder | DevicePictureEncoder | None = None,
    ) -> None:
        self.config = config
        self.out = out
        self.env = env
        self._seeds = seeds
        self._cameras = {} if pictures is None else pictures.specs
        identity = {"config": to_plain(config), "env": env.num_envs, "fields": env.fields}
        if demos:
            identity["demos"] = demos
        if isinstance(env, DeviceStateEnv):
            identity["resident"] = True
        self.resumable = ResumableRun(
            out, json.dumps(identity), state=STATE, curve=CURVE, logging=config, step=step
        )

    def state_dict(self) -> dict[str, Any]:
        """State of the environments and their seeds."""
        return {"seeds": self._seeds.used, "env": self.env.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._seeds.used = state["seeds"]
        self.env.load_state_dict(state["env"])

    def save_policy(self, policy: SavedActor | SavedCritic, task: str, robot: str) -> None:
        """Writes the deterministic policy to the folder of the run.

        Args:
            policy: the policy.
            task: name of the task.
            robot: name of the robot; empty if it is not one of Handoff's.
        """
        env = self.env.env
        card = PolicyCard(
            task=task,
            rate_hz=env.rate_hz,
            observation=self.env.observation_spec,
            action=env.action_spec.field_spec(),
            sensors=self._cameras,
            model=self._model(policy),
            robot=robot,
        )
        if isinstance(policy, SavedCritic):
            save_critic(self.out, card, policy.weights)
        else:
            save_actor(self.out, card, Parameters(policy.version, policy.card, policy.arrays))

    def _model(self, policy: SavedActor | SavedCritic) -> PolicyConfig:
        observed: dict[str, Any] = {
            "observation_fields": self.env.fields,
            "image_fields": tuple(self._cameras),
            "image_features": self.config.image_features,
        }
        if isinstance(policy, SavedActor):
            return LearnedActorConfig(**observed, card=policy.card)
        config = policy.config
        return CoarseToFinePolicyConfig(
            **observed,
            critic=config.critic,
            horizon=config.horizon,
            temporal_ensemble=config.temporal_ensemble,
        )


def episode_figures(env: StateEnv | DeviceStateEnv) -> dict[str, float]:
    """Episodes so far, and success, return and, where the environments have one, cost of the
    newest."""
    statistics = env.statistics
    # Summed in order; NumPy's mean rounds differently.
    returns = [episode.total_reward for episode in statistics.newest()]
    figures = {
        "episodes": statistics.episodes,
        "success": statistics.success_rate(),
        "return": sum(returns) / max(1, len(returns)),
    }
    return figures if env.cost_N is None else {**figures, "cost": statistics.mean_cost()}


def checked_figures(metrics: Mapping[str, Any], when: str, hint: str) -> dict[str, float]:
    """The metrics as numbers.

    Raises:
        HandoffError: some are not finite.
    """
    figures = {name: float(value) for name, value in metrics.items()}
    not_finite = [name for name, value in figures.items() if not math.isfinite(value)]
    if not_finite:
        raise HandoffError(f"reinforce: {not_finite} not finite after {when}. {hint}")
    return figures
