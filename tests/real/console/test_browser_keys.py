"""Keys on the page in a real browser: whose they are, what always stops, and how they are bound
anew."""

import pytest

from real.console.control.bindings import DEFAULTS
from real.console.control.commands import Mode
from tests.real.console.pages import logged, until
from tests.real.console.tabs import Tab, driven, reaches

FOCUSED = "(({dataset, id}) => dataset.press ?? dataset.hold ?? id)(document.activeElement)"
ACTING = ("go on", "success", "failure", "redo", "discard", "end session", "give")
"""Controls that are there to change what the arm does or who has it."""
PAD = """
  const buttons = [...Array(16)].map(() => ({ value: 0 }));
  window.pad = { id: "a pad", connected: true, axes: [0, 0, 0, 0], buttons };
  navigator.getGamepads = () => [window.pad];
"""


def tabbed_to(tab: Tab, name: str) -> None:
    """Moves the focus to a control as a person without a mouse does."""
    for _ in range(60):
        if tab.page.evaluate(FOCUSED) == name:
            return
        tab.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not come to {name!r}")


def controls(tab: Tab) -> list[str]:
    """Names of all controls to which Tab moves."""
    names: list[str] = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        name = tab.page.evaluate(FOCUSED)
        if name in names:
            return names
        if name:
            names.append(name)
    raise AssertionError(f"Tab never comes round: {names}")


def arrived(tab: Tab) -> str:
    """Waits until the server has what the page sent last; returns the mode then."""
    sent = tab.page.evaluate("handoff.sequence")
    tab.until(f"handoff.state.sequence >= {sent}")
    return tab.page.evaluate("handoff.state.mode")


def bindings(tab: Tab) -> dict[str, tuple[str, ...]]:
    return {action: tuple(bound) for action, bound in tab.page.evaluate("handoff.bindings").items()}


def changing(tab: Tab, action: str) -> None:
    """Opens the table, and lets an action wait for its new input."""
    if not tab.page.is_visible("#devices"):
        tab.page.click("#open-devices")
    tab.page.get_by_text(action, exact=True).locator("xpath=..").locator("button").click()


def restored(tab: Tab) -> None:
    if not tab.page.is_visible("#devices"):
        tab.page.click("#open-devices")
    tab.page.click("#restore")
    tab.page.click("#bind-yes")
    until(lambda: bindings(tab) == DEFAULTS)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_on_a_focused_control_presses_it_and_does_not_start_the_arm(tab, folder, key):
    before = len(logged(folder, "said go on"))
    tab.page.evaluate(
        "window.clicked = [];"
        "addEventListener('click', ({target: {dataset, id}}) => clicked.push(dataset.press ?? dataset.hold ?? id));"
    )
    names = [name for name in controls(tab) if name not in ACTING]
    assert {"hold still", "close hand", "open-devices", "theme", "sound"} <= set(names)
    for name in names:
        tabbed_to(tab, name)
        tab.page.keyboard.press(key)
        assert arrived(tab) == "hold", name
        if tab.page.evaluate("document.getElementById('devices').open"):
            tab.page.keyboard.press("Escape")
    assert tab.page.evaluate("clicked") == names
    assert len(logged(folder, "said go on")) == before


def test_a_key_on_go_on_starts_the_arm_and_the_next_one_is_the_arms(tab, robot):
    tabbed_to(tab, "go on")
    tab.page.keyboard.press("Enter")
    reaches(robot, Mode.POLICY)
    tab.until("document.activeElement === document.body")
    tab.page.keyboard.down("Space")
    reaches(robot, Mode.PERSON)
    tab.page.keyboard.up("Space")


def test_space_on_a_focused_button_does_not_take_the_arm(tab, folder):
    tab.go()
    before = len(logged(folder, "took the arm over"))
    tabbed_to(tab, "theme")
    theme = tab.page.evaluate("document.documentElement.dataset.theme")
    tab.page.keyboard.press("Space")
    assert tab.page.evaluate("document.documentElement.dataset.theme") != theme
    assert arrived(tab) == "policy"
    assert len(logged(folder, "took the arm over")) == before


