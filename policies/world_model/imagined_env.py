"""Imagined environments: a frozen world model as a vectorised environment, so that any fine-tuning
method can run on imagined rollouts.

This follows DiWA (Nematollahi et al., CoRL 2025): a pretrained diffusion policy improves by PPO on
rollouts imagined by a world model, without an environment. A success classifier on the latent state
terminates episodes and provides the reward. With an ensemble of world models, success must be
recognised by the classifiers of all members, and steps about which the members disagree can cost
(`ImaginationConfig`).

Shape suffixes as in `policies.world_model.model`; N environments, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from policies.rewards.success_files import load_classifier
from policies.training.members import member_folder
from policies.world_model.config import LATENT, ImaginationConfig
from policies.world_model.ensemble import load_ensemble, penalties
from policies.world_model.model import Latent, as_fields
from policies.world_model.train import SUCCESS
from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation, Step
from robots.spec import ActionSpec, FieldSpec


class ImaginedVecEnv:
    """Implements `robots.interfaces.VecEnv`; an environment whose episode has ended is frozen until
    its reset.

    Args:
        model: folder of a world model.
        num_envs: N.
        max_steps: time limit [control periods].
        imagination: reward.

    Raises:
        HandoffError: no environment or step, a damaged world model, or a penalty for the
            disagreement of a single one.
    """

    observation_spec: Mapping[str, FieldSpec]

    def __init__(
        self,
        model: Path,
        num_envs: int,
        max_steps: int,
        imagination: ImaginationConfig | None = None,
    ) -> None:
        if min(num_envs, max_steps) < 1:
            raise HandoffError(
                f"imagination: {num_envs} environments of {max_steps} steps, expected at least 1 of each."
            )
        self._models, cards, self._starts = load_ensemble(model)
        card, members = cards[0], len(cards)
        self._penalty = 0.0 if imagination is None else imagination.penalty
        if self._penalty and not card.usual_disagreement:
            raise HandoffError(
                f"imagination: penalty {self._penalty} with {members} world models, which cannot disagree. Set "
                "world_model.members to 3 or more, or imagination.penalty=0."
            )
        self._usual = card.usual_disagreement
        self._classifiers = [
            load_classifier(member_folder(model, number) / SUCCESS)[0].requires_grad_(False)
            for number in range(members)
        ]
        self._thresholds = [one.threshold for one in cards]
        self._limit = max_steps
        self.num_envs = num_envs
        self.rate_hz = card.rate_hz
        self.observation_spec = card.observation
        self.action_spec = ActionSpec(low=card.action_low, high=card.action_high)
        self._low = np.array(card.action_low)
        self._high = np.array(card.action_high)
        self._generators = [np.random.default_rng(0) for _ in range(num_envs)]
        self._steps = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)
        self._solved = np.zeros(num_envs, bool)
        self._leader = np.zeros(num_envs, np.int64)
        first = self._models.members[0]
        sizes = [first.sizes.recurrent, first.stochastic, len(first.change)]
        # Current latent states of all environments, by member.
        self._latents = [
            Latent(*torch.zeros(num_envs, first.features).split(sizes, dim=1))
            for _ in range(members)
        ]

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`; every episode starts from the first observation of a recorded one."""
        reset_ids = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, np.int64)
        if len(seeds) != len(reset_ids):
            raise HandoffError(
                f"imagination: {len(seeds)} seeds for {len(reset_ids)} environments, expected as many."
            )
        rows = []
        for env_id, seed in zip(reset_ids, seeds, strict=True):
            self._generators[env_id] = np.random.default_rng(seed)
            rows.append(int(self._generators[env_id].integers(len(self._starts))))
            if len(self._models) > 1:
                self._leader[env_id] = self._generators[env_id].integers(len(self._models))
        obs_BO = self._models.members[0].normalize_observation(self._starts[rows])
        with torch.no_grad():
            self._put(reset_ids, self._models.initial(obs_BO, self._noise(reset_ids)))
        self._steps[reset_ids] = 0
        self._over[reset_ids] = False
        self._solved[reset_ids] = False
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`; actions are clipped to the recorded range."""
        single = action.ndim == 2
        chunk_NHA = action[:, None] if single else action
        size = self.action_spec.size
        if chunk_NHA.shape != (self.num_envs, chunk_NHA.shape[1], size):
            raise HandoffError(
                f"imagination: actions of shape {action.shape}, expected ({self.num_envs}, [H,] {size})."
            )
        if not np.isfinite(chunk_NHA[~self._over]).all():
            raise HandoffError("imagination: an action is not finite. Has the policy diverged?")
        reward_NH = np.zeros(chunk_NHA.shape[:2], np.float32)
        executed = np.zeros(self.num_envs, np.int64)
        for number in range(chunk_NHA.shape[1]):
            running = np.flatnonzero(~self._over)
            if not len(running):
                break
            charged = self._imagine(running, chunk_NHA[running, number])
            reward_NH[running, number] = self._solved[running] - charged
            executed[running] += 1
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

    def save(self) -> EnvState:
        """Not supported.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            "imagination: states of imagined environments cannot be saved; reset them from their seeds."
        )

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `save`."""
        raise HandoffError(
            "imagination: states of imagined environments cannot be saved; reset them from their seeds."
        )

    def close(self) -> None:
        """Does nothing."""

    def _imagine(self, running: np.ndarray, action_BA: np.ndarray) -> np.ndarray:
        """Imagines one step of some environments, updates whether they are solved or truncated, and
        returns what is charged (B,) for the members' disagreement about it."""
        rows = torch.from_numpy(running)
        clipped = torch.from_numpy(np.clip(action_BA, self._low, self._high).astype(np.float32))
        with torch.no_grad():
            latents = [latent.rows(rows) for latent in self._latents]
            normalised_BA = self._models.members[0].normalize_action(clipped)
            charged = np.zeros(len(running), np.float32)
            if self._penalty:
                disagreement_B = self._models.disagreement(latents, normalised_BA).numpy()
                charged = penalties(disagreement_B, self._usual, self._penalty)
            leader_B = torch.from_numpy(self._leader[running])
            imagined = self._models.imagine(latents, normalised_BA, self._noise(running), leader_B)
            recognised = [
                torch.sigmoid(classifier({LATENT: latent.features})) >= threshold
                for classifier, latent, threshold in zip(
                    self._classifiers, imagined, self._thresholds, strict=True
                )
            ]
        self._put(running, imagined)
        self._solved[running] = torch.stack(recognised).all(dim=0).numpy()
        self._steps[running] += 1
        self._over[running] = self._solved[running] | (self._steps[running] >= self._limit)
        return charged

    def _put(self, env_ids: np.ndarray, latents: Sequence[Latent]) -> None:
        """Replaces the latent states of some environments."""
        self._latents = [
            Latent(*(_replaced(part, env_ids, new) for part, new in zip(old, latent, strict=True)))
            for old, latent in zip(self._latents, latents, strict=True)
        ]

    def _noise(self, env_ids: np.ndarray) -> Tensor:
        """Gumbel noise (B, M, Z), from the random stream of every environment."""
        shape = (len(self._models), self._models.stochastic)
        noise = [self._generators[env_id].gumbel(size=shape) for env_id in env_ids]
        return torch.from_numpy(np.stack(noise).astype(np.float32))

    def _observation(self) -> Observation:
        return as_fields(
            self.observation_spec,
            self._models.members[0].normalize_observation.inverse(self._latents[0].obs_BO).numpy(),
        )


def _replaced(whole: Tensor, rows: np.ndarray, part: Tensor) -> Tensor:
    copy = whole.clone()
    copy[torch.from_numpy(rows)] = part
    return copy
