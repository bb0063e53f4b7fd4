"""Trains a session's success classifier further on the states that its policy visits (VICE, arXiv
1805.11686).

A classifier that is trained once is right about the states of its own data; a policy that is
rewarded by it finds others. VICE therefore takes the states of the policy as negatives and examples
of the goal as positives, again and again. Here the positives are the success states of the
classifier's own data, and a version is a function of the version before it, of that data and of the
session's first episodes alone, so that a killed training of it ends with the same weights.

A person's label overrules: the last state of an episode that a person calls a success is a
positive, and nothing of it is a negative; all states of one that they call a failure are negatives.
VICE has the states of true successes among its negatives as well. They are outweighed by the
positives, which are half of each batch, and the threshold is chosen anew for every version, on the
held-out steps of the classifier's own data. A version that finds no threshold there is not used.

SERL's VICE (arXiv 2401.16013) has layer norm and dropout of 0.1, as every classifier here, leaky
ReLU, label smoothing and mixup, which are options. Its gradient penalty is left out.

Shape suffixes: T steps of an episode.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from policies.rewards.config import RefreshConfig, TrainSuccessConfig
from policies.rewards.labelled_steps import LabelledSteps, join_steps, split_steps
from policies.rewards.labels import after_actions
from policies.rewards.train_success_classifier import (
    OPTIONS,
    choose_detector,
    fit_classifier,
    with_maps,
)
from policies.training.members import member_progress
from robots.config import validate
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.success import DetectorConfig

_JUDGES = ("task", "classifier")
"""Values of `labelled_by` of an episode that no person labelled."""


class SessionEpisode(NamedTuple):
    """States after the actions of an episode of the session."""

    fields: dict[str, np.ndarray]
    """Input fields of the classifier, (T, ...) each."""
    positive_T: np.ndarray
    """States that are positives, bool."""
    negative_T: np.ndarray
    """States that are negatives, bool; the others are left out."""
    by_classifier: bool
    """Whether the classifier ended the episode as solved, and nobody labelled it."""


def read_session_episode(
    store: EpisodeStore, stream: str, number: int, fields: Sequence[str]
) -> SessionEpisode | None:
    """Reads an episode of the session; None for one that was discarded or cut off.

    Raises:
        HandoffError: the stream lacks a field.
    """
    about = store.metadata(number)
    if about["discard_reason"] is not None:
        return None
    states = {name: after_actions(store, stream, number, name) for name in fields}
    steps = len(next(iter(states.values())))
    labelled = about["labelled_by"] not in _JUDGES
    solved = bool(about["success"])
    last_T = np.arange(steps) == steps - 1
    none_T = np.zeros(steps, bool)
    by_person = labelled and solved
    return SessionEpisode(
        fields=states,
        positive_T=last_T if by_person else none_T,
        negative_T=none_T if by_person else ~none_T,
        by_classifier=about["ended_by"] == "classifier" and solved,
    )


def read_options(classifier: Path) -> TrainSuccessConfig:
    """Options with which the classifier in the folder was trained.

    Raises:
        HandoffError: there are none, as beside a classifier of an earlier build.
    """
    try:
        values = json.loads((classifier / OPTIONS).read_text())
    except FileNotFoundError:
        raise HandoffError(
            f"{classifier}: no {OPTIONS}, so the classifier cannot be trained further. Was it trained by an earlier "
            "build? Train it again."
        ) from None
    return validate(TrainSuccessConfig, values, OPTIONS)


class SuccessRefresh:
    """Trains version after version of a classifier.

    Args:
        config: options of the versions.
        options: options of the first training.
        initial: steps of the first training.
    """

    def __init__(
        self, config: RefreshConfig, options: TrainSuccessConfig, initial: LabelledSteps
    ) -> None:
        self.config = config
        self.options = options
        self.split = split_steps(initial, options)
        self._threads = options.training.threads
        self.initial = with_maps(initial, options.classifier, self._threads)
        self._episodes: dict[int, SessionEpisode | None] = {}
        """The session's episodes that were read, with feature maps."""

    def episodes(self, store: EpisodeStore, count: int) -> dict[int, SessionEpisode]:
        """The first `count` episodes of the session by number, without discarded ones."""
        classifier = self.options.classifier
        for number in range(len(self._episodes), count):
            episode = read_session_episode(store, classifier.stream, number, classifier.fields)
            if episode is not None:
                steps = with_maps(self._steps(episode, number), classifier, self._threads)
                episode = episode._replace(fields=steps.fields)
            self._episodes[number] = episode
        found = ((number, self._episodes[number]) for number in range(count))
        return {number: episode for number, episode in found if episode is not None}

    def train(
        self,
        previous: Path,
        number: int,
        store: EpisodeStore,
        count: int,
        work: Path,
        out: Path,
        progress: Progress,
    ) -> dict[str, float]:
        """Trains version `number` on the session's first `count` episodes, and writes it to `out`.

        Args:
            previous: folder of the version that training goes on from.
            number: number of the version, from 1; seeds its minibatches.
            store: episodes of the session.
            count: number of its episodes.
            work: folder of the training, which an interrupted one goes on from; removed at the end.
            out: folder of the classifier.
            progress: called after every update.

        Returns:
            `metrics` on held-out episodes of the classifier's own data.

        Raises:
            HandoffError: no threshold is precise enough; nothing is written then.
        """
        from policies.rewards.success_classifier import SuccessClassifier
        from policies.rewards.success_ensemble import SuccessEnsemble, pessimistic
        from policies.rewards.success_files import load_classifier, save_classifier

        model, card = load_classifier(previous)
        steps = self._training_steps(store, count)
        members = list(model.members) if isinstance(model, SuccessEnsemble) else [model]
        trained: list[SuccessClassifier] = []
        for place, member in enumerate(members):
            folder = work / f"member_{place}"
            folder.mkdir(parents=True, exist_ok=True)
            counted = member_progress(progress, place, len(members))
            one = replace(
                self.options,
                training=replace(self.config.training, seed=self._seed(number, place)),
                label_smoothing=self.config.label_smoothing,
                mixup=self.config.mixup,
                members=1,
            )
            initial = cast(SuccessClassifier, member)
            trained.append(fit_classifier(one, steps, folder, counted, initial=initial))
        refreshed = pessimistic(trained)
        shutil.rmtree(work)
        required = replace(
            self.options,
            precision=self.config.precision,
            lowest_threshold=self.config.lowest_threshold,
        )
        detector, report = choose_detector(refreshed, required, self.initial, self.split)
        about = replace(card, detector=detector, report=report, training_data=steps.digest())
        save_classifier(out, about, refreshed)
        return report

    def judge(
        self, classifier: Path, store: EpisodeStore, count: int
    ) -> list[tuple[int, int, bool]]:
        """Judges the episodes that a classifier ended as solved anew, by their last state: it must
        reach the release of the detector, as a step that follows a success does.

        The threshold would be too much to ask: an episode ends as soon as it is judged solved, so
        it has no state that is as clearly a success as those that a later version would wait for.

        Returns:
            Number of the episode in the store, its steps, and whether the classifier in the folder
            calls it solved as well, each for those among the first `count` episodes.
        """
        from policies.rewards.success_classifier import probabilities
        from policies.rewards.success_files import load_classifier

        model, card = load_classifier(classifier)
        judged = []
        for number, episode in self.episodes(store, count).items():
            if episode.by_classifier:
                probability = probabilities(model, episode.fields)
                solved = bool(probability[-1] >= card.detector.release)
                judged.append((number, len(probability), solved))
        return judged

    def _training_steps(self, store: EpisodeStore, count: int) -> LabelledSteps:
        """Training steps of the classifier's own data, and those of the session."""
        parts = [self.initial.rows(self.split.train)]
        for number, episode in self.episodes(store, count).items():
            used = episode.positive_T | episode.negative_T
            if self.config.judged == "left_out" and episode.by_classifier:
                used &= ~_judged_states(episode, self.options.detector)
            if used.any():
                parts.append(self._steps(episode, number).rows(used))
        return join_steps(parts)

    def _steps(self, episode: SessionEpisode, number: int) -> LabelledSteps:
        steps = len(episode.positive_T)
        return self.initial._replace(
            fields=episode.fields,
            success=episode.positive_T,
            episode=np.full(steps, number),
            by_policy=np.ones(steps, bool),
        )

    def _seed(self, number: int, place: int) -> int:
        key = [self.options.training.seed, number, place]
        return int(np.random.SeedSequence(key).generate_state(1)[0] & 0x7FFFFFFF)


def _judged_states(episode: SessionEpisode, detector: DetectorConfig) -> np.ndarray:
    """(T,) bool, the consecutive positive steps by which the detector ended the episode."""
    steps = len(episode.positive_T)
    return np.arange(steps) >= steps - detector.steps
