"""Compares actions with the observations that follow them: lag, units and order of entries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robots.episodes.curation.checks.evidence import (
    EpisodeEvidence,
    finding,
    name_episodes,
    name_list,
)
from robots.episodes.curation.checks.layout import StateField
from robots.episodes.curation.examination import EpisodeLag, Finding

DEGREES = 180.0 / np.pi
_RATIOS = {
    DEGREES: "degrees instead of radians",
    1000.0: "millimetres instead of metres",
    1.0 / DEGREES: "radians instead of degrees",
    1.0 / 1000.0: "metres instead of millimetres",
}
"""Mistaken units by the ratio of the values."""
_LARGEST_RADIANS = 2.0 * np.pi * 1.05
"""Angle beyond which values are no radians [rad]."""
_LARGEST_TURNS = 6.0 * np.pi
"""Angle of a single entry beyond which it is no joint with a few turns [rad]."""
_LARGEST_METRES = 20.0
"""Distance beyond which coordinates near a robot are no metres [m]."""
_CLEARER = 0.01
"""Smallest advantage in correlation of an episode's own lag over the usual one."""
_UNEXPLAINED = 1.5
"""Smallest ratio of what the usual lag leaves unexplained to what the episode's own lag does."""


def episode_lags(evidence: EpisodeEvidence) -> list[EpisodeLag]:
    """Lag of every episode and pairing whose action and observation correlate."""
    lags = []
    for number in range(len(evidence.profile.pairings)):
        action, observation = evidence.pair_fields(number)
        for episode, (lag, peak, _) in enumerate(_lags(evidence, number)):
            if peak >= evidence.config.lag_correlation:
                lags.append(
                    EpisodeLag(
                        episode=episode, action=action.name, observation=observation.name, steps=lag
                    )
                )
    return lags


def _lags(evidence: EpisodeEvidence, pairing: int) -> list[tuple[int, float, np.ndarray]]:
    """Lag, its correlation, and the correlations at all lags, of every episode."""
    window = evidence.config.lag_window
    found = []
    for summary in evidence.summaries:
        correlations = summary.pairs[pairing].correlations
        best = int(correlations.argmax())
        found.append((best - window, float(correlations[best]), correlations))
    return found


def _clearly_better(own: float, usual: float) -> bool:
    """Whether the correlation at an episode's own lag says more than that at the usual lag."""
    return own - usual >= _CLEARER and 1.0 - usual >= _UNEXPLAINED * (1.0 - own)


