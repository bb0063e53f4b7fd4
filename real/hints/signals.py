"""Computes signals of a likely failure, the larger the more likely, from what is measured at a
step.

The value and the disagreement of critics are the risk and the novelty of ThriftyDAgger (arXiv
2109.08273) and EnsembleDAgger (arXiv 1807.08364), with two differences: the ensemble is one of
critics, as the session has them, instead of policies, and the value is compared with that of a
moment ago instead of a constant, as its scale changes during the training. Both are relative to the
value itself: values and their spread are largest just before success, where nothing is wrong
(`docs/results/human_in_the_loop.md`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from real.hints.causes import HintCause
from real.hints.config import CorrectionHints, DeploymentHints
from robots.spec import FieldSpec

UNKNOWN = -1.0
"""Recorded value of a measure that a step does not have, such as before the first policy; measures
but the value are never negative, and the value is unknown where its spread is."""
SMALLEST_SIZE = 1e-6
"""Lower bound of what a relative signal is divided by, in the unit of the value."""
MEASURES = {
    "value": FieldSpec(
        shape=(), about="mean value of the proposed action by the critics", role="other"
    ),
    "value_spread": FieldSpec(
        shape=(),
        about="standard deviation of that value in the ensemble, -1 if not evaluated",
        role="other",
    ),
    "novelty": FieldSpec(
        shape=(),
        about="distance from the range of the training data in its widths, -1 unknown",
        role="other",
    ),
    "success_probability": FieldSpec(
        shape=(),
        about="by the success classifier before the step, -1 unknown",
        role="other",
    ),
    "action_spread": FieldSpec(
        shape=(),
        about="of sampled chunks, in widths of the actions in the training data, -1 unknown",
    ),
}
"""Fields that hints are based on, recorded with every step."""
HINT = "hint"
"""Field with the causes of the hint at a step."""


class Signal(Protocol):
    """A signal of one environment."""

    cause: HintCause
    quantile: float
    """Quantile of its largest values in solved episodes that is its limit."""
    reads: tuple[str, ...]
    """Names of the measures that it is computed from."""

    def begin(self) -> None:
        """The policy gets the arm, at the beginning of an episode or after a takeover."""
        ...

    def __call__(self, measures: Mapping[str, float], step: int) -> float | None:
        """The signal at a step of the policy; None if it is not known.

        Args:
            measures: measures of the step, without those that are unknown.
            step: number of the step in the episode, from 0.
        """
        ...


class MeasuredSignal:
    """A measure that is a signal as it is.

    Args:
        cause: what a large value means.
        quantile: see `Signal`.
        measure: name of the measure.
    """

    def __init__(self, cause: HintCause, quantile: float, measure: str) -> None:
        self.cause = cause
        self.quantile = quantile
        self.reads = (measure,)

    def begin(self) -> None:
        """See `Signal`; nothing to forget."""

    def __call__(self, measures: Mapping[str, float], step: int) -> float | None:
        """See `Signal`."""
        return measures.get(self.reads[0])


class Disagreement:
    """Standard deviation of the values in the ensemble, relative to their mean.

    Args:
        quantile: see `Signal`.
    """

    cause = HintCause.DISAGREEMENT
    reads: tuple[str, ...] = ("value", "value_spread")

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile

    def begin(self) -> None:
        """See `Signal`; nothing to forget."""

    def __call__(self, measures: Mapping[str, float], step: int) -> float | None:
        """See `Signal` [share of the sum of spread and size of the value]."""
        if "value" not in measures:
            return None
        return measures["value_spread"] / _size(measures["value"], measures["value_spread"])


class ValueDrop:
    """Fall of the value from its largest in the last steps, relative to that.

    Args:
        quantile: see `Signal`.
        steps: steps that are compared, including the present one.
    """

    cause = HintCause.VALUE_DROP
    reads: tuple[str, ...] = ("value", "value_spread")

    def __init__(self, quantile: float, steps: int) -> None:
        self.quantile = quantile
        self._values: deque[float] = deque(maxlen=max(2, steps))

    def begin(self) -> None:
        """See `Signal`; a person's motion changes the value, so what was before does not count."""
        self._values.clear()

    def __call__(self, measures: Mapping[str, float], step: int) -> float | None:
        """See `Signal` [share of the sum of the present spread and the size of the largest
        value]."""
        if "value" not in measures:
            return None
        self._values.append(measures["value"])
        largest = max(self._values)
        return (largest - measures["value"]) / _size(largest, measures["value_spread"])


def _size(value: float, spread: float) -> float:
    """Size of a value, at least that of the uncertainty about it, and more than nothing."""
    return max(abs(value) + spread, SMALLEST_SIZE)


class LateSuccess:
    """Time of the episode while the success classifier sees no success.

    Args:
        quantile: see `Signal`.
        rate_hz: steps per second.
        threshold: probability from which on success is in sight.
    """

    cause = HintCause.NO_SUCCESS
    reads: tuple[str, ...] = ("success_probability",)

    def __init__(self, quantile: float, rate_hz: float, threshold: float) -> None:
        self.quantile = quantile
        self._rate_hz = rate_hz
        self._threshold = threshold

    def begin(self) -> None:
        """See `Signal`; nothing to forget."""

    def __call__(self, measures: Mapping[str, float], step: int) -> float | None:
        """See `Signal` [s]."""
        probability = measures.get("success_probability")
        if probability is None:
            return None
        return 0.0 if probability >= self._threshold else step / self._rate_hz


def correction_signals(
    config: CorrectionHints, rate_hz: float, threshold: float | None
) -> list[Signal]:
    """Signals of a correction session.

    Args:
        config: sources.
        rate_hz: steps per second.
        threshold: threshold of the success classifier; None without one.
    """
    signals: list[Signal] = []
    if config.value is not None:
        steps = round(config.value.seconds * rate_hz) + 1
        signals.append(ValueDrop(config.value.quantile, steps))
    if config.disagreement is not None:
        signals.append(Disagreement(config.disagreement.quantile))
    if config.novelty is not None:
        signals.append(MeasuredSignal(HintCause.NOVELTY, config.novelty.quantile, "novelty"))
    if config.success is not None and threshold is not None:
        signals.append(LateSuccess(config.success.quantile, rate_hz, threshold))
    return signals


def deployment_signals(config: DeploymentHints) -> list[Signal]:
    """Signals of a session with an exported policy."""
    signals: list[Signal] = []
    if config.spread is not None:
        quantile = config.spread.quantile
        signals.append(MeasuredSignal(HintCause.ACTION_SPREAD, quantile, "action_spread"))
    if config.novelty is not None:
        signals.append(MeasuredSignal(HintCause.NOVELTY, config.novelty.quantile, "novelty"))
    return signals


def hint_fields(signals: list[Signal]) -> dict[str, FieldSpec]:
    """Fields of a step that are recorded: the hint, and the measures of the signals."""
    causes = ", ".join(f"{cause.value} {cause.name.lower()}" for cause in HintCause if cause.name)
    names = dict.fromkeys(name for signal in signals for name in signal.reads)
    about = f"sum of the causes of a hint: {causes}"
    hint = FieldSpec(shape=(), dtype="uint8", about=about, role="other")
    return {HINT: hint, **{name: MEASURES[name] for name in names}} if signals else {}
