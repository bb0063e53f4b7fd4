"""Pieces of one job over several processes, with progress; the result does not depend on how
many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from robots.errors import HandoffError
from robots.interfaces import Progress

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
    spawn = get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    try:
        for w in range(workers):
            receiver, sender = spawn.Pipe(duplex=False)
            mine = [(index, pieces[index]) for index in range(w, len(pieces), workers)]
            process = spawn.Process(target=_work, args=(setup, job, mine, sender), daemon=True)
            process.start()
            sender.close()
            processes[receiver] = process
        results = _collect(processes, report)
    finally:
        for process in processes.values():
            process.terminate()
            process.join()
    return [results[index] for index in range(len(pieces))]


def _work(
    setup: Callable[[], Any],
    job: Job[Any, Any, Any],
    pieces: list[tuple[int, Any]],
    sender: Connection,
) -> None:
    try:
        context = setup()
        for index, piece in pieces:
            result = job(
                context,
                piece,
                lambda units, note, index=index: sender.send(("report", index, units, note)),
            )
            sender.send(("result", index, result))
        sender.send(("end",))
    except HandoffError as error:
        sender.send(("error", error))


def _collect(
    processes: dict[Connection, BaseProcess], report: Callable[[int, int, str], None]
) -> dict[int, Any]:
    results: dict[int, Any] = {}
    open_ends = set(processes)
    while open_ends:
        for receiver in wait(list(open_ends)):
            assert isinstance(receiver, Connection)
            try:
                message = receiver.recv()
            except EOFError:
                processes[receiver].join()
                raise HandoffError(
                    f"worker process died with exit code {processes[receiver].exitcode} before its work was done. "
                    "Its own message stands above; -9 usually means that memory ran out."
                ) from None
            match message:
                case ("report", index, units, note):
                    report(index, units, note)
                case ("result", index, result):
                    results[index] = result
                case ("end",):
                    open_ends.discard(receiver)
                case ("error", error):
                    raise error
    return results
