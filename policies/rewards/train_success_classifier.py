"""Success classifier from labelled steps: data, training, threshold (SERL, arXiv 2401.16013;
HIL-SERL, 2410.21845).

Followed is HIL-SERL's classifier: binary cross-entropy, batches of as many successes as failures,
dropout, one logit. It freezes a pretrained ResNet-10; here a small encoder learns along, unless
another is handed in. It also writes a threshold down, which here is chosen for a wanted precision,
on held-out steps whose negatives come from a policy: a false success ends the episode with the full
reward, and states of demonstrations are too easy. The chosen threshold is then judged on further
episodes that neither training nor choice has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from policies.rewards.config import ClassifierConfig, SuccessCard, TrainSuccessConfig
from robots.config import to_plain
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.spec import FieldSpec
from robots.success import DetectorConfig, ThresholdReport, choose_threshold, report_threshold

if TYPE_CHECKING:
    from torch import nn

    from policies.rewards.success_classifier import SuccessClassifier
    from policies.training.loop import Objective


class LabelledSteps(NamedTuple):
    """M steps in memory, those of an episode together and in order of time."""

    fields: dict[str, np.ndarray]
    """(M, ...) each."""
    success: np.ndarray
    """(M,) bool."""
    episode: np.ndarray
    """(M,) int."""
    by_policy: np.ndarray
    """(M,) bool: of an episode that a policy made, not a demonstration."""
    task: str
    rate_hz: float
    observation: dict[str, FieldSpec]

    def rows(self, chosen: np.ndarray) -> LabelledSteps:
        """Only the steps of the mask or index `chosen`."""
        return self._replace(
            fields={name: values[chosen] for name, values in self.fields.items()},
            success=self.success[chosen],
            episode=self.episode[chosen],
            by_policy=self.by_policy[chosen],
        )

    def digest(self) -> str:
        """Hex sha256 of all of it."""
        digest = hashlib.sha256(repr((self.task, self.rate_hz, self.observation)).encode())
        for values in (*self.fields.values(), self.success, self.episode, self.by_policy):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


class StepSplit(NamedTuple):
    """Masks (M,) of the steps for learning, for choosing the threshold, for judging it; no episode
    is in two."""

    learn: np.ndarray
    choose: np.ndarray
    judge: np.ndarray


def read_labelled_steps(path: Path, config: ClassifierConfig, by_policy: bool) -> LabelledSteps:
    """Reads the store at `path`; the first `label_lead` steps of every episode have no label and
    are left out.

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
    """Several of the same task and fields as one, the episodes numbered anew.

    Raises:
        HandoffError: none, or of different tasks or fields.
    """
    if not parts or any(_kind(part) != _kind(parts[0]) for part in parts):
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
    """Splits by episode, demonstrations and a policy's episodes each in the same proportions.

    Raises:
        HandoffError: fractions out of range, or a part that would have no episode of a policy.
    """
    fractions = (config.choice_fraction, config.judge_fraction)
    if min(fractions) <= 0.0 or sum(fractions) >= 1.0:
        raise HandoffError(
            f"success classifier: held-out fractions {fractions}, expected positive, below 1 together."
        )
    chosen, judged = (
        np.zeros(len(steps.success), dtype=bool),
        np.zeros(len(steps.success), dtype=bool),
    )
    rng = np.random.default_rng(config.training.seed)
    for by_policy in (False, True):
        episodes = rng.permutation(np.unique(steps.episode[steps.by_policy == by_policy]))
        first, second = (round(fraction * len(episodes)) for fraction in fractions)
        if by_policy and min(first, second, len(episodes) - first - second) < 1:
            raise HandoffError(
                f"success classifier: {len(episodes)} episodes of a policy, too few to learn from, to choose the "
                f"threshold on ({first}) and to judge it on ({second}). Were only demonstrations handed in?"
            )
        chosen |= np.isin(steps.episode, episodes[:first])
        judged |= np.isin(steps.episode, episodes[first : first + second])
    return StepSplit(~chosen & ~judged, chosen, judged)


def train_success(
    config: TrainSuccessConfig,
    steps: LabelledSteps,
    out: Path,
    progress: Progress,
    encoders: Mapping[str, nn.Module] | None = None,
) -> dict[str, float]:
    """Trains a classifier, chooses its threshold and writes both to `out`; goes on from what a
    killed run left there.

    Args:
        config: what and how.
        steps: of demonstrations and of a policy.
        out: directory of the classifier; also keeps its loss curve.
        progress: told every update.
        encoders: per picture a module from `(B, 3, H, W)` in [0, 1] to `(B, F)`, in place of a new
            small one; frozen where its parameters need no gradient.

    Returns:
        `metrics` of the held-out episodes of the policy.

    Raises:
        HandoffError: too few episodes, one class missing, no threshold is precise enough, a loss
            that is not finite, or a full disk.
    """
    from policies.rewards.success_classifier import probabilities, save_classifier
    from policies.training.loop import STATE, torch_threads

    split = split_steps(steps, config)
    classifier = fit_classifier(config, steps.rows(split.learn), out, progress, encoders)
    # Demonstrations may lend successes to the choice, never failures: theirs are too easy.
    lent = steps.success & (config.success_share is not None)
    choose, judge = (
        steps.rows(split.choose & (steps.by_policy | lent)),
        steps.rows(split.judge & steps.by_policy),
    )
    with torch_threads(config.training.threads):
        scores = [probabilities(classifier, part.fields) for part in (choose, judge)]
    threshold = choose_threshold(
        scores[0], choose.success, config.precision, config.lowest_threshold, config.success_share
    )
    detector = with_threshold(config.detector, threshold)
    report = report_threshold(scores[1], judge.success, judge.episode, detector)
    card = SuccessCard(
        task=steps.task,
        rate_hz=steps.rate_hz,
        observation=steps.observation,
        model=config.classifier,
        foreign_encoders=tuple(sorted(encoders or ())),
        detector=detector,
        report=metrics(report),
        training_data=steps.digest(),
    )
    save_classifier(out, card, classifier)
    (out / STATE).unlink()
    return card.report


