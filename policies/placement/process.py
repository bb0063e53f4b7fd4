"""A process that simulates: several groups of worlds, stepped one group at a time, in the order in
which it is asked.

Arrays travel through shared memory, two blocks for each group: what is asked of it and what it
answers. A pipe wakes the other side and says what lies where. The first answer of a new form does
not fit, goes through the pipe, and makes its block wide enough for those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from policies.placement.env_server import Groups
from policies.placement.shared_memory import Block, Form, form_of, size_of
from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv

CLOSE_SECONDS = 10.0
"""How long a simulator may take to close its worlds before it is ended."""
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
ASKED, TOLD = "asked", "told"


class Simulator:
    """Implements `Asks` for a process of this machine; it ends with this one, however that ends.

    Args:
        number: its own, for messages.
        make: makes n worlds; called for every group in the new process, so it must be picklable.
        sizes: worlds of every group.
    """

    def __init__(self, number: int, make: Callable[[int], VecEnv], sizes: Sequence[int]) -> None:
        self.number = number
        spawn = get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self.process = spawn.Process(
            target=_serve,
            args=(make, tuple(sizes), theirs),
            name=f"simulator {number}",
            daemon=True,
        )
        self.process.start()
        # Only the process may hold its end, or its death would not show as a closed pipe.
        theirs.close()
        self._blocks: dict[tuple[int, str], Block] = {}
        self._new: dict[tuple[int, str], str] = {}
        self._waiting: dict[int, tuple[str, Any, int]] = {}
        self._forms: list[Form] = []
        self.under_way: set[int] = set()
        self.observed: dict[int, Observation] = {}
        self.ended = 0

    def ready(self) -> dict[str, Any]:
        """See `Asks.ready`."""
        kind, answer = self._hear()
        if kind == "error":
            raise HandoffError(f"simulator {self.number}: {answer}")
        return answer

    def ask(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `Asks.ask`; arrays go through shared memory."""
        if group in self.under_way:
            raise HandoffError(
                f"simulator {self.number}: group {group} was asked twice and not heard between."
            )
        self._check_open()
        form = form_of(arrays)
        if form:
            self._block(group, ASKED, size_of(form)).write(form, arrays)
        new = {key: name for key, name in self._new.items() if key[0] == group}
        try:
            self._connection.send((group, method, arguments, form, new))
        except _GONE:
            raise self._dead() from None
        self.under_way.add(group)

    def hear(self, group: int) -> Any:
        """See `Asks.hear`."""
        if group not in self.under_way:
            raise HandoffError(
                f"simulator {self.number}: group {group} was heard before it was asked."
            )
        while group not in self._waiting:
            about, kind, answer, width, ended = self._hear()
            # It has opened what it was told of with the question.
            for key in [key for key in self._new if key[0] == about]:
                self._blocks[key].unlink()
                del self._new[key]
            self._waiting[about] = (kind, answer, ended)
            if kind == "form":
                self._forms.append(answer)
            if width:
                self._block(about, TOLD, width)
        self.under_way.discard(group)
        kind, answer, ended = self._waiting.pop(group)
        self.ended += ended
        if kind == "error":
            raise HandoffError(f"simulator {self.number}: {answer}")
        if kind in ("form", "known"):
            form = answer if kind == "form" else self._forms[answer]
            return self._blocks[group, TOLD].read(form)
        return answer

    def gone(self) -> bool:
        """See `Asks.gone`."""
        return not self.process.is_alive()

    def close(self) -> None:
        """Ends it; a second call does nothing."""
        # A closed pipe is what it takes for the end, also in the middle of an answer.
        self._connection.close()
        self.process.join(CLOSE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        for block in self._blocks.values():
            block.close()
        self._blocks, self._new = {}, {}

    def _block(self, group: int, side: str, size: int) -> Block:
        block = self._blocks.get((group, side))
        if block is None or block.size < size:
            if block is not None:
                block.close()
            block = self._blocks[group, side] = Block.make(size)
            self._new[group, side] = block.name
        return block

    def _check_open(self) -> None:
        if self._connection.closed:
            raise HandoffError(f"simulator {self.number}: its worlds are closed. Make new ones.")

    def _hear(self) -> Any:
        self._check_open()
        try:
            return self._connection.recv()
        except _GONE:
            raise self._dead() from None

    def _dead(self) -> HandoffError:
        self.process.join(CLOSE_SECONDS)
        return HandoffError(
            f"simulator {self.number} (process {self.process.pid}) died with exit code {self.process.exitcode}. Its "
            "own message stands above; -9 usually means that memory ran out."
        )


def _serve(make: Callable[[int], VecEnv], sizes: tuple[int, ...], connection: Connection) -> None:
    """A simulator's life: makes its worlds, then answers until the pipe is closed."""
    groups: Groups | None = None
    blocks: dict[tuple[int, str], Block] = {}
    try:
        try:
            groups = Groups(make, sizes)
        except HandoffError as error:
            connection.send(("error", str(error)))
            return
        connection.send(("ready", groups.describe()))
        _answer(groups, blocks, connection)
    except (*_GONE, KeyboardInterrupt):
        # Nobody is left to answer, or Ctrl-C reached the whole group.
        return
    finally:
        if groups is not None:
            groups.close()
        for block in blocks.values():
            block.close()


def _answer(groups: Groups, blocks: dict[tuple[int, str], Block], connection: Connection) -> None:
    forms: dict[Form, int] = {}
    while True:
        group, method, arguments, form, new = connection.recv()
        for key, name in new.items():
            if key in blocks:
                blocks[key].close()
            blocks[key] = Block.open(name)
        try:
            asked = blocks[group, ASKED].read(form) if form else {}
            made, ended = groups.answer(group, method, arguments, list(asked.values()))
        except HandoffError as error:
            connection.send((group, "error", str(error), 0, 0))
            continue
        if method == "save":
            # Rare, and of a size that may differ each time.
            connection.send((group, "arrays", made, 0, 0))
        else:
            connection.send((group, *_packed(made, blocks.get((group, TOLD)), forms), ended))


def _packed(
    made: Mapping[str, np.ndarray], block: Block | None, forms: dict[Form, int]
) -> tuple[str, Any, int]:
    """Kind of the answer, what the pipe carries of it, and the bytes that the block should have
    had."""
    form = form_of(made)
    size = size_of(form)
    if block is None or block.size < size:
        return "arrays", dict(made), size
    block.write(form, made)
    if form in forms:
        return "known", forms[form], 0
    forms[form] = len(forms)
    return "form", form, 0
