"""Converts demonstrations and rollouts to transitions of chunks: observation, chunk, reward and
next observation.

Every step of a demonstration starts a chunk, so chunks overlap. The observation after the last
action is not in the store: for solved demonstrations it is not needed, for unsolved ones the
transition is dropped.

Shape suffixes: R rows, T observed steps, O observation, H horizon, A action, M recorded steps, E
episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.data.demonstrations import read_demonstrations
from policies.data.encoded_steps import encoded_steps
from policies.data.frames import FrameSource
from policies.data.windows import WindowIndex, chunks, observed_rows
from policies.policy import ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.offline.recorded import RecordedEpisodes
from policies.rl.on_policy.returns import chunk_reward
from policies.rl.replay.transitions import Observations, Transitions, without_person
from robots.episodes.store import EpisodeStore

REWARD, SUCCESS = "reward", "success"
"""Names of the reward field of a step and the success entry of an episode's metadata."""
CHUNK = "chunk_BHA"
"""Key in `Transitions.extra` of the whole normalised chunk of the data."""


class OfflineDataset(NamedTuple):
    """R transitions of chunks, normalised."""

    obs: Tensor
    """(R, T, O) observations before the chunks."""
    chunk_RHA: Tensor
    padded_RH: Tensor
    """bool, actions beyond the end of their episode."""
    reward_R: Tensor
    """Discounted sum of the rewards of the executed actions."""
    discount_R: Tensor
    """g^length, 0 where the task ended."""
    next_obs: Tensor
    """(R, T, O) observations after the executed actions."""
    next_obs_recorded_R: Tensor
    """bool, whether `next_obs` was recorded."""
    solved_R: Tensor
    """bool, whether the episode solved the task."""

    def rows(self, which: Tensor) -> OfflineDataset:
        """The transitions at these indices."""
        return OfflineDataset(*(column[which] for column in self))


