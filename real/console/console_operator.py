"""Makes a person at the console an operator of a session: takeovers, labels, pauses, the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from real.console.control.commands import (
    RESET_MODES,
    STANDSTILL,
    STILL,
    ControlCommand,
    Instruction,
    Mode,
    Recovery,
)
from real.console.control.reset_offer import ResetQuestion
from real.teleop.takeover import HandInput, Takeover, TakeoverConfig
from robots.interfaces import Intervention, Label, Observation, Requests, ResetMotion
from robots.spec import ActionSpec

DISPLAYED_FIELDS = (
    "q",
    "grasp_pose",
    "width",
    "tau_ext",
    "target_offset",
    "wrench_ext",
    "tank_energy",
)
"""Fields of the observation that pages show, if it has them."""
_RESET_MOTIONS = {Mode.HOME: ResetMotion.HOME, Mode.LIMP: ResetMotion.LIMP}


class ConsoleConnection(Protocol):
    """A connection to the console; `real.console.client.ConsoleClient` is one."""

    @property
    def connection(self) -> int:
        """Number of the connection; the numbers of labels start again with every connection."""
        ...

    def command(self) -> ControlCommand:
        """The command in force at this moment."""
        ...

    def send(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        """Sends a message, and a packed scene for those who draw it."""
        ...

    def describe(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        """Sends what describes the present, now and whenever the connection is opened again."""
        ...

    def await_hold(self) -> None:
        """Holds the arm still until the console commands it to hold."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


