"""Detects success from a classifier's probabilities, and chooses and evaluates the threshold.

A false positive ends the episode with the full reward; therefore the threshold is chosen and
evaluated on held-out states visited by a policy, as states of demonstrations are too easy. NumPy
only, so that it runs on the robot's computer.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

from robots.config import Count, Hertz, Share, Whole, config, to_plain, validate
from robots.errors import HandoffError
from robots.proportions import clopper_pearson
from robots.spec import FieldSpec

SUCCESS_KEY = "handoff.success"
"""Metadata key of the contract's JSON inside the ONNX file."""


@config
class DetectorConfig:
    """Thresholds of the success detector. HIL-SERL (arXiv 2410.21845) has thresholds of 0.7 to
    0.85."""

    threshold: Share = 0.8
    """Smallest probability of the first positive step."""
    release: Share = 0.5
    """Smallest probability of a positive step that follows another one; at most `threshold`."""
    steps: Count = 2
    """Number of consecutive positive steps that count as success."""


@config
class SuccessContract:
    """Contract of an exported success classifier, stored in the ONNX file.

    The inputs of the graph have the names of the fields; its output is `probability` (B,).
    """

    version: Whole = 1
    """Version of the contract's layout; a reader refuses any other."""
    task: str
    """Name of the task whose success is detected."""
    rate_hz: Hertz
    """Steps per second of the episodes that it was trained on."""
    observation: dict[str, FieldSpec]
    """Fields of the input: images (unit u8) as uint8, all others as float32."""
    detector: DetectorConfig
    """Threshold, release and number of steps of the detector."""
    training_data: str
    """Digest of the labelled steps."""
    members: Count = 1
    """Number of classifiers in the graph, whose least probability is its output."""

    def to_json(self) -> str:
        """JSON of the contract; `from_json` reads it back."""
        return json.dumps(without_single_member(to_plain(self)))

    @classmethod
    def from_json(cls, text: str) -> SuccessContract:
        """Reads `to_json` back.

        Raises:
            HandoffError: not JSON, unknown or missing keys, or another version.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise HandoffError(
                f"success contract: not JSON ({error}). Was the file made by another tool?"
            ) from None
        contract = validate(cls, values, "success contract")
        if contract.version != 1:
            raise HandoffError(
                f"success contract: version {contract.version}, this build reads 1. Export it again."
            )
        return contract


def without_single_member(plain: dict[str, Any]) -> dict[str, Any]:
    """The values of a contract or card; those of a single classifier do not state `members`, so
    that builds without ensembles read them."""
    return {name: value for name, value in plain.items() if (name, value) != ("members", 1)}


class SuccessDetector:
    """Detects success in N robots' episodes, step by step, at most once per episode.

    A success is reported at the `steps`-th consecutive positive step, which is `steps - 1` control
    periods after the first.
    """

    def __init__(self, config: DetectorConfig, robots: int = 1) -> None:
        """Prepares the detection of N = `robots` episodes.

        Raises:
            HandoffError: thresholds or steps out of range.
        """
        if not 0.0 < config.release <= config.threshold <= 1.0 or config.steps < 1:
            raise HandoffError(
                f"success detector: release {config.release}, threshold {config.threshold}, steps {config.steps}; "
                "expected 0 < release <= threshold <= 1 and at least 1 step."
            )
        self.config = config
        self._count = np.zeros(robots, dtype=np.int64)
        self._detected = np.zeros(robots, dtype=bool)

    def reset(self, robots: np.ndarray | None = None) -> None:
        """Begins a new episode for the robots of the mask `robots` (N,) bool, or for all."""
        rows = slice(None) if robots is None else robots
        self._count[rows] = 0
        self._detected[rows] = False

    def update(self, probability: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
        """Processes one step.

        Args:
            probability: `(N,)` probabilities of success at this step.
            allowed: `(N,)` bool, a necessary condition such as "the gripper is open"; a step that
                does not meet it is negative.

        Returns:
            `(N,)` bool: success is detected at this step.

        Raises:
            HandoffError: wrong shape, or a value outside [0, 1].
        """
        probability = np.asarray(probability, dtype=np.float64)
        if probability.shape != self._count.shape:
            raise HandoffError(
                f"success detector: probabilities {probability.shape}, expected {self._count.shape}."
            )
        if not ((probability >= 0.0) & (probability <= 1.0)).all():
            raise HandoffError(
                f"success detector: probabilities {probability[:8]}, expected values in [0, 1]. Are these logits?"
            )
        threshold = np.where(self._count > 0, self.config.release, self.config.threshold)
        positive = probability >= threshold
        if allowed is not None:
            positive &= allowed
        self._count = np.where(positive, self._count + 1, 0)
        detected_now = (self._count >= self.config.steps) & ~self._detected
        self._detected |= detected_now
        return detected_now


def first_success(probability: np.ndarray, config: DetectorConfig) -> int | None:
    """The step at which the detector reports success in one recorded episode `(T,)`; None if it
    reports none."""
    detector = SuccessDetector(config)
    return next((t for t, p in enumerate(probability) if detector.update(np.array([p]))[0]), None)


def choose_threshold(
    probability: np.ndarray,
    success: np.ndarray,
    precision: float = 0.95,
    lowest: float = 0.5,
    success_share: float | None = None,
) -> float:
    """The threshold with the highest recall at the required precision, midway between two scores.

    Args:
        probability: `(M,)` scores of held-out steps; the negative steps should come from a policy.
        success: `(M,)` bool, the true labels.
        precision: required share of true successes among the accepted steps, below 1. It can only
            be estimated from at least 1 / (1 - precision) true positives, so as many are required.
        lowest: lower bound of the threshold.
        success_share: share of successes among the steps in deployment, on which precision depends;
            None takes the share among the given steps.

    Raises:
        HandoffError: one class is missing, there are too few successes for the precision, or no
            threshold reaches it.
    """
    probability, success = _checked(probability, success)
    min_positives = check_threshold_steps(success, precision, success_share)
    share = float(success.mean()) if success_share is None else success_share
    order = np.argsort(-probability, kind="stable")
    score = probability[order]
    # Precision if the first i + 1 steps are accepted, for every i.
    true_positives = np.cumsum(success[order])
    false_positives = np.cumsum(~success[order])
    true_rate = share * true_positives / true_positives[-1]
    false_rate = (1.0 - share) * false_positives / false_positives[-1]
    precisions = true_rate / (true_rate + false_rate)
    # A threshold cannot separate equal scores: only the last of them can be the last accepted.
    valid = np.append(score[1:] < score[:-1], True) & (score >= lowest)
    valid &= true_positives >= min_positives
    candidates = np.flatnonzero(valid & (precisions >= precision))
    if not len(candidates):
        best = f"{precisions[valid].max():.3f} at best" if valid.any() else "unknown"
        raise HandoffError(
            f"success threshold: precision is {best} with at least {min_positives} of {true_positives[-1]} successes "
            f"accepted and a threshold of at least {lowest}, required {precision}. Can the classifier "
            "observe what makes a success, and was it trained on such negatives?"
        )
    # The highest recall, and among equal ones the fewest accepted steps.
    recalled = true_positives[candidates]
    last = int(candidates[np.flatnonzero(recalled == recalled.max())[0]])
    below = score[last + 1] if last + 1 < len(score) else 0.0
    return max(lowest, float(score[last] + below) / 2.0)


def check_threshold_steps(
    success: np.ndarray, precision: float = 0.95, success_share: float | None = None
) -> int:
    """Checks that a threshold can be chosen on held-out steps, whatever their scores; see
    `choose_threshold`.

    Returns:
        Least number of true positives.

    Raises:
        HandoffError: one class is missing, or there are too few successes for the precision.
    """
    if success.all() or not success.any():
        raise HandoffError(
            f"success threshold: {int(success.sum())} successes of {len(success)} held-out steps, expected both "
            "successes and failures. Are there too few episodes to hold some out?"
        )
    share = float(success.mean()) if success_share is None else success_share
    if not 0.0 < share < 1.0 or not 0.0 < precision < 1.0:
        raise HandoffError(
            f"success threshold: precision {precision}, share of successes {share}; both must lie in (0, 1)."
        )
    min_positives = math.ceil(round(1.0 / (1.0 - precision), 6))
    if success.sum() < min_positives:
        raise HandoffError(
            f"success threshold: {int(success.sum())} successes are held out, a precision of {precision} can be "
            f"estimated from at least {min_positives}. Record more successes, or ask for less precision."
        )
    return min_positives


class Proportion(NamedTuple):
    """A proportion with its exact interval (Clopper-Pearson, 95 %). The interval is exact for
    episodes; for steps it is too narrow, because steps of one episode are correlated."""

    k: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """k / n; NaN if n is 0."""
        return self.k / self.n if self.n else float("nan")


class ThresholdReport(NamedTuple):
    """Metrics of a threshold on steps that were not used to choose it."""

    threshold: float
    precision: Proportion
    """Share of successes among the accepted steps."""
    recall: Proportion
    """Share of accepted steps among the successes."""
    false_positives: Proportion
    """Share of accepted steps among those that are no success."""
    false_episodes: Proportion
    """Share of episodes in which the detector reports success at a step that is none."""
    missed_episodes: Proportion
    """Share of episodes with `steps` consecutive successes in which the detector reports none."""


def report_threshold(
    probability: np.ndarray, success: np.ndarray, episode: np.ndarray, config: DetectorConfig
) -> ThresholdReport:
    """Evaluates `config` on held-out steps.

    Args:
        probability: `(M,)` scores, in temporal order within each episode.
        success: `(M,)` bool, the true labels.
        episode: `(M,)` number of the episode of each step.
        config: threshold and detector.
    """
    probability, success = _checked(probability, success)
    accepted = probability >= config.threshold
    true = int((accepted & success).sum())
    false = int((accepted & ~success).sum())
    numbers = np.unique(episode)
    wrong = missed = solved = 0
    for number in numbers:
        steps = episode == number
        truth = success[steps]
        detected = first_success(probability[steps], config)
        wrong += detected is not None and not truth[detected]
        lasting = _longest_run(truth) >= config.steps
        solved += lasting
        missed += lasting and detected is None
    return ThresholdReport(
        threshold=config.threshold,
        precision=proportion(true, true + false),
        recall=proportion(true, int(success.sum())),
        false_positives=proportion(false, int((~success).sum())),
        false_episodes=proportion(wrong, len(numbers)),
        missed_episodes=proportion(missed, solved),
    )


def proportion(k: int, n: int) -> Proportion:
    """k of n with its interval, which is [0, 1] if n is 0."""
    low, high = clopper_pearson(k, n) if n else (0.0, 1.0)
    return Proportion(int(k), int(n), low, high)


def _longest_run(truth: np.ndarray) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], truth.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _checked(probability: np.ndarray, success: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probability, success = (
        np.asarray(probability, dtype=np.float64),
        np.asarray(success, dtype=bool),
    )
    if (
        probability.ndim != 1
        or probability.shape != success.shape
        or not np.isfinite(probability).all()
    ):
        raise HandoffError(
            f"success threshold: probabilities {probability.shape} for labels {success.shape}, expected one label per "
            "probability, all finite."
        )
    return probability, success
