"""A fake connection to a console, whose commands a test sets."""

from typing import Any

from real.console.commands import STILL, ControlCommand, Mode
from real.teleop.takeover import HandInput
from robots.interfaces import Label


class FakeConnection:
    """Returns the command that the test set, and keeps the messages it receives."""

    def __init__(self) -> None:
        self.connection = 1
        self.messages: list[dict[str, Any]] = []
        self.scenes: list[bytes | None] = []
        self.closed = False
        self.now = ControlCommand(Mode.HOLD, STILL, "ada", 0, Label.NONE, 0)

    def command(self) -> ControlCommand:
        return self.now

    def send(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        self.messages.append(message)
        self.scenes.append(scene)

    def close(self) -> None:
        self.closed = True


def set_command(
    connection: FakeConnection, mode: Mode, hand: HandInput = STILL, **others: Any
) -> None:
    connection.now = connection.now._replace(mode=mode, hand=hand, **others)