class ConsoleOperator:
    """Implements `robots.interfaces.Operator` for one environment, and reports its steps to the
    console.

    Args:
        spec: actions of the environment.
        config: scaling of a person's motion to the arm's.
        client: connection to the console.
        person: name that is recorded while nobody has control.
        rate_hz: control steps per second; an episode's time counts its steps, not the time for
            which the arm held still.
        scene: returns the packed scene, for those who draw it; None sends no scene.
        now: returns the time [s].
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.
        about_episode: returns what pages show of the episode that begins, such as `instruction` and
            `seconds`, its time limit.

    Raises:
        HandoffError: actions that are not Cartesian steps.
    """

    def __init__(
        self,
        spec: ActionSpec,
        config: TakeoverConfig,
        client: ConsoleConnection,
        person: str,
        rate_hz: float,
        scene: Callable[[], bytes] | None = None,
        now: Callable[[], float] = time.monotonic,
        width_max: float | None = None,
        about_episode: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._takeover = Takeover(spec, config, person, "console", now, width_max)
        self._client = client
        self._person = person
        self._scene = scene
        self._rate_hz = rate_hz
        self._about_episode = about_episode
        self._facts: dict[str, str] = {}
        self._command = client.command()
        self._connection = client.connection
        self._label_number = 0
        self._episode = -1
        self._steps = 0
        self._corrected_steps = 0
        self._acted = 0.0
        """Time at which the newest action was returned, since the epoch [s]."""
        self._last_label = Label.NONE
        self._faults = 0
        self._instruction = 0
        """Number of the last instruction that was taken."""
        self._hint = ""
        self._progress = 0.0
        """Share of the drive home that the pages show."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`."""
        self._takeover.reset()
        self._episode += 1
        self._steps = 0
        self._corrected_steps = 0
        about = {"episode": self._episode, "heard": self._instruction, **self._about_episode()}
        # With the scene, so that its pictures are there before anybody resumes.
        self._client.describe(
            {"kind": "begin", "told": about}, None if self._scene is None else self._scene()
        )

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one environment.
        """
        command = self._client.command()
        self._command = command
        self._acted = time.time()
        hand = command.hand if command.mode is Mode.PERSON else STILL
        if self._takeover.engaged and command.mode in (*STANDSTILL, *RESET_MODES):
            # The person had the arm until the hold, so it stands still for this step instead of
            # executing the policy's action.
            hand = HandInput(True, np.zeros(6), 0)
        intervention = self._takeover.intervene(proposed, observation, hand)
        return intervention._replace(operator=command.person or self._person)

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`."""
        command = self._client.command()
        connection = self._client.connection
        if connection != self._connection:
            self._connection = connection
            self._label_number = 0
            # Taking the last instruction a second time changes nothing.
            self._instruction = 0
        label = Label.NONE
        if command.label_number != self._label_number:
            self._label_number = command.label_number
            # One that was given to an episode which has ended counts for no other.
            label = command.label if command.episode == self._episode else Label.NONE
            self._last_label = label
        stop = command.mode is Mode.STOP
        return Requests(
            label,
            command.mode in (Mode.HOLD, Mode.FAULT, *RESET_MODES),
            stop,
            engaged=command.mode is Mode.PERSON,
            labelled_by=command.person if label else "",
            reset_motion=_RESET_MOTIONS.get(command.mode, ResetMotion.NONE),
        )

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        command = self._client.command()
        who = command.person or "nobody at the console"
        mode = {
            Mode.POLICY: "policy",
            Mode.PERSON: who,
            Mode.HOLD: f"HOLD, {who}",
            Mode.HOME: f"HOME, {who}",
            Mode.LIMP: f"LIMP, {who}",
            Mode.FAULT: "FAULT",
            Mode.STOP: "STOP",
        }[command.mode]
        if self._last_label is Label.NONE:
            return mode
        return f"{mode}, last label {self._last_label.name.lower()}"

    def close(self) -> None:
        """See `robots.interfaces.Operator`."""
        self._client.close()

    def hold(self, why: str) -> None:
        """Asks the console to hold the arm until the person in control presses `go on`, e.g.
        while they set up a table.

        Returns at once; `requests` is `paused` as soon as the arm holds still.
        """
        self._client.send({"kind": "hold", "why": why})

    def open_reset(self, why: str, *, wait: bool, question: ResetQuestion | None = None) -> None:
        """Lets the person in control drive the arm home or guide it by hand, between two episodes.

        Args:
            why: what there is to do, or what has been done, as sentences for the pages.
            wait: whether the arm holds still until the person starts the next episode; `requests`
                is `paused` when this returns.
            question: what the person may answer until they start; None asks nothing.
        """
        self._progress = 0.0
        self._client.send({"kind": "progress", "share": 0.0})
        if wait:
            self._client.await_hold()
        # Again after a lost connection, until the next episode.
        message: dict[str, Any] = {"kind": "reset", "open": True, "why": why, "wait": wait}
        self._client.describe(
            message if question is None else {**message, "question": question._asdict()}
        )

    def close_reset(self) -> None:
        """Ends what `open_reset` began: the next episode is prepared."""
        self._client.describe({"kind": "reset", "open": False})

    def answer(self, question: ResetQuestion) -> int | None:
        """Returns the index of the person's answer; None as long as there is none."""
        answer = self._client.command().answer
        return answer.choice if answer.question == question.number else None

    def instruction(self) -> Instruction | None:
        """Returns what a person has told the policy since the last call; None without."""
        given = self._client.command().instruction
        if given.number in (0, self._instruction):
            return None
        self._instruction = given.number
        return given

    def show_still(self, frame: bytes) -> None:
        """Shows a picture that does not age beside those of the cameras, until another one of its
        name, or one without content, takes its place.

        Args:
            frame: length of the name, the name, a JPEG; see `real.cameras.camera_process.frame`.
        """
        self._client.send({"kind": "still", "frame": frame})

    def show_progress(self, share: float) -> None:
        """Shows the share of the drive home that is done, in [0, 1]; sends changes of a hundredth
        only."""
        if abs(share - self._progress) >= 0.01:
            self._progress = share
            self._client.send({"kind": "progress", "share": float(np.clip(share, 0.0, 1.0))})

    def fault(self, why: str, *, asks_cause: bool) -> None:
        """Shows a fault on the pages, where the person in control can recover the arm.

        Returns at once; `recovery` says when they have.

        Args:
            why: the fault as a sentence.
            asks_cause: whether the person has to give its cause.
        """
        self._faults += 1
        # Again after a lost connection, until the next episode.
        self._client.describe(
            {"kind": "fault", "number": self._faults, "why": why, "asks": asks_cause}
        )

    def recovery(self) -> Recovery | None:
        """Returns who has recovered the arm after the last `fault`, and what they gave as its
        cause; None as long as nobody has."""
        recovery = self._client.command().recovery
        return recovery if recovery.fault == self._faults else None

    def inform(self, facts: Mapping[str, str]) -> None:
        """Shows what the session counts on the pages, by name and in words; sends changes only."""
        if dict(facts) != self._facts:
            self._facts = dict(facts)
            self._client.send({"kind": "facts", "told": self._facts})

    def show_hint(self, text: str) -> None:
        """Shows a hint to the person while the policy has the arm, empty removes it; sends changes
        only. Nothing moves or holds because of it."""
        if text != self._hint:
            self._hint = text
            self._client.send({"kind": "hint", "told": text})

    def finish(self, why: str) -> None:
        """Tells the pages that the session is over, and why."""
        self._client.send({"kind": "finish", "why": why})

    def report_step(
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
        """Reports an executed step to the console.

        Args:
            observation: observation before the step, (1, ...).
            intervention: result of `intervene`.
            reward: reward of the step.
            success: whether the step ended the episode in success.
            probability: probability of success by a classifier; None without one.
            label: the person's label of the episode.
            last: whether the episode ended with the step.
        """
        self._steps += 1
        person = bool(intervention.intervening[0])
        self._corrected_steps += person
        step: dict[str, Any] = {
            "episode": self._episode,
            "step": self._steps,
            "reward": float(reward),
            "probability": probability,
            "person": person,
            "hint": self._hint,
            "hand": float(np.ravel(observation["width"])[0]) if "width" in observation else None,
            "sequence": self._command.sequence,
            # Since the epoch [s], so that a page can compare it with its own clock.
            "time": self._acted,
        }
        step |= {
            name: np.ravel(observation[name]).astype(float).tolist()
            for name in DISPLAYED_FIELDS
            if name in observation
        }
        self._client.send(
            {"kind": "step", "told": step}, None if self._scene is None else self._scene()
        )
        if last:
            # Keys that are still down must not move the next episode before the console holds.
            self._client.await_hold()
            self._client.send({"kind": "end", "told": self._episode_report(success, label)})

    def _episode_report(self, success: bool, label: Label) -> dict[str, Any]:
        return {
            "episode": self._episode,
            "success": success,
            "label": label.name.lower(),
            "steps": self._steps,
            "corrected": self._corrected_steps,
            "takeovers": self._takeover.segments,
            "seconds": self._steps / self._rate_hz,
            "dropped": label in (Label.REDO, Label.DISCARD),
        }
