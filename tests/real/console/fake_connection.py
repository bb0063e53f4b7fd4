"""A fake connection to a console, whose commands a test sets."""

from typing import Any

from real.console.control.commands import STILL, ControlCommand, Mode
from real.teleop.takeover import HandInput
from robots.interfaces import Label


class FakeConnection:
    """Returns the command that the test set, and keeps the messages it receives."""

    def __init__(self) -> None:
        self.connection = 1
        self.messages: list[dict[str, Any]] = []
        self.scenes: list[bytes | None] = []
        self.closed = False
        self.holds = 0
        """How often it was told to hold until the console does."""
        self.now = ControlCommand(Mode.HOLD, STILL, "ada", 0, Label.NONE, 0, 0)

    def command(self) -> ControlCommand:
        return self.now

    def send(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        self.messages.append(message)
        self.scenes.append(scene)

    def describe(self, message: dict[str, Any], scene: bytes | None = None) -> None:
        self.send(message, scene)

    def await_hold(self) -> None:
        self.holds += 1

    def close(self) -> None:
        self.closed = True


def set_command(
    connection: FakeConnection, mode: Mode, hand: HandInput = STILL, **others: Any
) -> None:
    connection.now = connection.now._replace(mode=mode, hand=hand, **others)
