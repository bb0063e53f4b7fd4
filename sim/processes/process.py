"""A simulator that is a process of this machine: it holds several groups of environments and
answers in the order in which they are asked.

Arrays travel through shared memory, two blocks for each group: one for what is asked and one for
the answer. A pipe wakes the other side and says what lies where. The first answer of a new form
does not fit, goes through the pipe, and makes its block wide enough for those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv
from robots.processes import END_SECONDS, GONE, Child, ChildEndedError, end
from sim.processes.env_server import EnvServer
from sim.processes.shared_memory import Form, SharedBlock, form_of, size_of

ASKED = "asked"
TOLD = "told"


class Simulator:
    """Implements `EnvClient` for a process of this machine; it ends with this one, however that
    ends."""

    def __init__(
        self,
        name: str,
        make: Callable[[int], VecEnv],
        sizes: Sequence[int],
        first: int | None = None,
    ) -> None:
        """Starts the process.

        Args:
            name: for messages, such as `simulator 1`.
            make: makes n environments; called for every group in the new process, so it must be
                picklable.
            sizes: environments of every group.
            first: number, among all, of the first environment of the only group; None where there
                are several groups.
        """
        self.name = name
        self.under_way: set[int] = set()
        self.observed: dict[int, Observation] = {}
        self.ended = 0
        self._first = first
        self._sizes = tuple(sizes)
        self._child = Child(name, _serve, (make, self._sizes), daemon=True)
        self._blocks: dict[tuple[int, str], SharedBlock] = {}
        self._new: dict[tuple[int, str], str] = {}
        self._waiting: dict[int, tuple[str, Any, int]] = {}
        self._forms: list[Form] = []
        self._dead: HandoffError | None = None
        """How it has died."""

    @property
    def process(self) -> BaseProcess:
        """The process that simulates."""
        return self._child.process

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`."""
        kind, answer = self._receive()
        if kind == "error":
            raise HandoffError(f"{self.name}: {answer}")
        return answer

    def ask(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.ask`; arrays go through shared memory."""
        self._check_open()
        if group in self.under_way:
            raise HandoffError(f"{self.name}: group {group} was asked twice and not heard between.")
        form = form_of(arrays)
        if form:
            self._block(group, ASKED, size_of(form)).write(form, arrays)
        new = {key: name for key, name in self._new.items() if key[0] == group}
        try:
            self._child.pipe.send((group, method, arguments, form, new))
        except GONE:
            # Its last words are still in the pipe.
            while True:
                self._receive()
        self.under_way.add(group)

    def hear(self, group: int) -> Any:
        """See `EnvClient.hear`."""
        if group not in self.under_way:
            raise HandoffError(f"{self.name}: group {group} was heard before it was asked.")
        while group not in self._waiting:
            about, kind, answer, width, ended = self._receive()
            # The simulator has opened the blocks that it was told of with the question.
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
            raise HandoffError(f"{self._named()}: {answer}")
        if kind in ("form", "known"):
            form = answer if kind == "form" else self._forms[answer]
            return self._blocks[group, TOLD].read(form)
        return answer

    def gone(self) -> bool:
        """See `EnvClient.gone`."""
        return not self.process.is_alive()

    def leave(self) -> None:
        """See `EnvClient.leave`."""
        # A closed pipe is what it takes for the end, also in the middle of an answer.
        self._child.pipe.close()

    def close(self) -> None:
        """See `EnvClient.close`."""
        self.leave()
        self.process.join(END_SECONDS)
        end([self.process])
        for block in self._blocks.values():
            block.close()
        self._blocks = {}
        self._new = {}

    def _block(self, group: int, side: str, size: int) -> SharedBlock:
        block = self._blocks.get((group, side))
        if block is None or block.size < size:
            if block is not None:
                block.close()
            block = self._blocks[group, side] = SharedBlock.make(size)
            self._new[group, side] = block.name
        return block

    def _check_open(self) -> None:
        if self._dead is not None:
            raise self._dead
        if self._child.pipe.closed:
            raise HandoffError(f"{self.name}: its worlds are closed. Make new ones.")

    def _receive(self) -> Any:
        self._check_open()
        try:
            return self._child.receive()
        except ChildEndedError as error:
            cause = str(error)
            notes: list[str] = []
        except HandoffError as error:
            # Not one that its environments may raise: the process has ended with it.
            cause = f"{self._child.cause_of_death()} {error}"
            notes = error.__notes__
        where = f"process {self.process.pid}"
        if self._first is not None:
            where = f"worlds {self._first}..{self._first + sum(self._sizes) - 1}"
        self._dead = HandoffError(f"{self.name} ({where}) {cause}")
        for note in notes:
            self._dead.add_note(note)
        raise self._dead

    def _named(self) -> str:
        if self._first is None:
            return self.name
        return f"{self.name} (its world 0 is world {self._first} of all)"


def _serve(make: Callable[[int], VecEnv], sizes: tuple[int, ...], pipe: Connection) -> None:
    """The process: makes its environments, then answers until the pipe is closed."""
    blocks: dict[tuple[int, str], SharedBlock] = {}
    try:
        server = EnvServer(make, sizes)
    except HandoffError as error:
        pipe.send(("error", str(error)))
        return
    try:
        pipe.send(("ready", server.describe()))
        _answer(server, blocks, pipe)
    except GONE:
        # Nobody is left to ask.
        return
    finally:
        server.close()
        for block in blocks.values():
            block.close()


def _answer(
    server: EnvServer, blocks: dict[tuple[int, str], SharedBlock], pipe: Connection
) -> None:
    forms: dict[Form, int] = {}
    while True:
        group, method, arguments, form, new = pipe.recv()
        for key, name in new.items():
            if key in blocks:
                blocks[key].close()
            blocks[key] = SharedBlock.open(name)
        try:
            asked = blocks[group, ASKED].read(form) if form else {}
            made, ended = server.answer(group, method, arguments, list(asked.values()))
        except HandoffError as error:
            pipe.send((group, "error", str(error), 0, 0))
            continue
        if method == "save":
            # Rare, and of a size that may differ each time.
            pipe.send((group, "arrays", made, 0, 0))
        else:
            pipe.send((group, *_packed(made, blocks.get((group, TOLD)), forms), ended))


def _packed(
    made: Mapping[str, np.ndarray], block: SharedBlock | None, forms: dict[Form, int]
) -> tuple[str, Any, int]:
    """Kind of the answer, the part of it that the pipe carries, and the bytes that the block should
    have had."""
    form = form_of(made)
    size = size_of(form)
    if block is None or block.size < size:
        return "arrays", dict(made), size
    block.write(form, made)
    if form in forms:
        return "known", forms[form], 0
    forms[form] = len(forms)
    return "form", form, 0
