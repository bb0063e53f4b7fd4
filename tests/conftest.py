"""Holds for every test: what is skipped where the machine lacks something, and whose priority a test runs with."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Literal

import pytest

Need = Literal["maniskill", "warp", "opengl", "chromium"]
"""What a test may need beyond the packages of every laptop: `@pytest.mark.needs("opengl")`."""
REQUIRED = bool(os.environ.get("HANDOFF_REQUIRE_ENGINES"))
"""Set in continuous integration, where what a machine lacks is a failure."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and every process that a test starts would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this machine cannot run, before any fixture is made; fails where it must."""
    for mark in item.iter_markers("needs"):
        reason = lacking(*mark.args)
        if reason is not None and REQUIRED and _could_be_installed(*mark.args):
            pytest.fail(reason)
        if reason is not None:
            pytest.skip(reason)


@cache
def lacking(need: Need) -> str | None:
    """Why this machine cannot do what a test needs, with what to install; None where it can."""
    match need:
        case "maniskill":
            return _lacking_maniskill()
        case "warp":
            installed = find_spec("mujoco_warp") is not None
            return None if installed else "no mujoco-warp: pip install 'handoff[warp]'"
        case "opengl":
            from sim.rendering.push_t import available_renderer

            if available_renderer() != "plan":
                return None
            return "no OpenGL without a screen: apt install libegl1 libgl1-mesa-dri"
        case "chromium":
            return None if chromium() else "no Chromium: apt install chromium"


def chromium() -> str | None:
    """Path of the browser that tests drive; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def _lacking_maniskill() -> str | None:
    if not _could_be_installed("maniskill"):
        return "no ManiSkill: its wheels are for Linux on x86_64 and Python up to 3.12"
    if find_spec("mani_skill") is None:
        return "no ManiSkill: pip install 'handoff[maniskill]'"
    from robots.errors import HandoffError
    from sim.engines.maniskill import ManiSkillEngine

    try:
        ManiSkillEngine("PickCube-v1", 1).close()
    except HandoffError as error:
        if "libGL" in str(error):
            return "no OpenGL library, which ManiSkill's OpenCV loads: apt install libgl1"
        if "Vulkan" not in str(error):
            raise
        return "no Vulkan driver for ManiSkill: apt install mesa-vulkan-drivers (Mesa 25 or later)"
    return None


def _could_be_installed(need: Need) -> bool:
    linux = (sys.platform, platform.machine()) == ("linux", "x86_64")
    return need != "maniskill" or (linux and sys.version_info < (3, 13))


_OWN = (
    (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "sched_getscheduler") else None
)
"""Scheduling of the thread in which tests run, as it was when they began."""


@pytest.fixture(autouse=True)
def _own_priority() -> Iterator[None]:
    """Takes back the real-time priority that franky's constructor gives to the thread that calls
    it.

    Threads inherit it, and those of a later test would spin on all processors while the one they
    wait for never runs.
    """
    yield
    if _OWN is not None and os.sched_getscheduler(0) != _OWN[0]:
        os.sched_setscheduler(0, *_OWN)


@pytest.fixture(scope="module")
def unoptimised_kernels() -> Iterator[None]:
    """mujoco-warp's kernels are compiled at their first use; without optimisation, to save time."""
    import warp  # pyright: ignore[reportMissingImports]

    before = warp.config.optimization_level
    warp.config.optimization_level = 0
    yield
    warp.config.optimization_level = before
