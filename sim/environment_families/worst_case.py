"""Finds the environment between the bounds of parameters in which an agent fails most, and adds it
to a family: one round of incremental worst-case search (IWOCS: Zouitine, Geist, Rachelson, arXiv
2410.06212).

The paper searches by CMA-ES for the transition model that minimises the value of the candidate
policy, adds it to a discrete set, and stops once it is no worse than the set. Here the search is a
design with local rounds (`sim.environment_families.search`), because success is a noisy number of
few episodes, and new starts confirm what is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.config import Seed, config
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.seed_ranges import WORST_CASE
from sim.environment_families.draw import check_ranges, values_of
from sim.environment_families.members import EnvironmentFamily, Member, nominal_family
from sim.environment_families.search import Candidate, SearchConfig, count_candidates, search_worst
from sim.evaluation.agent import MakeAgent
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol, check_protocol
from sim.sensitivity.design import draw_design
from sim.sensitivity.factors import AnyFactor, Value, check_factors, with_values
from sim.sensitivity.pieces import Piece, part_of, play_pieces


@config
class WorstCaseConfig:
    """Search for the parameters of the environments that are worst for a policy."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters of the environments by a name of one's own, each with `low` and `high`."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Effort of the search."""
    first_seed: Seed = WORST_CASE.start
    """Seed of the first start of the search; evaluations have others."""


class Tried(NamedTuple):
    """Environments with the scores of an agent from starts that the search has not seen."""

    name: str
    values: Mapping[str, Value]
    searched: np.ndarray
    """(E,) scores in the search; empty for known members, which are not searched for."""
    final: np.ndarray
    """(N,) scores from the starts on which the lowest is chosen."""


class WorstCase(NamedTuple):
    """Result of a search."""

    protocol: Protocol
    config: WorstCaseConfig
    confidence: float
    agent: str
    known: EnvironmentFamily
    """Family before the search."""
    candidates: Sequence[Candidate]
    """All candidates, the lowest first."""
    finalists: Sequence[Tried]
    """Lowest candidates of the search, the lowest of the final starts first."""
    members: Sequence[Tried]
    """Known members, the lowest of the final starts first."""
    found_again: np.ndarray
    """(N,) scores of the first finalist from starts on which nothing was chosen."""
    member_again: np.ndarray
    """(N,) scores of the first member from the same starts."""

    @property
    def added(self) -> bool:
        """Whether the worst candidate is below the worst known member by more than the
        tolerance."""
        gap = float(np.mean(self.member_again) - np.mean(self.found_again))
        return gap > self.config.search.tolerance

    @property
    def family(self) -> EnvironmentFamily:
        """The known members and, if it was added, the worst candidate."""
        if not self.added:
            return self.known
        found = self.finalists[0]
        member = Member(name=found.name, values=dict(found.values))
        return replace(self.known, members=(*self.known.members, member))


def check_worst_case(
    protocol: Protocol, config: WorstCaseConfig, known: EnvironmentFamily | None = None
) -> None:
    """Checks, before anything runs, that the environments have all factors between their bounds.

    Raises:
        HandoffError: an error of `sim.sensitivity.factors.check_factors` or
            `sim.environment_families.draw.check_ranges`, or a family of other factors.
    """
    check_factors(protocol, config.factors)
    check_ranges(config.factors, corners=config.search.corners)
    if known is not None:
        check_same_factors(config.factors, known.factors)


def check_same_factors(own: Mapping[str, AnyFactor], given: Mapping[str, AnyFactor]) -> None:
    """Checks that a search continues a family of the same factors.

    Raises:
        HandoffError: names the first factor that differs.
    """
    for name in dict.fromkeys((*own, *given)):
        if own.get(name) != given.get(name):
            raise HandoffError(
                f"worst_case: factor {name} is {own.get(name)} here and {given.get(name)} in the input 'family', "
                "expected the same. Give both stages the same factors."
            )


def find_worst_case(
    protocol: Protocol,
    config: WorstCaseConfig,
    agent: str,
    load: Callable[[], MakeAgent],
    execution: EvaluateConfig,
    progress: Progress,
    *,
    known: EnvironmentFamily | None = None,
    journal: Path | None = None,
) -> WorstCase:
    """Searches for the environment in which an agent scores lowest by the protocol's rule.

    Args:
        protocol: task and rules; its environments are the nominal ones, its seeds are not used.
        config: ranges and effort.
        agent: name of the agent.
        load: loads it; see `sim.evaluation.evaluate.evaluate`.
        execution: batch, processes and confidence.
        progress: counts control periods of all episodes.
        known: family to which the worst environment is added; None begins one of the nominal
            environments.
        journal: folder in which finished batches are kept, and from which an interrupted call with
            the same arguments takes them. None keeps nothing.

    Raises:
        HandoffError: an error of `check_worst_case` or `sim.evaluation.evaluate.run_episodes`.
    """
    check_protocol(protocol)
    check_worst_case(protocol, config, known)
    known = known or nominal_family(config.factors)
    search, factors = config.search, config.factors
    total = _all_steps(protocol, config, known)
    player = _Player(protocol, config, load, execution, progress, total, journal)
    first = config.first_seed
    seeds = range(first, first + search.episodes)
    final = range(seeds.stop, seeds.stop + search.final_episodes)
    again = range(final.stop, final.stop + search.final_episodes)

    def scores(places: np.ndarray, number: int) -> np.ndarray:
        rows = [(f"round {number}", values_of(factors, each)) for each in places]
        return player.play(rows, seeds)

    # The last column of a design has no effect.
    design = draw_design(factors, search.design)[:, :-1]
    candidates = search_worst(design, search, scores)
    finalists, members = _finals(candidates, known, search, factors, player, final)
    pair = [(each.name, each.values) for each in (finalists[0], members[0])]
    found_again, member_again = player.play(pair, again)
    return WorstCase(
        protocol,
        config,
        execution.confidence,
        agent,
        known,
        candidates,
        finalists,
        members,
        found_again,
        member_again,
    )


def _finals(
    candidates: Sequence[Candidate],
    known: EnvironmentFamily,
    search: SearchConfig,
    factors: Mapping[str, AnyFactor],
    player: _Player,
    seeds: range,
) -> tuple[list[Tried], list[Tried]]:
    """The lowest candidates and the known members on further starts, the lowest first of each."""
    chosen = _distinct(candidates, factors)[: search.finalists]
    name = _name(known)
    listed = [(name, values_of(factors, each.places)) for each in chosen]
    listed += [(member.name, member.values) for member in known.members]
    rows = player.play(listed, seeds)
    tried = [
        Tried(each, values, chosen[i].scores if i < len(chosen) else np.zeros(0), rows[i])
        for i, (each, values) in enumerate(listed)
    ]
    return _lowest_first(tried[: len(chosen)]), _lowest_first(tried[len(chosen) :])


class _Player:
    """Plays the same starts in several kinds of environments, and keeps count of them."""

    def __init__(
        self,
        protocol: Protocol,
        config: WorstCaseConfig,
        load: Callable[[], MakeAgent],
        execution: EvaluateConfig,
        progress: Progress,
        total: int,
        journal: Path | None,
    ) -> None:
        self._protocol = protocol
        self._config = config
        self._load = load
        self._execution = execution
        self._progress = progress
        self._total = total
        self._journal = journal
        self._played = 0
        self._steps = 0

    def play(
        self, environments: Iterable[tuple[str, Mapping[str, Value]]], seeds: range
    ) -> np.ndarray:
        """(C, N) scores in C kinds of environments, given by a label and their values, from the
        starts of N seeds."""
        batch = self._execution.batch
        listed = list(environments)
        batches = [tuple(seeds[i : i + batch]) for i in range(0, len(seeds), batch)]
        pieces: list[Piece] = []
        for label, values in listed:
            changed = with_values(self._protocol, self._config.factors, values)
            folder = None if self._journal is None else self._journal / str(self._played)
            pieces += [Piece(changed, each, label, folder) for each in batches]
            self._played += 1
        counted = part_of(self._progress, self._steps, self._total)
        episodes = play_pieces(self._load, pieces, self._execution.workers, counted)
        self._steps += len(episodes) * self._protocol.max_steps
        return np.array([each.score for each in episodes]).reshape(len(listed), len(seeds))


def _all_steps(protocol: Protocol, config: WorstCaseConfig, known: EnvironmentFamily) -> int:
    """Control periods of all episodes of a search."""
    search = config.search
    count = count_candidates(search, len(config.factors))
    finals = search.finalists + len(known.members) + 2
    return protocol.max_steps * (count * search.episodes + finals * search.final_episodes)


def _distinct(
    candidates: Sequence[Candidate], factors: Mapping[str, AnyFactor]
) -> Sequence[Candidate]:
    """The candidates without those whose values an earlier one has, too."""
    kept: dict[tuple[tuple[str, Value], ...], Candidate] = {}
    for each in candidates:
        kept.setdefault(tuple(values_of(factors, each.places).items()), each)
    return list(kept.values())


def _lowest_first(tried: Iterable[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda each: float(np.mean(each.final)))


def _name(known: EnvironmentFamily) -> str:
    """Name of the next member that a search adds."""
    taken = {member.name for member in known.members}
    number = 1
    while f"worst {number}" in taken:
        number += 1
    return f"worst {number}"