def check_lag(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Observations that follow the action late, or precede it; episodes with another lag."""
    config, total = evidence.config, len(evidence.summaries)
    for number in range(len(evidence.profile.pairings)):
        lags = _lags(evidence, number)
        mean = np.mean([correlations for _, _, correlations in lags], axis=0)
        usual = int(mean.argmax()) - config.lag_window
        if mean.max() < config.lag_correlation:
            continue
        action, observation = evidence.pair_names(number)
        fields = [field.name for field in evidence.pair_fields(number)]
        late = usual >= config.lag_steps and evidence.seconds(usual) >= config.lag_seconds - 1e-9
        if late:
            yield finding(
                "lag",
                "warning",
                f"{observation} follows {action} {usual} steps ({evidence.seconds(usual):.2f} s) late, limit "
                f"{config.lag_steps} steps and {config.lag_seconds:g} s (correlation {mean.max():.2f}). Were they "
                "recorded with unsynchronised clocks, or is the controller slow?",
                fields=fields,
            )
        if usual < 0:
            yield finding(
                "lag",
                "warning",
                f"{observation} moves {-usual} steps before {action} (correlation {mean.max():.2f}), expected after "
                "it. Was the action computed from later states, or shifted by the recorder?",
                fields=fields,
            )
        other = [
            episode
            for episode, (lag, peak, correlations) in enumerate(lags)
            if abs(lag - usual) >= config.lag_difference
            and peak >= config.lag_correlation
            and _clearly_better(peak, float(correlations[usual + config.lag_window]))
        ]
        if other and len(other) < total:
            own = max((lags[episode][0] for episode in other), key=lambda lag: abs(lag - usual))
            yield finding(
                "lag",
                "warning",
                f"{observation} follows {action} after {own} steps in {name_episodes(other, total)}, after {usual} in "
                f"the others; limit of the difference: {config.lag_difference} steps. Were they recorded on another "
                "computer, or with another controller?",
                other,
                fields,
            )


def check_units(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Angles and distances that are too large for their unit, episodes and actions in another
    unit."""
    yield from _impossible_values(evidence)
    yield from _episodes_in_other_units(evidence)
    yield from _actions_in_other_units(evidence)


def unit_faults(evidence: EpisodeEvidence) -> set[tuple[int, str]]:
    """Episodes and fields whose unit is wrong, for checks that would report them once more."""
    total = len(evidence.summaries)
    return {
        (episode, field)
        for fault in check_units(evidence)
        for field in fault.fields
        for episode in (fault.episodes or range(total))
    }


def _impossible_values(evidence: EpisodeEvidence) -> Iterator[Finding]:
    total = len(evidence.summaries)
    size = np.maximum(np.abs(evidence.entry("low")), np.abs(evidence.entry("high")))
    for field in evidence.layout.states:
        units = np.array(field.unit)
        inside = size[:, field.entries]
        for unit, limit, cause in (
            ("rad", _LARGEST_RADIANS, "degrees"),
            ("m", _LARGEST_METRES, "millimetres"),
        ):
            entries = np.flatnonzero(units == unit)
            if len(entries) == 0:
                continue
            beyond = (inside[:, entries] > limit).sum(axis=1)
            turns = (inside[:, entries] > 3.0 * limit).any(axis=1)
            wrong = np.flatnonzero((beyond >= 2) | turns)
            if len(wrong) == 0:
                continue
            worst = int(entries[inside[wrong][:, entries].max(axis=0).argmax()])
            yield finding(
                "units",
                "error",
                f"{field.labels[worst]} reaches {inside[wrong, worst].max():.4g} {unit} in "
                f"{name_episodes(wrong, total)}, limit {limit:.3g} {unit}. Are the values {cause}?",
                wrong if len(wrong) < total else (),
                [field.name],
            )


def _episodes_in_other_units(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes in which a field's values and its spread have the ratio of two units to those of the
    others."""
    total = len(evidence.summaries)
    if total < 3:
        return
    std, mean = evidence.entry("std"), evidence.entry("mean")
    level = np.sqrt(std**2 + mean**2)
    for field in evidence.layout.states:
        level_ratio = _ratios(level[:, field.entries])
        spread_ratio = _ratios(std[:, field.entries])
        for ratio, words in _RATIOS.items():
            tolerance = evidence.config.unit_tolerance
            wrong = np.flatnonzero(
                _near(level_ratio, ratio, tolerance) & _near(spread_ratio, ratio, 2 * tolerance)
            )
            if len(wrong) == 0 or len(wrong) > total / 2 or _already(field, ratio, wrong, evidence):
                continue
            yield finding(
                "units",
                "error",
                f"{field.name} is {level_ratio[wrong[0]]:.3g} times as large in {name_episodes(wrong, total)} as in "
                f"the others, expected about 1. Was it recorded in {words}?",
                wrong,
                [field.name],
            )


def _already(field: StateField, ratio: float, wrong: np.ndarray, evidence: EpisodeEvidence) -> bool:
    """Whether the values of the same episodes are reported as impossible."""
    if ratio < 1.0:
        return False
    reported = {
        episode
        for fault in _impossible_values(evidence)
        if field.name in fault.fields
        for episode in fault.episodes
    }
    return set(wrong.tolist()) <= reported


def _ratios(values: np.ndarray) -> np.ndarray:
    """(E,) median over the entries of the ratio of an episode's value to the median of all."""
    usual = np.median(values, axis=0)
    varied = usual > 1e-9
    if not varied.any():
        return np.ones(len(values))
    return np.median(values[:, varied] / usual[varied], axis=1)


def _near(values: np.ndarray, ratio: float, tolerance: float) -> np.ndarray:
    return (values > ratio / tolerance) & (values < ratio * tolerance)


def _actions_in_other_units(evidence: EpisodeEvidence) -> Iterator[Finding]:
    for number, pairing in enumerate(evidence.profile.pairings):
        action, observation = evidence.pair_fields(number)
        entry = (pairing.action[0] - action.first, pairing.observation[0] - observation.first)
        if pairing.motion != "position" or action.unit[entry[0]] != observation.unit[entry[1]]:
            continue
        slope = float(np.median(_slopes(evidence, number)[0]))
        for ratio, words in _RATIOS.items():
            if _near(np.array([slope]), ratio, 1.2)[0]:
                yield finding(
                    "units",
                    "error",
                    f"{action.name} is {slope:.3g} times {observation.name}, which follows it and has the same unit; "
                    f"expected about 1. Is the action in {words}?",
                    fields=(action.name, observation.name),
                )


def _slopes(evidence: EpisodeEvidence, pairing: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) medians over the episodes of slope and offset of an action over its observation."""
    pairs = [summary.pairs[pairing] for summary in evidence.summaries]
    slopes, offsets = [], []
    for pair in pairs:
        safe = np.maximum(pair.observation_variance, 1e-30)
        slope = np.where(pair.observation_variance > 0.0, np.diag(pair.covariance) / safe, np.nan)
        slopes.append(slope)
        offsets.append(pair.action_mean - slope * pair.observation_mean)
    known = [
        np.array(
            [
                np.median(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0.0
                for column in np.stack(values).T
            ]
        )
        for values in (slopes, offsets)
    ]
    return known[0], known[1]


def check_swapped_entries(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes in which an action fits the observation of another entry."""
    total = len(evidence.summaries)
    swapped: dict[str, tuple[set[int], set[str], set[str]]] = {}
    for number in range(len(evidence.profile.pairings)):
        action, observation = evidence.pair_fields(number)
        for episode, labels in _mismatched(evidence, number):
            episodes, names, fields = swapped.setdefault(
                f"{action.name} and {observation.name}", (set(), set(), set())
            )
            episodes.add(episode)
            names.update(labels)
            fields.update((action.name, observation.name))
    for names, (episodes, labels, fields) in swapped.items():
        yield finding(
            "swapped_entries",
            "error",
            f"{name_list(sorted(labels))} of {names} fit each other's entries and not their own in "
            f"{name_episodes(sorted(episodes), total)} ({evidence.config.swap_ratio:g} times better or more). Was the "
            "order of the joints another one there?",
            episodes,
            sorted(fields),
        )
    yield from _exchanged_ranges(
        evidence, {episode for found in swapped.values() for episode in found[0]}
    )


def _mismatched(evidence: EpisodeEvidence, pairing: int) -> Iterator[tuple[int, list[str]]]:
    """Episodes with two or more actions that fit the observation of another entry."""
    config = evidence.config
    entries = evidence.profile.pairings[pairing].action
    scale = evidence.profile.scale[entries]
    labels = evidence.layout.labels
    if len(entries) < 2 or len(evidence.summaries) < 3:
        return
    slope, offset = _slopes(evidence, pairing)
    for episode, summary in enumerate(evidence.summaries):
        pair = summary.pairs[pairing]

        def error(slope: np.ndarray, offset: np.ndarray, pair=pair) -> np.ndarray:
            """(n, n) root mean square of action i minus the prediction from observation j."""
            mean = pair.action_mean[:, None] - slope * pair.observation_mean[None] - offset
            variance = (
                pair.action_variance[:, None]
                - 2.0 * slope * pair.covariance
                + slope**2 * pair.observation_variance[None]
            )
            return np.sqrt(np.maximum(variance, 0.0) + mean**2)

        # Either the actions are swapped, and fit with the figures of the other entry, or the
        # observations are, and fit with the figures of their own.
        errors = np.minimum(
            error(slope[None], offset[None]), error(slope[:, None], offset[:, None])
        )
        own = np.diag(errors).copy()
        np.fill_diagonal(errors, np.inf)
        wrong = (own >= config.swap_mismatch * scale) & (
            own >= config.swap_ratio * errors.min(axis=1)
        )
        wrong &= scale > 0.0
        if wrong.sum() >= 2:
            yield episode, [labels[i] for i in entries[wrong]]


def _exchanged_ranges(evidence: EpisodeEvidence, known: set[int]) -> Iterator[Finding]:
    """Episodes in which two entries of a field have each other's range and not their own."""
    total = len(evidence.summaries)
    if total < 4:
        return
    low, high = evidence.entry("low"), evidence.entry("high")
    mean = evidence.entry("mean")
    least, most = np.percentile(low, 10, axis=0), np.percentile(high, 90, axis=0)
    for field in evidence.layout.states:
        size = len(field.labels)
        usual = np.median(mean[:, field.entries], axis=0)
        span = np.maximum((most - least)[field.entries], 1e-12)
        for i in range(size):
            for j in range(i + 1, size):
                one, two = field.first + i, field.first + j
                # Ranges that do not overlap tell the entries apart.
                if abs(usual[i] - usual[j]) < span[i] + span[j]:
                    continue
                swapped = (
                    (low[:, one] >= least[two] - span[j] / 2)
                    & (high[:, one] <= most[two] + span[j] / 2)
                    & (low[:, two] >= least[one] - span[i] / 2)
                    & (high[:, two] <= most[one] + span[i] / 2)
                )
                episodes = [e for e in np.flatnonzero(swapped).tolist() if e not in known]
                if episodes and len(episodes) <= total / 2:
                    yield finding(
                        "swapped_entries",
                        "error",
                        f"{field.labels[i]} and {field.labels[j]} have each other's values in "
                        f"{name_episodes(episodes, total)}: their means are {mean[episodes[0], one]:.3g} and "
                        f"{mean[episodes[0], two]:.3g}, in the others {usual[i]:.3g} and {usual[j]:.3g}. Was the order "
                        "of the entries another one there?",
                        episodes,
                        [field.name],
                    )
