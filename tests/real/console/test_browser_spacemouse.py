"""A SpaceMouse that the page reads by WebHID, in a real browser with a device that sends reports as
3Dconnexion's do."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from real.console.client import ConsoleClient
from real.console.control.commands import Mode
from real.teleop.spacemouse import HID_FILTERS, SpaceMouseConfig, deflection_of, with_dead_zone
from tests.real.console.pages import until
from tests.real.console.tabs import Tab, reaches

DEVICE = """
  class Device extends EventTarget {
    vendorId = 0x256f; productId = 0xc635; productName = "SpaceMouse Compact"; opened = false;
    collections = [{ usagePage: 1, usage: 8 }];
    async open() { this.opened = true; }
    async close() { this.opened = false; }
    send(reportId, bytes) {
      if (!this.opened) return;
      const report = new Event("inputreport");
      this.dispatchEvent(Object.assign(report, { reportId, device: this, data: new DataView(bytes) }));
    }
    counts(reportId, values) {
      const bytes = new ArrayBuffer(2 * values.length), view = new DataView(bytes);
      values.forEach((value, n) => view.setInt16(2 * n, value, true));
      this.send(reportId, bytes);
    }
    buttons(...bytes) { this.send(3, new Uint8Array(bytes).buffer); }
    // While the cap is deflected, reports come all the time.
    deflect(...values) {
      clearInterval(this.sending);
      const send = () => { this.counts(1, values.slice(0, 3)); this.counts(2, values.slice(3)); };
      send();
      if (values.some((value) => value)) this.sending = setInterval(send, 16);
    }
  }
  class Hid extends EventTarget {
    granted = [];
    async getDevices() { return this.granted; }
    async requestDevice({ filters }) { this.filters = filters; this.granted = [cap]; return [cap]; }
    unplug() {
      cap.opened = false;
      this.dispatchEvent(Object.assign(new Event("disconnect"), { device: cap }));
    }
    plug() { this.dispatchEvent(Object.assign(new Event("connect"), { device: cap })); }
  }
  window.cap = new Device();
  window.hid = new Hid();
  Object.defineProperty(navigator, "hid", { value: window.hid });
