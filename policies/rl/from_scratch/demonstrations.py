"""Converts recorded episodes to the steps of a replay buffer.

Shape suffixes: T frames, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from policies.networks.images.picture_features import PictureEncoder
from policies.rl.collection.reward_shaping import RewardShaping
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps

STREAM = "policy"


def demonstration_steps(
    path: Path,
    fields: dict[str, FieldSpec],
    action: ActionSpec,
    reward: RewardShaping,
    pictures: PictureEncoder | None = None,
) -> Iterator[Steps]:
    """Reads the episodes of a store as steps of a learner, one episode at a time.

    Rewards are those of the store, shaped like those of the environments. A store has no
    observation after the last action: the last step of a solved episode ends the task, so none is
    needed, and that of another episode is left out.

    Args:
        path: folder of the store.
        fields: fields of the observation vector, in order, as the environments have them.
        action: action of the environments.
        reward: reward shaping of the training.
        pictures: encoder of the pictures, whose features follow the fields.

    Raises:
        HandoffError: the store lacks a field, or was recorded with another action space.
    """
    store = EpisodeStore.open(path)
    recorded = store.schema.stream(STREAM).fields
    cameras = {} if pictures is None else pictures.specs
    _check(path, recorded, {**fields, **cameras}, action)
    for episode in range(store.num_episodes):
        frames = store.read(episode, STREAM)
        solved = bool(np.asarray(frames["success"])[-1] > 0)
        yield _steps(episode, frames, list(fields), solved, reward, pictures)


def _steps(
    episode: int,
    frames: dict[str, np.ndarray],
    fields: Sequence[str],
    solved: bool,
    reward: RewardShaping,
    pictures: PictureEncoder | None,
) -> Steps:
    count = len(frames["action"])
    columns = [np.asarray(frames[name], np.float32).reshape(count, -1) for name in fields]
    columns += [] if pictures is None else [pictures(frames)]
    obs_TO = np.concatenate(columns, axis=1)
    # An episode is shaped like one chunk with all of its actions.
    shaped_T = reward.shaped_reward(
        np.asarray(frames["reward"], np.float32).reshape(1, count),
        np.array([count]),
        np.array([solved]),
        np.array([False]),
        np.array([np.nan]),
    )[0]
    kept = count if solved else count - 1
    last_T = np.arange(count) == count - 1
    return plain_steps(
        episode=np.full(kept, episode),
        number=np.arange(kept),
        observation=obs_TO[:kept],
        action=np.asarray(frames["action"], np.float32)[:kept],
        reward=shaped_T[:kept],
        next_observation=np.concatenate([obs_TO[1:], obs_TO[-1:]])[:kept],
        terminated=(last_T & solved)[:kept],
        truncated=(np.arange(count) == count - 2)[:kept] & (not solved),
        demo=True,
    )


def _check(
    path: Path,
    recorded: dict[str, FieldSpec],
    fields: dict[str, FieldSpec],
    action: ActionSpec,
) -> None:
    missing = sorted({*fields, "action", "reward", "success"} - {*recorded})
    if missing:
        raise HandoffError(
            f"{path}: the demonstrations lack {missing}, they have {sorted(recorded)}. Rewards and success are "
            "recorded by the stages `scripted` and `rollouts`."
        )
    shapes = {
        name: (recorded[name].shape, spec.shape)
        for name, spec in fields.items()
        if recorded[name].shape != spec.shape
    }
    if recorded["action"].shape != (action.size,):
        shapes["action"] = (recorded["action"].shape, (action.size,))
    if shapes:
        raise HandoffError(
            f"{path}: the demonstrations have other shapes than the environments: {shapes} (recorded, expected). Were "
            "they recorded with another task or action space?"
        )
