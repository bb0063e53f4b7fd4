"""Computes the figures of a blinded comparison, once its order may be revealed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

from flows.deployment.blinded.blinded_run import ORDINALS, PREFERENCES, read_preferences
from flows.deployment.blinded.rounds import (
    Attempt,
    Counting,
    PlayedPair,
    Standing,
    read_attempts,
    standing,
)
from flows.deployment.blinded.sealed_order import SealedOrder, read_order
from robots.config import to_plain
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

RESULT = "result.json"
PAGE = "result.html"
STORE = "store.zarr"
"""Store of the folder of a session."""
BOOTSTRAP_SEED = 0
"""Seed of the intervals of differences."""


def reveal(folder: Path, *, early: bool = False) -> dict[str, Any] | None:
    """Writes `result.json` and `result.html` of a comparison that is over, which reveal the order;
    returns the figures, or None if it is not over.

    Args:
        folder: folder of the sessions.
        early: whether a comparison that is not over ends with what has been played.

    Raises:
        HandoffError: no comparison, or one without a complete pair.
    """
    from flows.deployment.blinded.result_page import page
    from robots.episodes.store import EpisodeStore

    order = read_order(folder)
    if not (folder / STORE).is_dir():
        raise HandoffError(f"blinded: {folder} has no episodes yet, so there is nothing to reveal.")
    attempts = read_attempts(EpisodeStore.open(folder / STORE, "r"))
    known = standing(attempts, order.order, order.config, len(order.policies))
    if known.next is not None and not early:
        return None
    if not known.played:
        raise HandoffError(f"blinded: no pair of {folder} is complete, so nothing is revealed.")
    preferences = read_preferences(folder / PREFERENCES)
    result = figures(order, known, attempts, preferences)
    write_atomically(folder / RESULT, (json.dumps(result, indent=2) + "\n").encode())
    write_atomically(folder / PAGE, "\n".join(page(result)).encode())
    return result


def figures(
    order: SealedOrder,
    known: Standing,
    attempts: Sequence[Attempt],
    preferences: dict[int, int | None],
) -> dict[str, Any]:
    """The JSON-ready figures.

    Args:
        order: the hidden order.
        known: what was played.
        attempts: all episodes.
        preferences: place of the better episode by pair.
    """
    # Labels that a review changed afterwards may have ended the comparison before.
    attempts = [one for one in attempts if one.place < len(known.acting.get(one.pair, ()))]
    numbers = range(len(order.policies))
    policies = [_policy(order, policy, known, attempts, preferences) for policy in numbers]
    comparisons = [_comparison(order, pair, known) for pair in combinations(numbers, 2)]
    return {
        "outcome": outcome(order, known),
        "policies": policies,
        "comparisons": comparisons,
        "pairs": {
            "planned": order.config.pairs,
            "played": len(known.played),
            "discarded": known.void,
            "ended": _ended(order, known),
        },
        "test": {
            "name": "AdaStop, one pair per stage, exchanges within a pair",
            "alpha": order.config.alpha,
            "permutations": order.config.permutations,
        },
        "order": _order_effect(known),
        "preferences": _preference_test(order, known, preferences),
        "seal": {
            "commitment": order.commitment,
            "secret": order.secret,
            "config": to_plain(order.config),
        },
        "episodes": list(_episodes(order, known, attempts, preferences)),
    }


def outcome(order: SealedOrder, known: Standing) -> str:
    """The decisions as sentences."""
    names = [policy.name for policy in order.policies]
    said = [
        f"{names[int(each.better)]} succeeds more often than {names[int(each.worse)]} "
        f"(decided after pair {each.stage + 1})."
        for each in known.decisions
    ]
    decided = {frozenset((int(each.better), int(each.worse))) for each in known.decisions}
    open_ = [
        f"{names[one]} and {names[other]} were not told apart in {len(known.played)} pairs."
        for one, other in combinations(range(len(names)), 2)
        if frozenset((one, other)) not in decided
    ]
    return " ".join([*said, *open_])


def _ended(order: SealedOrder, known: Standing) -> str:
    """What ended the comparison: `test` (all policies were told apart), `pairs` (all were played),
    or `person`."""
    if known.next is not None:
        return "person"
    return "test" if len(known.decisions) == comb(len(order.policies), 2) else "pairs"


def _policy(
    order: SealedOrder,
    policy: int,
    known: Standing,
    attempts: Sequence[Attempt],
    preferences: dict[int, int | None],
) -> dict[str, Any]:
    from sim.evaluation.intervals import success_rate

    mine = list(_of(known, policy))
    counted = [attempt for _, attempt in mine]
    repeated = [
        attempt
        for attempt in attempts
        if attempt.counting is Counting.REPEATED and _acted(known, attempt) == policy
    ]
    preferred = sum(preferences.get(pair, -1) == one.place for pair, one in mine)
    return {
        **order.policies[policy]._asdict(),
        "success": success_rate([attempt.success for attempt in counted]),
        "by_place": [
            success_rate([attempt.success for attempt in counted if attempt.place == place])
            if any(attempt.place == place for attempt in counted)
            else None
            for place in range(len(order.policies))
        ],
        "taken_over": sum(attempt.taken_over for attempt in counted),
        "faults": sum(attempt.fault is not None for attempt in counted),
        "repeated": len(repeated),
        "preferred": preferred,
    }


def _of(known: Standing, policy: int) -> Iterator[tuple[int, Attempt]]:
    """The counted episodes of a policy with the number of their pair."""
    for played in known.played:
        for acting, attempt in played.attempts:
            if acting == policy:
                yield played.pair, attempt


def _acted(known: Standing, attempt: Attempt) -> int:
    """The policy that acted in an episode."""
    return known.acting[attempt.pair][attempt.place]


def _comparison(order: SealedOrder, pair: tuple[int, int], known: Standing) -> dict[str, Any]:
    from sim.evaluation.intervals import paired_difference

    one, other = pair
    both = [
        (played.success[one], played.success[other])
        for played in known.played
        if one in played.success and other in played.success
    ]
    decision = next(
        (each for each in known.decisions if {int(each.better), int(each.worse)} == set(pair)),
        None,
    )
    difference = paired_difference(
        [float(first) for first, _ in both],
        [float(second) for _, second in both],
        BOOTSTRAP_SEED,
    )
    names = [policy.name for policy in order.policies]
    return {
        "first": names[one],
        "second": names[other],
        "pairs": len(both),
        "wins": sum(first and not second for first, second in both),
        "losses": sum(second and not first for first, second in both),
        "ties": sum(first == second for first, second in both),
        "both": sum(first and second for first, second in both),
        "difference": difference,
        "better": None if decision is None else names[int(decision.better)],
        "decided_after": None if decision is None else decision.stage + 1,
    }


def _order_effect(known: Standing) -> dict[str, Any]:
    """Success by place in a pair, whichever policy acted, and the first place against the
    second."""
    from sim.evaluation.intervals import mcnemar, success_rate

    by_place: dict[int, list[bool]] = {}
    for played in known.played:
        for place, (_, attempt) in enumerate(played.attempts):
            by_place.setdefault(place, []).append(attempt.success)
    two = [played for played in known.played if len(played.attempts) > 1]
    first, second = ([_won(played, place) for played in two] for place in (0, 1))
    return {
        "places": [success_rate(successes) for _, successes in sorted(by_place.items())],
        **mcnemar(first, second),
    }


def _won(played: PlayedPair, place: int) -> bool:
    return played.attempts[place][1].success


def _preference_test(
    order: SealedOrder, known: Standing, preferences: dict[int, int | None]
) -> dict[str, Any] | None:
    """How the person answered; between two policies also the two-sided binomial test of the answers
    that name one. None if nobody was asked."""
    from sim.evaluation.intervals import mcnemar

    if not order.config.preference:
        return None
    answers = [preferences[played.pair] for played in known.played if played.pair in preferences]
    counts = {
        "answers": len(answers),
        "no_difference": sum(place is None for place in answers),
        "not_answered": len(known.played) - len(answers),
    }
    if len(order.policies) > 2:
        return counts
    chosen = [
        played.attempts[place][0]
        for played in known.played
        if (place := preferences.get(played.pair)) is not None
    ]
    test = mcnemar([policy == 0 for policy in chosen], [policy == 1 for policy in chosen])
    return {**counts, "p_value": test["p_value"]}


def _episodes(
    order: SealedOrder,
    known: Standing,
    attempts: Sequence[Attempt],
    preferences: dict[int, int | None],
) -> Iterator[dict[str, Any]]:
    """One row per episode of the store."""
    for attempt in attempts:
        yield {
            "episode": attempt.episode,
            "pair": attempt.pair,
            "place": ORDINALS[attempt.place],
            "policy": order.policies[_acted(known, attempt)].name,
            "counting": attempt.counting.value,
            "success": attempt.success,
            "label": attempt.label,
            "taken_over": attempt.taken_over,
            "fault": attempt.fault,
            "preferred": preferences.get(attempt.pair, -1) == attempt.place
            and attempt.counting is Counting.COUNTS,
        }
