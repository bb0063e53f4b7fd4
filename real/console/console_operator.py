"""A person at the console, as sessions know people: takes over, labels, pauses, stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from real.console.arbiter import Command, Mode
from real.teleop.takeover import Hand, Takeover, TakeoverConfig
from robots.interfaces import Intervention, Label, Observation, Requests
from robots.spec import ActionSpec

SHOWN = ("q", "grasp_pose", "width", "tau_ext")
"""Fields of the observation that pages show, where there are such."""


class Console(Protocol):
    """The line to it; `real.console.client.Line` is one."""

    @property
    def connection(self) -> int:
        """Number of the connection."""
        ...

    def command(self) -> Command:
        """What is to be done now."""
        ...

    def tell(self, word: dict[str, Any], scene: bytes | None = None) -> None:
        """Sends a word."""
        ...

    def close(self) -> None:
        """Ends the line."""
        ...


class ConsoleOperator:
    """Implements `robots.interfaces.Operator` for one world, and tells the console what comes of
    it.

    Args:
        spec: of the world's actions.
        config: how a person's motion becomes the arm's.
        line: to the console.
        person: name that is recorded while nobody has control.
        rate_hz: of the world's steps; an episode's time is that of its steps, without those of
            stillness.
        scene: where everything stands, for those who draw it; None shows no scene.
        now: time [s].

    Raises:
        HandoffError: actions that are not Cartesian steps.
    """

    def __init__(
        self,
        spec: ActionSpec,
        config: TakeoverConfig,
        line: Console,
        person: str,
        rate_hz: float,
        scene: Callable[[], bytes] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._takeover = Takeover(spec, config, person, "console", now)
        self._line, self._person, self._scene, self._rate_hz = line, person, scene, rate_hz
        self._command = line.command()
        self._connection, self._said = line.connection, 0
        self._episode, self._steps, self._corrected = -1, 0, 0
        self._acted = 0.0
        self._last = Label.NONE

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`."""
        self._takeover.reset()
        self._episode += 1
        self._steps = self._corrected = 0

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one world.
        """
        command = self._command = self._line.command()
        self._acted = time.time()
        hand = command.hand if command.mode is Mode.PERSON else Hand(False, np.zeros(6), 0)
        if self._takeover.engaged and command.mode in (Mode.HOLD, Mode.STOP):
            # They had it a moment ago: rather nothing than the policy's motion.
            hand = Hand(True, np.zeros(6), 0)
        intervention = self._takeover.intervene(proposed, observation, hand)
        return intervention._replace(operator=command.person or self._person)

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`."""
        command, connection = self._line.command(), self._line.connection
        if connection != self._connection:
            self._connection, self._said = connection, 0
        label = Label.NONE
        if command.said != self._said:
            self._said, label = command.said, command.label
            self._last = label
        stop = command.mode is Mode.STOP
        return Requests(label, command.mode is Mode.HOLD, stop, engaged=command.mode is Mode.PERSON)

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        command = self._line.command()
        who = command.person or "nobody at the console"
        mode = {
            Mode.POLICY: "policy",
            Mode.PERSON: who,
            Mode.HOLD: f"HOLD, {who}",
            Mode.STOP: "STOP",
        }[command.mode]
        return mode if self._last is Label.NONE else f"{mode}, last label {self._last.name.lower()}"

    def close(self) -> None:
        """See `robots.interfaces.Operator`."""
        self._line.close()

    def hold(self, why: str) -> None:
        """Asks the console to hold the arm until whoever has control says go on, e.g. while a table
        is laid.

        It takes a moment: wait for `requests` to say so.
        """
        self._line.tell({"kind": "hold", "why": why})

    def told(
        self,
        observation: Observation,
        intervention: Intervention,
        *,
        reward: float,
        success: bool,
        probability: float | None,
        label: Label,
        last: bool,
    ) -> None:
        """One step was executed; the console shows it.

        Args:
            observation: before the step, (1, ...).
            intervention: as `intervene` returned it.
            reward: of the step.
            success: the step ended the episode well.
            probability: of success, as a classifier says; None without one.
            label: what the person said of the episode.
            last: the episode ended here.
        """
        self._steps += 1
        person = bool(intervention.intervening[0])
        self._corrected += person
        told: dict[str, Any] = {
            "episode": self._episode,
            "step": self._steps,
            "reward": float(reward),
            "probability": probability,
            "person": person,
            "hand": float(np.ravel(observation["width"])[0]) if "width" in observation else None,
            "sequence": self._command.sequence,
            # When the action was handed out, by the clock that the page's machine has, too [s].
            "time": self._acted,
        }
        told |= {
            name: np.ravel(observation[name]).astype(float).tolist()
            for name in SHOWN
            if name in observation
        }
        self._line.tell(
            {"kind": "step", "told": told}, None if self._scene is None else self._scene()
        )
        if last:
            self._line.tell({"kind": "end", "told": self._ended(success, label)})

    def _ended(self, success: bool, label: Label) -> dict[str, Any]:
        return {
            "episode": self._episode,
            "success": success,
            "label": label.name.lower(),
            "steps": self._steps,
            "corrected": self._corrected,
            "takeovers": self._takeover.segments,
            "seconds": self._steps / self._rate_hz,
            "dropped": label in (Label.REDO, Label.DISCARD),
        }
