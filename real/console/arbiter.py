"""Decides who controls the arm, what it is commanded to do, and when it must hold still.

Every failure ends in HOLD, and a person has to press `go on`: if the page is hidden or closed, its
messages stop for longer than the watchdog allows, control passes to another person, somebody sends
a wrong token, or a page sends too many messages. Everybody who can reach the console can stop the
arm; only the person in control can move it.

The module does no I/O and time is an argument, so that tests can cover every case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from real.console.bindings import (
    END,
    HOLD,
    LABELS,
    MOVING,
    RESUME,
    UNDO,
    Bindings,
    Inputs,
    RefusedBindingError,
)
from real.console.commands import STILL, ControlCommand, Mode
from real.console.people import EpisodeLabel, FloodedError, PendingLabel, Person, RefusalCount
from real.teleop.takeover import HandInput
from robots.config import Count, Delay, Seconds, config
from robots.errors import HandoffError
from robots.interfaces import Label

Log = Callable[[str, str, Mapping[str, Any]], None]
"""Writes an action to the audit log; the arguments are who, what and details."""


@config
class ArbiterConfig:
    """Time limits of the control arbiter."""

    watchdog: Seconds = 0.15
    """Longest time without a message from the page in control before the arm holds still [s]."""
    undo: Delay = 1.5
    """Time for which a label can be undone and the arm holds still [s]. Giving the same label again
    makes it final at once."""
    messages: Count = 300
    """Highest number of messages per second from one page before it is disconnected [1/s]."""


class ControlArbiter:
    """State of the console: the people at it, the one in control, the mode and the last label.

    Args:
        config: time limits.
        bindings: map from keys and buttons to actions.
        log: called with every action, before the action becomes visible to anybody.
        now: returns the time [s].
        trouble: says why the log fails, which holds the arm; empty if it does not.
    """

    def __init__(
        self,
        config: ArbiterConfig,
        bindings: Bindings,
        log: Log,
        now: Callable[[], float],
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self.config = config
        self.bindings = bindings
        self._log = log
        self._now = now
        self._trouble = trouble
        self._refusals = RefusalCount()
        self.people: dict[int, Person] = {}
        """People by the numbers of their pages."""
        self.controller: int | None = None
        """Number of the page in control."""
        self.asking: int | None = None
        """Number of the page that asks for control."""
        self.mode = Mode.HOLD
        self.why = "Press Go on to start."
        """Cause of the mode HOLD or STOP, for the pages."""
        self.robot = False
        """Whether the robot's process is connected."""
        self._hand = STILL
        self._device_hand = STILL
        self._label = EpisodeLabel()
        self._released = True
        """Whether every input that moves the arm was released since the arm last held still."""
        self._next_number = 1

    def join(self, name: str, address: str) -> int:
        """Adds a page that sent the right token, and returns its number.

        The first page gets control.
        """
        number = self._next_number
        self._next_number += 1
        self.people[number] = Person(name or f"page {number}", address, self._now())
        self._log(self.people[number].name, "joined", {"address": address})
        if self.controller is None:
            self._take_control(number)
        return number

    def refuse(self, address: str, why: str) -> None:
        """Notes that a connection was refused, and holds the arm."""
        self.hold(f"A connection from {address} was refused: {why}.")
        if self._refusals.counts(self._now()):
            self._log(address, "refused", {"why": why})

    def turn_away(self, address: str, why: str) -> None:
        """Notes that a page of another site was refused, which cannot hold the arm either."""
        if self._refusals.counts(self._now()):
            self._log(address, "turned away", {"why": why})

    def leave(self, number: int, why: str) -> None:
        """Removes a page; the arm holds still if it was in control."""
        person = self.people.pop(number, None)
        if person is None:
            return
        if self.asking == number:
            self.asking = None
        if self.controller == number:
            self.controller = None
            self.hold(f"The page of {person.name} disconnected: {why}.")
        self._log(person.name, "left", {"why": why})

    def count(self, number: int) -> None:
        """Counts a message of a page.

        Raises:
            FloodedError: the page sends more messages per second than allowed.
        """
        person = self.people[number]
        messages = person.count_message(self._now())
        if messages > self.config.messages:
            self.hold(f"The page of {person.name} sent too many messages.")
            self._log(person.name, "flooded", {"messages": messages})
            raise FloodedError(
                f"{person.name}: more than {self.config.messages} messages in a second."
            )

    def inputs(self, number: int, inputs: Inputs, sequence: int, visible: bool) -> None:
        """Takes a page's inputs, which are its heartbeat as well.

        Args:
            number: number of the page.
            inputs: state of all keys, axes and buttons.
            sequence: number of the inputs, counted by the page.
            visible: whether the browser shows the page.
        """
        person = self.people[number]
        person.last_heard = self._now()
        person.sequence = sequence
        down = self.bindings.down(inputs)
        pressed = down - person.down
        person.down = down
        hidden = person.visible and not visible
        person.visible = visible
        # A page without control can stop the arm, and nothing else.
        if number != self.controller:
            if HOLD in pressed:
                self.press(number, HOLD)
            return
        if hidden:
            self.hold(f"The page of {person.name} is hidden.")
        person.hand = self.bindings.hand(inputs)
        hand = self._merged(person.hand)
        # Actions that stop the arm come before those that move it.
        for action in sorted(pressed - MOVING, key=lambda action: action != HOLD):
            self.press(number, action)
        self._move(person, hand)

    def device(self, hand: HandInput) -> None:
        """Takes the input of a device at the server, such as a SpaceMouse, for whoever is in
        control."""
        self._device_hand = hand
        if self.controller is not None:
            person = self.people[self.controller]
            self._move(person, self._merged(person.hand))

    def press(self, number: int, action: str) -> None:
        """Takes a page's action that does not move the arm: a label, undo, hold still, go on, end.

        Raises:
            HandoffError: unknown action.
        """
        person = self.people[number]
        if action == HOLD:
            self.hold(f"{person.name} pressed Hold still.")
        elif number != self.controller:
            self._log(person.name, "not in control", {"asked for": action})
        elif action in LABELS:
            self._give_label(person, LABELS[action])
        elif action == UNDO:
            self._undo(person)
        elif action == RESUME:
            self._resume(person)
        elif action == END:
            self.mode = Mode.STOP
            self.why = f"{person.name} ended the session."
            self._hand = STILL
            self._log(person.name, "ended the session", {})
        else:
            raise HandoffError(
                f"console: '{action}' is no action of a page. Does the page have another version?"
            )

    def claim(self, number: int, *, force: bool) -> None:
        """A page asks for control; with `force` it takes control, which holds the arm still."""
        person = self.people[number]
        if self.controller == number:
            return
        if self.controller is None or force:
            self._take_control(number)
            return
        self.asking = number
        self._log(person.name, "asked for control", {"of": self.people[self.controller].name})

    def give(self, number: int) -> None:
        """The page in control passes control to the page that asked for it; if none did, nobody is
        in control and the arm holds still."""
        if number != self.controller:
            return
        if self.asking is not None:
            self._take_control(self.asking)
            return
        name = self.people[number].name
        self.controller = None
        self._log(name, "gave control up", {})
        self.hold(f"{name} gave up control.")

    def bind(self, number: int, action: str, name: str, *, swap: bool = False) -> None:
        """The page in control binds an input to an action, while the arm holds still.

        Args:
            number: number of the page.
            action: action to be bound.
            name: name of the input.
            swap: whether an action that already has the input gets the other action's inputs.

        Raises:
            RefusedBindingError: the page is not in control, the arm may move, or the map does not
                allow it; nothing changes.
            HandoffError: unknown action or input.
        """
        details = {"action": action, "input": name, "swap": swap}
        self._rebind(number, details, lambda: self.bindings.bound(action, name, swap=swap))

    def restore(self, number: int) -> None:
        """The page in control restores the default bindings, while the arm holds still.

        Raises:
            RefusedBindingError: the page is not in control, or the arm may move; nothing changes.
        """
        self._rebind(number, {"action": "all", "input": "defaults"}, self.bindings.restored)

    def robot_connected(self, connected: bool, about: str) -> None:
        """The robot's process connected or disconnected; `about` names its task."""
        self._log("robot", "connected" if connected else "lost", {"about": about})
        self.robot = connected
        self._label.reset()
        if self.mode is Mode.STOP and connected:
            self.mode = Mode.HOLD
        self.hold("The robot connected." if connected else "The robot disconnected.")

    def hold(self, why: str) -> None:
        """Holds the arm still until the person in control presses `go on`."""
        moving = self.mode in (Mode.POLICY, Mode.PERSON)
        if moving:
            self.mode = Mode.HOLD
        if self.mode is Mode.HOLD:
            self.why = why
        if self._label.pending is not None:
            self._label.pending.resume = False
        self._hand = STILL
        self._released = False
        # Last: the arm does not wait for a disk.
        if moving:
            self._log("console", "hold", {"why": why})

    def tick(self) -> None:
        """Checks the watchdog and the pending label; to be called a hundred times per second."""
        now = self._now()
        if self.mode in (Mode.POLICY, Mode.PERSON):
            person = None if self.controller is None else self.people[self.controller]
            if person is None:
                self.hold("Nobody has control.")
            elif self._trouble():
                self.hold(self._trouble())
            elif now - person.last_heard > self.config.watchdog:
                silent_ms = 1e3 * (now - person.last_heard)
                self.hold(f"The page of {person.name} was silent for {silent_ms:.0f} ms.")
        if self._label.pending is not None and now >= self._label.pending.until:
            self._commit_label()
        left_out = self._refusals.left_out(now)
        if left_out:
            self._log("console", "refused", {"why": "many connections", "more": left_out})

    def command(self) -> ControlCommand:
        """The command to the robot's process at this moment."""
        person = None if self.controller is None else self.people[self.controller]
        name, sequence = ("", -1) if person is None else (person.name, person.sequence)
        return ControlCommand(
            self.mode, self._hand, name, sequence, self._label.final, self._label.number
        )

    def page_state(self) -> dict[str, Any]:
        """State that every page shows, as plain values for JSON."""
        pending = self._label.pending
        now = self._now()
        names = {number: person.name for number, person in self.people.items()}
        return {
            "mode": self.mode.value,
            "why": self.why if self.mode in (Mode.HOLD, Mode.STOP) else "",
            "controller": self.controller,
            "asking": self.asking,
            "people": names,
            "robot": self.robot,
            "sequence": -1 if self.controller is None else self.people[self.controller].sequence,
            "pending": None if pending is None else pending.label.name.lower(),
            "undo": self.config.undo,
            "undo_left": None if pending is None else max(0.0, pending.until - now),
            "label": self._label.final.name.lower(),
        }

    def _rebind(
        self, number: int, details: Mapping[str, Any], make: Callable[[], Bindings]
    ) -> None:
        """Replaces the bindings by those that `make` returns, or logs why they were refused."""
        name = self.people[number].name
        try:
            if number != self.controller or self.mode is not Mode.HOLD:
                raise RefusedBindingError("Hold the arm still and take control to change bindings.")
            self.bindings = make()
        except RefusedBindingError as refused:
            self._log(name, "not bound", {**details, "mode": self.mode.value, "why": str(refused)})
            raise
        self._released = False
        self._log(name, "bound", details)

    def _merged(self, hand: HandInput) -> HandInput:
        """The page's input, or the device's if the page moves nothing; notes when both are
        released."""
        merged = hand if hand.engaged else self._device_hand
        self._released |= not merged.engaged
        return merged

    def _move(self, person: Person, hand: HandInput) -> None:
        if self.mode not in (Mode.POLICY, Mode.PERSON):
            return
        engaged = hand.engaged and self._released
        if engaged != (self.mode is Mode.PERSON):
            self._log(person.name, "took the arm over" if engaged else "gave the arm back", {})
        self.mode = Mode.PERSON if engaged else Mode.POLICY
        self._hand = hand if engaged else STILL

    def _take_control(self, number: int) -> None:
        previous = None if self.controller is None else self.people[self.controller].name
        self.controller = number
        self.asking = None
        name = self.people[number].name
        self._log(name, "has control", {"before": previous})
        self.hold(f"{name} took control." if previous else "Press Go on to start.")

    def _give_label(self, person: Person, label: Label) -> None:
        if not self.robot or self.mode is Mode.STOP:
            self._log(
                person.name,
                "label not taken",
                {"label": label.name.lower(), "mode": self.mode.value},
            )
            return
        pending = self._label.pending
        again = pending is not None and pending.label is label
        self._log(person.name, "said", {"label": label.name.lower(), "again": again})
        if again:
            self._commit_label()
            return
        self._label.pending = None
        self.hold(f"{person.name} labelled the episode: {label.name.lower()}.")
        self._label.pending = PendingLabel(label, person.name, self._now() + self.config.undo)

    def _undo(self, person: Person) -> None:
        pending = self._label.pending
        if pending is None:
            self._log(person.name, "nothing to undo", {})
            return
        self._log(person.name, "took back", {"label": pending.label.name.lower()})
        self._label.pending = None
        self.why = f"{person.name} undid the label."

    def _commit_label(self) -> None:
        """Makes the pending label final; the arm resumes if the person in control is present."""
        committed = self._label.commit()
        details = {"label": committed.label.name.lower(), "number": self._label.number}
        self._log(committed.person, "label counts", details)
        ready = self._controller_present() and not self._trouble()
        if self.mode is Mode.HOLD and committed.resume and ready:
            self.mode = Mode.POLICY
            self.why = ""

    def _resume(self, person: Person) -> None:
        if self.mode is not Mode.HOLD or self._label.pending is not None:
            return
        if not self.robot or not person.visible:
            self.why = "Wait for the robot to connect." if not self.robot else "Show the page."
            return
        self._log(person.name, "said go on", {})
        self.why = self._trouble()
        self.mode = Mode.HOLD if self.why else Mode.POLICY

    def _controller_present(self) -> bool:
        if self.controller is None:
            return False
        person = self.people[self.controller]
        return person.visible and self._now() - person.last_heard <= self.config.watchdog
