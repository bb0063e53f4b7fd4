"""Fixtures for every test: skips tests that the machine cannot run, and resets the thread
priority."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

Need = Literal[
    "maniskill",
    "warp",
    "opengl",
    "opencv",
    "chromium",
    "axe",
    "index",
    "openlineage",
    "postgresql",
    "second machine",
]
"""Requirements of tests beyond the packages of a laptop install: `@pytest.mark.needs("opengl")`."""
REQUIRED = bool(os.environ.get("HANDOFF_REQUIRE_ENGINES"))
"""Set in continuous integration, where a missing requirement is a failure."""
REALTIME = (
    "flows/correction",
    "flows/deployment",
    "flows/session",
    "flows/stages/test_classify.py",
    "flows/test_attended.py",
    "flows/test_console.py",
    "real",
    "sim/twin",
)
"""Folders and files of the tests that a clock decides: consoles, arms and cameras whose other side
is held to be lost when it is late."""
LONGEST = (
    "flows/test_served_runs.py",
    "sim/test_conformance.py",
    "flows/test_smoke.py",
    "flows/stages/test_cameras.py",
)
"""Files whose tests take minutes together. A file stays on one worker, so one that begins last keeps
the others waiting."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored; child processes would ignore Ctrl-C as
    # well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part realtime` runs the tests that a clock decides, `--part other` the others."""
    parser.addoption("--part", choices=("realtime", "other"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the files of the other part out."""
    part = config.getoption("part")
    if part is None or collection_path.is_dir():
        return None
    tests = Path(__file__).parent
    realtime = any(collection_path.is_relative_to(tests / place) for place in REALTIME)
    return True if realtime != (part == "realtime") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first; the order within and among the others stays."""
    tests = Path(__file__).parent
    first = [tests / place for place in LONGEST]
    items.sort(key=lambda item: first.index(item.path) if item.path in first else len(first))


def pytest_collection_finish() -> None:
    """Takes what exists once all tests are known, millions of objects that stay to the end, out of
    garbage collections: ManiSkill and others collect explicitly, each time for a second and
    more."""
    _freeze_objects()


def _freeze_objects() -> None:
    """Takes what exists, but no garbage, out of garbage collections."""
    gc.collect()
    gc.freeze()


_with_maniskill: set[Path] = set()
"""Files of tests that need ManiSkill, of those that have begun."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that this machine cannot run, before their fixtures are set up."""
    for mark in item.iter_markers("needs"):
        require(*mark.args)
        if mark.args == ("maniskill",) and item.path not in _with_maniskill:
            # ManiSkill itself was not imported when all tests were known, and earlier tests have
            # imported torch's compiler, Prefect and others meanwhile.
            _with_maniskill.add(item.path)
            _freeze_objects()


def require(need: Need) -> None:
    """Skips the calling test if the machine lacks the requirement; fails it in continuous
    integration."""
    reason = lacking(need)
    if reason is not None and REQUIRED and _could_be_installed(need):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)


@cache
def lacking(need: Need) -> str | None:
    """Reason why this machine lacks the requirement, with what to install; None if it has it."""
    match need:
        case "maniskill":
            return _lacking_maniskill()
        case "warp":
            installed = find_spec("mujoco_warp") is not None
            return None if installed else "no mujoco-warp: pip install -e '.[warp]'"
        case "opengl":
            from sim.rendering.push_t import available_renderer

            if available_renderer() != "plan":
                return None
            return "no OpenGL without a screen: apt install libegl1 libgl1-mesa-dri"
        case "opencv":
            return _lacking_opencv()
        case "axe":
            installed = find_spec("axe_playwright_python") is not None
            return None if installed else "no axe-core: pip install -e '.[dev]'"
        case "chromium":
            return None if chromium() else "no Chromium: apt install chromium"
        case "index":
            return _lacking_index()
        case "postgresql":
            from tests.flows.postgresql import programs

            return None if programs() else "no server of PostgreSQL: apt install postgresql"
        case "second machine":
            from tests.second_machine import lacking_programs

            return lacking_programs()
        case "openlineage":
            installed = find_spec("openlineage") is not None
            return None if installed else "no client of OpenLineage: pip install -e '.[dev]'"


def chromium() -> str | None:
    """Path of the browser for tests; None without one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def _lacking_maniskill() -> str | None:
    if not _could_be_installed("maniskill"):
        return "no ManiSkill: its wheels are for Linux on x86_64 and Python up to 3.12"
    if find_spec("mani_skill") is None:
        return "no ManiSkill: pip install -e '.[maniskill]'"
    if _lacking_opencv() is not None:
        return _lacking_opencv()
    from robots.errors import HandoffError
    from sim.engines.maniskill import ManiSkillEngine

    try:
        ManiSkillEngine("PickCube-v1", 1).close()
    except HandoffError as error:
        if "Vulkan" not in str(error):
            raise
        return "no Vulkan driver for ManiSkill: apt install mesa-vulkan-drivers (Mesa 25 or later)"
    return None


def _lacking_opencv() -> str | None:
    from sim.engines.opencv_substitute import kept_search_path

    try:
        with kept_search_path():
            import cv2  # noqa: F401
    except ImportError as error:
        return f"no OpenCV ({error}): apt install libgl1 libglib2.0-0"
    return None


def _lacking_index() -> str | None:
    with TemporaryDirectory() as folder:
        asked = [
            *("--quiet", "--no-deps", "--timeout", "20", "--retries", "1", "--dest", folder),
            "hatchling",
        ]
        command = [sys.executable, "-m", "pip", "download", *asked]
        answer = subprocess.run(command, capture_output=True, timeout=120.0, check=False)
    return None if answer.returncode == 0 else "no package index can be reached: pip download fails"


def _could_be_installed(need: Need) -> bool:
    if need == "second machine":
        # Network namespaces take root's rights, and containers often have none of them.
        from tests.second_machine import missing_programs

        return os.geteuid() == 0 and missing_programs() != []
    linux = (sys.platform, platform.machine()) == ("linux", "x86_64")
    return need != "maniskill" or (linux and sys.version_info < (3, 13))


_OWN = (
    (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "sched_getscheduler") else None
)
"""Initial scheduling of the thread in which tests run."""


@pytest.fixture(autouse=True)
def _own_priority() -> Iterator[None]:
    """Resets the real-time priority that franky's constructor gives to the calling thread.

    Threads inherit it, and those of a later test would occupy all processors while the thread they
    wait for never runs.
    """
    yield
    if _OWN is not None and os.sched_getscheduler(0) != _OWN[0]:
        os.sched_setscheduler(0, *_OWN)


@pytest.fixture(scope="session", autouse=True)
def _arms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps locks and faults of arms apart from those of this computer."""
    from real.franka import kept_faults, slot

    folder = tmp_path_factory.mktemp("arms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot, "FOLDER", folder)
        patch.setattr(kept_faults, "SHARED", folder / "nowhere")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


_NUMBERS = count()


@pytest.fixture(autouse=True)
def _own_faults(_arms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the faults of each test from the others."""
    monkeypatch.setenv("XDG_STATE_HOME", str(_arms / str(next(_NUMBERS))))


@pytest.fixture(scope="module")
def unoptimised_kernels() -> Iterator[None]:
    """mujoco-warp's kernels are compiled at their first use; without optimisation, to save time."""
    import warp  # pyright: ignore[reportMissingImports]

    before = warp.config.optimization_level
    warp.config.optimization_level = 0
    yield
    warp.config.optimization_level = before
