"""The page in a real browser, Chromium: every way to take the arm, and every way in which a page
can fail."""

import http.server
import os
import signal
import threading
import time

import numpy as np
import pytest
from websockets.sync.client import connect

from real.cameras.camera_process import frame as frame_of
from real.console.client import ConsoleClient
from real.console.control.commands import Mode
from real.console.process import open_console
from real.console.server import ConsoleConfig
from robots.interfaces import Label
from robots.wire.policy import pack
from tests.real.console.conftest import UNDO
from tests.real.console.pages import CuttableLine, logged, until
from tests.real.console.tabs import Tab, driven, reaches


def test_a_held_key_moves_the_arm_and_letting_go_gives_it_back(tab, robot):
    driven(tab, robot)
    tab.shows("YOU")
    tab.page.keyboard.down("KeyI")
    until(lambda: robot.command().hand.twist.tolist() == [1, 0, 1, 0, 0, 0])
    tab.page.keyboard.up("ArrowUp")
    tab.page.keyboard.up("KeyI")
    reaches(robot, Mode.POLICY)
    tab.shows("POLICY")


def test_the_banner_says_why_it_holds(tab, robot):
    tab.go()
    tab.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    tab.shows("HOLD")
    assert tab.page.inner_text("#why") == "ada pressed Hold."


def test_labels_can_be_taken_back_and_count_once(tab, robot):
    tab.go()
    tab.page.keyboard.press("KeyQ")
    tab.page.wait_for_selector("#undo:not([hidden])")
    tab.page.keyboard.press("KeyZ")
    tab.page.wait_for_selector("#undo", state="hidden")
    assert robot.command().label_number == 0
    tab.page.keyboard.press("Enter")
    tab.page.click("[data-press=success]")
    # It counts once it can be taken back no more.
    until(lambda: robot.command().label_number == 1, UNDO + 20.0)
    assert robot.command().label is Label.SUCCESS
    tab.shows("POLICY")


def test_the_stick_on_the_screen_moves_from_where_it_was_touched(tab, robot):
    tab.go()
    pad = tab.page.locator("#pad-plane").bounding_box()
    x, y = pad["x"] + 0.8 * pad["width"], pad["y"] + 0.7 * pad["height"]
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    assert not reaches(robot, Mode.PERSON).hand.twist.any()
    tab.page.mouse.move(x, y - pad["height"] / 4, steps=4)
    until(lambda: robot.command().hand.twist[0] > 0.3)
    assert abs(robot.command().hand.twist[1]) < 0.05
    tab.page.mouse.up()
    reaches(robot, Mode.POLICY)


def test_a_gamepad_moves_the_arm_while_its_shoulder_button_is_down(browser, opened, robot):
    pad = """
      const buttons = [...Array(16)].map(() => ({ value: 0 }));
      window.pad = { id: "a pad", connected: true, axes: [0, 0, 0, 0], buttons };
      navigator.getGamepads = () => [window.pad];
    """
    tab = Tab(browser, opened.url, before=pad).ready().go()
    tab.page.evaluate("pad.axes[1] = -1")
    time.sleep(0.2)
    assert robot.command().mode is Mode.POLICY
    tab.page.evaluate("pad.axes[1] = 0; pad.buttons[5].value = 1")
    reaches(robot, Mode.PERSON)
    tab.page.evaluate("pad.axes[1] = -1")
    until(lambda: robot.command().hand.twist[0] > 0.9)
    tab.page.evaluate("pad.buttons[5].value = 0")
    reaches(robot, Mode.POLICY)
    tab.context.close()


