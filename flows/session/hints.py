"""Reads recorded hints: limits for a session that is resumed, and how useful the hints were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robots.episodes.corrections import STREAM

if TYPE_CHECKING:
    from real.hints.monitor import HintMonitor
    from robots.episodes.store import EpisodeStore

LIMITS = "hint_limits"
"""Metadata entry of an episode with the limits of its hints, by cause; empty before there were
any."""
FILE = "hints.json"
"""Name of the report in a session's folder."""


def restore_limits(monitor: HintMonitor, store: EpisodeStore, fields: Sequence[str]) -> None:
    """Sets the limits by the recorded episodes of a session that is resumed.

    Args:
        monitor: monitor of the session, new.
        store: store of the session.
        fields: names of the recorded fields (`real.hints.signals.hint_fields`).
    """
    for episode in range(store.num_episodes):
        about = store.metadata(episode)
        rows = store.read(episode, STREAM, ["intervention", *fields])
        solved = bool(about["success"]) and about["discard_reason"] is None
        monitor.replay(rows, solved=solved)


def recorded_usefulness(store: EpisodeStore, first: int = 0) -> dict[str, Any]:
    """Figures of the hints of a store (`real.hints.usefulness.hint_usefulness`), empty without a
    hint that was possible.

    Episodes before the first limit, dropped ones and those that a fault ended do not count.

    Args:
        store: store of a session.
        first: number of the first episode.

    Returns:
        Figures of all hints, and under `causes` those of each cause alone, by its name.
    """
    from real.hints.causes import HintCause
    from real.hints.signals import HINT
    from real.hints.usefulness import HintedEpisode, hint_usefulness

    stream = store.schema.stream(STREAM)
    if HINT not in stream.fields:
        return {}
    episodes: list[HintedEpisode] = []
    limits: list[set[str]] = []
    for number in range(first, store.num_episodes):
        about = store.metadata(number)
        if about["discard_reason"] is not None or not about.get(LIMITS):
            continue
        rows = store.read(number, STREAM, [HINT, "intervention"])
        success = bool(about["success"])
        episodes.append(HintedEpisode(rows[HINT], rows["intervention"], success))
        limits.append(set(about[LIMITS]))
    report = hint_usefulness(episodes, stream.rate_hz)
    if not report:
        return {}
    causes = {}
    for cause in HintCause:
        name = str(cause.name).lower()
        alone = [
            episode._replace(hint=episode.hint & cause.value)
            for episode, known in zip(episodes, limits, strict=True)
            if name in known
        ]
        if alone:
            causes[name] = hint_usefulness(alone, stream.rate_hz)
    return {**report, "causes": causes}


def usefulness_line(report: Mapping[str, Any]) -> str:
    """The figures of `recorded_usefulness` in a line, each beside hints at random."""
    words = {
        "precision": "right",
        "takeovers_announced": "takeovers announced",
        "failures_announced": "failures announced",
        "false_alarms": "solved with one",
    }
    control = report["random"]
    parts = [
        f"{words[name]} {report[name]['k']} of {report[name]['n']} (at random {100 * control[name]:.0f} %)"
        for name in words
        if report[name]["n"]
    ]
    p_value = f"p {report['p_value']:.2g}" if report["hints"] else ""
    return ", ".join(
        filter(None, [f"{report['hints']} in {report['episodes']} episodes", *parts, p_value])
    )
