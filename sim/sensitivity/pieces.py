"""Plays batches of episodes in environments that differ from batch to batch, with one agent, and
keeps those that are finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from robots.interfaces import Progress
from sim.evaluation.agent import MakeAgent
from sim.evaluation.episode_journal import EpisodeJournal
from sim.evaluation.evaluate import make_env, run_batch
from sim.evaluation.protocol import Protocol
from sim.evaluation.rollout import EpisodeResult
from sim.parallel import Report, map_pieces


class Piece(NamedTuple):
    """Episodes of one kind of environment that are stepped together."""

    protocol: Protocol
    seeds: tuple[int, ...]
    label: str
    """Text in the progress."""
    folder: Path | None
    """Journal of these environments, in which the finished batch is kept; None keeps nothing."""


def play_pieces(
    load: Callable[[], MakeAgent], pieces: Sequence[Piece], workers: int, progress: Progress
) -> list[EpisodeResult]:
    """The episodes of all pieces in order, those from journals included.

    Args:
        load: loads the agent; see `sim.evaluation.evaluate.evaluate`.
        pieces: batches of episodes.
        workers: number of processes; each takes whole pieces.
        progress: counts control periods of all pieces.

    Raises:
        HandoffError: an error of `sim.evaluation.evaluate.run_episodes`.
    """
    results: dict[int, list[EpisodeResult]] = {}
    for index, piece in enumerate(pieces):
        kept = None if piece.folder is None else _journal(piece).read(piece.seeds)
        if kept is not None:
            results[index] = kept
    missing = [index for index in range(len(pieces)) if index not in results]
    finished = sum(len(pieces[index].seeds) * pieces[index].protocol.max_steps for index in results)
    steps = finished + sum(len(pieces[i].seeds) * pieces[i].protocol.max_steps for i in missing)

    ended = [episode.success for episodes in results.values() for episode in episodes]

    def report(done: int, total: int, note: str = "") -> None:
        # A batch tells of its own episodes alone, of which none is solved when it begins.
        progress(finished + done, steps, f"{note}; {sum(ended)}/{len(ended)} solved in all")

    def keep(number: int, episodes: list[EpisodeResult]) -> None:
        piece = pieces[missing[number]]
        ended.extend(episode.success for episode in episodes)
        if piece.folder is not None:
            _journal(piece).write(piece.seeds, episodes)

    if missing:
        chosen = [pieces[index] for index in missing]
        computed = map_pieces(load, _play_piece, chosen, workers, steps - finished, report, keep)
        results |= dict(zip(missing, computed, strict=True))
    return [episode for index in range(len(pieces)) for episode in results[index]]


def _play_piece(make_agent: MakeAgent, piece: Piece, report: Report) -> list[EpisodeResult]:
    def named(done: int, note: str) -> None:
        report(done, piece.label)

    environments = partial(make_env, piece.protocol)
    return run_batch(piece.protocol, environments, False, {}, make_agent, piece.seeds, named)


def _journal(piece: Piece) -> EpisodeJournal:
    assert piece.folder is not None
    return EpisodeJournal.open(piece.folder, piece.protocol, False, {})


def part_of(progress: Progress, before: int, steps: int) -> Progress:
    """The progress of a part of a computation.

    Args:
        progress: that of the whole.
        before: control periods that were finished before the part began.
        steps: control periods of the whole.
    """

    def report(done: int, total: int, note: str = "") -> None:
        progress(before + done, steps, note)

    return report
