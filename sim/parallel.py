"""Runs the pieces of one job in several processes, with progress; the result does not depend on
their number."""

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
"""Called by a job with the units of work done so far and a short note."""


class Job(Protocol[Context, Piece, Result]):
    """Processes one piece. With several processes it must be picklable: a module-level function or
    a `partial` of one."""

    def __call__(self, context: Context, piece: Piece, report: Report, /) -> Result:
        """Processes `piece`; `context` is the result of `setup` in this process."""
        ...


def map_pieces(
    setup: Callable[[], Any],
    job: Job[Any, Piece, Result],
    pieces: Sequence[Piece],
    workers: int,
    total: int,
    progress: Progress,
    finished: Callable[[int, Any], None] = lambda index, result: None,
) -> list[Result]:
    """Applies `job` to every piece and returns the results in the order of `pieces`.

    Args:
        setup: creates the context of `job` (such as a loaded policy), once per process.
        job: processes one piece.
        pieces: inputs; worker w of W takes pieces w, w + W, ...
        workers: number of processes; 1 runs in the calling process. More are spawned, so all
            arguments must be picklable.
        total: units of work of all pieces together, for `progress`.
        progress: called with the units of work done by all jobs so far.
        finished: called in this process with the index and the result of every finished piece, for
            example to keep it on the disk.

    Raises:
        HandoffError: a job raised it, or a worker process died.
    """
    workers = min(workers, len(pieces))
    done = [0] * len(pieces)

    def report(index: int, units: int, note: str) -> None:
        done[index] = units
        progress(sum(done), total, note)

    if workers <= 1:
        context = setup()
        own: list[Result] = []
        for index, piece in enumerate(pieces):
            own.append(
                job(context, piece, lambda units, note, index=index: report(index, units, note))
            )
            finished(index, own[-1])
        return own
    children: list[Child] = []
    try:
        for w in range(workers):
            assigned = [(index, pieces[index]) for index in range(w, len(pieces), workers)]
            children.append(
                Child(f"handoff-worker-{w}", _work, (setup, job, assigned), daemon=True)
            )
        results = _collect(children, report, finished)
    finally:
        end([child.process for child in children])
    return [results[index] for index in range(len(pieces))]


def _work(
    setup: Callable[[], Any],
    job: Job[Any, Any, Any],
    pieces: list[tuple[int, Any]],
    pipe: Connection,
) -> None:
    """Entry point of a worker process."""
    context = setup()
    for index, piece in pieces:
        result = job(
            context,
            piece,
            lambda units, note, index=index: pipe.send(("report", index, units, note)),
        )
        pipe.send(("result", index, result))
    pipe.send(("end",))


def _collect(
    children: Sequence[Child],
    report: Callable[[int, int, str], None],
    finished: Callable[[int, Any], None],
) -> dict[int, Any]:
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
                    finished(index, result)
                case ("end",):
                    del working[pipe]
    return results
