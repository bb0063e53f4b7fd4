"""Trains a success classifier on labelled steps: data, training, threshold (SERL, arXiv 2401.16013;
HIL-SERL, 2410.21845).

This follows HIL-SERL's classifier: binary cross-entropy, batches with equally many successes and
failures, dropout, one logit. HIL-SERL freezes a pretrained ResNet-10; here a small encoder is
trained with the classifier, unless one is passed or a frozen trunk is configured. HIL-SERL has a
fixed threshold; here it is chosen for a required precision on held-out steps, whose negatives come
from a policy: a false success ends an episode with the full reward, and failures in demonstrations
are too easy. The threshold is then evaluated on further episodes that were used for neither
training nor the choice.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.rewards.config import ClassifierConfig, SuccessCard, TrainSuccessConfig
from policies.rewards.labelled_steps import LabelledSteps, StepSplit, split_steps
from policies.training.members import member_folder, member_progress, member_seed
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.storage.durable import write_atomically
from robots.success import (
    DetectorConfig,
    ThresholdReport,
    check_threshold_steps,
    choose_threshold,
    report_threshold,
)

if TYPE_CHECKING:
    from torch import nn

    from policies.rewards.success_classifier import SuccessClassifier
    from policies.rewards.success_ensemble import SuccessModel
    from policies.training.loop import Objective

OPTIONS = "success_options.json"
"""Options of the training, for one that goes on from it."""


def train_success(
    config: TrainSuccessConfig,
    steps: LabelledSteps,
    out: Path,
    progress: Progress,
    encoders: Mapping[str, nn.Module] | None = None,
) -> dict[str, float]:
    """Trains a classifier, chooses its threshold and writes both to `out`; an interrupted run is
    resumed from its checkpoint there.

    Args:
        config: options of classifier, training and threshold.
        steps: steps of demonstrations and of a policy.
        out: directory of the classifier and its loss curve.
        progress: called after every update.
        encoders: per image a module from `(B, 3, H, W)` in [0, 1] to `(B, F)`, instead of a new
            small one; frozen if its parameters require no gradient.

    Returns:
        `metrics` on the held-out episodes of the policy.

    Raises:
        HandoffError: too few episodes, one class missing, no threshold is precise enough, a loss
            that is not finite, or a full disk.
    """
    from policies.rewards.success_files import save_classifier
    from policies.training.loop import STATE

    # Train. A frozen trunk encodes every image once.
    split = check_labels(config, steps)
    data_digest = steps.digest()
    steps = with_maps(steps, config.classifier, config.training.threads, encoders)
    classifier = fit_members(config, steps.rows(split.train), out, progress, encoders)
    detector, report = choose_detector(classifier, config, steps, split)
    # Save the classifier.
    card = SuccessCard(
        task=steps.task,
        rate_hz=steps.rate_hz,
        observation=steps.observation,
        model=config.classifier,
        foreign_encoders=tuple(sorted(encoders or ())),
        members=config.members,
        detector=detector,
        report=report,
        training_data=data_digest,
    )
    write_atomically(out / OPTIONS, json.dumps(to_plain(config), indent=2).encode())
    save_classifier(out, card, classifier)
    (out / STATE).unlink()
    for number in range(1, config.members):
        shutil.rmtree(member_folder(out, number))
    return card.report


def check_labels(config: TrainSuccessConfig, steps: LabelledSteps) -> StepSplit:
    """Checks by the labels alone, whatever the fields, that a threshold can be chosen; before
    anything is trained.

    Returns:
        The split of the steps.

    Raises:
        HandoffError: too few episodes or successes are held out, or one class is missing there.
    """
    split = split_steps(steps, config)
    success = steps.success[_of_threshold(config, steps, split)]
    check_threshold_steps(success, config.precision, config.success_share)
    return split


def choose_detector(
    classifier: SuccessModel, config: TrainSuccessConfig, steps: LabelledSteps, split: StepSplit
) -> tuple[DetectorConfig, dict[str, float]]:
    """Chooses the threshold of a classifier on held-out steps, and evaluates it on others.

    Returns:
        The detector, and its `metrics` on the held-out episodes of the policy.

    Raises:
        HandoffError: no threshold is precise enough.
    """
    from policies.rewards.success_classifier import probabilities
    from policies.training.loop import torch_threads

    threshold_steps, evaluation_steps = (
        steps.rows(_of_threshold(config, steps, split)),
        steps.rows(split.evaluation & steps.by_policy),
    )
    with torch_threads(config.training.threads):
        scores = [
            probabilities(classifier, part.fields) for part in (threshold_steps, evaluation_steps)
        ]
    threshold = choose_threshold(
        scores[0],
        threshold_steps.success,
        config.precision,
        config.lowest_threshold,
        config.success_share,
    )
    detector = with_threshold(config.detector, threshold)
    report = report_threshold(
        scores[1], evaluation_steps.success, evaluation_steps.episode, detector
    )
    return detector, metrics(report)


def fit_members(
    config: TrainSuccessConfig,
    steps: LabelledSteps,
    out: Path,
    progress: Progress,
    encoders: Mapping[str, nn.Module] | None = None,
) -> SuccessModel:
    """Trains `config.members` classifiers, one after the other; the arguments are those of
    `train_success`. The first is the one of a single member, with its files in `out`; the others
    have a folder each.

    Returns:
        The classifier, or the ensemble, in evaluation mode.
    """
    from policies.rewards.success_ensemble import pessimistic

    given = [encoders, *(copy.deepcopy(encoders) for _ in range(1, config.members))]
    members: list[SuccessClassifier] = []
    for number, own in enumerate(given):
        training = replace(config.training, seed=member_seed(config.training.seed, number))
        counted = member_progress(progress, number, config.members)
        folder = member_folder(out, number)
        folder.mkdir(exist_ok=True)
        one = replace(config, members=1, training=training)
        members.append(fit_classifier(one, steps, folder, counted, own))
    return pessimistic(members)


def fit_classifier(
    config: TrainSuccessConfig,
    steps: LabelledSteps,
    out: Path,
    progress: Progress,
    encoders: Mapping[str, nn.Module] | None = None,
    initial: SuccessClassifier | None = None,
) -> SuccessClassifier:
    """Trains on all of `steps`, without choosing a threshold; the arguments are those of
    `train_success`. `initial` is a classifier that is trained further, in place, with the
    normalisation that it has; None begins with new weights.

    Returns:
        The classifier with averaged weights, in evaluation mode. The training state stays in `out`,
        so that a second call returns immediately.
    """
    from policies.rewards.success_classifier import (
        SuccessClassifier,
        TrunkImageEncoder,
        digest_weights,
        seeded,
    )
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
        if initial is None:
            with seeded(training.seed):
                classifier = SuccessClassifier(steps.observation, config.classifier, encoders)
            for encoder in classifier.encoders.values():
                if isinstance(encoder, TrunkImageEncoder):
                    encoder.load_pretrained()
            classifier.fit(steps.fields)
        else:
            classifier = initial
        # The identity excludes the options of the threshold, which do not affect training.
        identity_config = TrainSuccessConfig(
            classifier=config.classifier,
            training=training,
            label_smoothing=config.label_smoothing,
            mixup=config.mixup,
        )
        identity = job_identity(
            identity_config, f"{steps.digest()} {digest_weights(classifier)}", precision, device
        )
        objective = classification_loss(classifier.to(device), steps, config, precision)
        trained = train(training, classifier.train(), objective, identity, out, progress)
        classifier.load_state_dict(trained.average)
    return classifier.eval()


def with_maps(
    steps: LabelledSteps,
    config: ClassifierConfig,
    threads: int,
    encoders: Mapping[str, nn.Module] | None = None,
) -> LabelledSteps:
    """The steps with the feature maps of a frozen trunk in place of the images that it encodes;
    unchanged without a trunk.

    Args:
        steps: labelled steps with images.
        config: options of the classifier.
        threads: number of torch's CPU threads.
        encoders: encoders of images that the trunk does not encode.
    """
    from policies.rewards.success_classifier import TrunkImageEncoder
    from policies.training.loop import torch_threads

    if config.trunk is None:
        return steps
    fields = dict(steps.fields)
    for name, spec in steps.observation.items():
        if spec.unit != "u8" or name in (encoders or {}) or len(spec.shape) != 3:
            continue
        height, width, _ = spec.shape
        encoder = TrunkImageEncoder(config.trunk, height, width, config.embeddings)
        encoder.load_pretrained()
        with torch_threads(threads):
            fields[name] = encoder.maps(fields[name])
    return steps._replace(fields=fields)


def with_threshold(detector: DetectorConfig, threshold: float) -> DetectorConfig:
    """The detector with another threshold, and the release lowered to it if it is higher."""
    return DetectorConfig(
        threshold=threshold, release=min(detector.release, threshold), steps=detector.steps
    )


def metrics(report: ThresholdReport) -> dict[str, float]:
    """Flattens a report: per rate its value with `_low`, `_high` and `_n`; rates with `_n` of 0
    have no value."""
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
    """Binary cross-entropy of batches that are half successes and half failures, drawn from the
    stream of the update, with the label smoothing and mixup of the options.

    Raises:
        HandoffError: one class is missing.
    """
    import torch

    from policies.rewards.success_classifier import seeded, shifted_images, to_tensors
    from policies.training.loop import autocast, rng, without_data

    training = config.training
    classes = [np.flatnonzero(steps.success), np.flatnonzero(~steps.success)]
    if not len(classes[0]) or not len(classes[1]):
        raise HandoffError(
            f"success classifier: {len(classes[0])} successes and {len(classes[1])} failures for training, expected "
            f"some of each. Does '{config.classifier.label_field}' exceed 1/2 where the task is solved?"
        )
    half = training.batch_size // 2
    device = next(classifier.parameters()).device
    smoothing, mixup = config.label_smoothing, config.mixup
    target_B = torch.cat([torch.ones(half), torch.zeros(half)]).to(device)
    target_B = target_B * (1.0 - smoothing) + 0.5 * smoothing

    shifted = [name for name in classifier.images if steps.fields[name].dtype == np.uint8]

    def loss(number: int) -> torch.Tensor:
        generator = rng(training.seed, number)
        rows = np.concatenate(
            [indices[generator.integers(len(indices), size=half)] for indices in classes]
        )
        batch: dict[str, Any] = {name: values[rows] for name, values in steps.fields.items()}
        for name in shifted:
            batch[name] = shifted_images(batch[name], config.classifier.shift, generator)
        goal_B = target_B
        if mixup > 0.0:
            share, order = generator.beta(mixup, mixup), generator.permutation(2 * half)
            batch = {name: _mixed(values, order, share) for name, values in batch.items()}
            goal_B = share * target_B + (1.0 - share) * target_B[torch.from_numpy(order)]
        # Dropout uses torch's global random state, which must be a function of the update as well.
        with seeded(int(generator.integers(2**62)), device), autocast(precision, device):
            logit_B = classifier(to_tensors(batch, device))
        return torch.nn.functional.binary_cross_entropy_with_logits(logit_B.float(), goal_B)

    return without_data(loss)


def _of_threshold(config: TrainSuccessConfig, steps: LabelledSteps, split: StepSplit) -> np.ndarray:
    """Mask (M,) of the steps by which the threshold is chosen. Successes of demonstrations may be
    among them; their failures are too easy."""
    demonstrated_success = steps.success & (config.success_share is not None)
    return split.threshold & (steps.by_policy | demonstrated_success)


def _mixed(values: np.ndarray, order: np.ndarray, share: float) -> np.ndarray:
    """`share` of each row, and the rest of the row that takes its place in `order` (mixup, arXiv
    1710.09412)."""
    rows = values.astype(np.float32)
    return np.float32(share) * rows + np.float32(1.0 - share) * rows[order]