def test_a_key_that_a_button_has_no_use_for_moves_the_arm(tab, robot):
    tab.go()
    tabbed_to(tab, "theme")
    tab.page.keyboard.down("ArrowUp")
    assert reaches(robot, Mode.PERSON).hand.twist[0] == 1.0
    tab.page.keyboard.up("ArrowUp")


def test_a_key_that_stays_down_on_a_button_presses_it_once(tab, robot, folder):
    before = len(logged(folder, "said"))
    tabbed_to(tab, "failure")
    for _ in range(5):
        tab.page.keyboard.down("Enter")
    tab.page.keyboard.up("Enter")
    tab.until("handoff.state.pending === 'failure'")
    assert arrived(tab) == "hold"
    assert len(logged(folder, "said")) == before + 1
    tab.page.keyboard.press("KeyZ")
    tab.until("handoff.state.pending === null")


def test_the_hand_can_be_closed_with_a_key_on_its_button(tab, robot):
    tab.go()
    tabbed_to(tab, "close hand")
    tab.page.keyboard.down("Space")
    assert reaches(robot, Mode.PERSON).hand.grip == -1
    tab.page.keyboard.up("Space")
    reaches(robot, Mode.POLICY)


def test_after_a_click_the_keys_are_the_arms(tab, robot):
    tab.page.click("#theme")
    theme = tab.page.evaluate("document.documentElement.dataset.theme")
    tab.go()
    tab.page.keyboard.down("Space")
    reaches(robot, Mode.PERSON)
    tab.page.keyboard.up("Space")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme


def test_a_control_that_goes_away_leaves_the_next_enter_to_hold_still(tab, folder):
    before = len(logged(folder, "said go on"))
    tabbed_to(tab, "redo")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#undo:not([hidden])")
    tabbed_to(tab, "undo")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#undo", state="hidden")
    tab.until(f"{FOCUSED} === 'hold still'")
    tab.page.keyboard.press("Enter")
    assert arrived(tab) == "hold"
    assert len(logged(folder, "said go on")) == before


def test_escape_holds_from_a_focused_button_and_gives_the_keys_back(tab, robot):
    tab.go()
    tabbed_to(tab, "theme")
    tab.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    tab.shows("HOLD")
    tab.go()


def test_escape_cancels_a_rebinding_and_goes_on_holding_still(tab, robot):
    changing(tab, "left")
    assert "Press a key; Esc cancels" in tab.page.inner_text("#bindings")
    tab.page.keyboard.press("Escape")
    tab.until("handoff.listening === null")
    arrived(tab)
    assert bindings(tab) == DEFAULTS
    assert tab.page.is_visible("#devices")
    assert "Esc cancels" not in tab.page.inner_text("#bindings")
    tab.page.keyboard.press("Escape")
    assert not tab.page.is_visible("#devices")
    driven(tab, robot)
    tab.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    tab.page.keyboard.up("ArrowUp")


def test_keys_in_the_dialog_are_shown_and_not_sent(tab, robot, folder):
    tab.go()
    tab.page.click("#open-devices")
    reaches(robot, Mode.HOLD)
    before = len(logged(folder, "said go on"))
    tab.page.keyboard.down("ArrowUp")
    tab.until("document.getElementById('keys-down').textContent === 'ArrowUp'")
    assert tab.page.evaluate("handoff.keys.size") == 0
    tab.page.keyboard.up("ArrowUp")
    for key in ("Enter", "Space", "KeyS"):
        tab.page.keyboard.press(key)
    assert arrived(tab) == "hold"
    assert tab.page.is_visible("#devices")
    assert len(logged(folder, "said go on")) == before
    assert tab.page.evaluate("handoff.state.pending") is None


def test_escape_in_the_dialog_of_who_looks_on_holds_the_arm(tab, browser, opened, robot):
    driven(tab, robot)
    bob = Tab(browser, opened.url, "bob").ready()
    bob.page.click("#open-devices")
    assert robot.command().mode is Mode.PERSON
    bob.page.keyboard.press("Escape")
    reaches(robot, Mode.HOLD)
    tab.until("document.getElementById('why').textContent === 'bob pressed Hold.'")
    bob.context.close()
    tab.page.keyboard.up("ArrowUp")


