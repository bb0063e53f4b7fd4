"""Collects what pages show of a task: the running episode's steps and statistics of those that
ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from real.console.messages import read_hint
from robots.errors import HandoffError
from robots.proportions import wilson
from robots.wire.learner import RECENT_EPISODES

KEPT = 200
"""Number of ended episodes that are kept for the trend."""
LONGEST = 4000
"""Number of the running episode's newest steps that are kept."""
_STEP_KEYS = ("episode", "reward", "person")
_END_KEYS = ("success", "label", "steps", "corrected", "takeovers", "seconds", "dropped")


class Telemetry:
    """Steps and episodes that the robot's process reports, as plain values for JSON.

    Args:
        ended: reports of episodes that have ended before, see `end`; those of another form are left
            out.
    """

    def __init__(self, ended: Iterable[Mapping[str, Any]] = ()) -> None:
        self.about: dict[str, Any] = {}
        """Description of the task that the robot's process sent when it connected."""
        self.facts: dict[str, str] = {}
        """What the session counts, such as demonstrations and the learner's steps, in words."""
        self.running: dict[str, Any] = {}
        """Description of the running episode, such as its instruction and time limit."""
        self.robot: dict[str, Any] = {}
        """The newest state: joints, pose, gripper opening, who acted."""
        self.hint = ""
        """Hint to the person that the policy is likely to fail; empty without one."""
        self.progress = 0.0
        """Share of the drive to the start that is done, in [0, 1]."""
        self.steps: deque[list[float | None]] = deque(maxlen=LONGEST)
        """Steps of the running episode: [who acts (0 policy, 1 person), reward, probability of
        success, gripper opening [m]]."""
        self.first = 0
        """Number of the first step in `steps`; grows once `LONGEST` steps are kept."""
        self.episode = -1
        """Number of the running episode."""
        self._over: int | None = None
        """Number of the episode that was reported as ended last."""
        whole = (
            {key: report[key] for key in _END_KEYS}
            for report in ended
            if all(key in report for key in _END_KEYS)
        )
        self.ended: deque[dict[str, Any]] = deque(whole, maxlen=KEPT)
        """Episodes that ended, the newest last."""

    def begin(self, about: Mapping[str, Any]) -> None:
        """The robot's process connected; statistics of ended episodes are kept."""
        self.about = dict(about)
        self.running = {}
        self.robot = {}
        self.hint = ""
        self.episode = -1
        self.steps.clear()
        self.first = 0

    def leave(self) -> None:
        """The robot's process disconnected: what it was doing is over."""
        self.about = {}
        self.facts = {}
        self.running = {}
        self.robot = {}
        self.hint = ""

    def begin_episode(self, report: Mapping[str, Any]) -> None:
        """An episode began.

        Args:
            report: key `episode`; optionally `instruction`, and `seconds`, its time limit.

        Raises:
            HandoffError: a key is missing.
        """
        _check(report, ("episode",))
        self.running = dict(report)
        self._begin_steps(report["episode"])

    def _begin_steps(self, episode: int) -> None:
        self.episode = episode
        self.hint = ""
        self._over = None
        self.first = 0
        self.steps.clear()

    def step(self, step: Mapping[str, Any]) -> None:
        """Adds a control step.

        Args:
            step: keys `episode`, `reward`, `person`; optionally `probability`, `hint`, the text of
                one, and `hand`, the gripper's opening [m]; and the state.

        Raises:
            HandoffError: a key is missing, or a hint is no text.
        """
        _check(step, _STEP_KEYS)
        if step["episode"] != self.episode:
            self._begin_steps(step["episode"])
        if len(self.steps) == LONGEST:
            self.first += 1
        probability = step.get("probability")
        opening = step.get("hand")
        self.steps.append(
            [float(step["person"]), _plain(step["reward"]), _plain(probability), _plain(opening)]
        )
        self.hint = read_hint(step.get("hint", ""))
        self.robot = {key: _for_json(value) for key, value in step.items()}

    def end(self, episode: Mapping[str, Any]) -> None:
        """Adds an episode that ended.

        Args:
            episode: keys `success`, `label`, `steps`, `corrected` (steps), `takeovers`, `seconds`,
                `dropped`.

        Raises:
            HandoffError: a key is missing.
        """
        _check(episode, _END_KEYS)
        self.ended.append(dict(episode))
        self.hint = ""
        self._over = self.episode

    def interrupted(self) -> dict[str, Any] | None:
        """The report, see `end`, of the running episode that a fault has ended; None if none is
        running or it has made no step. It counts as not solved."""
        if not self.steps or self._over == self.episode:
            return None
        acted = [bool(step[0]) for step in self.steps]
        takeovers = sum(now and not before for before, now in pairwise([False, *acted]))
        steps = self.first + len(self.steps)
        return {
            "episode": self.episode,
            "success": False,
            "label": "fault",
            "steps": steps,
            "corrected": sum(acted),
            "takeovers": takeovers,
            "seconds": steps / float(self.about.get("rate_hz", 1.0)),
            "dropped": False,
        }

    def counters(self) -> dict[str, Any]:
        """Statistics of the last episodes that were not dropped."""
        counted = [episode for episode in self.ended if not episode["dropped"]]
        recent = counted[-RECENT_EPISODES:]
        if not recent:
            return {"episodes": 0}
        solved = [episode for episode in recent if episode["success"]]
        low, high = wilson(len(solved), len(recent))
        steps = sum(episode["steps"] for episode in recent)
        seconds = [episode["seconds"] for episode in solved]
        return {
            "episodes": len(counted),
            "dropped": len(self.ended) - len(counted),
            "of": len(recent),
            "success": len(solved) / len(recent),
            "low": low,
            "high": high,
            "takeovers": sum(episode["takeovers"] for episode in recent) / len(recent),
            "corrected": sum(episode["corrected"] for episode in recent) / max(1, steps),
            "cycle": sum(seconds) / len(seconds) if seconds else None,
            "last": recent[-1]["label"],
        }


def result_text(report: Mapping[str, Any]) -> str:
    """How an episode ended, as a sentence for the pages.

    Args:
        report: see `Telemetry.end`; with the key `episode`, its number.
    """
    number, seconds = int(report.get("episode", -1)) + 1, float(report["seconds"])
    name = f"Episode {number}" if number else "The episode"
    label = report["label"]
    if report["dropped"]:
        again = "; the same start follows" if label == "redo" else ""
        return f"{name} is discarded{again}."
    outcome = "success" if report["success"] else "no success"
    by = " by label" if label in ("success", "failure") else ""
    return f"{name}: {outcome}{by} after {seconds:.1f} s."


def _check(report: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in report]
    if missing:
        raise HandoffError(
            f"console: a report of the robot's process lacks {missing}. Has it another version?"
        )


def _for_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_for_json(entry) for entry in value]
    return _plain(value) if isinstance(value, float) else value


def _plain(value: float | None) -> float | None:
    """The number, or None where JSON has none for it: infinities and NaN."""
    return None if value is None or not math.isfinite(value) else float(value)
