"""Monitors specifications of an episode at an arm, of which some end it once they can no longer be
satisfied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robots.errors import HandoffError, SafetyError, suggest
from robots.interfaces import Observation
from robots.spec import FieldSpec
from robots.specifications.monitor import SpecificationMonitors


class SpecificationGuard:
    """The specifications of one episode.

    Args:
        specifications: formulas of signal temporal logic by name.
        stop_on: names of those that end the episode.
        spec: observed fields.
        rate_hz: policy steps per second.
        max_steps: largest number of policy steps.

    Raises:
        HandoffError: not a formula, or one that does not fit the fields or the rate.
    """

    def __init__(
        self,
        specifications: Mapping[str, str],
        stop_on: Sequence[str],
        spec: Mapping[str, FieldSpec],
        *,
        rate_hz: float,
        max_steps: int,
    ) -> None:
        self._monitors = SpecificationMonitors(
            specifications, spec, rate_hz=rate_hz, max_steps=max_steps
        )
        self._fields = tuple(spec) if specifications else ()
        self._stop_on = stop_on
        self._rate_hz = rate_hz
        self._steps = 0

    def step(self, observation: Observation) -> None:
        """Takes the observation of a policy step, per field without a leading dimension.

        Raises:
            SafetyError: a specification that ends the episode can no longer be satisfied.
            HandoffError: a value of a formula is not a number.
        """
        bounds = self._monitors.update(
            {name: np.asarray(observation[name])[None] for name in self._fields}
        )
        seconds = self._steps / self._rate_hz
        self._steps += 1
        for name in self._stop_on:
            highest = float(bounds[name].high[0])
            if highest < 0.0:
                raise SafetyError(
                    f"specification '{name}': can no longer be satisfied {seconds:.2f} s after the start, its "
                    f"robustness is at most {highest:.3g}. Is the formula what the task needs?"
                )

    def finish(self) -> dict[str, float]:
        """Robustness of the episode by name, which has ended; empty if it made no step."""
        return self._monitors.finish()[0] if self._steps else {}


def check_stops(specifications: Mapping[str, str], stop_on: Sequence[str]) -> None:
    """Checks that every specification that ends an episode is stated.

    Raises:
        HandoffError: there is no formula of one of these names.
    """
    for name in stop_on:
        if name not in specifications:
            hint = suggest(name, specifications) if specifications else "there are none."
            raise HandoffError(f"stop_on: no specification '{name}', {hint}")
