"""What the pages show of the task: the running episode as a strip, and figures of those that
ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from robots.errors import HandoffError
from robots.proportions import wilson

RECENT = 20
"""Episodes that success and corrections are counted over."""
KEPT = 200
"""Episodes whose figures are remembered for the trend."""
LONGEST = 4000
"""Steps of the running episode that the strip holds; an older one falls off."""
_STEP = ("episode", "reward", "person")
_END = ("success", "label", "steps", "corrected", "takeovers", "seconds", "dropped")


class Story:
    """Fed with what the robot's side tells; answers with plain values for JSON."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        """Task, rate and names, as the robot's side said when it came."""
        self.robot: dict[str, Any] = {}
        """The newest state: joints, pose, hand, who acted."""
        self.steps: deque[list[float | None]] = deque(maxlen=LONGEST)
        """Of the running episode: [who acts (0 policy, 1 person), reward, probability of success,
        hand]."""
        self.first = 0
        """Number of the first step in `steps`; grows when the strip is full."""
        self.episode = -1
        self.ended: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def begin(self, about: Mapping[str, Any]) -> None:
        """The robot's side came; a session that goes on brings its figures with it."""
        self.about, self.robot, self.episode = dict(about), {}, -1
        self.steps.clear()
        self.first = 0

    def step(self, told: Mapping[str, Any]) -> None:
        """One control step. Keys: episode, reward, person; probability and hand where there are;
        and the state.

        Raises:
            HandoffError: a key is missing.
        """
        _check(told, _STEP)
        if told["episode"] != self.episode:
            self.episode, self.first = told["episode"], 0
            self.steps.clear()
        if len(self.steps) == LONGEST:
            self.first += 1
        probability, hand = told.get("probability"), told.get("hand")
        self.steps.append(
            [float(told["person"]), _plain(told["reward"]), _plain(probability), _plain(hand)]
        )
        self.robot = {key: _sayable(value) for key, value in told.items()}

    def end(self, told: Mapping[str, Any]) -> None:
        """An episode ended. Keys: success, label, steps, corrected (steps), takeovers, seconds,
        dropped.

        Raises:
            HandoffError: a key is missing.
        """
        _check(told, _END)
        self.ended.append(dict(told))

    def counters(self) -> dict[str, Any]:
        """Figures of the last episodes that were not dropped."""
        counted = [one for one in self.ended if not one["dropped"]]
        recent = counted[-RECENT:]
        if not recent:
            return {"episodes": 0}
        solved = [one for one in recent if one["success"]]
        low, high = wilson(len(solved), len(recent))
        steps = sum(one["steps"] for one in recent)
        seconds = [one["seconds"] for one in solved]
        return {
            "episodes": len(counted),
            "dropped": len(self.ended) - len(counted),
            "of": len(recent),
            "success": len(solved) / len(recent),
            "low": low,
            "high": high,
            "takeovers": sum(one["takeovers"] for one in recent) / len(recent),
            "corrected": sum(one["corrected"] for one in recent) / max(1, steps),
            "cycle": sum(seconds) / len(seconds) if seconds else None,
            "last": recent[-1]["label"],
        }


def _check(told: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in told]
    if missing:
        raise HandoffError(
            f"console: the robot's side tells nothing of {missing}. Another version?"
        )


def _sayable(value: Any) -> Any:
    if isinstance(value, list):
        return [_sayable(one) for one in value]
    return _plain(value) if isinstance(value, float) else value


def _plain(value: float | None) -> float | None:
    """A number that JSON has."""
    return None if value is None or not math.isfinite(value) else float(value)