"""
REST = "cap.deflect(0, 0, 0, 0, 0, 0)"


@pytest.fixture
def cap_tab(browser, opened, robot) -> Iterator[Tab]:
    """A page whose person has chosen the SpaceMouse, which is at rest."""
    tab = Tab(browser, opened.url, before=DEVICE).ready()
    tab.page.click("#open-devices")
    tab.page.click("#spacemouse-connect")
    tab.until("cap.opened")
    tab.page.click("#devices button[type=submit]")
    tab.page.evaluate(REST)
    yield tab
    assert tab.errors == []
    tab.context.close()
    until(lambda: robot.command().person == "")


def rests(tab: Tab) -> None:
    """The cap is let go, and the server has heard of it."""
    tab.page.evaluate(REST)
    sent = tab.page.evaluate("handoff.sequence")
    tab.until(f"handoff.state.sequence > {sent + 1}")


def twist(robot: ConsoleClient) -> np.ndarray:
    return robot.command().hand.twist


def test_it_is_asked_for_by_the_servers_filters_and_shown(cap_tab):
    assert cap_tab.page.evaluate("hid.filters") == list(HID_FILTERS)
    cap_tab.page.click("#open-devices")
    assert "SpaceMouse Compact" in cap_tab.page.inner_text("#spacemouse-words")
    cap_tab.page.evaluate("cap.counts(1, [-120, 0, 0])")
    cap_tab.until("document.querySelector('#spacemouse-counts meter').value === -120")


def test_translation_and_rotation_move_the_arm_as_at_the_servers_device(cap_tab, robot):
    cap_tab.go()
    counts = (0, -350, 70, 35, -175, -10)
    cap_tab.page.evaluate(f"cap.deflect{counts}")
    reaches(robot, Mode.PERSON)
    expected = with_dead_zone(deflection_of(counts), SpaceMouseConfig().dead_zone)
    until(lambda: np.allclose(twist(robot), expected))
    # Forward fully; down by 0.2, less the dead zone; rolled by 0.5; tilted back by 0.1; not turned.
    by_hand = [1.0, 0.0, -0.15 / 0.95, 0.45 / 0.95, -0.05 / 0.95, 0.0]
    assert twist(robot) == pytest.approx(by_hand)
    cap_tab.page.evaluate(REST)
    reaches(robot, Mode.POLICY)


def test_a_report_with_all_six_axes_is_read(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate(
        "cap.sending = setInterval(() => cap.counts(1, [-350, 0, 0, 0, 0, -350]), 16)"
    )
    reaches(robot, Mode.PERSON)
    until(lambda: twist(robot).tolist() == [0, 1, 0, 0, 0, 1])


def test_within_the_dead_zone_the_policy_keeps_the_arm(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("cap.deflect(17, 17, -17, 17, 17, -17)")
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        assert robot.command().mode is Mode.POLICY
        time.sleep(0.01)


def test_the_left_button_closes_and_the_right_one_opens(cap_tab, robot):
    cap_tab.go()
    for bits, grip in ((1, -1), (2, 1)):
        cap_tab.page.evaluate(f"cap.buttons({bits}, 0)")
        until(lambda grip=grip: robot.command().hand.grip == grip)
        assert robot.command().mode is Mode.PERSON
    cap_tab.page.evaluate("cap.buttons(0, 0)")
    reaches(robot, Mode.POLICY)


def test_an_unplugged_device_gives_the_arm_back_and_is_found_again(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    reaches(robot, Mode.PERSON)
    cap_tab.page.evaluate("hid.unplug()")
    reaches(robot, Mode.POLICY)
    cap_tab.page.evaluate("hid.plug()")
    cap_tab.until("cap.opened")
    rests(cap_tab)
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    reaches(robot, Mode.PERSON)


def test_a_device_that_falls_silent_gives_the_arm_back(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("cap.counts(1, [0, -350, 0])")
    reaches(robot, Mode.PERSON)
    reaches(robot, Mode.POLICY)


def test_keys_come_before_it_and_shift_slows_it_down(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    cap_tab.page.keyboard.down("Shift")
    until(lambda: twist(robot).tolist() == [0.2, 0, 0, 0, 0, 0])
    cap_tab.page.keyboard.up("Shift")
    cap_tab.page.keyboard.down("KeyK")
    until(lambda: twist(robot).tolist() == [0, 0, -1, 0, 0, 0])
    cap_tab.page.keyboard.up("KeyK")
    until(lambda: twist(robot).tolist() == [1, 0, 0, 0, 0, 0])


def test_a_deflection_through_a_dialog_or_another_window_moves_nothing_before_rest(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("document.hasFocus = () => false; cap.deflect(0, -350, 0, 0, 0, 0)")
    time.sleep(0.3)
    assert robot.command().mode is Mode.POLICY
    cap_tab.page.evaluate("delete document.hasFocus")
    time.sleep(0.3)
    assert robot.command().mode is Mode.POLICY
    rests(cap_tab)
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    reaches(robot, Mode.PERSON)
    cap_tab.page.click("#open-devices")
    reaches(robot, Mode.HOLD)


def test_a_deflection_over_the_end_of_an_episode_moves_nothing_before_rest(cap_tab, robot):
    cap_tab.go()
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    reaches(robot, Mode.PERSON)
    robot.await_hold()
    end = {"episode": 0, "success": True, "label": "none", "steps": 64, "corrected": 64}
    robot.send({"kind": "end", "told": {**end, "takeovers": 1, "seconds": 3.2, "dropped": False}})
    robot.describe({"kind": "begin", "told": {"episode": 1}})
    reaches(robot, Mode.POLICY)
    time.sleep(0.2)
    assert robot.command().mode is Mode.POLICY
    rests(cap_tab)
    cap_tab.page.evaluate("cap.deflect(0, -350, 0, 0, 0, 0)")
    reaches(robot, Mode.PERSON)


def test_a_device_of_an_earlier_visit_is_read_without_asking(browser, opened, robot):
    granted = DEVICE + "hid.granted = [cap];"
    tab = Tab(browser, opened.url, before=granted).ready()
    tab.until("cap.opened")
    tab.context.close()
    until(lambda: robot.command().person == "")


def test_a_spacemouse_among_the_gamepads_is_no_gamepad(browser, opened, robot):
    pads = """
      const buttons = [...Array(16)].map(() => ({ value: 0 }));
      const named = (id) => ({ id, connected: true, axes: [0, 0, 0, 0], buttons });
      navigator.getGamepads = () => [named("3Dconnexion (Vendor: 256f Product: c635)"), named("a pad")];
    """
    tab = Tab(browser, opened.url, before=pads).ready()
    tab.page.click("#open-devices")
    tab.until("document.getElementById('pads-found').textContent.startsWith('a pad')")
    tab.context.close()
    until(lambda: robot.command().person == "")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("Object.defineProperty(navigator, 'hid', { value: undefined });", "no WebHID"),
        ("Object.defineProperty(window, 'isSecureContext', { value: false });", "needs https"),
    ],
)
def test_a_browser_that_cannot_read_it_says_why(browser, opened, robot, before, words):
    tab = Tab(browser, opened.url, before=before).ready()
    tab.page.click("#open-devices")
    assert words in tab.page.inner_text("#spacemouse-words")
    assert tab.page.is_hidden("#spacemouse-connect")
    assert tab.errors == []
    tab.context.close()
    until(lambda: robot.command().person == "")
