"""What a person does in each task: from what is in the pictures to the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tests.person.eyes import Bar, Eyes
from tests.person.hands import (
    CLOSE,
    FORWARD_BACK,
    LEFT_RIGHT,
    OPEN,
    SLOW,
    TURN,
    UP_DOWN,
    Steering,
)

FARTHEST = 0.2
"""Longest way of the hand between two looks [m]; what seems farther was a mistake of the eye."""
ABOVE = 0.12
"""Height at which the hand comes over a thing [m]."""
OVER = 0.012
"""Distance across at which the hand is over a thing [m]."""
CUBE, CUBE_TOP = 0.02, 0.04
"""Heights of the middle and the top of a cube that lies on the table [m]."""
LOWERING = 1.2
"""Time for which the hand is lowered unseen before it closes [s]."""
GRASPING = 1.0
"""Time for which the hand is closed before it lifts [s]."""


BAR_HEIGHT, WHOLE_BAR = 0.12, 0.112
"""Height of a drawer's handle, and length of its bar above which nothing hides it [m]."""
CLOSING = 1.0
"""Time for which the hand is closed before a handle [s]."""
TURNING, STRAIGHT = 2.0, 0.03
"""Speed at which a key turns the hand [rad/s], and the angle that is not corrected [rad]."""
BEHIND = 0.0255
"""Distance of the middle of the gap behind a bar from the middle of the bar [m]."""
CLEAR = 0.19
"""Height at which the fingers clear the cabinet [m]."""
IN_GAP = 0.006
"""Distance across at which the fingers are over the gap [m]."""
LOWERING_BAR = 2.0
"""Time for which the fingers are lowered into the gap [s]."""


class Skill(Protocol):
    """One attempt at a task."""

    def keys(self, eyes: Eyes, longest: float) -> dict[str, float]:
        """Seconds by key until the next decision.

        Args:
            eyes: have looked at the newest pictures.
            longest: time until then [s].
        """
        ...


class _Tracking:
    """Where the hand is, as far as the eye has followed it."""

    def __init__(self) -> None:
        self.at: np.ndarray | None = None
        self._lost = 0

    def follow(self, seen: np.ndarray | None) -> np.ndarray | None:
        """(3,) place of the hand [m] after one more look; None while it is hidden."""
        if seen is None:
            return None
        if self.at is not None and np.linalg.norm(seen - self.at) > FARTHEST and self._lost < 4:
            self._lost += 1
            return None
        self.at, self._lost = seen, 0
        return seen


def _apart(here: np.ndarray, there: np.ndarray) -> float:
    """Distance of two places across the table [m]."""
    return float(np.linalg.norm(here[:2] - there[:2]))