def test_a_hidden_page_ends_in_hold(tab, robot, folder):
    driven(tab, robot)
    tab.page.evaluate(
        "Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' });"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    reaches(robot, Mode.HOLD)
    assert "hidden" in logged(folder, "hold")[-1]["why"]


def test_a_page_that_loses_the_focus_lets_go(tab, robot):
    driven(tab, robot)
    tab.page.evaluate("dispatchEvent(new Event('blur'))")
    reaches(robot, Mode.POLICY)


def test_a_closed_tab_ends_in_hold(browser, opened, robot, folder):
    tab = Tab(browser, opened.url).ready()
    driven(tab, robot)
    tab.page.close()
    reaches(robot, Mode.HOLD)
    assert logged(folder, "left")[-1]["who"] == "ada"
    tab.context.close()


def test_a_cut_network_ends_in_hold(browser, opened, robot, folder):
    url, _, token = opened.url.partition("/#")
    relay = CuttableLine(int(url.rpartition(":")[2]))
    tab = Tab(browser, f"http://127.0.0.1:{relay.port}/#{token}").ready()
    driven(tab, robot)
    relay.cut()
    reaches(robot, Mode.HOLD)
    assert "silent" in logged(folder, "hold")[-1]["why"]
    tab.shows("DISCONNECTED")
    assert tab.page.inner_text("#why") == "No message from the console."
    relay.mend()
    tab.shows("HOLD")
    relay.close()
    tab.context.close()
    until(lambda: robot.command().person == "")


def test_a_second_person_may_look_ask_and_take_over_control(tab, browser, opened, robot):
    driven(tab, robot)
    bob = Tab(browser, opened.url, "bob").ready()
    assert bob.mode() == "ADA"
    assert bob.page.is_disabled("[data-press=success]")
    bob.page.click("#claim")
    tab.until("document.getElementById('give').textContent === 'Hand over to bob'")
    bob.page.click("#take")
    assert reaches(robot, Mode.HOLD).person == "bob"
    tab.shows("HOLD")
    assert "bob has control" in tab.page.inner_text("#banner")
    bob.context.close()
    until(lambda: robot.command().person == "")


def test_a_wrong_token_holds_the_arm_and_is_asked_for_again(tab, browser, opened, robot, folder):
    driven(tab, robot)
    thief = Tab(browser, opened.url.partition("#")[0] + "#" + "x" * 24, "thief")
    reaches(robot, Mode.HOLD)
    thief.page.wait_for_selector("#login[open]")
    assert "Wrong token" in thief.page.inner_text("#login-trouble")
    assert logged(folder, "refused")[-1]["why"] == "wrong token"
    thief.context.close()


def test_a_flood_ends_in_hold_and_the_page_says_so(tab, robot, folder):
    driven(tab, robot)
    tab.page.evaluate(
        "for (let n = 0; n < 1000; n++) handoff.socket.send(JSON.stringify({kind: 'give'}))"
    )
    reaches(robot, Mode.HOLD)
    # The first of the words holds the arm already.
    until(lambda: logged(folder, "flooded") != [])
    assert logged(folder, "flooded")[-1]["who"] == "ada"
    tab.shows("DISCONNECTED")
    assert "messages in a second" in tab.page.inner_text("#why")


def test_everything_can_be_done_from_the_keyboard(browser, opened, robot):
    url, _, token = opened.url.partition("#")
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#login[open]")
    page.keyboard.type("eve")
    page.keyboard.press("Tab")
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    until(lambda: page.evaluate("handoff.state?.robot === true"))
    until(lambda: robot.command().person == "eve")
    page.keyboard.press("Enter")
    reaches(robot, Mode.POLICY)
    page.keyboard.down("Space")
    reaches(robot, Mode.PERSON)
    page.keyboard.up("Space")
    page.keyboard.press("KeyS")
    page.keyboard.press("KeyS")
    until(lambda: robot.command().label_number == 1)
    page.keyboard.press("End")
    reaches(robot, Mode.HOLD)
    page.keyboard.down("End")
    reaches(robot, Mode.STOP)
    context.close()


def test_an_action_can_be_bound_to_another_key(tab, robot):
    tab.page.click("#open-devices")
    tab.page.locator("#bindings tr", has_text="forward").first.locator("button").click()
    tab.page.keyboard.press("KeyW")
    tab.until("handoff.bindings.forward[0] === 'key KeyW'")
    tab.page.keyboard.press("KeyW")
    tab.page.click("#devices button[type=submit]")
    tab.go()
    tab.page.keyboard.down("KeyW")
    assert reaches(robot, Mode.PERSON).hand.twist[0] == 1.0
    tab.page.keyboard.up("KeyW")
    tab.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    tab.page.evaluate(
        "handoff.socket.send(JSON.stringify({kind: 'bind', action: 'forward', input: 'key ArrowUp'}))"
    )
    tab.until("handoff.bindings.forward[0] === 'key ArrowUp'")


def test_pictures_strip_and_counters_are_shown(tab, robot, opened):
    from websockets.sync.client import connect

    picture = np.zeros((240, 320, 3), np.uint8)
    picture[..., 0] = 200
    with connect(opened.uri) as camera:
        camera.send(pack({"kind": "hello", "role": "camera", "token": opened.camera_token}))
        camera.send(frame_of("front", picture))
        tab.page.wait_for_selector("#cameras canvas")
    colour = tab.page.evaluate(
        "[...document.querySelector('#cameras canvas').getContext('2d').getImageData(9, 9, 1, 1).data]"
    )
    assert colour[0] > 180
    assert colour[2] < 30
    step = {
        "episode": 0,
        "reward": 0.5,
        "probability": 0.9,
        "hand": 0.04,
        "sequence": -1,
        "time": 0.0,
    }
    for number in range(40):
        robot.send({"kind": "step", "told": {**step, "step": number, "person": number > 20}})
    end = {
        "episode": 0,
        "success": True,
        "label": "none",
        "steps": 40,
        "corrected": 19,
        "takeovers": 1,
    }
    robot.send({"kind": "end", "told": {**end, "seconds": 2.0, "dropped": False}})
    tab.until("handoff.steps.length === 40")
    tab.until("document.getElementById('counters').textContent.includes('100 %')")
    tab.until(
        "new Set(document.getElementById('strip').getContext('2d').getImageData(80, 20, 400, 1).data).size > 4"
    )


def test_a_key_held_over_the_end_of_an_episode_moves_nothing_before_it_is_released(tab, robot):
    driven(tab, robot)
    robot.await_hold()
    end = {"episode": 0, "success": True, "label": "none", "steps": 64, "corrected": 64}
    robot.send({"kind": "end", "told": {**end, "takeovers": 1, "seconds": 3.2, "dropped": False}})
    assert robot.command().mode is Mode.HOLD
    tab.until("document.getElementById('why').textContent === 'Episode 1: success after 3.2 s.'")
    robot.describe({"kind": "begin", "told": {"episode": 1}})
    # It resumes by itself, with the key still down.
    reaches(robot, Mode.POLICY)
    tab.page.keyboard.up("ArrowUp")
    tab.page.keyboard.down("ArrowUp")
    reaches(robot, Mode.PERSON)
    tab.page.keyboard.up("ArrowUp")


def test_labels_are_offered_while_an_episode_runs(tab, robot):
    tab.until("!document.querySelector('[data-press=success]').disabled")
    end = {"episode": 0, "success": False, "label": "none", "steps": 9, "corrected": 0}
    robot.send({"kind": "end", "told": {**end, "takeovers": 0, "seconds": 0.9, "dropped": False}})
    tab.until("document.querySelector('[data-press=success]').disabled")
    tab.page.keyboard.press("KeyS")
    tab.until(
        "document.getElementById('why').textContent === "
        "'No episode is running, so the label success does not count.'"
    )


def test_task_time_and_state_of_the_arm_are_on_the_page(browser, opened):
    about = {
        "task": "reach",
        "brief": "Move the fingertips to the green ball and stop there.",
        "stage": "demonstration",
        "rate_hz": 20.0,
        "actions": ["x", "y", "z", "roll", "pitch", "yaw"],
        "still": True,
        "joint_limits": [[-2.0] * 7, [2.0] * 7],
    }
    line = ConsoleClient(opened.client_config(), opened.robot_token, about)
    line.describe({"kind": "begin", "told": {"episode": 6, "seconds": 60.0}})
    line.start()
    tab = Tab(browser, opened.url).ready()
    line.send({"kind": "facts", "told": {"demonstrations": "8 of 20"}})
    step = {"episode": 6, "reward": 0.0, "person": True, "q": [0.0] * 3 + [1.9] + [0.0] * 3}
    for _ in range(68):
        line.send({"kind": "step", "told": {**step, "target_offset": [0.008, 0.0, 0.0]}})
    tab.until("document.getElementById('time').textContent === 'Episode 7 · 3.4 of 60 s'")
    assert tab.page.inner_text("#brief") == about["brief"]
    assert tab.page.inner_text("#facts") == (
        "demonstrations: 8 of 20 · at the last step: joint 4 is 6° from its limit · arm 8 mm behind its target"
    ), "the arm holds still, and makes no steps"
    tab.page.keyboard.press("Enter")
    tab.until("handoff.state.mode === 'policy'")
    tab.until(
        "document.getElementById('facts').textContent === "
        "'demonstrations: 8 of 20 · joint 4 is 6° from its limit · arm 8 mm behind its target'"
    )
    assert tab.page.evaluate("document.getElementById('time-left').value") == 3.4 / 60
    # This task has no gripper.
    assert tab.page.is_hidden("#grips")
    tab.page.keyboard.press("Enter")
    tab.shows("NOBODY")
    tab.context.close()
    line.close()


@pytest.mark.parametrize(
    ("mode", "still", "title", "words"),
    [
        ("shadow", True, "SHADOW", "The policy only thinks; nothing that it wants is carried out."),
        ("dry-run", False, "POLICY", "The policy acts slowed down."),
        ("replay", False, "REPLAY", "Recorded actions are repeated in place of the policy."),
    ],
)
def test_the_page_says_where_the_policy_does_not_simply_act(
    browser, opened, mode, still, title, words
):
    about = {"task": "reach", "rate_hz": 20.0, "still": still, "mode": mode}
    line = ConsoleClient(opened.client_config(), opened.robot_token, about)
    line.describe({"kind": "begin", "told": {"episode": 0}})
    line.start()
    tab = Tab(browser, opened.url).ready()
    tab.page.keyboard.press("Enter")
    tab.shows(title)
    tab.until(f"document.getElementById('why').textContent.startsWith({words!r})")
    tab.context.close()
    line.close()


def test_shift_slows_the_arm_down(tab, robot):
    driven(tab, robot)
    tab.page.keyboard.down("Shift")
    until(lambda: robot.command().hand.twist[0] == 0.2)
    tab.page.keyboard.up("Shift")
    until(lambda: robot.command().hand.twist[0] == 1.0)
    assert "slow Shift" in tab.page.inner_text("#legend")


def test_a_session_that_is_over_says_so(browser, tmp_path):
    with open_console(ConsoleConfig(port=0), tmp_path) as opened:
        tab = Tab(browser, opened.url)
        tab.until("handoff.state?.mode === 'hold' && handoff.socket.readyState === 1")
    tab.shows("ENDED")
    assert tab.page.inner_text("#why") == (
        "The session is over. Reload the page to join the next session."
    )
    assert tab.page.title() == "ENDED · Handoff console"
    assert tab.errors == []
    tab.context.close()


COUNTED_LOCKS = """
  window.locks = 0;
  Object.defineProperty(navigator, 'wakeLock', { value: { request: async (kind) => {
    window.locks += kind === 'screen';
    window.lock = new EventTarget();
    return window.lock;
  } } });
"""


def test_the_screen_stays_on_while_a_robot_is_connected(browser, opened, robot):
    tab = Tab(browser, opened.url, before=COUNTED_LOCKS).ready()
    tab.until("window.locks === 1")
    tab.go()
    assert tab.page.evaluate("window.locks") == 1, "one lock is enough"
    # As browsers do when the page is hidden; when it is back, the lock is taken again.
    tab.page.evaluate("lock.dispatchEvent(new Event('release'))")
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.until("window.locks === 2")
    assert tab.errors == []
    tab.context.close()


def test_a_fault_shows_the_robots_sentence_and_a_button_that_recovers(tab, robot):
    tab.go()
    fault = {"kind": "fault", "number": 1, "why": "arm: stopped, joint_reflex.", "asks": False}
    robot.send(fault)
    tab.shows("FAULT")
    assert tab.page.inner_text("#why") == "arm: stopped, joint_reflex."
    assert not tab.page.is_visible("#go")
    assert tab.page.is_disabled("#say button[data-press=success]")
    tab.page.keyboard.press("Enter")
    assert robot.command().mode is Mode.FAULT
    tab.page.click("#recover")
    assert reaches(robot, Mode.HOLD).recovery == (1, "ada", "")
    tab.until("document.getElementById('recover').hidden")
    robot.send({"kind": "reset", "open": True, "why": "", "wait": False})
    tab.until("document.getElementById('why').textContent.startsWith('The arm has been recovered')")
    tab.go()


def test_a_kept_fault_is_recovered_with_its_cause(tab, robot):
    fault = {"kind": "fault", "number": 2, "why": "arm: stopped, user stop.", "asks": True}
    robot.send(fault)
    tab.shows("FAULT")
    tab.page.click("#recover")
    assert tab.page.inner_text("#cause-why") == "arm: stopped, user stop."
    # Escape closes the question and answers nothing.
    tab.page.keyboard.press("Escape")
    tab.until("!document.getElementById('cause').open")
    tab.page.click("#recover")
    tab.page.keyboard.press("Enter")
    assert robot.command().mode is Mode.FAULT, "an empty cause is none"
    tab.page.keyboard.type("Hit the shelf")
    tab.page.keyboard.press("Enter")
    assert reaches(robot, Mode.HOLD).recovery == (2, "ada", "Hit the shelf")


def test_light_and_dark_and_no_request_to_anybody_else(tab, opened):
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.click("#theme")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    origin = opened.url.partition("/#")[0]
    assert all(url.startswith(origin) or url.startswith(("blob:", "data:")) for url in tab.asked)


def test_the_scene_waits_for_its_button_where_software_draws(tab):
    assert tab.page.evaluate("document.getElementById('scene').hidden")
    tab.page.evaluate(
        "handoff.state.scene = 'static/icon.svg'; document.getElementById('three').click()"
    )
    tab.until("handoff.sceneSetting === 'on'")
    tab.page.click("#three")
    tab.until("handoff.sceneSetting === 'off'")


def test_a_killed_server_is_noticed_and_found_again(tab, robot, opened):
    driven(tab, robot)
    connection = robot.connection
    tab.remembers()
    os.kill(opened.process.pid, signal.SIGKILL)
    reaches(robot, Mode.HOLD)
    # By now it may have been found again.
    tab.showed("DISCONNECTED")
    until(lambda: robot.connection > connection, 30.0)
    tab.shows("HOLD")
    tab.page.keyboard.up("ArrowUp")
    driven(tab, robot)


def test_what_three_pages_are_told_stays_in_step(tab, browser, opened, robot):
    others = [Tab(browser, opened.url, name).ready() for name in ("bob", "carol")]
    told = {
        "episode": 0,
        "reward": 0.0,
        "probability": None,
        "hand": None,
        "sequence": -1,
        "person": False,
        "time": 0.0,
    }

    def send_steps() -> None:
        for number in range(200):
            robot.send({"kind": "step", "told": {**told, "step": number}})
            time.sleep(0.005)

    thread = threading.Thread(target=send_steps)
    thread.start()
    thread.join()
    for one in (tab, *others):
        one.until("handoff.steps.length === 200")
    for one in others:
        one.context.close()


def test_the_scene_is_of_another_origin_and_cannot_read_the_token(browser, opened, robot):
    """A process that shows a scene, whose page tries to read the token of the page around it."""
    page = b"<!doctype html><title>scene</title><p>A scene</p>"

    class Scene(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format, *args):
            pass

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scene) as server,
        connect(opened.uri) as camera,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hello = {"kind": "hello", "role": "camera", "token": opened.camera_token}
        camera.send(pack({**hello, "scene": server.server_address[1]}))
        on = "localStorage.setItem('handoff-scene', 'on')"
        tab = Tab(browser, opened.url, before=on).ready()
        tab.until("document.querySelector('#scene iframe') !== null")
        tab.page.wait_for_selector("#scene iframe")
        frame = tab.page.query_selector("#scene iframe").content_frame()
        frame.wait_for_selector("p")
        read = (
            "(() => { try { return parent.sessionStorage.length } catch (e) { return e.name } })()"
        )
        assert frame.evaluate(read) == "SecurityError"
        assert tab.page.evaluate("sessionStorage.length") > 0
        # Beside the scene a picture is as high as its place, not cut off below it.
        camera.send(frame_of("front", np.full((240, 320, 3), 200, np.uint8)))
        tab.until("document.querySelector('#cameras canvas')?.height === 240")
        bottom = "document.querySelector('#cameras {}').getBoundingClientRect().bottom"
        assert tab.page.evaluate(f"{bottom.format('canvas')} <= {bottom.format('figure')} + 1")
        tab.context.close()
        server.shutdown()
