"""Checks pages in a real browser: axe-core with the rules of WCAG 2.2 A and AA, and a walk through
all controls by Tab."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.conftest import require

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""Rules of axe-core that are checked; those marked experimental are not."""
OPTIONS = {
    "resultTypes": ["violations"],
    "runOnly": {"type": "tag", "values": TAGS},
    # Switched off by default, though it is level AA of WCAG 2.2.
    "rules": {"target-size": {"enabled": True}},
    # The 3-D scene is another project's page.
    "iframes": False,
}
THEMES = ("light", "dark")
DESKTOP = (1440, 900)
PHONE = (390, 844)
LANDSCAPE = (844, 390)


def looks() -> Iterator[dict[str, Any]]:
    """Options of browser contexts: both themes, on a desktop and on a phone held upright."""
    for theme, (width, height) in product(THEMES, (DESKTOP, PHONE)):
        touch = (width, height) == PHONE
        size = {"width": width, "height": height}
        yield {"color_scheme": theme, "viewport": size, "has_touch": touch, "is_mobile": touch}


def corners() -> list[dict[str, Any]]:
    """Two of `looks`, with both themes and both widths among them."""
    return [look for n, look in enumerate(looks()) if n in (0, 3)]


def violations(page: Any) -> list[str]:
    """What axe-core finds on a page as it is shown now: rule, element and cause."""
    require("axe")
    from axe_playwright_python.base import AXE_SCRIPT

    page.evaluate(f"window.axe ?? (() => {{ {AXE_SCRIPT} }})()")
    # Colours are measured at the end of transitions.
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    found = page.evaluate("(options) => axe.run(document, options)", OPTIONS)
    return [
        f"{rule['id']}: {node['html']} {node.get('failureSummary', '')}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


_CONTROLS = """() => [...(document.querySelector('dialog[open]') ?? document.body).querySelectorAll(
    'button, input, select, textarea, summary, a[href], video[controls], [tabindex]')]
  .filter((one) => !one.disabled && one.tabIndex >= 0 && one.type !== 'hidden')
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .filter((one) => !one.closest('dialog:not([open])'))
  .map((one, n) => { one.dataset.place = n; return one.outerHTML.slice(0, 120); })"""
"""Numbers the controls that are there, in the order of the page."""
_FOCUSED = "document.activeElement?.dataset?.place ?? ''"
_FAULTS = """() => {
  const one = document.activeElement, { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(one);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const channel = (value) => value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  let ground = [255, 255, 255];
  for (let at = one.parentElement; at; at = at.parentElement) {
    const colour = parts(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) { ground = colour; break; }
  }
  const pair = [light(parts(outlineColor)), light(ground)].sort((a, b) => b - a);
  const faults = [];
  if (outlineStyle === 'none' || parseFloat(outlineWidth) < 2) faults.push('no outline');
  else if (outlineStyle !== 'auto' && (pair[0] + 0.05) / (pair[1] + 0.05) < 3) faults.push('a pale outline');
  const box = one.getBoundingClientRect();
  const middle = (low, high, most) => (Math.max(0, low) + Math.min(most, high)) / 2;
  const beside = box.right <= 0 || box.left >= innerWidth;
  if (box.bottom <= 0 || box.top >= innerHeight || beside) faults.push('out of sight');
  else {
    const x = middle(box.left, box.right, innerWidth), y = middle(box.top, box.bottom, innerHeight);
    const top = document.elementFromPoint(x, y);
    if (!one.contains(top) && !top?.contains(one)) faults.push('covered by ' + top?.outerHTML.slice(0, 80));
  }
  return faults.map((fault) => one.outerHTML.slice(0, 120) + ': ' + fault);
}"""
"""What hides the focus of the control that has it."""


def controls(page: Any) -> list[str]:
    """All controls of the page, or of its open dialog, in the order of the page."""
    return page.evaluate(_CONTROLS)


def focus_faults(page: Any) -> list[str]:
    """Walks from the start of a page, or of its open dialog, through all controls by Tab, and back
    by Shift+Tab; returns which are left out, out of turn, or have a focus that nobody sees."""
    names = controls(page)
    order = [str(place) for place in range(len(names))]
    faults: list[str] = []
    page.evaluate("document.activeElement?.blur()")
    for key, expected in (("Tab", order), ("Shift+Tab", order[::-1])):
        visited = []
        # Twice as many as there are: a trap would not come round.
        for _ in range(2 * len(order) + 4):
            page.keyboard.press(key)
            place = page.evaluate(_FOCUSED)
            if place in visited:
                break
            if place:
                visited.append(place)
                faults += page.evaluate(_FAULTS)
        first = expected.index(visited[0]) if visited and visited[0] in expected else 0
        turned = expected[first:] + expected[:first]
        if visited != turned:
            left_out = [names[int(place)] for place in expected if place not in visited]
            faults.append(f"{key} visits {visited} of {expected}; left out: {left_out}")
    return faults


def pressed(page: Any) -> list[str]:
    """Presses Enter and Space on every button and link that has the focus, whose actions are kept
    from happening; returns those that were not pressed."""
    page.evaluate(
        """() => {
          window.presses = [];
          window.addEventListener('click', (event) => {
            presses.push(event.target.closest('[data-place]')?.dataset.place);
            event.stopImmediatePropagation();
            event.preventDefault();
          }, true);
        }"""
    )
    faults = []
    for place, name in enumerate(controls(page)):
        page.evaluate(f"document.querySelector('[data-place=\"{place}\"]').focus()")
        for key in _keys(name):
            before = page.evaluate("presses.length")
            page.keyboard.press(key)
            if page.evaluate(f"presses.slice({before})") != [str(place)]:
                faults.append(f"{key} on {name}")
    return faults


def _keys(name: str) -> tuple[str, ...]:
    """Keys that press a control."""
    if name.startswith(("<button", "<summary")):
        return "Enter", "Space"
    if name.startswith("<a "):
        return ("Enter",)
    return ("Space",) if 'type="checkbox"' in name else ()
