"""Tracks what a page has received, so that every message contains only changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from real.console.control.arbiter import ControlArbiter
from real.console.control.bindings import ACTIONS
from real.console.control.commands import Mode
from real.console.telemetry import Telemetry
from real.teleop.spacemouse import FULL_COUNTS, HID_FILTERS

if TYPE_CHECKING:
    from starlette.websockets import WebSocket


class PageConnection:
    """An open page. A page with a slow connection misses images, never messages.

    Args:
        socket: the page's websocket.
        number: number of the page at the arbiter.
        frames: newest image of every camera so far.
    """

    def __init__(self, socket: WebSocket, number: int, frames: Mapping[str, bytes]) -> None:
        self.socket = socket
        self.number = number
        self.frames = dict(frames)
        """Newest image of every camera that has not been sent yet."""
        self.stale = True
        """Whether the description of the task, or the bindings, changed since they were sent."""
        self.refused: dict[str, Any] | None = None
        """Why a binding was refused, to be sent once."""
        self._episode = -1
        """Number of the episode whose steps were sent."""
        self._steps_sent = 0
        """Number of that episode's steps that were sent."""
        self._episodes_sent = 0
        """Number of ended episodes in the statistics that were sent."""

    def next_message(
        self,
        arbiter: ControlArbiter,
        telemetry: Telemetry,
        scene_path: str | None,
        episodes_ended: int,
    ) -> dict[str, Any]:
        """The page's next message: the state at this moment, and what changed since the last one.

        Args:
            arbiter: state of the console.
            telemetry: steps and statistics.
            scene_path: path of the scene's page; None if no scene is shown.
            episodes_ended: number of episodes that ended so far.
        """
        message: dict[str, Any] = {
            "kind": "state",
            "you": self.number,
            **arbiter.page_state(),
            "state": telemetry.robot,
            # A person who has the arm, or holds it, needs no hint.
            "hint": telemetry.hint if arbiter.mode is Mode.POLICY else "",
            "facts": telemetry.facts,
            "progress": telemetry.progress if arbiter.mode is Mode.HOME else None,
            "scene": scene_path,
        }
        # A new episode, another task or other bindings: the page starts with an empty plot.
        if self.stale or self._episode != telemetry.episode:
            self.stale = False
            self._episode = telemetry.episode
            self._steps_sent = telemetry.first
            message["about"] = {**telemetry.about, **telemetry.running}
            message["episode"] = telemetry.episode
            message["counters"] = telemetry.counters()
            message["bindings"] = arbiter.bindings.inputs
            message["actions"] = ACTIONS
            message["spacemouse"] = {"filters": HID_FILTERS, "full": FULL_COUNTS}
        # Steps of the running episode that were not sent yet.
        total = telemetry.first + len(telemetry.steps)
        if self._steps_sent < total:
            begin = max(0, self._steps_sent - telemetry.first)
            message["steps"] = [
                telemetry.steps[place] for place in range(begin, len(telemetry.steps))
            ]
            message["total"] = total
            self._steps_sent = total
        # The reason of a refused binding is sent once.
        if self.refused is not None:
            message["refused"] = self.refused
            self.refused = None
        # Statistics, when an episode ended.
        if self._episodes_sent != episodes_ended:
            self._episodes_sent = episodes_ended
            message["counters"] = telemetry.counters()
            message["episodes"] = list(telemetry.ended)
        return message
