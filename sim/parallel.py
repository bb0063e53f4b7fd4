"""Pieces of one job over several processes, with progress; the result does not depend on how
many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.processes import Child, ChildEndedError, end

Context = TypeVar("Context", contravariant=True)
Piece = TypeVar("Piece", contravariant=True)
Result = TypeVar("Result", covariant=True)
Report = Callable[[int, str], None]
"""Called by a piece with the units it has done so far and a short note."""


class Job(Protocol[Context, Piece, Result]):
    """Work on one piece. For several processes it must be picklable: a module's function or a
    `partial` of one."""

    def __call__(self, context: Context, piece: Piece, report: Report, /) -> Result:
        """`context` is what `setup` made in this process."""
        ...


def map_pieces(
    setup: Callable[[], Any],
    job: Job[Any, Piece, Result],
    pieces: Sequence[Piece],
    workers: int,
    total: int,
    progress: Progress,
) -> list[Result]:
    """`job` of every piece, in the order of `pieces`.

    Args:
        setup: makes what `job` needs (such as a loaded policy), once per process.
        job: work on one piece.
        pieces: what to work on; worker w of W takes pieces w, w + W, ...
        workers: processes; 1 works in this one. More are spawned, so all arguments must be
            picklable.
        total: units of all pieces together, for `progress`.
        progress: told the sum of the units done.

    Raises:
        HandoffError: what a job raised, or a worker that died.
    """
    workers = min(workers, len(pieces))
    done = [0] * len(pieces)

    def report(index: int, units: int, note: str) -> None:
        done[index] = units
        progress(sum(done), total, note)

    if workers <= 1:
        context = setup()
        return [
            job(context, piece, lambda units, note, index=index: report(index, units, note))
            for index, piece in enumerate(pieces)
        ]
    children: list[Child] = []
    try:
        for w in range(workers):
            mine = [(index, pieces[index]) for index in range(w, len(pieces), workers)]
            children.append(Child(f"handoff-worker-{w}", _work, (setup, job, mine), daemon=True))
        results = _collect(children, report)
    finally:
        end([child.process for child in children])
    return [results[index] for index in range(len(pieces))]


def _work(
    setup: Callable[[], Any],
    job: Job[Any, Any, Any],
    pieces: list[tuple[int, Any]],
    pipe: Connection,
) -> None:
    """The process of a worker."""
    context = setup()
    for index, piece in pieces:
        result = job(
            context,
            piece,
            lambda units, note, index=index: pipe.send(("report", index, units, note)),
        )
        pipe.send(("result", index, result))
    pipe.send(("end",))


def _collect(children: Sequence[Child], report: Callable[[int, int, str], None]) -> dict[int, Any]:
    results: dict[int, Any] = {}
    working = {child.pipe: child for child in children}
    while working:
        for pipe in wait(list(working)):
            assert isinstance(pipe, Connection)
            try:
                message = working[pipe].receive()
            except ChildEndedError as error:
                raise HandoffError(f"worker process {error}") from None
            match message:
                case ("report", index, units, note):
                    report(index, units, note)
                case ("result", index, result):
                    results[index] = result
                case ("end",):
                    del working[pipe]
    return results
