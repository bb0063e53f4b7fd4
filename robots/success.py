"""Turns success probabilities into the event that ends an episode: a threshold, its precision, and
a detector.

A false success ends the episode with the full reward, so the threshold is chosen and judged on
held-out states that a policy made: states of demonstrations are too easy. NumPy only, so that it
runs beside the robot.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from robots.config import config, to_plain, validate
from robots.errors import HandoffError
from robots.proportions import clopper_pearson
from robots.spec import FieldSpec

SUCCESS_KEY = "handoff.success"
"""Metadata key of the contract's JSON inside the ONNX file."""


@config
class DetectorConfig:
    """When a success is believed. HIL-SERL (arXiv 2410.21845) takes thresholds of 0.7 to 0.85."""

    threshold: float = 0.8
    """Probability from which a step counts."""
    release: float = 0.5
    """Once counting, a step goes on counting down to this probability; at most `threshold`."""
    steps: int = 2
    """Consecutive counting steps that make a success."""


@config
class SuccessContract:
    """All that a robot process must know to run an exported success classifier, carried inside the
    ONNX file.

    The graph's inputs are named like the fields; its output is `probability` (B,).
    """

    version: int = 1
    """Version of the contract's layout; a reader refuses any other."""
    task: str
    """Name of the task whose success is detected."""
    rate_hz: float
    """Steps per second of the episodes that it learned from."""
    observation: dict[str, FieldSpec]
    """Pictures (unit u8) as uint8, everything else as float32."""
    detector: DetectorConfig
    """Threshold, release and number of steps of the detector."""
    training_data: str
    """Digest of the labelled steps."""

    def to_json(self) -> str:
        """JSON, read back by `from_json`."""
        return json.dumps(to_plain(self))

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


class SuccessDetector:
    """Decides for N robots at once, step by step; one success per episode.

    A success is told at the `steps`-th counting step, so `steps - 1` control periods after the
    first.
    """

    def __init__(self, config: DetectorConfig, robots: int = 1) -> None:
        """At the start of an episode.

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
        self._told = np.zeros(robots, dtype=bool)

    def reset(self, robots: np.ndarray | None = None) -> None:
        """Begins a new episode for the robots of the mask `robots` (N,) bool, or for all."""
        chosen = slice(None) if robots is None else robots
        self._count[chosen], self._told[chosen] = 0, False

    def update(self, probability: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
        """Takes one step in.

        Args:
            probability: `(N,)` of success at this step.
            allowed: `(N,)` bool, a further condition such as "the hand is open"; a step without it
                does not count.

        Returns:
            `(N,)` bool: the success is told at this step; at no other step of the episode.

        Raises:
            HandoffError: wrong shape, or a value that is no probability.
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
        enough = np.where(self._count > 0, self.config.release, self.config.threshold)
        counts = probability >= enough
        if allowed is not None:
            counts &= allowed
        self._count = np.where(counts, self._count + 1, 0)
        event = (self._count >= self.config.steps) & ~self._told
        self._told |= event
        return event


def first_success(probability: np.ndarray, config: DetectorConfig) -> int | None:
    """The step at which the detector tells a success in one recorded episode `(T,)`; None if it
    never does."""
    detector = SuccessDetector(config)
    return next((t for t, p in enumerate(probability) if detector.update(np.array([p]))[0]), None)


def choose_threshold(
    probability: np.ndarray,
    success: np.ndarray,
    precision: float = 0.95,
    lowest: float = 0.5,
    success_share: float | None = None,
) -> float:
    """The threshold that finds most successes at the wanted precision; between two scores, the
    middle.

    Args:
        probability: `(M,)` of held-out steps; the negatives among them should come from a policy.
        success: `(M,)` bool, what they truly are.
        precision: wanted share of true successes among the accepted steps, below 1. Of fewer than 1
            / (1 - precision) successes it cannot be told, so at least as many must be found.
        lowest: the threshold is never below.
        success_share: of successes among the steps that the detector will see, on which precision
            depends; None takes the share among the steps given.

    Raises:
        HandoffError: one class is missing, or no threshold is that precise.
    """
    probability, success = _checked(probability, success)
    if success.all() or not success.any():
        raise HandoffError(
            f"success threshold: {int(success.sum())} successes of {len(success)} held-out steps, expected some of "
            "either kind. Are there too few episodes to hold some out?"
        )
    share = float(success.mean()) if success_share is None else success_share
    if not 0.0 < share < 1.0 or not 0.0 < precision < 1.0:
        raise HandoffError(
            f"success threshold: precision {precision}, share of successes {share}; both lie in (0, 1)."
        )
    order = np.argsort(-probability, kind="stable")
    score, found, wrong = probability[order], np.cumsum(success[order]), np.cumsum(~success[order])
    # A threshold cannot part equal scores: only the last of a run of them can be the last accepted.
    ends = np.append(score[1:] < score[:-1], True) & (score >= lowest)
    right = share * found / found[-1]
    reached = right / (right + (1.0 - share) * wrong / wrong[-1])
    least = math.ceil(round(1.0 / (1.0 - precision), 6))
    ends &= found >= least
    fit = np.flatnonzero(ends & (reached >= precision))
    if not len(fit):
        best = f"{reached[ends].max():.3f} at best" if ends.any() else "unknown"
        raise HandoffError(
            f"success threshold: precision is {best} where {least} of {found[-1]} successes or more are found from "
            f"{lowest} up, wanted {precision}. "
            "Does the classifier see what makes a success, and has it learned from such negatives?"
        )
    # Most successes found, then fewest steps accepted.
    last = int(fit[np.flatnonzero(found[fit] == found[fit].max())[0]])
    below = score[last + 1] if last + 1 < len(score) else 0.0
    return max(lowest, float(score[last] + below) / 2.0)


class Proportion(NamedTuple):
    """A share with its exact interval (Clopper-Pearson, 95 %). Steps of one episode resemble each
    other, so of steps the interval is narrower than the truth; of episodes it is exact."""

    k: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """k / n; NaN of nothing."""
        return self.k / self.n if self.n else float("nan")


class ThresholdReport(NamedTuple):
    """What a threshold is worth on steps that took no part in choosing it."""

    threshold: float
    precision: Proportion
    """Successes among the accepted steps."""
    recall: Proportion
    """Accepted among the successes."""
    false_positives: Proportion
    """Accepted among the steps that are no success."""
    false_episodes: Proportion
    """Episodes in which the detector tells a success at a step that is none."""
    missed_episodes: Proportion
    """Episodes with a success, long enough for the detector, in which it tells none."""


def report_threshold(
    probability: np.ndarray, success: np.ndarray, episode: np.ndarray, config: DetectorConfig
) -> ThresholdReport:
    """Judges `config` on held-out steps.

    Args:
        probability: `(M,)`, in the order of time within each episode.
        success: `(M,)` bool.
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
        told = first_success(probability[steps], config)
        wrong += told is not None and not truth[told]
        lasting = _longest_run(truth) >= config.steps
        solved += lasting
        missed += lasting and told is None
    return ThresholdReport(
        threshold=config.threshold,
        precision=rate(true, true + false),
        recall=rate(true, int(success.sum())),
        false_positives=rate(false, int((~success).sum())),
        false_episodes=rate(wrong, len(numbers)),
        missed_episodes=rate(missed, solved),
    )


def rate(k: int, n: int) -> Proportion:
    """k of n with its interval; of nothing, all is possible."""
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
            f"success threshold: probabilities {probability.shape} for labels {success.shape}, expected as many of "
            "either, all finite."
        )
    return probability, success