def fit_classifier(
    config: TrainSuccessConfig,
    steps: LabelledSteps,
    out: Path,
    progress: Progress,
    encoders: Mapping[str, nn.Module] | None = None,
) -> SuccessClassifier:
    """Learns from all of `steps`, with no threshold; the arguments are those of `train_success`.

    Returns:
        The classifier with averaged weights, in evaluation mode. Its state stays in `out`, so that
        a second call ends at once.
    """
    from policies.rewards.success_classifier import SuccessClassifier, digest_weights, seeded
    from policies.training.distributed import check_single_process
    from policies.training.loop import (
        job_identity,
        resolve_device,
        resolve_precision,
        torch_threads,
        train,
    )

    check_single_process("success classifier")
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    with torch_threads(training.threads):
        with seeded(training.seed):
            classifier = SuccessClassifier(steps.observation, config.classifier, encoders)
        classifier.fit(steps.fields)
        # Whatever threshold is wanted later, it is the same learning.
        job = TrainSuccessConfig(classifier=config.classifier, training=training)
        identity = job_identity(
            job, f"{steps.digest()} {digest_weights(classifier)}", precision, device
        )
        objective = classification_loss(classifier.to(device), steps, config, precision)
        trained = train(training, classifier.train(), objective, identity, out, progress)
        classifier.load_state_dict(trained.average)
    return classifier.eval()


def with_threshold(detector: DetectorConfig, threshold: float) -> DetectorConfig:
    """The detector with another threshold, and a release not above it."""
    return DetectorConfig(
        threshold=threshold, release=min(detector.release, threshold), steps=detector.steps
    )


def metrics(report: ThresholdReport) -> dict[str, float]:
    """Flat figures: per rate its share with `_low`, `_high` and `_n`; a share of nothing is left
    out."""
    flat: dict[str, float] = {"threshold": report.threshold}
    for name in ("precision", "recall", "false_positives", "false_episodes", "missed_episodes"):
        rate = getattr(report, name)
        if rate.n:
            flat |= {name: rate.share, f"{name}_low": rate.low, f"{name}_high": rate.high}
        flat[f"{name}_n"] = rate.n
    return flat


def classification_loss(
    classifier: SuccessClassifier, steps: LabelledSteps, config: TrainSuccessConfig, precision: str
) -> Objective[None]:
    """Binary cross-entropy of batches that are half successes, half failures, drawn by the number
    of the update.

    Raises:
        HandoffError: one class is missing.
    """
    import torch

    from policies.rewards.success_classifier import seeded, shifted_pictures, to_tensors
    from policies.training.loop import autocast, rng, without_data

    training = config.training
    kinds = [np.flatnonzero(steps.success), np.flatnonzero(~steps.success)]
    if not len(kinds[0]) or not len(kinds[1]):
        raise HandoffError(
            f"success classifier: {len(kinds[0])} successes and {len(kinds[1])} failures to learn from, expected some "
            f"of either. Does '{config.classifier.label_field}' exceed 1/2 where the task is solved?"
        )
    half = training.batch_size // 2
    device = next(classifier.parameters()).device
    target_B = torch.cat([torch.ones(half), torch.zeros(half)]).to(device)

    def loss(number: int) -> torch.Tensor:
        draw = rng(training.seed, number)
        chosen = np.concatenate([kind[draw.integers(len(kind), size=half)] for kind in kinds])
        batch: dict[str, Any] = {name: values[chosen] for name, values in steps.fields.items()}
        for name in classifier.pictures:
            batch[name] = shifted_pictures(batch[name], config.classifier.shift, draw)
        # Dropout draws from torch's own stream, which therefore has to be a function of the update
        # as well.
        with seeded(int(draw.integers(2**62)), device), autocast(precision, device):
            logit_B = classifier(to_tensors(batch, device))
        return torch.nn.functional.binary_cross_entropy_with_logits(logit_B.float(), target_B)

    return without_data(loss)


def _kind(steps: LabelledSteps) -> tuple[Any, ...]:
    return (
        steps.task,
        steps.rate_hz,
        {name: to_plain(spec) for name, spec in steps.observation.items()},
    )
