"""A line to a console that a test moves by hand."""

from typing import Any

from real.console.arbiter import STILL, Command, Mode
from real.teleop.takeover import Hand
from robots.interfaces import Label


class FakeLine:
    """Says what the test says, and keeps what it is told."""

    def __init__(self) -> None:
        self.connection, self.words, self.scenes, self.closed = 1, [], [], False
        self.now = Command(Mode.HOLD, STILL, "ada", 0, Label.NONE, 0)

    def command(self) -> Command:
        return self.now

    def tell(self, word: dict[str, Any], scene: bytes | None = None) -> None:
        self.words.append(word)
        self.scenes.append(scene)

    def close(self) -> None:
        self.closed = True


def say(line: FakeLine, mode: Mode, hand: Hand = STILL, **others: Any) -> None:
    line.now = line.now._replace(mode=mode, hand=hand, **others)
