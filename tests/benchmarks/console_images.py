"""Takes the documentation's pictures of the console anew, in Chromium.

    python -m tests.benchmarks.console_images docs/images

console_light.jpg, console_dark.jpg: practice of `pick_cube` with the scripted expert, whom a person
    has taken over from.
console_phone.jpg: the same on a phone.
console_arm.jpg: `handoff deploy` with the simulated FR3 behind the robot's own protocol; a person
    leads the arm.

A picture is taken while the person moves the arm. That stops the page for longer than the watchdogs
allow, so they are longer here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from real.console.control.arbiter import ArbiterConfig
from real.console.server import ConsoleConfig
from tests.accessibility import DESKTOP, PHONE
from tests.conftest import chromium
from tests.real.console.pages import until
from tests.real.console.tabs import NAMED

CONSOLE = ConsoleConfig(port=0, picture_seconds=20.0, arbiter=ArbiterConfig(watchdog=5.0))
SCALE = 0.8
"""Pixels of a picture per pixel of the page."""
QUALITY = 72
"""Quality of the JPEGs [percent]."""
SECONDS = 180.0
"""Time limit for a session to start, and for its episodes [s]."""


class Picture(NamedTuple):
    """One picture of the documentation."""

    name: str
    run: Callable[[Path, Any], None]
    """Runs the session."""
    size: tuple[int, int]
    """Width and height of the page [px]."""
    theme: str
    episodes: int
    """Number of episodes that have ended before."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the pictures")
    parser.add_argument("--only", help="a picture's name; the default is all")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    pictures = (
        Picture("console_light", practise, DESKTOP, "light", 3),
        Picture("console_dark", practise, DESKTOP, "dark", 3),
        Picture("console_phone", practise, PHONE, "light", 3),
        Picture("console_arm", deploy_still, DESKTOP, "light", 0),
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for picture in pictures:
            if options.only in (None, picture.name):
                take(browser, picture, options.folder / f"{picture.name}.jpg")
        browser.close()


@contextmanager
def session(run: Callable[[Path, Any], None]) -> Iterator[str]:
    """A session in its own process and folder; yields the address of its page."""
    scratch = tempfile.TemporaryDirectory()
    folder = Path(scratch.name) / "session"
    there, here = multiprocessing.get_context("spawn").Pipe()
    # Not a daemon, because it starts child processes.
    process = multiprocessing.get_context("spawn").Process(target=run, args=(folder, here))
    process.start()
    try:
        yield there.recv()
    finally:
        process.terminate()
        process.join()
        scratch.cleanup()


def practise(folder: Path, here: Any) -> None:
    """Practice of a task with its scripted expert."""
    from flows.console import run_console_session
    from flows.session.config import HilOperator

    def say(text: str) -> None:
        here.send(text.removeprefix("console  "))

    person = HilOperator(kind="console")
    run_console_session("pick_cube", "expert", folder, CONSOLE, person, None, say)


def deploy_still(folder: Path, here: Any) -> None:
    """A session at the simulated FR3 with a policy that stays where the pusher is."""
    from flows.deployment.config import DeploySession
    from flows.deployment.session import deploy
    from real.deploy.loop import LoopConfig
    from tests.real.onnx_models import save_policy

    def say(text: str) -> None:
        if text.startswith("console  "):
            here.send(text.removeprefix("console  "))

    folder.mkdir()
    save_policy(folder / "policy.onnx", scale=0.0)
    settings = DeploySession(loop=LoopConfig(wait_for_policy=False, max_steps=3000))
    deploy(settings, folder, folder, CONSOLE, say=say)


def take(browser: Any, picture: Picture, path: Path) -> None:
    """Takes one picture while a person moves the arm."""
    phone = picture.size == PHONE
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=1.0 if phone else SCALE,
        color_scheme=picture.theme,
        has_touch=phone,
        is_mobile=phone,
    )
    context.add_init_script(NAMED.format("Ada"))
    page = context.new_page()
    with session(picture.run) as url:
        page.goto(url)
        ready = "document.querySelectorAll('#cameras canvas').length > 2 && handoff.state?.robot"
        until(lambda: page.evaluate(ready), SECONDS)
        plays(page, f"handoff.episodes.length >= {picture.episodes}")
        # In the middle of an episode the person goes on in place of the policy.
        plays(page, "handoff.steps.length > 30")
        page.keyboard.down("ArrowUp")
        plays(page, "handoff.mode === 'person'")
        page.wait_for_timeout(700)
        plays(page, "handoff.mode === 'person' && !document.querySelector('figure.old')")
        page.screenshot(path=path, type="jpeg", quality=QUALITY)
        mode = page.inner_text("#mode")
        page.keyboard.up("ArrowUp")
        context.close()
    assert mode == "YOU", f"{path.name} shows {mode}"
    print(f"{path.name}  {path.stat().st_size / 1024:.0f} kB", flush=True)


def plays(page: Any, expression: str) -> None:
    """Waits until something is true in the page, and resumes whenever the arm holds still."""

    def true() -> bool:
        if page.evaluate("handoff.mode") == "hold":
            page.keyboard.press("Enter")
        return page.evaluate(expression)

    until(true, SECONDS)


if __name__ == "__main__":
    main()
