"""Imagined worlds: a frozen world model behind the interface of simulated ones, so that any
practice can be dreamt.

DiWA (Nematollahi et al., CoRL 2025): a pretrained diffusion policy improves by PPO on what a world
model imagines, and never touches a world. What ends a dream is a classifier of success on latents;
its word is all the reward there is.

Shape suffixes as in `policies.world_model.model`; N worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from policies.rewards.success_classifier import load_classifier
from policies.world_model.config import LATENT
from policies.world_model.model import Latent, as_fields, load_world_model
from policies.world_model.train import SUCCESS
from robots.errors import HandoffError
from robots.interfaces import Observation, Step, WorldState
from robots.spec import ActionSpec, FieldSpec


class Dreams:
    """Implements `robots.interfaces.VecEnv`; a world that ends is frozen.

    Args:
        model: folder of a world model.
        num_envs: N.
        max_steps: time limit [control periods].
    """

    observation_spec: Mapping[str, FieldSpec]

    def __init__(self, model: Path, num_envs: int, max_steps: int) -> None:
        if min(num_envs, max_steps) < 1:
            raise HandoffError(
                f"dreams: {num_envs} worlds of {max_steps} steps, expected at least 1 of each."
            )
        self._model, card, self._starts = load_world_model(model)
        self._classifier, _ = load_classifier(model / SUCCESS)
        self._classifier.requires_grad_(False)
        self._threshold, self._limit = card.threshold, max_steps
        self.num_envs, self.rate_hz, self.observation_spec = (
            num_envs,
            card.rate_hz,
            card.observation,
        )
        self.action_spec = ActionSpec(low=card.action_low, high=card.action_high)
        self._low, self._high = np.array(card.action_low), np.array(card.action_high)
        self._chance = [np.random.default_rng(0) for _ in range(num_envs)]
        self._steps = np.zeros(num_envs, np.int64)
        self._over, self._solved = np.ones(num_envs, bool), np.zeros(num_envs, bool)
        features = torch.zeros(num_envs, self._model.features)
        recurrent, drawn = self._model.sizes.recurrent, self._model.drawn
        self.latent = Latent(*features.split([recurrent, drawn, len(self._model.change)], dim=1))
        """Of all worlds, as they are now."""

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`: every dream begins as a recorded episode did."""
        which = np.arange(self.num_envs) if worlds is None else np.asarray(worlds, np.int64)
        if len(seeds) != len(which):
            raise HandoffError(
                f"dreams: {len(seeds)} seeds for {len(which)} worlds, expected as many."
            )
        rows = []
        for world, seed in zip(which, seeds, strict=True):
            self._chance[world] = np.random.default_rng(seed)
            rows.append(int(self._chance[world].integers(len(self._starts))))
        seen_BO = self._model.normalize_observation(self._starts[rows])
        with torch.no_grad():
            begun = self._model.begin(seen_BO, self._noise(which))
        self.latent = Latent(
            *(_replaced(part, which, new) for part, new in zip(self.latent, begun, strict=True))
        )
        self._steps[which], self._over[which], self._solved[which] = 0, False, False
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`; actions are held within what was recorded."""
        single = action.ndim == 2
        chunk_NHA = action[:, None] if single else action
        size = self.action_spec.size
        if chunk_NHA.shape != (self.num_envs, chunk_NHA.shape[1], size):
            raise HandoffError(
                f"dreams: actions of shape {action.shape}, expected ({self.num_envs}, [H,] {size})."
            )
        if not np.isfinite(chunk_NHA[~self._over]).all():
            raise HandoffError("dreams: an action is not finite. Has the policy diverged?")
        reward_NH = np.zeros(chunk_NHA.shape[:2], np.float32)
        executed = np.zeros(self.num_envs, np.int64)
        for number in range(chunk_NHA.shape[1]):
            runs = np.flatnonzero(~self._over)
            if not len(runs):
                break
            self._imagine(runs, chunk_NHA[runs, number])
            reward_NH[runs, number] = self._solved[runs]
            executed[runs] += 1
        observation = self._observation()
        return Step(
            observation=observation,
            reward=reward_NH[:, 0] if single else reward_NH,
            terminated=self._solved.copy(),
            truncated=self._over & ~self._solved,
            final_observation=observation,
            info={"success": self._solved.copy()},
            executed=executed,
        )

    def save(self) -> WorldState:
        """Not to be had.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            "dreams: states of imagined worlds are not saved; begin them anew from their seeds."
        )

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """See `save`."""
        raise HandoffError(
            "dreams: states of imagined worlds are not saved; begin them anew from their seeds."
        )

    def close(self) -> None:
        """Nothing is held."""

    def _imagine(self, runs: np.ndarray, action_BA: np.ndarray) -> None:
        """One step of some worlds, and whether it solved them or their time is up."""
        rows = torch.from_numpy(runs)
        bounded = torch.from_numpy(np.clip(action_BA, self._low, self._high).astype(np.float32))
        with torch.no_grad():
            before, action = self.latent.rows(rows), self._model.normalize_action(bounded)
            after = self._model.imagine(before, action, self._noise(runs))
            chance_B = torch.sigmoid(self._classifier({LATENT: after.features}))
        self.latent = Latent(
            *(_replaced(part, runs, new) for part, new in zip(self.latent, after, strict=True))
        )
        self._solved[runs] = (chance_B >= self._threshold).numpy()
        self._steps[runs] += 1
        self._over[runs] = self._solved[runs] | (self._steps[runs] >= self._limit)

    def _noise(self, worlds: np.ndarray) -> Tensor:
        """(B, Z) Gumbel noise, of every world from its own stream."""
        drawn = [self._chance[world].gumbel(size=self._model.drawn) for world in worlds]
        return torch.from_numpy(np.stack(drawn).astype(np.float32))

    def _observation(self) -> Observation:
        return as_fields(
            self.observation_spec,
            self._model.normalize_observation.inverse(self.latent.seen_BO).numpy(),
        )


def _replaced(whole: Tensor, rows: np.ndarray, part: Tensor) -> Tensor:
    copy = whole.clone()
    copy[torch.from_numpy(rows)] = part
    return copy
