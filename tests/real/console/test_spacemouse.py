"""A SpaceMouse at the server's machine, by a device that a test moves."""

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from real.console import server
from real.console.control.bindings import Inputs
from real.console.control.commands import Mode
from real.console.server import ConsoleConfig, ConsoleServer
from real.teleop.spacemouse import SpaceMouse

TOKEN = "t" * 24


class FakeDevice:
    """Reports what it is set to, each time anew; or fails, as one whose cable was pulled."""

    def __init__(self) -> None:
        self.y, self.time, self.pulled = 0.0, 0.0, False

    def read(self) -> Any:
        if self.pulled:
            raise OSError("gone")
        self.time += 1.0
        return SimpleNamespace(
            t=self.time, x=0.0, y=self.y, z=0.0, roll=0.0, pitch=0.0, yaw=0.0, buttons=[0, 0]
        )

    def close(self) -> None:
        pass


async def worked(console: ConsoleServer) -> Mode:
    """The mode after the server has looked at its device a few times."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(console.run_control(), 0.1)
    return console.arbiter.command().mode


def test_the_servers_device_moves_the_arm_and_a_pulled_cable_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    device = FakeDevice()
    monkeypatch.setattr(server, "SpaceMouse", lambda: SpaceMouse(device=device))
    asyncio.run(
        moved(
            ConsoleServer(
                ConsoleConfig(spacemouse=True), TOKEN, TOKEN, TOKEN, tmp_path, now=lambda: 0.0
            ),
            device,
        )
    )


async def moved(console: ConsoleServer, device: FakeDevice) -> None:
    console.arbiter.robot_connected(True, "reach")
    ada = console.arbiter.join("ada", "here")
    console.arbiter.inputs(ada, Inputs(keys=frozenset({"Enter"})), 1, True)
    assert await worked(console) is Mode.POLICY
    device.y = 0.5
    assert await worked(console) is Mode.PERSON
    assert console.arbiter.command().hand.twist[1] > 0.4
    device.pulled = True
    assert await worked(console) is Mode.HOLD
    assert "cable" in console.arbiter.why
