"""Translates the arguments of `handoff record TASK --arm ADDRESS` to the options of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from flows.config.options import build_session
from flows.config.overrides import arm_overrides, quoted
from flows.deployment.cameras.policy_cameras import camera_overrides
from flows.deployment.demonstrations.config import DemonstrationSession
from real.console.server import ConsoleConfig
from robots.errors import HandoffError

TWIN = "twin"
"""Address that stands for a simulated arm."""
DEVICES = {"console": False, "spacemouse": True}
"""Devices of a person at an arm; whether a SpaceMouse at this computer is read."""


def record_arm_command(
    task: str,
    overrides: Sequence[str],
    out: Path,
    *,
    arm: str,
    cameras: Sequence[str],
    video: bool,
    instruction: str | None,
    operator: str,
    episodes: int,
    person: str,
    console: ConsoleConfig,
) -> None:
    """Runs the command, whose parameters `flows.commands.sessions.record` describes.

    Raises:
        HandoffError: see `flows.deployment.demonstrations.session.record_at_arm`.
    """
    from rich.console import Console

    from flows.deployment.demonstrations.session import record_at_arm

    if operator not in DEVICES:
        raise HandoffError(
            f"--operator {operator}: a person at an arm is at the console, whose page takes keys too. Give console or "
            "spacemouse."
        )
    if arm != TWIN and get_close_matches(arm.lower(), [TWIN]):
        raise HandoffError(f"--arm {arm}: did you mean {TWIN}, the simulated arm?")
    chosen = list(overrides)
    chosen += arm_overrides(None if arm == TWIN else arm)
    chosen += [] if instruction is None else [f"instruction={quoted(instruction)}"]
    chosen += ["video={kind: h264}"] if video else []
    chosen += camera_overrides(cameras)
    say = partial(Console().print, highlight=False, markup=False, soft_wrap=True)
    demos = record_at_arm(
        build_session(DemonstrationSession, "record", chosen),
        task,
        out,
        replace(console, spacemouse=console.spacemouse or DEVICES[operator]),
        person=person,
        episodes=episodes,
        say=say,
    )
    say(f"demos    {demos}")
