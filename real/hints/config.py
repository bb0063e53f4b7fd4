"""Defines the options of hints to a person beside a policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robots.config import Count, OpenShare, Seconds, config
from robots.errors import HandoffError


@config
class HintSource:
    """A signal of a likely failure, with a limit that recent solved episodes set."""

    quantile: OpenShare = 0.8
    """Quantile of the signal's largest value per recent solved episode that is its limit: with 0.8
    about one solved episode in five shows a hint."""


@config
class ValueDropSource(HintSource):
    """Fall of the value that the critics give to the action about to be carried out, relative to
    the value."""

    seconds: Seconds = 1.0
    """Time within which the largest value and the present one are compared [s]."""


@config
class ActionSpreadSource(HintSource):
    """Difference between several chunks that the policy samples for one observation."""

    samples: Annotated[int, Field(ge=2, le=64)] = 8
    """Chunks that are sampled beside each executed one."""


@config
class HintConfig:
    """Limits and display of hints to a person; without a source there are none."""

    novelty: HintSource | None = None
    """Distance of the observation from the range of the training data; None takes no such
    hints."""
    recent: Count = 20
    """Newest solved episodes that set the limits."""
    least: Count = 10
    """Solved episodes before which nothing is shown, because no limit is known."""
    seconds: Seconds = 2.0
    """Shortest time for which a hint is shown, unless the person takes over before [s]."""
    shown: bool = True
    """Whether hints are shown; otherwise they are only recorded, which measures them without an
    effect on the person."""

    def __post_init__(self) -> None:
        if self.least > self.recent:
            raise HandoffError(
                f"hints: least is {self.least}, expected at most recent ({self.recent}). Limits come from the recent "
                "solved episodes."
            )


@config
class CorrectionHints(HintConfig):
    """Hints in a correction session."""

    value: ValueDropSource | None = None
    """Fall of the value; needs an algorithm with critics. None takes no such hints."""
    disagreement: HintSource | None = None
    """Standard deviation of the values within the ensemble of critics, relative to their mean; None
    takes no such hints."""
    success: HintSource | None = None
    """Time of an episode without success in sight of the success classifier; needs the input
    `classifier`. None takes no such hints."""

    @property
    def sources(self) -> bool:
        """Whether there are any hints."""
        return self.reads_critics or bool(self.novelty or self.success)

    @property
    def reads_critics(self) -> bool:
        """Whether the critics are sent to the actor."""
        return bool(self.value or self.disagreement)


@config
class DeploymentHints(HintConfig):
    """Hints in a session with an exported policy."""

    spread: ActionSpreadSource | None = None
    """Difference between sampled chunks, refused for a deterministic policy; None takes no such
    hints."""

    @property
    def sources(self) -> bool:
        """Whether there are any hints."""
        return bool(self.novelty or self.spread)
