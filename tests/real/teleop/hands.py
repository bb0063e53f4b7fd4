"""Fakes for the operators' tests: a clock that is set, keys that are pressed, a SpaceMouse that is
deflected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from robots.spec import ActionSpec

SPEC = ActionSpec(
    low=(-1.0,) * 5,
    high=(1.0,) * 5,
    names=("x", "y", "z", "yaw", "gripper"),
    interface="cartesian_delta",
)


@dataclass
class FakeClock:
    time: float = 100.0

    def __call__(self) -> float:
        return self.time


@dataclass
class FakeKeys:
    waiting: list[str] = field(default_factory=list)
    closed: bool = False

    def press(self, *keys: str) -> None:
        self.waiting += keys

    def read(self) -> list[str]:
        keys, self.waiting = self.waiting, []
        return keys

    def close(self) -> None:
        self.closed = True


@dataclass
class State:
    t: float = -1.0
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    roll: float = 0.0
    pitch: float = 0.0
    yaw: float = 0.0
    buttons: Sequence[int] = (0, 0)


@dataclass
class FakeSpaceMouse:
    """Reports wait in a queue, as in the kernel; without one the last state is returned again."""

    reports: list[State] = field(default_factory=list)
    state: State = field(default_factory=State)
    broken: bool = False
    closed: bool = False

    def report(self, **axes: object) -> None:
        newest = self.reports[-1] if self.reports else self.state
        self.reports.append(State(t=newest.t + 1.0, **axes))  # type: ignore[arg-type]

    def read(self) -> State:
        if self.broken:
            raise OSError("read error")
        if self.reports:
            self.state = self.reports.pop(0)
        return self.state

    def close(self) -> None:
        self.closed = True
