"""Reads recorded episodes as training data of offline learners: observations, actions, rewards, and
how each episode ended.

An episode ends with its first solved step; what was recorded after it is dropped.

Shape suffixes: M recorded steps, E episodes, O observation, A action, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.card import PolicyCard
from policies.data.demonstrations import read_demonstrations
from policies.data.frames import FrameSource
from policies.networks.config import PictureFeaturesConfig
from policies.networks.images.picture_features import PictureEncoder
from policies.policy_config import PolicyConfig
from policies.rewards.labels import EpisodeLabels, Labeller
from policies.rl.offline.config import StateLearnerConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.episodes.corrections import FINAL
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.wire.steps import Steps, plain_steps


class RecordedEpisodes(NamedTuple):
    """M recorded steps of E episodes."""

    observation_MO: np.ndarray
    action_MA: np.ndarray
    ends_E: np.ndarray
    """Index after the last step of each episode."""
    reward_M: np.ndarray
    """Reward that followed each action."""
    solved_E: np.ndarray
    """bool, whether the last step of each episode solved the task."""
    final_EO: np.ndarray | None
    """Observation after the last step of each episode; None where the store does not hold it."""
    card: PolicyCard
    """Card of a policy that is trained on the episodes."""
    sensors: Mapping[str, FrameSource] = {}
    """Frames of the M steps, by camera and point cloud; empty where features of them are entries of
    the observations."""

    @property
    def summary(self) -> dict[str, int]:
        """Metrics of the data: episodes, solved episodes and steps."""
        return {
            "episodes": len(self.ends_E),
            "solved_episodes": int(self.solved_E.sum()),
            "data_steps": len(self.reward_M),
        }


class ActionScale(NamedTuple):
    """Affine map between actions of the environment and of a learner, which are in [-1, 1]."""

    centre_A: np.ndarray
    half_range_A: np.ndarray

    @classmethod
    def fit(cls, action_MA: np.ndarray) -> ActionScale:
        """The identity for entries that are recorded within [-1, 1], such as the steps and the
        gripper of a simulated arm; for other entries it maps the recorded range to [-1, 1]."""
        low_A, high_A = action_MA.min(axis=0), action_MA.max(axis=0)
        inside_A = (low_A >= -1.0) & (high_A <= 1.0)
        half_A = np.where(high_A - low_A > 1e-9, 0.5 * (high_A - low_A), 1.0)
        return cls(
            np.where(inside_A, 0.0, 0.5 * (low_A + high_A)).astype(np.float32),
            np.where(inside_A, 1.0, half_A).astype(np.float32),
        )

    def to_learner(self, action_NA: np.ndarray) -> np.ndarray:
        """(N, A) actions of the learner, clipped to [-1, 1]."""
        return np.clip((action_NA - self.centre_A) / self.half_range_A, -1.0, 1.0)


class KeptFrames:
    """A `FrameSource` of some steps of another.

    Args:
        frames: all recorded steps.
        kept: indices of the kept ones.
    """

    def __init__(self, frames: FrameSource, kept: np.ndarray) -> None:
        self.step_shape = frames.step_shape
        self._frames = frames
        self._kept = torch.from_numpy(kept)

    def __len__(self) -> int:
        """Number of kept steps."""
        return len(self._kept)

    def steps(self, rows: Tensor, pinned: bool = False) -> Tensor:
        """See `FrameSource.steps`."""
        return self._frames.steps(self._kept[rows], pinned)


def read_recorded(
    demos: Path,
    model: PolicyConfig,
    label: Labeller,
    features: PictureFeaturesConfig | None = None,
) -> RecordedEpisodes:
    """Reads and labels all episodes of `demos/store.zarr`.

    Args:
        demos: folder of the store.
        model: configuration with the fields to read.
        label: source of reward and success.
        features: features of the pictures, as further entries of the observations; None leaves
            pictures as frames.

    Raises:
        HandoffError: a missing or unsuitable field, labels that are missing, or rewards that are
            all equal although no episode is solved.
    """
    data = read_demonstrations(demos, model)
    store = EpisodeStore.open(demos / "store.zarr")
    labels = [label(store, model.stream, number) for number in range(store.num_episodes)]
    _check_labels(demos, labels)
    kept_M = np.concatenate([np.arange(len(one.reward_T)) < one.steps for one in labels])
    rows_M, card = np.flatnonzero(kept_M), data.card
    sensors = {name: KeptFrames(frames, rows_M) for name, frames in data.sensors.items()}
    observation_MO, encoder = data.observation_MO[kept_M], None
    if features is not None and sensors:
        encoder = PictureEncoder(features, list(sensors), card.sensors)
        observation_MO = np.concatenate([observation_MO, encoder.of_frames(sensors)], axis=1)
        sensors = {}
    return RecordedEpisodes(
        observation_MO=observation_MO,
        action_MA=data.action_MA[kept_M],
        ends_E=np.cumsum([one.steps for one in labels]),
        reward_M=np.concatenate([one.reward_T for one in labels])[kept_M],
        solved_E=np.array([bool(one.solved_T.any()) for one in labels]),
        final_EO=_final_observations(store, card, labels, encoder),
        card=card,
        sensors=sensors,
    )


def as_replay(
    episodes: RecordedEpisodes, scale: ActionScale, config: StateLearnerConfig, mc_return: bool
) -> Replay:
    """The episodes in a replay of single actions.

    Args:
        episodes: recorded episodes.
        scale: map from the recorded actions.
        config: discount, n-step return, and how unsolved episodes end.
        mc_return: whether samples have the return from their step on (Cal-QL).

    Raises:
        HandoffError: no transition is left.
    """
    steps = [
        _episode_steps(episodes, scale, config.failures_end, number)
        for number in range(len(episodes.ends_E))
    ]
    rows = sum(part.rows for part in steps)
    if not rows:
        raise HandoffError(
            "offline: no transition is left. Unsolved episodes of one step without a final observation need "
            "failures_end."
        )
    replay = Replay(
        ReplayConfig(
            capacity=rows, discount=config.discount, n_step=config.n_step, mc_return=mc_return
        ),
        episodes.observation_MO.shape[1],
        episodes.action_MA.shape[1],
    )
    for part in steps:
        if part.rows:
            replay.append(part)
    return replay


def _episode_steps(
    episodes: RecordedEpisodes, scale: ActionScale, failures_end: bool, number: int
) -> Steps:
    begin = int(episodes.ends_E[number - 1]) if number else 0
    end = int(episodes.ends_E[number])
    solved, count = bool(episodes.solved_E[number]), end - begin
    obs = episodes.observation_MO[begin:end]
    final = obs[-1:] if episodes.final_EO is None else episodes.final_EO[number : number + 1]
    next_obs = np.concatenate([obs[1:], final])
    terminal = solved or failures_end
    # An episode that goes on after an observation that was not recorded ends one step earlier.
    if not terminal and episodes.final_EO is None:
        count -= 1
    last = np.arange(count) == count - 1
    return plain_steps(
        episode=np.full(count, number),
        number=np.arange(count),
        observation=obs[:count],
        action=scale.to_learner(episodes.action_MA[begin : begin + count]),
        reward=episodes.reward_M[begin : begin + count],
        next_observation=next_obs[:count],
        terminated=last & terminal,
        truncated=last & (not terminal),
        demo=True,
    )


def _final_observations(
    store: EpisodeStore,
    card: PolicyCard,
    labels: list[EpisodeLabels],
    encoder: PictureEncoder | None,
) -> np.ndarray | None:
    """(E, O) observation after the last kept step of every episode; None without the stream."""
    streams = store.schema.streams
    names = [*card.observation, *([] if encoder is None else encoder.specs)]
    if FINAL not in streams or not {*names} <= streams[FINAL].fields.keys():
        return None
    rows = []
    for number, one in enumerate(labels):
        whole = one.steps == len(one.reward_T)
        stream = FINAL if whole else card.model.stream
        step = slice(0, 1) if whole else slice(one.steps, one.steps + 1)
        values = store.read(number, stream, names, step)
        columns = [values[name].reshape(-1) for name in card.observation]
        columns += [] if encoder is None else [encoder(values)[0]]
        rows.append(np.concatenate(columns))
    return np.array(rows, np.float32)


def _check_labels(demos: Path, labels: list[EpisodeLabels]) -> None:
    rewards = np.unique(np.concatenate([one.reward_T for one in labels]))
    if len(rewards) == 1 and not any(one.solved_T.any() for one in labels):
        raise HandoffError(
            f"{demos}: none of {len(labels)} episodes is solved and every reward is {rewards[0]:g}, so nothing tells "
            "good actions from bad ones. Are successes recorded, and is the kind of the reward right?"
        )
