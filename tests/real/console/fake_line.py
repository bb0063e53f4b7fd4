"""A line to a console that a test moves by hand."""

from typing import Any

from real.console.commands import STILL, ControlCommand, Mode
from real.teleop.takeover import HandInput
from robots.interfaces import Label


class FakeLine:
    """Says what the test says, and keeps what it is told."""

    def __init__(self) -> None:
        self.connection, self.words, self.scenes, self.closed = 1, [], [], False
        self.now = ControlCommand(Mode.HOLD, STILL, "ada", 0, Label.NONE, 0)

    def command(self) -> ControlCommand:
        return self.now

    def send(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        self.words.append(message)
        self.scenes.append(scene)

    def close(self) -> None:
        self.closed = True


def say(line: FakeLine, mode: Mode, hand: HandInput = STILL, **others: Any) -> None:
    line.now = line.now._replace(mode=mode, hand=hand, **others)
