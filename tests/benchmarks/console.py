"""Measures the console's latencies and the processor time of its server.

    python -m tests.benchmarks.console --json

takeover_ms: time from a key's time stamp in a real browser (Chromium) to the person's first action
    in a running session of `reach` (20 Hz): median, 95th percentile and maximum. Limit of the 95th
    percentile: 100 ms.
arm_takeover_ms: the same at an arm: `handoff deploy` with the simulated FR3 behind the robot's own
    protocol and a policy of 10 Hz.
hold_ms: per fault, the maximum time until the robot client receives the command to hold. Limit: 200
    ms.
server_share: fraction of one core that the server's process uses while two cameras of 320 x 240 at
    30 Hz and steps at 50 Hz are sent to three viewers, with the rates that the viewers receive.
    Limit: 0.25.
command_ms: 95th percentile of the time from a page's message to the robot client, without viewers,
    and with three viewers and images.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from real.cameras.camera_process import frame
from real.console.client import ConsoleClient
from real.console.control.commands import Mode
from real.console.process import OpenConsole, open_console
from real.console.server import ConsoleConfig
from robots.wire.policy import pack
from tests.real.console.pages import CuttableLine, Page

BEAT = 0.033
"""Time between two heartbeats of a page [s], equal to that of the real page."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object last")
    parser.add_argument("--takeovers", type=int, default=100)
    parser.add_argument("--faults", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="of streaming")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in (("takeover_ms", _run_session), ("arm_takeover_ms", _deploy)):
            figures[name] = takeovers(options.takeovers, Path(folder) / name, run)
            print(name, figures[name], flush=True)
        figures["hold_ms"] = faults(options.faults, Path(folder) / "faults")
        print("hold_ms", figures["hold_ms"], flush=True)
        figures |= streaming(options.seconds, Path(folder) / "streaming")
    if options.json:
        print(json.dumps(figures))


def takeovers(
    count: int, folder: Path, run: Callable[[Path, Any], None]
) -> dict[str, float] | None:
    """Times from keys pressed in a browser to the actions of a session in another process; None
    without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    context = multiprocessing.get_context("spawn")
    there, here = context.Pipe()
    # Not a daemon, because it starts child processes.
    session = context.Process(target=run, args=(folder, here))
    session.start()
    acted: list[tuple[float, bool]] = []
    pressed: list[float] = []
    try:
        url = there.recv()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.add_init_script("localStorage.setItem('handoff-name', 'ada')")
            page.goto(url)
            _until(lambda: page.evaluate("handoff.state?.robot === true"), 60.0)
            page.evaluate(
                "window.pressed = []; addEventListener('keydown', (event) => event.repeat || "
                "pressed.push((performance.timeOrigin + event.timeStamp) / 1000))"
            )
            viewer = Page(OpenConsole(url, "", "", "", None), "clock")
            threading.Thread(target=_watch, args=(viewer, acted), daemon=True).start()
            chance = random.Random(0)
            for _ in range(count):
                page.keyboard.press("Enter")
                time.sleep(0.1 + 0.1 * chance.random())
                key = ("ArrowUp", "ArrowDown")[len(pressed) % 2]
                page.keyboard.down(key)
                time.sleep(0.25)
                page.keyboard.up(key)
                time.sleep(0.15)
                pressed.append(page.evaluate("pressed.at(-1)"))
            browser.close()
    finally:
        session.terminate()
        session.join()
    times = [1e3 * (first - at) for at in pressed if (first := _first(acted, at)) is not None]
    return {**_spread(times), "of": len(times), "pressed": count}


def _run_session(folder: Path, here: Any) -> None:
    from flows.console import run_console_session
    from flows.session.config import HilOperator

    def say(text: str) -> None:
        here.send(text.removeprefix("console  "))

    run_console_session(
        "reach", "still", folder, ConsoleConfig(port=0), HilOperator(kind="console"), None, say
    )


def _deploy(folder: Path, here: Any) -> None:
    from flows.deployment.config import DeploySession
    from flows.deployment.session import deploy
    from real.deploy.loop import LoopConfig
    from tests.real.onnx_models import save_policy

    def say(text: str) -> None:
        if text.startswith("console  "):
            here.send(text.removeprefix("console  "))

    folder.mkdir()
    # It stays where the pusher is.
    save_policy(folder / "policy.onnx", scale=0.0)
    session = DeploySession(loop=LoopConfig(wait_for_policy=False, max_steps=3000))
    deploy(session, folder, folder, ConsoleConfig(port=0), say=say)


def _watch(viewer: Page, acted: list[tuple[float, bool]]) -> None:
    """Records the time of each action, and whether it was the person's."""
    with contextlib.suppress(Exception):
        while True:
            state = viewer.state()["state"]
            if state and (not acted or acted[-1][0] != state["time"]):
                acted.append((state["time"], state["person"]))


