"""Knows which episodes of a blinded comparison have been played, which one is next, and when the
sequential test has decided.

The test is AdaStop (`sim.evaluation.adastop`, arXiv 2306.10882) with one pair per stage. Its null
exchanges two policies within a pair. Because the hidden order gives every policy every place with
the same probability, and whatever else differs between first and second does not depend on the
policy, such an exchange is an order that might have been drawn: the test is a randomization test
(Fisher 1935), valid also where the first episode of a pair is easier than the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.deployment.blinded.config import BlindedConfig

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore
    from sim.evaluation.adastop import PairDecision

ENTRY = "blinded"
"""Entry of an episode's metadata with its pair and place."""
CUT_OFF = "cut_off"
"""Entry of an episode's metadata: something else than episode, person or arm ended it."""


class Counting(Enum):
    """What becomes of an episode."""

    COUNTS = "counts"
    REPEATED = "repeated"
    """It is played again: the person asked for it, or a kill or a signal cut it off."""
    VOID = "void"
    """The person discarded it, and its pair with it."""


class Attempt(NamedTuple):
    """An episode of a comparison."""

    episode: int
    """Number of the episode in its store."""
    pair: int
    """Number of its pair, from 0."""
    place: int
    """Place in its pair, from 0."""
    counting: Counting
    success: bool
    """Whether the policy did the task by itself: without a fault and without a takeover."""
    label: str
    """Label of the person, `none` without one."""
    taken_over: bool
    """Whether the person took the arm over."""
    fault: str | None
    """Message of the fault that ended it."""


class PlayedPair(NamedTuple):
    """A pair that is complete."""

    pair: int
    """Number of the pair, from 0."""
    attempts: tuple[tuple[int, Attempt], ...]
    """Policies with their episodes, in the order in which they acted."""

    @property
    def success(self) -> Mapping[int, bool]:
        """Success by policy."""
        return {policy: attempt.success for policy, attempt in self.attempts}


class Turn(NamedTuple):
    """The episode that is played next."""

    pair: int
    place: int
    policy: int


@dataclass(frozen=True)
class Standing:
    """What has been played, and what follows."""

    played: tuple[PlayedPair, ...]
    """The complete pairs, in their order."""
    next: Turn | None
    """The next episode; None if the comparison is over."""
    decisions: tuple[PairDecision, ...]
    """Decisions of the test; `better` and `worse` are numbers of policies as texts."""
    void: int
    """Number of pairs that the person discarded."""
    acting: Mapping[int, tuple[int, ...]]
    """The policies of every pair that was begun, in the order in which they act."""


def read_attempts(store: EpisodeStore) -> list[Attempt]:
    """The episodes of a comparison, in the order in which they were played."""
    stated = ((number, store.metadata(number)) for number in range(store.num_episodes))
    return [_attempt(number, about) for number, about in stated if ENTRY in about]


def standing(
    attempts: Iterable[Attempt],
    order: Callable[[int], Sequence[int]],
    config: BlindedConfig,
    policies: int,
) -> Standing:
    """What has been played, and what follows, as a function of the episodes alone.

    Args:
        attempts: the episodes so far.
        order: returns the policies of a pair in the order in which they act.
        config: largest number of pairs, and error of the test.
        policies: number of policies.
    """
    from sim.evaluation.adastop import AdaStop, AdaStopConfig

    names = [str(policy) for policy in range(policies)]
    test = AdaStop(
        names,
        AdaStopConfig(
            n=1,
            stages=config.pairs,
            permutations=config.permutations,
            alpha=config.alpha,
            permute="pairs",
        ),
    )
    by_pair: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        by_pair.setdefault(attempt.pair, []).append(attempt)
    played: list[PlayedPair] = []
    decisions: list[PairDecision] = []
    acting: dict[int, tuple[int, ...]] = {}
    void = 0
    following: Turn | None = None
    for pair in count():
        if test.over:
            break
        mine = by_pair.get(pair, [])
        # A policy that was told apart from all others does not act any more.
        acting[pair] = tuple(policy for policy in order(pair) if names[policy] in test.running)
        if any(attempt.counting is Counting.VOID for attempt in mine):
            void += 1
            continue
        counted = {a.place: a for a in mine if a.counting is Counting.COUNTS}
        missing = [place for place in range(len(acting[pair])) if place not in counted]
        if missing:
            following = Turn(pair, missing[0], acting[pair][missing[0]])
            break
        done = PlayedPair(
            pair, tuple((policy, counted[p]) for p, policy in enumerate(acting[pair]))
        )
        decisions += test.add({names[p]: [float(won)] for p, won in done.success.items()})
        played.append(done)
    return Standing(tuple(played), following, tuple(decisions), void, acting)


def _attempt(number: int, about: Mapping[str, Any]) -> Attempt:
    reason, taken_over = about.get("discard_reason"), int(about.get("takeovers", 0)) > 0
    counting = Counting.COUNTS
    if reason == "discard":
        counting = Counting.VOID
    elif reason in ("redo", "interrupted") or about.get(CUT_OFF):
        counting = Counting.REPEATED
    fault = about.get("fault")
    return Attempt(
        number,
        int(about[ENTRY]["pair"]),
        int(about[ENTRY]["place"]),
        counting,
        bool(about.get("success")) and fault is None and not taken_over,
        str(about.get("label", "none")),
        taken_over,
        fault,
    )
