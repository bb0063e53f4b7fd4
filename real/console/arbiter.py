"""Who has the arm, what they ask for, and when it must hold still: the console without its wires.

One rule covers all that can go wrong: it ends in HOLD, and somebody who is present has to say
`go on`. The page is hidden or closed, its words stop coming for longer than the watchdog, control
changes hands, a stranger shows a wrong token, somebody floods the line: who can reach the console
can stop the arm, and only who holds control can move it.

Time is an argument, so everything here can be worked by hand in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

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
from real.teleop.takeover import Hand
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Label

Log = Callable[[str, str, Mapping[str, Any]], None]
"""Writes an action down: who, what, details."""

STILL = Hand(False, np.zeros(6), 0)


class Mode(StrEnum):
    """Who moves the arm."""

    POLICY = "policy"
    PERSON = "person"
    HOLD = "hold"
    STOP = "stop"


@config
class DeskConfig:
    """How long things may take."""

    watchdog: float = 0.15
    """Silence of whoever holds control after which the arm holds still [s]."""
    undo: float = 1.5
    """Time in which a label can be taken back; the arm holds still so long [s]. The same key again
    does not wait."""
    messages: int = 300
    """Messages of one page per second, above which it is shut out."""


@dataclass
class Person:
    """One page that is open."""

    name: str
    address: str
    seen: float
    """When it last said anything [s]."""
    visible: bool = True
    down: frozenset[str] = frozenset()
    """Actions whose keys or buttons are down."""
    hand: Hand = STILL
    """What its newest inputs come to."""
    sequence: int = -1
    """Number of its newest inputs."""
    counted_from: float = 0.0
    counted: int = 0


class Command(NamedTuple):
    """What the robot's side is to do now."""

    mode: Mode
    hand: Hand
    """Of the person, in mode PERSON."""
    person: str
    """Who holds control; empty without anybody."""
    sequence: int
    """Number of the inputs behind it."""
    label: Label
    said: int
    """Number of the label, from 1: one that is new is to be taken once. 0: none was said yet."""


@dataclass
class _Said:
    label: Label
    person: str
    until: float
    go_on: bool = True
    """Whether the arm goes on by itself once the label counts."""


class FloodedError(HandoffError):
    """A page sent more than it may."""


