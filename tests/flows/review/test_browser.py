"""A whole review in a real browser, Chromium, against the command in its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.__main__ import main
from robots.episodes.store import EpisodeStore
from tests.flows.review.recordings import brightness
from tests.real.console.pages import until
from tests.real.console.tabs import NAMED, open_browser

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@contextmanager
def review(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`handoff episodes review` in its own process, and the address that it prints."""
    command = [sys.executable, "-m", "flows", "episodes", "review", *words, "--port", "0"]
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next(filter(None, (re.search(r"http://\S+", line) for line in lines)), None)
        assert found is not None, "it ended without an address"
        yield found[0], process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30.0)
        finally:
            process.kill()
            process.communicate()


LOW_CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const channel = (value) => value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter((one) => {
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    // A caption lies on a picture, with a shadow.
    if (!text || !one.checkVisibility() || one.closest(':disabled, #cameras')) return false;
    const pair = [light(parts(getComputedStyle(one).color)), light(ground(one))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05) < 4.5;
  }).map((one) => one.outerHTML);
}"""
"""Elements whose text has a contrast below that of WCAG 2.2, level AA."""


class Tab:
    """A page of a review; `look` are options of the browser's context."""

    def __init__(
        self,
        browser: Any,
        url: str,
        name: str = "ada",
        size: tuple[int, int] = (1440, 900),
        **look: Any,
    ) -> None:
        viewport = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(**{"viewport": viewport} | look)
        self.context.add_init_script(NAMED.format(name))
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.until("handoff.state.signals !== null && handoff.state.changes !== null")

    def until(self, expression: str) -> None:
        until(lambda: self.page.evaluate(expression), 30.0)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def says(self, text: str) -> None:
        self.until(f"document.getElementById('message').textContent.startsWith({text!r})")

    def opened(self, episode: int) -> None:
        title = f"Episode {episode} of 4"
        self.until(
            f"document.getElementById('title').textContent === {title!r}"
            f" && handoff.player.episode === {episode}"
        )

    def grey(self) -> int:
        """Grey value of the picture that the first camera shows; -1 while there is none."""
        return self.page.evaluate(
            """async () => {
              const image = document.querySelector('#cameras img');
              if (!image.complete || !image.naturalWidth) return -1;
              const canvas = document.createElement('canvas');
              canvas.width = image.naturalWidth;
              canvas.height = image.naturalHeight;
              const context = canvas.getContext('2d');
              context.drawImage(image, 0, 0);
              return context.getImageData(9, 9, 1, 1).data[0];
            }"""
        )

    def close(self) -> None:
        assert self.errors == []
        self.context.close()


def test_a_person_walks_through_a_review(browser: Any, store: Path) -> None:
    with review("picks.zarr") as (url, _):
        tab = Tab(browser, url)
        origin = url.partition("/#")[0]
        tab.opened(0)
        # Scrub: by keys, by the slider, and on the strip.
        tab.press("j")
        tab.opened(1)
        tab.press("ArrowRight", "ArrowRight", "Shift+ArrowRight")
        tab.until("handoff.player.step === 12")
        until(lambda: abs(tab.grey() - brightness(1, 12)) <= 2)
        tab.press("ArrowLeft")
        assert tab.page.inner_text("#clock") == "step 11 of 39 · 0.55 s"
        strip = tab.page.locator("#timeline").bounding_box()
        tab.page.mouse.click(strip["x"] + strip["width"] / 2, strip["y"] + 10)
        tab.until("Math.abs(handoff.player.step - 20) <= 1")
        assert "amber: ada" in tab.page.inner_text("#legend")
        assert tab.page.locator("#main-curves figure").count() == 4
        # Play, and pause.
        tab.press("Home", " ")
        tab.until("handoff.player.step > 5")
        tab.press(" ")
        assert tab.page.evaluate("handoff.player.playing") is False
        # Relabel.
        tab.press("f")
        tab.says("Episode 1: failure.")
        pressed = "document.querySelector('[data-verdict=failure]').getAttribute('aria-pressed')"
        assert tab.page.evaluate(pressed) == "true"
        # Shorten.
        tab.press("Home", "ArrowRight", "ArrowRight", "[")
        tab.says("Episode 1: keeps the steps 2 to 39.")
        tab.press("End", "ArrowLeft", "]")
        tab.says("Episode 1: keeps the steps 2 to 38.")
        # A note; what is typed is no command.
        tab.press("n")
        tab.page.keyboard.type("drops the fzd")
        tab.press("Enter")
        tab.says("Episode 1: “drops the fzd”.")
        # Undo, and once more.
        tab.press("z")
        tab.says("Undone: the note of episode 1.")
        assert tab.page.input_value("#note") == ""
        tab.press("z")
        tab.says("Undone: the kept steps of episode 1.")
        assert tab.page.inner_text("#kept") == "Steps 2 to 39 of 39, 38 steps."
        tab.press("n")
        tab.page.keyboard.type("let go too early")
        tab.press("Enter")
        tab.says("Episode 1: “let go")
        # Leave one out, by its button.
        tab.press("j", "j")
        tab.opened(3)
        tab.page.click("[data-verdict=discard]")
        tab.says("Episode 3: left out.")
        assert not any((Path("picks_review")).glob("*.zarr")), "pending until it is written"
        # Write: the question names the changes, the second Enter confirms.
        tab.press("Enter")
        asked = tab.page.inner_text("#write-list")
        assert "episode 1: failure (ada), keeps the steps 2 to 39 (ada)" in asked
        assert "episode 3: left out (ada)" in asked
        tab.press("Enter")
        tab.says("Written: reviewed-1.zarr.")
        tab.until("document.getElementById('write').disabled")
        assert all(address.startswith((origin, "blob:", "data:")) for address in tab.asked)
        tab.close()
    copy = EpisodeStore.open(Path("picks_review/reviewed-1.zarr"))
    raw = EpisodeStore.open(store)
    assert [copy.metadata(number)["seed"] for number in range(4)] == [0, 1, 2, 4]
    edited = copy.metadata(1)
    assert (edited["success"], edited["note"]) == (False, "let go too early")
    assert edited["edits"][-1]["by"] == "ada"
    assert edited["edits"][-1]["reason"] == "let go too early"
    kept = raw.read(1, "policy", ["image_front"], slice(2, 40))["image_front"]
    assert np.array_equal(copy.read(1, "policy", ["image_front"])["image_front"], kept)
    assert "edits" not in raw.metadata(1)