def concatenate(parts: list[OfflineDataset]) -> OfflineDataset:
    """The transitions of all parts in order."""
    return OfflineDataset(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def demonstration_dataset(
    demos: Path,
    policy: ChunkPolicy,
    model: PolicyConfig,
    reward_shaping: RewardShaping,
    discount: float,
) -> OfflineDataset:
    """The transitions of `demos/store.zarr`, normalised by `policy`.

    A demonstration solves its task at its last action unless its metadata state otherwise.

    Args:
        demos: folder of the store.
        policy: policy whose normalisers are used.
        model: configuration with the fields to read and the executed actions per chunk.
        reward_shaping: shaping on top of the recorded field `reward`, or of 0 without it.
        discount: discount per action.

    Raises:
        HandoffError: see `policies.data.demonstrations.read_demonstrations`.
    """
    data, store = read_demonstrations(demos, model), EpisodeStore.open(demos / "store.zarr")
    fields = store.schema.stream(model.stream).fields
    reward_M = (
        store.column(model.stream, REWARD).reshape(-1)
        if REWARD in fields
        else np.zeros(len(data.action_MA))
    )
    solved_E = np.array(
        [bool(store.metadata(number).get(SUCCESS, True)) for number in range(len(data.ends_E))]
    )
    episodes = RecordedEpisodes(
        data.observation_MO, data.action_MA, data.ends_E, reward_M, solved_E, None, data.card
    )
    return chunk_dataset(episodes, policy, model, reward_shaping, discount, sensors=data.sensors)


def chunk_dataset(
    episodes: RecordedEpisodes,
    policy: ChunkPolicy,
    model: PolicyConfig,
    reward_shaping: RewardShaping,
    discount: float,
    failures_end: bool = False,
    sensors: Mapping[str, FrameSource] | None = None,
) -> OfflineDataset:
    """The transitions of recorded episodes, normalised by `policy`.

    Args:
        episodes: recorded episodes.
        policy: policy whose normalisers are used.
        model: configuration with the observed, predicted and executed steps of a chunk.
        reward_shaping: shaping on top of the recorded reward.
        discount: discount per action.
        failures_end: whether unsolved episodes end with value 0; otherwise their last transitions
            are dropped, because the observation after them is not known.
        sensors: frames of every recorded step, which the policy encodes.
    """
    ends_E = episodes.ends_E
    # One chunk per recorded step, and the actions executed of it.
    index = _every_step(ends_E, model.n_obs_steps, model.horizon, model.observation_stride)
    newest_R = index.observation_NT[:, -1]
    length_R = np.minimum(model.n_action_steps, index.end_N - newest_R)
    ends_R, solved_R = newest_R + length_R == index.end_N, episodes.solved_E[index.episode_N]
    executed_RH = np.minimum(
        newest_R[:, None] + np.arange(model.n_action_steps), index.end_N[:, None] - 1
    )
    # Rewards of the executed actions.
    reward_M, failed_R = episodes.reward_M, np.zeros(len(newest_R), bool)
    previous_reward_R = np.where(np.isin(newest_R, [0, *ends_E]), np.nan, reward_M[newest_R - 1])
    reward_RH = reward_shaping.shaped_reward(
        reward_M[executed_RH], length_R, ends_R & solved_R, failed_R, previous_reward_R
    )
    length = torch.from_numpy(length_R)
    # Observations before and after, and normalised chunks.
    next_RT = np.minimum(index.observation_NT + length_R[:, None], index.end_N[:, None] - 1)
    normalised_MO = policy.normalize_observation(torch.from_numpy(episodes.observation_MO))
    observation_MO = encoded_steps(policy, normalised_MO, sensors or {})
    chunk = chunks(index, episodes.observation_MO, episodes.action_MA, policy.anchor)
    terminal = torch.from_numpy(ends_R & (solved_R | failures_end))
    dataset = OfflineDataset(
        obs=observation_MO[torch.from_numpy(index.observation_NT)],
        chunk_RHA=policy.normalize_action(torch.from_numpy(chunk)),
        padded_RH=torch.from_numpy(index.padded_NH),
        reward_R=chunk_reward(torch.from_numpy(reward_RH), length, discount),
        discount_R=(discount**length).float() * ~terminal,
        next_obs=observation_MO[torch.from_numpy(next_RT)],
        next_obs_recorded_R=torch.from_numpy(~ends_R),
        solved_R=torch.from_numpy(solved_R),
    )
    return dataset.rows(dataset.next_obs_recorded_R | terminal)


class RecordedChunks:
    """Transitions of chunks as minibatches for `policies.rl.offline.train.learn_offline`.

    Args:
        dataset: transitions, normalised.
        executed: selects the executed part (R, D) of chunks (R, H, A).
    """

    def __init__(self, dataset: OfflineDataset, executed: Callable[[Tensor], Tensor]) -> None:
        self._dataset = dataset
        self._executed = executed

    def __len__(self) -> int:
        return len(self._dataset.reward_R)

    def drawable(self) -> np.ndarray:
        """Indices of all transitions."""
        return np.arange(len(self))

    def transitions(self, slot_B: np.ndarray) -> Transitions:
        """The transitions at these indices, with the whole chunk as `extra["chunk_BHA"]`."""
        rows = self._dataset.rows(torch.from_numpy(slot_B))
        return without_person(
            obs=Observations(rows.obs.flatten(1)),
            action_BA=self._executed(rows.chunk_RHA),
            reward_B=rows.reward_R,
            discount_B=rows.discount_R,
            next_obs=Observations(rows.next_obs.flatten(1)),
            demo_B=torch.ones(len(slot_B), dtype=torch.bool),
            extra={CHUNK: rows.chunk_RHA},
        )


def _every_step(ends_E: np.ndarray, n_obs_steps: int, horizon: int, stride: int) -> WindowIndex:
    """One window per recorded step as its newest observation; the first and last steps of an
    episode repeat beyond it."""
    length_E = np.diff(ends_E, prepend=0)
    newest_N = np.arange(int(ends_E[-1]))[:, None]
    start_N, end_N = (
        np.repeat(ends_E - length_E, length_E)[:, None],
        np.repeat(ends_E, length_E)[:, None],
    )
    unclipped_NH = newest_N + np.arange(1 - n_obs_steps, horizon + 1 - n_obs_steps)
    rows_NH = np.clip(unclipped_NH, start_N, end_N - 1)
    episode_N = np.repeat(np.arange(len(ends_E)), length_E)
    observed_NT = observed_rows(newest_N[:, 0], start_N[:, 0], n_obs_steps, stride)
    return WindowIndex(observed_NT, rows_NH, rows_NH != unclipped_NH, episode_N, end_N[:, 0])