class Desk:
    """The console's state.

    Args:
        config: times.
        bindings: of keys and buttons.
        log: where every action goes.
        now: time [s].
    """

    def __init__(
        self, config: DeskConfig, bindings: Bindings, log: Log, now: Callable[[], float]
    ) -> None:
        self.config, self.bindings, self._log, self._now = config, bindings, log, now
        self.people: dict[int, Person] = {}
        self.controller: int | None = None
        self.asking: int | None = None
        """Who would like to have control."""
        self.mode, self.why = Mode.HOLD, "nobody has said go on yet"
        self.robot = False
        """Whether a robot's side is connected."""
        self._hand, self._device = STILL, STILL
        self._pending: _Said | None = None
        self._label, self._said = Label.NONE, 0
        self._let_go = True
        """Nothing that moves is down since the arm held still last."""
        self._next = 1

    def join(self, name: str, address: str) -> int:
        """A page with the right token; returns its number. The first one gets control."""
        number, self._next = self._next, self._next + 1
        self.people[number] = Person(name or f"page {number}", address, self._now())
        self._log(self.people[number].name, "joined", {"address": address})
        if self.controller is None:
            self._control(number)
        return number

    def refuse(self, address: str, why: str) -> None:
        """Somebody came to the door who may not come in."""
        self._log(address, "refused", {"why": why})
        self.hold(f"somebody at {address} was refused: {why}")

    def leave(self, number: int, why: str) -> None:
        """A page is gone."""
        person = self.people.pop(number, None)
        if person is None:
            return
        self._log(person.name, "left", {"why": why})
        if self.asking == number:
            self.asking = None
        if self.controller == number:
            self.controller = None
            self.hold(f"{person.name}'s page is gone: {why}")

    def count(self, number: int) -> None:
        """A message came from a page.

        Raises:
            FloodedError: it sends too many.
        """
        person, now = self.people[number], self._now()
        if now - person.counted_from >= 1.0:
            person.counted_from, person.counted = now, 0
        person.counted += 1
        if person.counted > self.config.messages:
            self._log(person.name, "flooded", {"messages": person.counted})
            self.hold(f"{person.name}'s page flooded the line")
            raise FloodedError(
                f"{person.name}: more than {self.config.messages} messages in a second."
            )

    def inputs(self, number: int, inputs: Inputs, sequence: int, visible: bool) -> None:
        """A page tells what is down now; its heartbeat, too."""
        person = self.people[number]
        person.seen, person.sequence = self._now(), sequence
        pressed = self.bindings.down(inputs) - person.down
        person.down = self.bindings.down(inputs)
        hidden, person.visible = person.visible and not visible, visible
        if number != self.controller:
            if pressed & {HOLD}:
                self.press(number, HOLD)
            return
        if hidden:
            self.hold(f"{person.name}'s page is hidden")
        person.hand = self.bindings.hand(inputs)
        hand = self._together(person.hand)
        # First what stops, then what moves.
        for action in sorted(pressed - MOVING, key=lambda action: action != HOLD):
            self.press(number, action)
        self._move(person, hand)

    def device(self, hand: Hand) -> None:
        """What a device at the server, such as a SpaceMouse, tells of the hand of whoever has
        control."""
        self._device = hand
        if self.controller is not None:
            person = self.people[self.controller]
            self._move(person, self._together(person.hand))

    def press(self, number: int, action: str) -> None:
        """A page asks for something that is no motion: a label, undo, hold still, go on, the end.

        Raises:
            HandoffError: no such action.
        """
        person = self.people[number]
        if action == HOLD:
            self.hold(f"{person.name} said so")
        elif number != self.controller:
            self._log(person.name, "not in control", {"asked for": action})
        elif action in LABELS:
            self._say(person, LABELS[action])
        elif action == UNDO:
            self._undo(person)
        elif action == RESUME:
            self._resume(person)
        elif action == END:
            self._log(person.name, "ended the session", {})
            self.mode, self.why, self._hand = Mode.STOP, f"{person.name} ended the session", STILL
        else:
            raise HandoffError(f"console: '{action}' cannot be pressed. A page of another version?")

    def claim(self, number: int, *, force: bool) -> None:
        """A page wants control; with `force` it takes it, which holds the arm still."""
        person = self.people[number]
        if self.controller == number:
            return
        if self.controller is None or force:
            self._control(number)
            return
        self.asking = number
        self._log(person.name, "asked for control", {"of": self.people[self.controller].name})

    def give(self, number: int) -> None:
        """Whoever has control hands it to who asked; without anybody who did it is let go."""
        if number != self.controller:
            return
        if self.asking is not None:
            self._control(self.asking)
            return
        name = self.people[number].name
        self.controller = None
        self._log(name, "gave control up", {})
        self.hold(f"{name} gave control up")

    def bind(self, number: int, action: str, name: str, *, swap: bool = False) -> None:
        """Whoever has control binds an input anew, while the arm holds still.

        Args:
            number: of the page.
            action: to be bound.
            name: of the input.
            swap: whether an action that has the input gets the other's inputs for it.

        Raises:
            RefusedBindingError: somebody else asks, the arm moves, or the map does not allow it;
            nothing changes. HandoffError: no such action or input.
        """
        details = {"action": action, "input": name, "swap": swap}
        self._bind(number, details, lambda: self.bindings.bound(action, name, swap=swap))

    def restore(self, number: int) -> None:
        """Whoever has control brings the default bindings back, while the arm holds still.

        Raises:
            RefusedBindingError: somebody else asks, or the arm moves; nothing changes.
        """
        self._bind(number, {"action": "all", "input": "defaults"}, self.bindings.restored)

    def robot_here(self, here: bool, about: str) -> None:
        """The robot's side came or went."""
        self._log("robot", "connected" if here else "lost", {"about": about})
        self.robot = here
        self._pending, self._label, self._said = None, Label.NONE, 0
        if self.mode is Mode.STOP and here:
            self.mode = Mode.HOLD
        self.hold("the robot's side is new" if here else "the robot's side is gone")

    def hold(self, why: str) -> None:
        """The arm holds still until somebody says go on."""
        if self.mode in (Mode.POLICY, Mode.PERSON):
            self._log("console", "hold", {"why": why})
            self.mode = Mode.HOLD
        if self.mode is Mode.HOLD:
            self.why = why
        if self._pending is not None:
            self._pending.go_on = False
        self._hand, self._let_go = STILL, False

    def tick(self) -> None:
        """Time has passed: watchdog and undo. Call it a hundred times a second."""
        now = self._now()
        if self.mode in (Mode.POLICY, Mode.PERSON):
            person = None if self.controller is None else self.people[self.controller]
            if person is None:
                self.hold("nobody has control")
            elif now - person.seen > self.config.watchdog:
                self.hold(
                    f"{person.name}'s page fell silent for {1e3 * (now - person.seen):.0f} ms"
                )
        if self._pending is not None and now >= self._pending.until:
            self._commit()

    def command(self) -> Command:
        """What the robot's side is to do now."""
        person = None if self.controller is None else self.people[self.controller]
        name, sequence = ("", -1) if person is None else (person.name, person.sequence)
        return Command(self.mode, self._hand, name, sequence, self._label, self._said)

    def shown(self) -> dict[str, Any]:
        """What every page shows."""
        pending, now = self._pending, self._now()
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
            "label": self._label.name.lower(),
        }

    def _bind(
        self, number: int, details: Mapping[str, Any], changed: Callable[[], Bindings]
    ) -> None:
        """Takes a new map, or writes down why not."""
        name = self.people[number].name
        try:
            if number != self.controller or self.mode is not Mode.HOLD:
                raise RefusedBindingError(
                    "Keys change only while the arm holds still, by whoever has control."
                )
            self.bindings = changed()
        except RefusedBindingError as refused:
            self._log(name, "not bound", {**details, "mode": self.mode.value, "why": str(refused)})
            raise
        self._let_go = False
        self._log(name, "bound", details)

    def _together(self, hand: Hand) -> Hand:
        """The page's hand, or that of the device where the page has none; notes when both have let
        go."""
        together = hand if hand.engaged else self._device
        self._let_go |= not together.engaged
        return together

    def _move(self, person: Person, hand: Hand) -> None:
        if self.mode not in (Mode.POLICY, Mode.PERSON):
            return
        engaged = hand.engaged and self._let_go
        if engaged != (self.mode is Mode.PERSON):
            self._log(person.name, "took the arm over" if engaged else "gave the arm back", {})
        self.mode, self._hand = (Mode.PERSON, hand) if engaged else (Mode.POLICY, STILL)

    def _control(self, number: int) -> None:
        before = None if self.controller is None else self.people[self.controller].name
        self.controller, self.asking = number, None
        name = self.people[number].name
        self._log(name, "has control", {"before": before})
        self.hold(f"{name} has control now" if before else "nobody has said go on yet")

    def _say(self, person: Person, label: Label) -> None:
        if not self.robot or self.mode is Mode.STOP:
            self._log(
                person.name,
                "label not taken",
                {"label": label.name.lower(), "mode": self.mode.value},
            )
            return
        again = self._pending is not None and self._pending.label is label
        self._log(person.name, "said", {"label": label.name.lower(), "again": again})
        if again:
            self._commit()
            return
        self._pending = None
        self.hold(f"{person.name} said {label.name.lower()}")
        self._pending = _Said(label, person.name, self._now() + self.config.undo)

    def _undo(self, person: Person) -> None:
        if self._pending is None:
            self._log(person.name, "nothing to undo", {})
            return
        self._log(person.name, "took back", {"label": self._pending.label.name.lower()})
        self._pending = None
        self.why = f"{person.name} took the label back"

    def _commit(self) -> None:
        """The label counts from now on; the arm goes on if who said it is still there."""
        said, self._pending = self._pending, None
        assert said is not None
        self._label, self._said = said.label, self._said + 1
        self._log(
            said.person, "label counts", {"label": said.label.name.lower(), "number": self._said}
        )
        if self.mode is Mode.HOLD and said.go_on and self._present():
            self.mode, self.why = Mode.POLICY, ""

    def _resume(self, person: Person) -> None:
        if self.mode is not Mode.HOLD or self._pending is not None:
            return
        if not self.robot or not person.visible:
            self.why = "there is no robot yet" if not self.robot else "the page is hidden"
            return
        self._log(person.name, "said go on", {})
        self.mode, self.why = Mode.POLICY, ""

    def _present(self) -> bool:
        if self.controller is None:
            return False
        person = self.people[self.controller]
        return person.visible and self._now() - person.seen <= self.config.watchdog
