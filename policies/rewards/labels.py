"""Labels recorded episodes with reward and success: as recorded, by a success classifier, or by an
image-text model.

The label of step t follows its action, so classifiers and image-text models judge the observation
at t + 1. That of the last step is in the stream `final`; where a store lacks it, the last step is
judged by its own observation.

Shape suffixes: T steps of an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from policies.rewards.config import (
    ClassifierRewardConfig,
    ImageTextRewardConfig,
    RecordedRewardConfig,
    RewardSource,
    SuccessRewardConfig,
)
from robots.episodes.corrections import FINAL
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

SUCCESS = "success"
"""Name of the field and of the metadata entry that say whether the task was solved."""


class EpisodeLabels(NamedTuple):
    """Labels of one episode."""

    reward_T: np.ndarray
    """Reward that followed each action, float32."""
    solved_T: np.ndarray
    """Whether the task was solved after each action, bool; True at most once."""

    @property
    def steps(self) -> int:
        """Steps up to the first solved one, or all."""
        return int(self.solved_T.argmax()) + 1 if self.solved_T.any() else len(self.solved_T)


Labeller = Callable[[EpisodeStore, str, int], EpisodeLabels]
"""Labels an episode, given the store, the stream and the number of the episode."""


def new_labeller(config: RewardSource, classifier: Path | None = None) -> Labeller:
    """The labeller that the options name.

    Args:
        config: source of the reward.
        classifier: folder of a success classifier.

    Raises:
        HandoffError: a classifier is missing or superfluous, or a model cannot be loaded.
    """
    if (classifier is not None) != isinstance(config, ClassifierRewardConfig):
        given = "no classifier is given" if classifier is None else "a classifier is given"
        raise HandoffError(
            f"reward: the kind is '{config.kind}', but {given}. A classifier among the inputs and the kind "
            "'classifier' belong together."
        )
    match config:
        case RecordedRewardConfig():
            return lambda store, stream, episode: _recorded(config, store, stream, episode)
        case SuccessRewardConfig():
            return _sparse
        case ClassifierRewardConfig():
            assert classifier is not None
            return _detector(classifier)
        case ImageTextRewardConfig():
            return _image_text(config)


def recorded_success(store: EpisodeStore, stream: str, episode: int) -> np.ndarray:
    """(T,) bool, True at the step that first solved the recorded task: from the field `success`,
    else the last step of an episode whose metadata say so.

    Raises:
        HandoffError: the store has neither.
    """
    fields, metadata = store.schema.stream(stream).fields, store.metadata(episode)
    if SUCCESS in fields:
        success_T = store.read(episode, stream, [SUCCESS])[SUCCESS].reshape(-1) > 0
        return first_success_only(success_T)
    if SUCCESS not in metadata:
        raise HandoffError(
            f"{store.path}: episode {episode} has neither a field '{SUCCESS}' nor metadata '{SUCCESS}'. Was the store "
            "recorded without a task? Take the reward from a classifier or from images and text."
        )
    solved_T = np.zeros(_length(store, stream, episode), bool)
    solved_T[-1:] = bool(metadata[SUCCESS])
    return solved_T


def _recorded(
    config: RecordedRewardConfig, store: EpisodeStore, stream: str, episode: int
) -> EpisodeLabels:
    fields = store.schema.stream(stream).fields
    if config.reward_field not in fields:
        raise HandoffError(
            f"{store.path}: stream '{stream}' has no reward field '{config.reward_field}'; it has {sorted(fields)}. "
            "A store without rewards needs the kind 'success', 'classifier' or 'image_text'."
        )
    reward = store.read(episode, stream, [config.reward_field])[config.reward_field]
    reward_T = reward.reshape(len(reward), -1)[:, 0].astype(np.float32)
    if not np.isfinite(reward_T).all():
        raise HandoffError(
            f"{store.path}: field '{config.reward_field}' of episode {episode} is not finite."
        )
    return EpisodeLabels(reward_T, recorded_success(store, stream, episode))


def _sparse(store: EpisodeStore, stream: str, episode: int) -> EpisodeLabels:
    solved_T = recorded_success(store, stream, episode)
    return EpisodeLabels(solved_T.astype(np.float32), solved_T)


def _detector(folder: Path) -> Labeller:
    from policies.rewards.success_classifier import probabilities
    from policies.rewards.success_files import load_classifier
    from robots.success import first_success

    classifier, card = load_classifier(folder)

    def label(store: EpisodeStore, stream: str, episode: int) -> EpisodeLabels:
        if store.schema.name != card.task:
            raise HandoffError(
                f"{store.path}: holds the task '{store.schema.name}', but the classifier {folder} detects success in "
                f"'{card.task}'."
            )
        fields = {name: after_actions(store, stream, episode, name) for name in card.observation}
        detected = first_success(probabilities(classifier, fields), card.detector)
        solved_T = np.zeros(len(next(iter(fields.values()))), bool)
        if detected is not None:
            solved_T[detected] = True
        return EpisodeLabels(solved_T.astype(np.float32), solved_T)

    return label


def _image_text(config: ImageTextRewardConfig) -> Labeller:
    from policies.rewards.image_text_model import load_image_text_model
    from policies.rewards.vision_language import image_text_reward

    model = load_image_text_model(Path(config.folder))
    reward = image_text_reward(model, config.goal, config.baseline, config.alpha)

    def label(store: EpisodeStore, stream: str, episode: int) -> EpisodeLabels:
        reward_T = reward(after_actions(store, stream, episode, config.image_field))
        if config.success_above is None:
            solved_T = recorded_success(store, stream, episode)
        else:
            solved_T = first_success_only(reward_T >= config.success_above)
        return EpisodeLabels(reward_T.astype(np.float32), solved_T)

    return label


def after_actions(store: EpisodeStore, stream: str, episode: int, field: str) -> np.ndarray:
    """(T, ...) values of an observation field after each action; see the module docstring.

    Raises:
        HandoffError: the stream has no such field.
    """
    values = store.read(episode, stream, [field])[field]
    last = values[-1:]
    if FINAL in store.schema.streams and field in store.schema.stream(FINAL).fields:
        last = store.read(episode, FINAL, [field])[field][-1:]
    return np.concatenate([values[1:], last])


def first_success_only(success_T: np.ndarray) -> np.ndarray:
    """(T,) bool, True at the first success only."""
    return success_T & (np.cumsum(success_T) == 1)


def _length(store: EpisodeStore, stream: str, episode: int) -> int:
    name = next(iter(store.schema.stream(stream).fields))
    return len(store.read(episode, stream, [name])[name])
