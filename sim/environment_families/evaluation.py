"""Plays the same starts in every member of a family of environments with every policy, and those of
each policy's worst member again from new starts.

The lowest of many success rates is low by chance, too: the new starts say how low the worst member
is. They cannot say that no other member is worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.interfaces import Progress
from sim.environment_families.members import EnvironmentFamily, Member
from sim.evaluation.agent import MakeAgent
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol, check_protocol
from sim.sensitivity.factors import check_factors, with_values
from sim.sensitivity.pieces import Piece, part_of, play_pieces


class FamilyEvaluation(NamedTuple):
    """Episodes of all agents in all members."""

    protocol: Protocol
    family: EnvironmentFamily
    confidence: float
    solved: Mapping[str, np.ndarray]
    """By agent (M, N) bool: the solved episodes of M members, in the order of the protocol's
    seeds."""
    worst: Mapping[str, int]
    """By agent the number of the member in which it solved the fewest episodes; the first of
    equal ones."""
    worst_again: Mapping[str, np.ndarray]
    """By agent (N,) bool: the solved episodes of its worst member from the next N seeds."""


def evaluate_family(
    protocol: Protocol,
    family: EnvironmentFamily,
    agents: Mapping[str, Callable[[], MakeAgent]],
    execution: EvaluateConfig,
    progress: Progress,
    *,
    journal: Path | None = None,
) -> FamilyEvaluation:
    """Plays all episodes of an evaluation over a family.

    Args:
        protocol: task, rules, and the seeds that every member has; as many seeds after them are
            those of the worst member's further episodes.
        family: the members.
        agents: loaders by name; see `sim.evaluation.evaluate.evaluate`.
        execution: batch, processes and confidence.
        progress: counts control periods of all episodes.
        journal: folder in which finished batches are kept, and from which an interrupted call with
            the same arguments takes them. None keeps nothing.

    Raises:
        HandoffError: environments that lack a factor, or an error of
            `sim.evaluation.evaluate.run_episodes`.
    """
    check_protocol(protocol)
    check_factors(protocol, family.factors)
    count, episodes = len(family.members), protocol.episodes
    seeds = protocol.seeds
    again = range(seeds.stop, seeds.stop + episodes)
    each = protocol.max_steps * episodes
    total = len(agents) * (count + 1) * each
    solved: dict[str, np.ndarray] = {}
    worst: dict[str, int] = {}
    worst_again: dict[str, np.ndarray] = {}
    for number, (agent, load) in enumerate(agents.items()):
        before = number * (count + 1) * each
        folder = None if journal is None else journal / agent
        pieces = _pieces(protocol, family, family.members, seeds, execution.batch, agent, folder)
        counted = part_of(progress, before, total)
        played = play_pieces(load, pieces, execution.workers, counted)
        rows = np.array([episode.success for episode in played]).reshape(count, episodes)
        solved[agent] = rows
        worst[agent] = int(np.argmin(rows.mean(axis=1)))
        lowest = family.members[worst[agent]]
        further = None if folder is None else folder / "again"
        pieces = _pieces(protocol, family, [lowest], again, execution.batch, agent, further)
        counted = part_of(progress, before + count * each, total)
        played = play_pieces(load, pieces, execution.workers, counted)
        worst_again[agent] = np.array([episode.success for episode in played])
    return FamilyEvaluation(protocol, family, execution.confidence, solved, worst, worst_again)


def _pieces(
    protocol: Protocol,
    family: EnvironmentFamily,
    members: Sequence[Member],
    seeds: range,
    batch: int,
    agent: str,
    journal: Path | None,
) -> list[Piece]:
    """The batches of some members, member by member."""
    return [
        Piece(
            with_values(protocol, family.factors, member.values),
            tuple(seeds[first : first + batch]),
            f"{agent}, {member.name}",
            None if journal is None else journal / member.name,
        )
        for member in members
        for first in range(0, len(seeds), batch)
    ]
