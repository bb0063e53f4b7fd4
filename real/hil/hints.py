"""Gives hints to the person beside an actor, and what is recorded of them.

A hint is computed before the step that it concerns, so that the person sees it while the action is
carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from real.hil.actor import ActorStep
from real.hil.actor_policy import ActorPolicy
from real.hints.causes import hint_text
from real.hints.config import CorrectionHints
from real.hints.monitor import HintMonitor, recorded_measures
from real.hints.signals import HINT, correction_signals, hint_fields
from robots.interfaces import Label


class ActorHints:
    """A `real.hil.interfaces.Monitor` of one environment.

    Args:
        config: sources of hints, at least one.
        rate_hz: steps per second.
        threshold: threshold of the success classifier; None without one.
        show: called with the sentence of the hint, empty without one, at every step.
    """

    def __init__(
        self,
        config: CorrectionHints,
        rate_hz: float,
        threshold: float | None,
        show: Callable[[str], None],
    ) -> None:
        self._config = config
        self._show = show
        signals = correction_signals(config, rate_hz, threshold)
        self.monitor = HintMonitor(config, signals, rate_hz)
        """Limits of the signals."""
        self.fields = hint_fields(signals)
        """Fields that are recorded with every step."""
        self._measures = [name for name in self.fields if name != HINT]
        self._probability: float | None = None
        """Probability of success at the present observation; None before the first step."""

    def __call__(
        self,
        policy: ActorPolicy | None,
        vector: np.ndarray,
        pictures: Mapping[str, np.ndarray],
        proposed: np.ndarray,
        intervening: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """See `real.hil.interfaces.Monitor`."""
        found: dict[str, float] = {}
        if policy is not None and self._config.reads_critics:
            evaluation = policy.evaluate(vector, proposed, pictures)
            if evaluation is not None:
                found["value"] = float(evaluation.value[0])
                found["value_spread"] = float(evaluation.spread[0])
        if policy is not None and self._config.novelty is not None:
            found["novelty"] = float(np.float32(policy.distance(vector)[0]))
        if self._probability is not None:
            found["success_probability"] = float(np.float32(self._probability))
        measures = {name: found[name] for name in self._measures if name in found}
        causes = self.monitor.step(measures, person=bool(intervening[0]))
        self._show(hint_text(causes) if self._config.shown else "")
        recorded = recorded_measures(measures, self._measures)
        return {
            HINT: np.array([causes.value], np.uint8),
            **{name: np.array([value], np.float32) for name, value in recorded.items()},
        }

    def finish(self, step: ActorStep) -> None:
        """Takes the outcome of the step; the end of an episode ends its hint."""
        probability = step.verdict.probability
        self._probability = None if probability is None else float(probability[0])
        if not step.last[0]:
            return
        dropped = step.label in (Label.REDO, Label.DISCARD)
        self.monitor.end(solved=bool(step.verdict.success[0]) and not dropped)
        self._probability = None
        self._show("")
