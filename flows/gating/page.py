"""Writes the release page: the verdict first, then what it rests on."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.deployment.approval import ApprovalConfig
from flows.gating.ancestry import Evaluated, Evaluations
from flows.gating.changes import changes_since
from flows.gating.conditions import VERDICTS, Condition, number, unmet
from flows.gating.outcome import LATENCIES, PAGE, Gated
from flows.gating.side_by_side import record_side_by_side
from flows.reports.results import sampler_text
from robots.config import to_plain
from robots.html_page import FOOT, banner, contents, head, heading, picture, table, tiles, videos
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from robots.contract import Contract

MOST_FAILURES = 12
"""Seeds of failed episodes that are listed."""


def write_page(gated: Gated, out: Path) -> None:
    """Writes the release page and the videos that it shows to `out`; links are relative."""
    write_atomically(out / PAGE, "\n".join(_page(gated, out)).encode())


def _page(gated: Gated, out: Path) -> Iterator[str]:
    contract = gated.policy.contract
    evaluated = _titled(gated.evaluations)
    sections = {
        "Conditions": list(_conditions(gated)),
        "Success and differences": list(_intervals(gated, evaluated)),
        "Side by side": list(_side_by_side(gated, evaluated, out)),
        "Failures": list(_failures(gated)),
        "Latency": list(_latency(out)),
        "What changed": list(_changes(gated)),
        "Contract": list(_contract(contract)),
        "Limits": [_details("all limits of this gate", to_plain(gated.settings))],
        "Provenance": list(_provenance(gated)),
        "Checklist": list(_checklist()),
        "Signature": list(_signature()),
    }
    title = f"Release of {gated.bundle.resolve().name}"
    yield head(title)
    yield f"<h1>{html.escape(title)}</h1>"
    yield f"<p class='soft'>{html.escape(_about(contract))}</p>"
    yield _verdict(gated)
    yield from _headline(gated)
    yield contents(list(sections))
    for name, lines in sections.items():
        yield heading(name)
        yield from lines or ["<p class='soft'>none</p>"]
    yield FOOT


def _about(contract: Contract) -> str:
    robot = f", {contract.robot}" if contract.robot else ""
    sampled = f"{sampler_text(contract.sampler)}, {contract.precision}"
    return f"task {contract.task}{robot}, {contract.rate_hz:g} Hz, {sampled}"


def _verdict(gated: Gated) -> str:
    missed = unmet(gated.conditions)
    if missed:
        sentences = "".join(f"<li>{html.escape(each.sentence())}" for each in missed)
        return banner(
            "bad", f"Not released: {len(missed)} conditions are not met.<ul>{sentences}</ul>"
        )
    if gated.looser:
        limits = "".join(f"<li>{html.escape(each)}" for each in gated.looser)
        return banner(
            "warn",
            "Released for simulated arms only: limits are looser than the defaults, which a real arm "
            f"refuses.<ul>{limits}</ul>",
        )
    return banner("good", f"Released: all {len(gated.conditions)} conditions are met.")


def _headline(gated: Gated) -> Iterator[str]:
    metrics = gated.metrics
    entries = []
    if "success" in metrics:
        rate = metrics["success"]
        entries.append((f"{rate['k']} of {rate['n']}", "success of the exported file"))
        entries.append((f"{metrics['score']:.3f}", "score"))
    if "latency_p99_ms" in metrics:
        entries.append((f"{metrics['latency_p99_ms']:.2f} ms", "p99 latency"))
    if "speedup" in metrics:
        entries.append((f"{metrics['speedup']:.1f}x", "faster than the reference"))
    yield tiles(entries)


def _conditions(gated: Gated) -> Iterator[str]:
    headings = ("condition", "value", "limit", "verdict", "")
    yield table(headings, [_row(condition) for condition in gated.conditions])


def _row(condition: Condition) -> tuple[str, ...]:
    unit = f" {condition.unit}" if condition.unit else ""
    value = "" if condition.value is None else f"{number(condition.value)}{unit}"
    limit = "" if condition.limit is None else f"{condition.bound} {number(condition.limit)}"
    return condition.name, value, limit, VERDICTS[condition.state], condition.note


def _titled(evaluations: Evaluations) -> dict[str, Evaluated]:
    """Evaluations of the trained policy and its teacher, by title."""
    titles = {
        "trained policy": evaluations.policy,
        "teacher": evaluations.teacher,
        "teacher in one step": evaluations.teacher_in_one_step,
    }
    return {title: each for title, each in titles.items() if each is not None}


def _intervals(gated: Gated, evaluated: Mapping[str, Evaluated]) -> Iterator[str]:
    from flows.gating.closed_loop import (
        LOSS_BY_EXPORT,
        LOSS_TO_INCUMBENT,
        LOSS_TO_ONE_STEP,
        LOSS_TO_TEACHER,
    )
    from sim.evaluation.charts import intervals_chart

    if gated.played is None:
        return
    rates = {"exported": gated.played.metrics["success"]}
    if gated.incumbent_played is not None:
        rates["incumbent"] = gated.incumbent_played.metrics["success"]
    rates |= {title: each.result.table["success"] for title, each in evaluated.items()}
    drawn = {
        title: ((), rate["k"] / rate["n"], rate["low"], rate["high"])
        for title, rate in rates.items()
    }
    yield f"<figure>{intervals_chart(drawn, 'success rate, 95 % interval')}</figure>"
    others = {
        LOSS_BY_EXPORT: "trained policy",
        LOSS_TO_TEACHER: "teacher",
        LOSS_TO_ONE_STEP: "teacher in one step",
        LOSS_TO_INCUMBENT: "incumbent",
    }
    pairs = {
        others[each.name]: each.details
        for each in gated.conditions
        if each.name in others and each.details
    }
    if pairs:
        drawn = {name: ((), row["mean"], row["low"], row["high"]) for name, row in pairs.items()}
        label = "score of the exported file minus that of the other, paired by start"
        yield f"<figure>{intervals_chart(drawn, label)}</figure>"


def _side_by_side(gated: Gated, evaluated: Mapping[str, Evaluated], out: Path) -> Iterator[str]:
    if gated.played is None:
        return
    played = {"exported": gated.played}
    if gated.incumbent_played is not None:
        played["incumbent"] = gated.incumbent_played
    shown = []
    if gated.settings.evaluate.videos:
        shown = record_side_by_side(
            gated.settings.protocol, played, evaluated, gated.evidence.twin, out
        )
    if shown:
        yield videos([(source, caption) for caption, source in shown])
    else:
        yield "<p class='soft'>no videos: none were asked for, or images cannot be rendered here</p>"


def _failures(gated: Gated) -> Iterator[str]:
    from flows.gating.closed_loop import EXPORTED

    if gated.played is None:
        return
    failed = [each for each in gated.played.episodes if not each.success]
    yield f"<p>{len(failed)} of {len(gated.played.episodes)} episodes failed."
    if failed:
        seeds = ", ".join(str(each.seed) for each in failed[:MOST_FAILURES])
        yield f" Start seeds: {seeds}{' ..' if len(failed) > MOST_FAILURES else ''}.</p>"
    entries = gated.played.metrics["videos"]
    yield videos(
        [
            (f"{EXPORTED}/{each['file']}", f"start {each['seed']}, failed")
            for each in entries
            if not each["success"]
        ]
    )


def _latency(out: Path) -> Iterator[str]:
    if (out / LATENCIES).is_file():
        yield picture(LATENCIES, "time of one inference of one observation on one thread")


def _changes(gated: Gated) -> Iterator[str]:
    if gated.incumbent is None:
        yield "<p>The gate names no release that this one replaces (option incumbent).</p>"
        return
    rows = changes_since(gated)
    yield table(("", "replaced release", "this release"), rows)


def _contract(contract: Contract) -> Iterator[str]:
    rows = [
        (name, str(spec.shape), spec.unit, spec.frame, spec.about)
        for name, spec in {**contract.observation, **contract.sensors}.items()
    ]
    action = contract.action
    rows.append(("action", str(action.shape), action.unit, action.frame, action.about))
    yield table(("field", "shape", "unit", "frame", "about"), rows)
    yield (
        f"<p>{contract.n_obs_steps} observed steps, {contract.horizon} predicted and "
        f"{contract.n_action_steps} executed actions, {contract.rate_hz:g} Hz. "
        f"Action interface: {html.escape(contract.action_interface)}.</p>"
    )
    yield _details("the whole contract", to_plain(contract))


def _provenance(gated: Gated) -> Iterator[str]:
    from flows.reports.explain import explain
    from flows.runner.artifact import MANIFEST

    if not (gated.bundle / MANIFEST).is_file():
        yield "<p>The bundle is no artifact of a run.</p>"
        return
    yield f"<pre>{html.escape(explain(gated.bundle))}</pre>"


def _checklist() -> Iterator[str]:
    yield "<p>A person confirms before an arm moves (<code>handoff approve</code>):</p><ul class='boxes'>"
    yield from (f"<li>{html.escape(item)}" for item in ApprovalConfig().checklist)
    yield "</ul>"


def _signature() -> Iterator[str]:
    yield (
        "<p>This page is signed with the release: <code>handoff verify FOLDER</code> says by whom, and whether "
        "any file was changed since. A copy of this page alone has no signature.</p>"
    )
    yield table(("released by", "date", "signature"), [(" ", " ", " ")])


def _details(title: str, value: Any) -> str:
    text = html.escape(json.dumps(value, indent=2))
    return f"<details><summary>{html.escape(title)}</summary><pre>{text}</pre></details>"
