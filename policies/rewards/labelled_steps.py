"""Reads the labelled steps that a success classifier learns from, and splits them by episode."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from robots.config import to_plain
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec


class LabelledSteps(NamedTuple):
    """M labelled steps in memory, grouped by episode in temporal order."""

    fields: dict[str, np.ndarray]
    """Input fields, (M, ...) each."""
    success: np.ndarray
    """Success labels (M,), bool."""
    episode: np.ndarray
    """Episode number of every step (M,), int."""
    by_policy: np.ndarray
    """Whether a step is from an episode of a policy, not of a demonstration (M,), bool."""
    task: str
    rate_hz: float
    observation: dict[str, FieldSpec]

    def rows(self, selection: np.ndarray) -> LabelledSteps:
        """The steps selected by a mask or indices."""
        return self._replace(
            fields={name: values[selection] for name, values in self.fields.items()},
            success=self.success[selection],
            episode=self.episode[selection],
            by_policy=self.by_policy[selection],
        )

    def digest(self) -> str:
        """Digest (hex sha256) of the steps."""
        digest = hashlib.sha256(repr((self.task, self.rate_hz, self.observation)).encode())
        for values in (*self.fields.values(), self.success, self.episode, self.by_policy):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


class StepSplit(NamedTuple):
    """Masks (M,) of the steps for training, for choosing the threshold and for evaluating it; no
    episode is in two of them."""

    train: np.ndarray
    threshold: np.ndarray
    evaluation: np.ndarray


def read_labelled_steps(path: Path, config: ClassifierConfig, by_policy: bool) -> LabelledSteps:
    """Reads the store at `path` without the first `label_lead` steps of every episode, which have
    no label.

    Raises:
        HandoffError: no store, a missing stream or field, no episode, or a value that is not
            finite.
    """
    store = EpisodeStore.open(path)
    stream = store.schema.stream(config.stream)
    missing = [name for name in (*config.fields, config.label_field) if name not in stream.fields]
    if missing or not config.fields or not store.num_episodes:
        raise HandoffError(
            f"{path}: {store.num_episodes} episodes, fields {missing} missing of {config.fields} and label "
            f"'{config.label_field}'; stream '{config.stream}' has {sorted(stream.fields)}."
        )
    ends = store.ends(config.stream)
    lengths = np.diff(ends, prepend=0)
    step = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    labelled = np.flatnonzero(step >= config.label_lead)
    label = store.column(config.stream, config.label_field).reshape(ends[-1], -1)[:, 0]
    fields = {}
    for name in config.fields:
        fields[name] = store.column(config.stream, name)[labelled]
        if not np.isfinite(fields[name]).all():
            raise HandoffError(
                f"{path}: field '{name}' is not finite everywhere. Was a sensor lost?"
            )
    return LabelledSteps(
        fields=fields,
        success=label[labelled - config.label_lead] > 0.5,
        episode=np.repeat(np.arange(len(ends)), lengths)[labelled],
        by_policy=np.full(len(labelled), by_policy),
        task=store.schema.name,
        rate_hz=stream.rate_hz,
        observation={name: stream.fields[name] for name in config.fields},
    )


def join_steps(parts: Sequence[LabelledSteps]) -> LabelledSteps:
    """Concatenates labelled steps of the same task and fields; the episodes are renumbered.

    Raises:
        HandoffError: no parts, or different tasks, rates or fields.
    """
    if not parts or any(_signature(part) != _signature(parts[0]) for part in parts):
        raise HandoffError(
            f"labelled steps: {len(parts)} parts of {[part.task for part in parts]}, expected at least one, all with "
            "the same task, rate and fields."
        )
    numbers, first = [], 0
    for part in parts:
        _, number = np.unique(part.episode, return_inverse=True)
        numbers.append(number + first)
        first += int(number.max(initial=-1)) + 1
    return parts[0]._replace(
        fields={
            name: np.concatenate([part.fields[name] for part in parts]) for name in parts[0].fields
        },
        success=np.concatenate([part.success for part in parts]),
        episode=np.concatenate(numbers),
        by_policy=np.concatenate([part.by_policy for part in parts]),
    )


def split_steps(steps: LabelledSteps, config: TrainSuccessConfig) -> StepSplit:
    """Splits by episode, with the same fractions for demonstrations and for a policy's episodes.

    Raises:
        HandoffError: fractions out of range, or a split without an episode of a policy.
    """
    fractions = (config.choice_fraction, config.judge_fraction)
    if min(fractions) <= 0.0 or sum(fractions) >= 1.0:
        raise HandoffError(
            f"success classifier: held-out fractions {fractions}, expected positive ones with a sum below 1."
        )
    threshold, evaluation = (
        np.zeros(len(steps.success), dtype=bool),
        np.zeros(len(steps.success), dtype=bool),
    )
    rng = np.random.default_rng(config.training.seed)
    for by_policy in (False, True):
        episodes = rng.permutation(np.unique(steps.episode[steps.by_policy == by_policy]))
        first, second = (round(fraction * len(episodes)) for fraction in fractions)
        if by_policy and min(first, second, len(episodes) - first - second) < 1:
            raise HandoffError(
                f"success classifier: {len(episodes)} episodes of a policy, too few for training, for choosing the "
                f"threshold ({first}) and for evaluating it ({second}). Were only demonstrations given?"
            )
        threshold |= np.isin(steps.episode, episodes[:first])
        evaluation |= np.isin(steps.episode, episodes[first : first + second])
    return StepSplit(~threshold & ~evaluation, threshold, evaluation)


def _signature(steps: LabelledSteps) -> tuple[Any, ...]:
    return (
        steps.task,
        steps.rate_hz,
        {name: to_plain(spec) for name, spec in steps.observation.items()},
    )
