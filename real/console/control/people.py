"""Holds the state of the people at the console: their inputs and message rates."""

from __future__ import annotations

from dataclasses import dataclass, field

from real.console.control.commands import STILL
from real.console.control.page_spacemouse import PageSpaceMouse
from real.teleop.takeover import HandInput
from robots.errors import HandoffError

MOST_REFUSALS = 10
"""Largest number of refused connections in a period that are written down one by one."""
REFUSAL_SECONDS = 10.0
"""Length of a period [s]."""


@dataclass
class Person:
    """A person at an open page."""

    name: str
    address: str
    last_heard: float
    """Time of the page's last inputs [s]."""
    visible: bool = True
    """Whether the browser shows the page."""
    down: frozenset[str] = frozenset()
    """Actions whose keys or buttons are down."""
    hand: HandInput = STILL
    """Motion that the newest inputs ask for."""
    spacemouse: PageSpaceMouse = field(default_factory=PageSpaceMouse)
    """SpaceMouse at the page."""
    sequence: int = -1
    """Number of the newest inputs."""
    ending: float | None = None
    """Time since which the person holds the key that ends the session [s]; None if they do not."""
    window_start: float = 0.0
    """Start of the second in which messages are being counted [s]."""
    window_messages: int = 0
    """Number of messages in that second."""

    def count_message(self, now: float) -> int:
        """Counts a message at time `now` [s]; returns the number of messages in the present
        second."""
        if now - self.window_start >= 1.0:
            self.window_start = now
            self.window_messages = 0
        self.window_messages += 1
        return self.window_messages


class People:
    """The people at the console by the numbers of their pages: at most one is in control, and at
    most one asks for control."""

    def __init__(self) -> None:
        self.pages: dict[int, Person] = {}
        """People by the numbers of their pages."""
        self.controller: int | None = None
        """Number of the page in control."""
        self.asking: int | None = None
        """Number of the page that asks for control."""
        self._next_number = 1

    def __getitem__(self, number: int) -> Person:
        """The person at a page."""
        return self.pages[number]

    @property
    def in_control(self) -> Person | None:
        """The person in control."""
        return None if self.controller is None else self.pages[self.controller]

    def join(self, name: str, address: str, now: float) -> int:
        """Adds a page at time `now` [s]; returns its number."""
        number = self._next_number
        self._next_number += 1
        self.pages[number] = Person(name or f"page {number}", address, now)
        return number

    def leave(self, number: int) -> Person | None:
        """Removes a page, which neither has control nor asks for it any longer; returns its person,
        None if it was not there."""
        person = self.pages.pop(number, None)
        if self.asking == number:
            self.asking = None
        if self.controller == number:
            self.controller = None
        return person

    def take_control(self, number: int) -> str | None:
        """A page is in control from now on, and no key is held to end the session; returns the name
        of the person who was, None if nobody was."""
        before = self.in_control
        self.controller = number
        self.asking = None
        for person in self.pages.values():
            person.ending = None
        return None if before is None else before.name


class RefusalCount:
    """Refused connections, of which at most `MOST_REFUSALS` are written down in a period, so that
    nobody fills the disk with them."""

    def __init__(self) -> None:
        self._began = 0.0
        self._count = 0

    def counts(self, now: float) -> bool:
        """Counts a refusal at time `now` [s]; whether it is to be written down."""
        self._count += 1
        if self._count == 1:
            self._began = now
        return self._count <= MOST_REFUSALS

    def left_out(self, now: float) -> int:
        """At the end of a period, number of its refusals that were not written down."""
        if not self._count or now - self._began < REFUSAL_SECONDS:
            return 0
        left_out = max(0, self._count - MOST_REFUSALS)
        self._count = 0
        return left_out


class FloodedError(HandoffError):
    """A page sent more messages than `ArbiterConfig.messages` allows."""