def test_a_gamepad_in_the_dialog_starts_nothing(browser, opened, robot, folder):
    tab = Tab(browser, opened.url, before=PAD).ready()
    before = len(logged(folder, "said go on"))
    tab.page.click("#open-devices")
    tab.page.evaluate("pad.buttons[9].value = 1")
    tab.until("document.querySelectorAll('#pads-found meter')[13]?.value === 1")
    assert arrived(tab) == "hold"
    assert len(logged(folder, "said go on")) == before
    tab.context.close()
    until(lambda: robot.command().person == "")


def test_a_gamepad_in_the_dialog_stops(tab, browser, opened, robot):
    driven(tab, robot)
    bob = Tab(browser, opened.url, "bob", before=PAD).ready()
    bob.page.click("#open-devices")
    bob.page.evaluate("pad.buttons[4].value = 1")
    reaches(robot, Mode.HOLD)
    tab.until("document.getElementById('why').textContent === 'bob pressed Hold.'")
    bob.context.close()
    tab.page.keyboard.up("ArrowUp")


def test_an_input_of_another_action_asks_before_it_is_swapped(tab):
    changing(tab, "forward")
    tab.page.keyboard.press("KeyS")
    tab.page.wait_for_selector("#bind-ask:not([hidden])")
    assert tab.page.inner_text("#bind-why") == "S is bound to Success. Swap?"
    # The answer in focus is the one that changes nothing.
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#bind-ask", state="hidden")
    arrived(tab)
    assert bindings(tab) == DEFAULTS
    changing(tab, "forward")
    tab.page.keyboard.press("KeyS")
    tab.page.click("#bind-yes")
    tab.until("handoff.bindings.forward[0] === 'key KeyS'")
    assert bindings(tab)["success"] == ("key ArrowUp", "button 3")
    restored(tab)


def test_escape_answers_the_question_with_no(tab):
    changing(tab, "forward")
    tab.page.keyboard.press("KeyS")
    tab.page.wait_for_selector("#bind-ask:not([hidden])")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("#bind-ask", state="hidden")
    assert tab.page.is_visible("#devices")
    arrived(tab)
    assert bindings(tab) == DEFAULTS


def test_a_key_that_holds_still_stops_everywhere_and_cannot_be_taken(tab, robot):
    changing(tab, "hold")
    tab.page.keyboard.press("KeyX")
    tab.until("handoff.bindings['hold still'].includes('key KeyX')")
    assert "key Escape" in bindings(tab)["hold still"]
    changing(tab, "forward")
    tab.page.keyboard.press("KeyX")
    tab.page.wait_for_selector("#bind-ask:not([hidden])")
    assert "X is bound to Hold" in tab.page.inner_text("#bind-why")
    assert not tab.page.is_visible("#bind-yes")
    tab.page.click("#bind-no")
    tab.page.click("#devices button[type=submit]")
    for key in ("KeyX", "Escape"):
        tab.go()
        tabbed_to(tab, "theme")
        tab.page.keyboard.press(key)
        reaches(robot, Mode.HOLD)
        tab.page.keyboard.press("Escape")
    restored(tab)


def test_bindings_can_be_changed_without_a_mouse(tab, robot):
    tabbed_to(tab, "open-devices")
    tab.page.keyboard.press("Enter")
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        if (
            tab.page.evaluate("document.activeElement.getAttribute('aria-label')")
            == "Change forward"
        ):
            break
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("KeyW")
    tab.until("handoff.bindings.forward[0] === 'key KeyW'")
    assert (
        tab.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Change forward"
    )
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Escape")
    tab.go()
    tab.page.keyboard.down("KeyW")
    assert reaches(robot, Mode.PERSON).hand.twist[0] == 1.0
    tab.page.keyboard.up("KeyW")
    restored(tab)
