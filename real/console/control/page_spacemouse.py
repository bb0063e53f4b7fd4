"""Takes the input of a SpaceMouse that a page reads."""

from __future__ import annotations

from real.console.control.commands import STILL
from real.teleop.spacemouse import (
    SpaceMouseConfig,
    SpaceMouseHand,
    SpaceMouseReport,
    deflection_of,
)
from real.teleop.takeover import HandInput


class PageSpaceMouse:
    """The SpaceMouse at a person's page: one that is deflected when the page begins to send it, as
    after a dialog or another window, moves nothing before it has come to rest.

    Args:
        config: thresholds; None takes the defaults.
    """

    def __init__(self, config: SpaceMouseConfig | None = None) -> None:
        self._hand = SpaceMouseHand(config or SpaceMouseConfig())
        self._rested = False
        """Whether it has come to rest since the page began to send it."""

    def hand(self, report: SpaceMouseReport | None, now: float) -> HandInput:
        """The input at time `now` [s]; None is a page without a SpaceMouse, or one that does not
        send it."""
        if report is None:
            self._rested = False
            self._hand.release()
            return STILL
        hand = self._hand.hand(deflection_of(report.counts), report.buttons, report.age, now)
        self._rested |= not hand.engaged
        return hand if self._rested else STILL