def _first(acted: list[tuple[float, bool]], at: float) -> float | None:
    """Time of the person's first action after a key; None if there was none within half a
    second."""
    return next((when for when, person in acted if person and at <= when <= at + 0.5), None)


@contextlib.contextmanager
def _driven(
    opened: OpenConsole, line: ConsoleClient, through: OpenConsole | None = None
) -> Iterator[Page]:
    """A page whose person controls the arm, with heartbeats; the caller injects faults."""
    page = Page(through or opened)
    page.go()
    _until(lambda: line.command().mode is Mode.POLICY)
    page.keys("ArrowUp")
    _until(lambda: line.command().mode is Mode.PERSON)
    try:
        yield page
    finally:
        with contextlib.suppress(Exception):
            page.socket.close()


def faults(count: int, folder: Path) -> dict[str, float]:
    """Per fault, the maximum time until the robot client receives the command to hold [ms]."""
    worst: dict[str, float] = {}
    with open_console(ConsoleConfig(port=0), folder) as opened, _robot(opened) as line:
        url, _, token = opened.url.partition("/#")
        port = int(url.rpartition(":")[2])

        def measured(
            name: str, fault: Callable[[Page], Any], through: OpenConsole | None = None
        ) -> None:
            for _ in range(count):
                with _driven(opened, line, through) as page:
                    page.keys("ArrowUp")
                    began = time.monotonic()
                    fault(page)
                    _until(lambda: line.command().mode is Mode.HOLD)
                    worst[name] = max(worst.get(name, 0.0), 1e3 * (time.monotonic() - began))
                _until(lambda: line.command().person == "")

        def second(page: Page) -> None:
            other = Page(opened, "bob")
            other.say(kind="claim", force=True)
            _until(lambda: line.command().person == "bob")
            other.socket.close()

        measured("page hidden", lambda page: page.keys("ArrowUp", visible=False))
        measured("page closed", lambda page: page.socket.close())
        measured("page silent", lambda page: None)
        measured("second controller", second)
        measured("wrong token", lambda page: Page(opened, "thief", token="x" * 24))
        measured("unreadable message", lambda page: page.socket.send("{"))
        measured("flood", _flood)
        for _ in range(count):
            relay = CuttableLine(port)
            through = opened._replace(url=f"http://127.0.0.1:{relay.port}/#{token}")
            with contextlib.closing(relay), _driven(opened, line, through) as page:
                page.keys("ArrowUp")
                time.sleep(0.02)
                began = time.monotonic()
                relay.cut()
                _until(lambda: line.command().mode is Mode.HOLD)
                worst["network cut"] = max(
                    worst.get("network cut", 0.0), 1e3 * (time.monotonic() - began)
                )
            # The server is not notified that the page is gone; another page takes control.
            other = Page(opened, "carol")
            other.say(kind="claim", force=True)
            _until(lambda: line.command().person == "carol")
            other.socket.close()
            _until(lambda: line.command().person == "")
        for _ in range(max(1, count // 10)):
            with _driven(opened, line):
                connection, began = line.connection, time.monotonic()
                os.kill(opened.process.pid, signal.SIGKILL)
                _until(lambda: line.command().mode is Mode.HOLD)
                worst["server killed"] = max(
                    worst.get("server killed", 0.0), 1e3 * (time.monotonic() - began)
                )
                _until(partial(_newer, line, connection), 30.0)
    return worst


def _newer(line: ConsoleClient, connection: int) -> bool:
    return line.connection > connection


def _flood(page: Page) -> None:
    with contextlib.suppress(Exception):
        for _ in range(1000):
            page.keys("ArrowUp")


def streaming(seconds: float, folder: Path) -> dict[str, Any]:
    """The server's fraction of a core with three viewers, and the effect on commands."""
    import psutil

    figures: dict[str, Any] = {}
    with open_console(ConsoleConfig(port=0), folder) as opened, _robot(opened) as line:
        driver = Page(opened)
        _drained(driver)
        alone = _command_times(driver, line, seconds / 2)
        ending = threading.Event()
        # The driver's page is a viewer, too.
        viewers = [Page(opened, f"viewer {n}") for n in range(2)]
        got = [_drained(viewer) for viewer in viewers]
        threads = [
            threading.Thread(target=_film, args=(opened, ending), daemon=True),
            threading.Thread(target=_steps, args=(line, ending), daemon=True),
        ]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        process = psutil.Process(opened.process.pid)
        before, began, seen = process.cpu_times(), time.monotonic(), [dict(one) for one in got]
        loaded = _command_times(driver, line, seconds)
        after, passed = process.cpu_times(), time.monotonic() - began
        ending.set()
        used = (after.user + after.system) - (before.user + before.system)
        figures["server_share"] = round(used / passed, 3)
        figures["states_per_s"] = [
            round((now["states"] - then["states"]) / passed, 1)
            for now, then in zip(got, seen, strict=True)
        ]
        figures["frames_per_s"] = [
            round((now["frames"] - then["frames"]) / passed, 1)
            for now, then in zip(got, seen, strict=True)
        ]
        figures["command_ms"] = {"alone": _spread(alone), "with three viewers": _spread(loaded)}
        for thread in threads:
            thread.join()
        for viewer in (driver, *viewers):
            viewer.socket.close()
    return figures


@contextlib.contextmanager
def _robot(opened: OpenConsole) -> Iterator[ConsoleClient]:
    line = ConsoleClient(
        opened.client_config(), opened.robot_token, {"task": "bench", "rate_hz": 50.0}
    )
    line.start()
    with contextlib.closing(line):
        _until(lambda: line.connection == 1)
        yield line


def _command_times(driver: Page, line: ConsoleClient, seconds: float) -> list[float]:
    """Time from a message of the page to the robot client [ms]."""
    times, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        driver.keys("ArrowUp")
        _until(lambda: line.command().sequence >= driver.sequence)
        times.append(1e3 * (time.monotonic() - began))
        time.sleep(BEAT)
    return times


def _drained(page: Page) -> dict[str, int]:
    """Reads and counts all messages to a page, in a thread."""
    got = {"states": 0, "frames": 0}

    def read() -> None:
        with contextlib.suppress(Exception):
            while True:
                got["states" if isinstance(page.socket.recv(), str) else "frames"] += 1

    threading.Thread(target=read, daemon=True).start()
    return got


def _film(opened: OpenConsole, ending: threading.Event) -> None:
    """Sends two cameras at 30 Hz, with images as detailed as a scene's."""
    from websockets.sync.client import connect

    rows, columns = np.mgrid[0:240, 0:320]
    smooth = 128 + 60 * np.sin(rows / 17.0) * np.cos(columns / 23.0)
    grain = np.random.default_rng(0).normal(0.0, 6.0, (240, 320))
    image = np.clip(smooth + grain, 0, 255).astype(np.uint8)[..., None].repeat(3, axis=2)
    frames = [frame(name, image) for name in ("front", "wrist")]
    with connect(opened.uri, compression=None) as socket:
        socket.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        due = time.monotonic()
        while not ending.is_set():
            for one in frames:
                socket.send(one)
            due += 1.0 / 30.0
            time.sleep(max(0.0, due - time.monotonic()))


def _steps(line: ConsoleClient, ending: threading.Event) -> None:
    """Sends steps at 50 Hz, with a pose and joints."""
    due, number = time.monotonic(), 0
    while not ending.is_set():
        number += 1
        told = {
            "episode": number // 500,
            "step": number,
            "reward": 0.3,
            "probability": 0.1,
            "person": False,
        }
        told |= {
            "hand": 0.04,
            "sequence": -1,
            "time": time.time(),
            "q": [0.1] * 7,
            "grasp_pose": [0.1] * 6,
        }
        line.send({"kind": "step", "told": told})
        due += 0.02
        time.sleep(max(0.0, due - time.monotonic()))


def _spread(times: list[float]) -> dict[str, float]:
    low, high = np.percentile(times, [50, 95])
    return {
        "median": round(float(low), 1),
        "p95": round(float(high), 1),
        "largest": round(max(times), 1),
    }


def _until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            raise TimeoutError("it never came true")
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
