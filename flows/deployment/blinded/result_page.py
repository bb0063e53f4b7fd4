"""Writes the page of a blinded comparison."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from flows.deployment.blinded.blinded_run import ORDINALS
from flows.reports.dataset_text import counted
from robots.html_page import FOOT, banner, head, table, tiles

INTERVALS = (
    "Intervals are of 95 %, Wilson's for rates, a bootstrap over pairs for differences, as for a number of pairs that "
    "was fixed before. A comparison that the test ended early shows a somewhat too large difference; the decision "
    "itself accounts for every look at the results."
)
COUNTING = (
    "An episode counts as a success if it was labelled so, or solved by the simulator's measure, and the policy did it "
    "alone: one in which the person took the arm over, or that a fault ended, is a failure."
)


def page(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the page with the figures of `flows.deployment.blinded.result.figures`."""
    pairs, test = result["pairs"], result["test"]
    decided = any(each["better"] for each in result["comparisons"])
    yield head("Blinded comparison")
    yield "<h1>Blinded comparison</h1>"
    yield banner("good" if decided else "warn", html.escape(result["outcome"]))
    yield tiles(
        [
            (f"{pairs['played']} of {pairs['planned']}", "pairs were played"),
            (str(pairs["discarded"]), "pairs were discarded"),
            (_ended(pairs["ended"]), "ended the comparison"),
            (f"{test['alpha']:g}", "error of the test, over all pairs and looks"),
        ]
    )
    yield "<h2>Policies</h2>"
    yield table(*_policies(result))
    yield f"<p class='soft'>{COUNTING}</p>"
    yield "<h2>In pairs</h2>"
    yield table(*_comparisons(result))
    yield f"<p class='soft'>{INTERVALS} Test: {html.escape(test['name'])} (arXiv 2306.10882).</p>"
    yield from _order(result["order"])
    yield from _preferences(result)
    yield "<h2>Episodes</h2>"
    yield table(*_episodes(result))
    yield "<h2>The sealed order</h2>"
    yield "<p>The order of every pair is computed from this secret, whose SHA-256 was announced at the start:</p>"
    yield f"<p><code>{result['seal']['secret']}</code><br><code>{result['seal']['commitment']}</code></p>"
    yield FOOT


def _ended(what: str) -> str:
    return {"test": "the test", "pairs": "the last pair", "person": "the person"}[what]


def _rate(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return "none"
    share = rate["k"] / rate["n"]
    return f"{rate['k']} of {rate['n']}, {share:.2f} ({rate['low']:.2f} to {rate['high']:.2f})"


def _policies(result: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = [
        (
            each["name"],
            _rate(each["success"]),
            str(each["taken_over"]),
            str(each["faults"]),
            str(each["repeated"]),
            each["digest"][:12],
        )
        for each in result["policies"]
    ]
    return ("policy", "success", "taken over", "faults", "repeated", "SHA-256"), rows


def _comparisons(result: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for each in result["comparisons"]:
        off = each["difference"]
        decision = "no decision"
        if each["better"]:
            decision = f"{each['better']} is better, after pair {each['decided_after']}"
        rows.append(
            (
                each["first"],
                each["second"],
                str(each["wins"]),
                str(each["losses"]),
                str(each["ties"]),
                f"{_opposite(off['mean'])} ({_opposite(off['high'])} to {_opposite(off['low'])})",
                decision,
            )
        )
    return ("policy", "against", "wins", "losses", "ties", "difference", "decision"), rows


def _opposite(difference: float) -> str:
    """A difference as text, seen from the other policy; none has no sign of minus."""
    return f"{round(-difference, 2) + 0.0:+.2f}"


def _order(order: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>First against second</h2>"
    rows = [(ORDINALS[place], _rate(rate)) for place, rate in enumerate(order["places"])]
    yield table(("place in the pair", "success, whichever policy acted"), rows)
    yield f"<p class='soft'>Solved by the first episode alone: {counted(order['only_first'], 'pair')}, "
    yield f"{order['only_second']} by the second alone: p = {order['p_value']:.3g} (exact McNemar test). The order is "
    yield "drawn for every pair, so an effect of the place makes the test less powerful, and not wrong.</p>"


def _preferences(result: Mapping[str, Any]) -> Iterator[str]:
    answers = result["preferences"]
    if answers is None:
        return
    yield "<h2>Preferences</h2>"
    rows = [(each["name"], str(each["preferred"])) for each in result["policies"]]
    rows += [
        ("no difference", str(answers["no_difference"])),
        ("not answered", str(answers["not_answered"])),
    ]
    yield table(("better in the person's eyes", "pairs"), rows)
    if "p_value" in answers:
        yield f"<p class='soft'>p = {answers['p_value']:.3g} (two-sided binomial test), as for a number of pairs that "
        yield "was fixed before; the sequential test does not use these answers.</p>"


def _episodes(result: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = [
        (
            str(each["episode"]),
            str(each["pair"] + 1),
            each["place"],
            each["policy"],
            "success" if each["success"] else "failure",
            each["label"],
            each["counting"],
            each["fault"] or ("taken over" if each["taken_over"] else ""),
        )
        for each in result["episodes"]
    ]
    return ("episode", "start", "place", "policy", "counts as", "label", "counting", "notes"), rows
