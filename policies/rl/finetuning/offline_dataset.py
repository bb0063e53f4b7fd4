"""Decisions as they are recorded, of demonstrations and of rollouts alike: what is seen, which
chunk, what it led to.

Every step of a demonstration counts as one at which a chunk was decided, so chunks overlap. What a
demonstration saw after its last action is not in the store: of a solved one nothing comes after it,
an unsolved one is left out there.

Shape suffixes: R rows, T observed steps, O observation, H horizon, A action, M recorded steps, E
episodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.data.demonstrations import read_demonstrations
from policies.data.windows import WindowIndex, chunks
from policies.policy import ChunkPolicy
from policies.policy_config import PolicyConfig
from policies.rl.collection.reward_shaping import PracticeReward
from policies.rl.on_policy.returns import chunk_reward
from robots.episodes.store import EpisodeStore

REWARD, SUCCESS = "reward", "success"
"""Field of a step, and key of an episode's metadata."""


class RecordedDecisions(NamedTuple):
    """R decisions, normalised."""

    seen: Tensor
    """(R, T, O)."""
    chunk_RHA: Tensor
    padded_RH: Tensor
    """bool, actions outside their episode."""
    reward_R: Tensor
    """Discounted sum of what was executed."""
    discount_R: Tensor
    """g^length, 0 where the task ended."""
    next_seen: Tensor
    """(R, T, O)."""
    told_R: Tensor
    """bool: `next_seen` was truly seen."""
    solved_R: Tensor
    """bool: of an episode that solved the task."""

    def rows(self, which: Tensor) -> RecordedDecisions:
        """Some of them."""
        return RecordedDecisions(*(column[which] for column in self))


def merged(parts: list[RecordedDecisions]) -> RecordedDecisions:
    """The rows of all parts, one after another."""
    return RecordedDecisions(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def demonstrated(
    demos: Path, policy: ChunkPolicy, model: PolicyConfig, pays: PracticeReward, discount: float
) -> RecordedDecisions:
    """The decisions of `demos/store.zarr`, in the units of `policy`.

    A demonstration has solved its task at its last action unless its metadata say that it has not.

    Args:
        demos: folder of the store.
        policy: whose normalisers these are.
        model: whose fields are read, and how much of a chunk is executed.
        pays: what an action is worth, by the field `reward` if there is one.
        discount: per action.

    Raises:
        HandoffError: see `policies.data.demonstrations.read_demonstrations`.
    """
    data, store = read_demonstrations(demos, model), EpisodeStore.open(demos / "store.zarr")
    fields = store.schema.stream(model.stream).fields
    told_M = (
        store.column(model.stream, REWARD).reshape(-1)
        if REWARD in fields
        else np.zeros(len(data.action_MA))
    )
    solved_E = np.array(
        [bool(store.metadata(number).get(SUCCESS, True)) for number in range(len(data.ends_E))]
    )
    index = _every_step(data.ends_E, model.n_obs_steps, model.horizon)
    newest_R = index.observation_NT[:, -1]
    length_R = np.minimum(model.n_action_steps, index.end_N - newest_R)
    ends_R, solved_R = newest_R + length_R == index.end_N, solved_E[index.episode_N]
    executed_RH = np.minimum(
        newest_R[:, None] + np.arange(model.n_action_steps), index.end_N[:, None] - 1
    )
    never_R = np.zeros(len(newest_R), bool)
    before_R = np.where(np.isin(newest_R, [0, *data.ends_E]), np.nan, told_M[newest_R - 1])
    paid_RH = pays.paid(told_M[executed_RH], length_R, ends_R & solved_R, never_R, before_R)
    length = torch.from_numpy(length_R)
    later_RT = np.minimum(index.observation_NT + length_R[:, None], index.end_N[:, None] - 1)
    observation_MO = policy.normalize_observation(torch.from_numpy(data.observation_MO))
    chunk = torch.from_numpy(chunks(index, data.observation_MO, data.action_MA, policy.anchor))
    terminal = torch.from_numpy(ends_R & solved_R)
    found = RecordedDecisions(
        seen=observation_MO[torch.from_numpy(index.observation_NT)],
        chunk_RHA=policy.normalize_action(chunk),
        padded_RH=torch.from_numpy(index.padded_NH),
        reward_R=chunk_reward(torch.from_numpy(paid_RH), length, discount),
        discount_R=(discount**length).float() * ~terminal,
        next_seen=observation_MO[torch.from_numpy(later_RT)],
        told_R=torch.from_numpy(~ends_R),
        solved_R=torch.from_numpy(solved_R),
    )
    return found.rows(found.told_R | terminal)


def _every_step(ends_E: np.ndarray, n_obs_steps: int, horizon: int) -> WindowIndex:
    """A window per recorded step, which is its newest; beyond its episode the first and the last
    step repeat."""
    length_E = np.diff(ends_E, prepend=0)
    newest_N = np.arange(int(ends_E[-1]))[:, None]
    start_N, end_N = (
        np.repeat(ends_E - length_E, length_E)[:, None],
        np.repeat(ends_E, length_E)[:, None],
    )
    wanted_NH = newest_N + np.arange(1 - n_obs_steps, horizon + 1 - n_obs_steps)
    rows_NH = np.clip(wanted_NH, start_N, end_N - 1)
    episode_N = np.repeat(np.arange(len(ends_E)), length_E)
    return WindowIndex(
        rows_NH[:, :n_obs_steps], rows_NH, rows_NH != wanted_NH, episode_N, end_N[:, 0]
    )