class Reach:
    """Brings the hand to the green ball."""

    def __init__(self) -> None:
        self._hand, self._steering = _Tracking(), Steering()
        self._ball: np.ndarray | None = None
        self._looks = 0

    def keys(self, eyes: Eyes, longest: float) -> dict[str, float]:
        ball = eyes.ball()
        if self._ball is None:
            self._ball = ball
        hand = self._hand.follow(eyes.hand())
        if self._ball is None:
            return self._look_for_it(longest)
        if hand is None:
            return {}
        return self._steering.keys(self._ball - hand, longest)

    def _look_for_it(self, longest: float) -> dict[str, float]:
        """Moves the hand, which hides the ball, to and fro."""
        self._looks += 1
        return {LEFT_RIGHT[self._looks // 4 % 2]: longest} if self._looks > 2 else {}


class PickCube:
    """Comes over the cube, lowers, closes the hand, brings the cube to the ball, and tries again
    where the hand came up empty."""

    def __init__(self) -> None:
        self._hand, self._steering = _Tracking(), Steering()
        self._ball: np.ndarray | None = None
        self._cube: np.ndarray | None = None
        self._closed = self._lowered = 0.0
        self._unseen = 0

    def keys(self, eyes: Eyes, longest: float) -> dict[str, float]:
        if self._ball is None:
            self._ball = eyes.ball()
        if self._closed > 0.0:
            return self._carry(eyes, longest)
        seen = eyes.cube(CUBE)
        if seen is not None and (self._cube is None or self._hand_is_high()):
            self._cube = seen
        if self._cube is None or self._ball is None:
            return {}
        if self._lowered > 0.0:
            return self._lower(longest)
        hand = self._hand.follow(self._look_at_hand(eyes))
        if hand is None:
            return self._lower(longest) if self._over_the_cube() else self._rise(longest)
        self._unseen = 0
        way = self._cube - hand
        if _apart(hand, self._cube) > OVER:
            way[2] = max(ABOVE - hand[2], 0.0) if hand[2] < ABOVE else min(0.0, ABOVE - hand[2])
            return self._steering.keys(way, longest)
        if way[2] > -0.008:
            return self._grasp(longest)
        return self._steering.keys(way, longest)

    def _hand_is_high(self) -> bool:
        return self._hand.at is not None and self._hand.at[2] > 0.2

    def _over_the_cube(self) -> bool:
        at, cube = self._hand.at, self._cube
        return at is not None and cube is not None and bool(_apart(at, cube) < 1.5 * OVER)

    def _rise(self, longest: float) -> dict[str, float]:
        """Raises a hand that has not been seen for a while, and begins again."""
        self._unseen += 1
        if self._unseen < 6:
            return {}
        self._cube, self._hand = None, _Tracking()
        return {UP_DOWN[0]: longest}

    def _lower(self, longest: float) -> dict[str, float]:
        """Lowers the hand whose line is hidden between fingers and cube, down to the table."""
        if self._lowered > LOWERING:
            return self._grasp(longest)
        self._lowered += longest
        return {SLOW: longest, UP_DOWN[1]: longest}

    def _look_at_hand(self, eyes: Eyes) -> np.ndarray | None:
        """(3,) place of the hand [m], whose line ends on the cube where it is over it."""
        on_cube = eyes.hand(CUBE_TOP)
        if on_cube is None or self._cube is None:
            return on_cube
        over = _apart(on_cube, self._cube) < 1.5 * CUBE
        return on_cube if over else eyes.hand()

    def _grasp(self, longest: float) -> dict[str, float]:
        self._closed += longest
        return {CLOSE: longest}

    def _carry(self, eyes: Eyes, longest: float) -> dict[str, float]:
        assert self._ball is not None
        if self._closed < GRASPING:
            return self._grasp(longest)
        cube = eyes.held_cube()
        if cube is None:
            return {}
        way = self._ball - cube
        hand = eyes.hand()
        if hand is not None and hand[2] > cube[2] + 0.08:
            # It came up empty.
            self._closed, self._lowered, self._cube = 0.0, 0.0, None
            return {OPEN: longest}
        if cube[2] < 0.06 and way[2] > 0.0:
            way[:2] = 0.0
        return self._steering.keys(way, longest)


class OpenDrawer:
    """Closes and turns the hand, comes over the gap behind the handle's bar, lowers the fingers
    into it and pulls."""

    def __init__(self) -> None:
        self._hand, self._steering = _Tracking(), Steering()
        self._bar: Bar | None = None
        self._closed = self._turned = 0.0
        self._looks = 0
        self._lowered = 0.0
        self._pulled = 0.0

    def keys(self, eyes: Eyes, longest: float) -> dict[str, float]:
        if self._bar is None or self._bar.length < WHOLE_BAR:
            return self._look(eyes, longest)
        if self._closed < CLOSING:
            self._closed += longest
            return {CLOSE: longest}
        left = self._bar.away - self._turned
        if abs(left) > STRAIGHT:
            seconds = min(abs(left) / TURNING, longest)
            self._turned += np.sign(left) * seconds * TURNING
            return {TURN[0] if left > 0.0 else TURN[1]: seconds}
        if self._lowered > LOWERING_BAR:
            return self._pull(longest)
        hand = self._hand.follow(eyes.hand())
        gap = self._bar.middle + BEHIND * self._ahead()
        if hand is None:
            return {}
        if self._lowered == 0.0 and _apart(hand, gap) > IN_GAP:
            way = np.array([*(gap - hand)[:2], CLEAR - hand[2]])
            if hand[2] < CLEAR - 0.03:
                way[:2] = 0.0
            return self._steering.keys(way, longest)
        self._lowered += longest
        return {SLOW: longest, UP_DOWN[1]: longest}

    def _ahead(self) -> np.ndarray:
        """(3,) unit vector across the bar and away from the arm."""
        assert self._bar is not None
        return np.array([np.cos(self._bar.away), np.sin(self._bar.away), 0.0])

    def _look(self, eyes: Eyes, longest: float) -> dict[str, float]:
        """Moves the hand aside until the whole bar can be seen."""
        self._bar = eyes.bar(BAR_HEIGHT)
        self._looks += 1
        if self._looks < 3 or (self._bar is not None and self._bar.length >= WHOLE_BAR):
            return {}
        return {LEFT_RIGHT[self._looks // 6 % 2]: longest}

    def _pull(self, longest: float) -> dict[str, float]:
        """Pulls backwards, along the way of the drawer."""
        ahead = self._ahead()
        self._pulled += longest
        keys = {FORWARD_BACK[1]: longest}
        # A turned drawer also goes aside: that key is down for its share of the time.
        aside = abs(ahead[1] / ahead[0]) * longest
        keys[LEFT_RIGHT[1] if ahead[1] > 0.0 else LEFT_RIGHT[0]] = aside
        return keys if self._pulled < 4.0 else {}


SKILLS: dict[str, Callable[[], Skill]] = {
    "reach": Reach,
    "pick_cube": PickCube,
    "open_drawer": OpenDrawer,
}
"""Skills by task."""
