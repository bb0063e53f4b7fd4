"""Sets the limits of signals by recent solved episodes, and gives the hints of the running one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from real.hints.causes import HintCause
from real.hints.config import HintConfig
from real.hints.signals import HINT, UNKNOWN, Signal


class HintMonitor:
    """Hints in one environment.

    A limit is a quantile, over the recent solved episodes, of a signal's largest value while the
    policy brought the episode to its success by itself: from the last takeover on. Episodes that
    the person solved set no limit.

    Args:
        config: number of episodes, and time for which a hint is shown.
        signals: signals of the environment.
        rate_hz: steps per second.
    """

    def __init__(self, config: HintConfig, signals: Sequence[Signal], rate_hz: float) -> None:
        self._config = config
        self._signals = list(signals)
        self._shown_steps = max(1, round(config.seconds * rate_hz))
        self._solved: dict[HintCause, deque[float]] = {
            signal.cause: deque(maxlen=config.recent) for signal in signals
        }
        self._limits: dict[HintCause, float] = {}
        self._begin_episode()

    @property
    def limits(self) -> dict[str, float]:
        """Limits by cause, in the unit of each signal; without those that are not known yet."""
        return {str(cause.name).lower(): limit for cause, limit in self._limits.items()}

    def step(self, measures: Mapping[str, float], *, person: bool) -> HintCause:
        """Takes a step, before it is executed; returns the causes of the hint that is shown.

        Args:
            measures: measures of the proposed action by name (`real.hints.signals.MEASURES`);
                unknown ones are left out.
            person: whether the person acts at the step, who needs no hint.
        """
        step = self._step
        self._step += 1
        if person:
            self._policy_acts = False
            return HintCause.NONE
        if not self._policy_acts:
            self._begin_stretch()
        causes = HintCause.NONE
        for signal in self._signals:
            value = signal(measures, step)
            if value is None:
                continue
            cause = signal.cause
            self._largest[cause] = max(value, self._largest.get(cause, value))
            if value > self._limits.get(cause, np.inf):
                self._until[cause] = step + self._shown_steps
            if step < self._until.get(cause, 0):
                causes |= cause
        return causes

    def end(self, *, solved: bool) -> None:
        """Ends the episode; the limits change if the policy `solved` it."""
        if solved and self._policy_acts:
            for cause, value in self._largest.items():
                self._solved[cause].append(value)
            self._limits = {
                signal.cause: float(np.quantile(self._solved[signal.cause], signal.quantile))
                for signal in self._signals
                if len(self._solved[signal.cause]) >= self._config.least
            }
        self._begin_episode()

    def replay(self, rows: Mapping[str, np.ndarray], *, solved: bool) -> None:
        """Takes a recorded episode, so that a session that is resumed has the limits it had.

        Args:
            rows: (T,) fields `intervention` and those of `real.hints.signals.hint_fields`.
            solved: whether the episode counts as solved.
        """
        for step, person in enumerate(rows["intervention"]):
            measures = {
                name: float(column[step])
                for name, column in rows.items()
                if name not in ("intervention", HINT)
            }
            self.step(known_measures(measures), person=bool(person))
        self.end(solved=solved)

    def _begin_episode(self) -> None:
        self._step = 0
        self._begin_stretch()

    def _begin_stretch(self) -> None:
        """The policy gets the arm."""
        self._policy_acts = True
        self._largest: dict[HintCause, float] = {}
        self._until: dict[HintCause, int] = {}
        """Step up to which a hint is shown, by cause."""
        for signal in self._signals:
            signal.begin()


def known_measures(recorded: Mapping[str, float]) -> dict[str, float]:
    """The measures of a step without those that are recorded as unknown."""
    known = {name: value for name, value in recorded.items() if name == "value" or value != UNKNOWN}
    if "value_spread" in recorded and "value_spread" not in known:
        known.pop("value", None)
    return known


def recorded_measures(measures: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Values to be recorded under all of the `names`."""
    return {name: measures.get(name, 0.0 if name == "value" else UNKNOWN) for name in names}