def test_two_people_see_each_others_changes_and_a_second_process_is_refused(
    browser: Any, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with review("picks.zarr") as (url, _):
        ada = Tab(browser, url)
        eve = Tab(browser, url, "eve")
        ada.press("s")
        ada.says("Episode 0: success.")
        eve.until("handoff.state.changes.decisions[0]?.verdict?.by === 'ada'")
        assert "ada: success" in eve.page.inner_text("#changes")
        eve.press("z")
        eve.says("You have no change that can be undone.")
        assert main(["episodes", "review", "picks.zarr", "--port", "0"]) == 1
        assert "another process reviews into this folder" in capsys.readouterr().err
        ada.close()
        eve.close()


def test_what_was_changed_survives_a_kill(browser: Any, store: Path) -> None:
    with review("picks.zarr", "--show", "unlabelled") as (url, process):
        tab = Tab(browser, url)
        tab.opened(2)
        assert tab.page.inner_text("#count") == "1 of 5"
        tab.press("s")
        tab.says("Episode 2: success.")
        os.kill(process.pid, signal.SIGKILL)
        tab.press("f")
        tab.says("The review does not answer.")
        tab.close()
    with review("picks.zarr", "--show", "changed") as (url, _):
        tab = Tab(browser, url)
        tab.opened(2)
        assert "ada: success" in tab.page.inner_text("#changes")
        tab.close()


def test_a_wrong_token_is_asked_for_again(browser: Any, store: Path) -> None:
    with review("picks.zarr") as (url, _):
        origin, _, token = url.partition("#")
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{origin}#some-other-token")
        page.fill("#person", "ada")
        page.keyboard.press("Enter")
        page.wait_for_selector("#login-trouble:not(:empty)")
        assert page.inner_text("#login-trouble").startswith("Wrong token.")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        until(lambda: page.inner_text("#title") == "Episode 0 of 4", 30.0)
        assert token not in page.url
        context.close()


def test_a_data_set_that_is_no_store_says_why_it_is_only_looked_at(
    browser: Any, store: Path
) -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(50, 3)).astype(np.float32)
    np.savez("set.npz", action=q, q=q, episode_ends=np.array([20, 50]))
    with review("set.npz") as (url, _):
        tab = Tab(browser, url)
        assert "import them first" in tab.page.inner_text("#unedited")
        assert tab.page.is_disabled("[data-verdict=success]")
        tab.press("s")
        tab.says("The format is NumPy archives")
        tab.press("j")
        tab.until("document.getElementById('title').textContent === 'Episode 1 of 1'")
        tab.close()
    assert not Path("set_review").exists()


def test_it_fits_a_phone_and_every_button_has_a_name_in_both_themes(
    browser: Any, store: Path
) -> None:
    with review("picks.zarr") as (url, _):
        tab = Tab(browser, url, size=(390, 844))
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
        assert tab.page.locator("#list-box").get_attribute("open") is None
        # A thumb labels, and sees the answer.
        tab.page.click("[data-verdict=failure]")
        tab.says("Episode 0: failure.")
        box = tab.page.locator("#message").bounding_box()
        assert box["y"] + box["height"] <= 844
        nameless = tab.page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, canvas, img')]
              .filter((one) => !(one.textContent || one.ariaLabel || one.alt || one.labels?.length))
              .map((one) => one.outerHTML)"""
        )
        assert nameless == []
        # The order of the focus is that of the page.
        order = tab.page.evaluate(
            "[...document.querySelectorAll('[tabindex]')].map((one) => one.tabIndex)"
        )
        assert all(place <= 0 for place in order)
        assert tab.page.evaluate(LOW_CONTRAST) == []
        light = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.page.click("#theme")
        assert tab.page.evaluate(LOW_CONTRAST) == []
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        tab.close()
