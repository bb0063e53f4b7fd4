"""Runs a simulator process on this machine, which holds several groups of environments and
processes requests in order.

Arrays are transferred through shared memory with two blocks per group, one for requests and one for
responses. A pipe carries notifications and the layout of the arrays. The first response of a new
layout does not fit into its block, is sent through the pipe, and determines the block's new size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv
from robots.processes import CLOSED_PIPE_ERRORS, END_SECONDS, Child, ChildEndedError, end
from sim.processes.env_server import EnvServer
from sim.processes.shared_memory import BlockLayout, SharedBlock, layout_of, size_of

REQUEST = "request"
"""Key of the shared memory block that holds a group's requests."""
RESPONSE = "response"
"""Key of the shared memory block that holds a group's responses."""


class Simulator:
    """Implements `EnvClient` for a process on this machine, which ends when this process ends for
    any reason."""

    def __init__(
        self,
        name: str,
        make: Callable[[int], VecEnv],
        sizes: Sequence[int],
        first: int | None = None,
    ) -> None:
        """Starts the process.

        Args:
            name: name in messages, such as `simulator 1`.
            make: makes n environments; called for every group in the new process, so it must be
                picklable.
            sizes: number of environments of every group.
            first: global index of the only group's first environment; None if there are several
                groups.
        """
        self.name = name
        self.pending: set[int] = set()
        self.observations: dict[int, Observation] = {}
        self.ended = 0
        self._first = first
        self._sizes = tuple(sizes)
        self._child = Child(name, _serve, (make, self._sizes), daemon=True)
        self._blocks: dict[tuple[int, str], SharedBlock] = {}
        self._new_blocks: dict[tuple[int, str], str] = {}
        self._responses: dict[int, tuple[str, Any, int]] = {}
        self._layouts: list[BlockLayout] = []
        self._death: HandoffError | None = None
        """Error that describes how the process died."""

    @property
    def process(self) -> BaseProcess:
        """The simulator process."""
        return self._child.process

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`."""
        kind, payload = self._receive()
        if kind == "error":
            raise HandoffError(f"{self.name}: {payload}")
        return payload

    def request(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.request`; arrays go through shared memory."""
        self._check_open()
        if group in self.pending:
            raise HandoffError(
                f"{self.name}: group {group} already has a pending request. Receive its response first."
            )
        layout = layout_of(arrays)
        if layout:
            self._block(group, REQUEST, size_of(layout)).write(layout, arrays)
        new = {key: name for key, name in self._new_blocks.items() if key[0] == group}
        try:
            self._child.pipe.send((group, method, arguments, layout, new))
        except CLOSED_PIPE_ERRORS:
            # The process has died; its last messages are still in the pipe.
            while True:
                self._receive()
        self.pending.add(group)

    def receive(self, group: int) -> Any:
        """See `EnvClient.receive`."""
        if group not in self.pending:
            raise HandoffError(f"{self.name}: group {group} has no pending request to receive.")
        while group not in self._responses:
            responding, kind, payload, width, ended = self._receive()
            # The simulator has opened the blocks that were named in the request.
            for key in [key for key in self._new_blocks if key[0] == responding]:
                self._blocks[key].unlink()
                del self._new_blocks[key]
            self._responses[responding] = (kind, payload, ended)
            if kind == "layout":
                self._layouts.append(payload)
            if width:
                self._block(responding, RESPONSE, width)
        self.pending.discard(group)
        kind, payload, ended = self._responses.pop(group)
        self.ended += ended
        if kind == "error":
            raise HandoffError(f"{self._label()}: {payload}")
        if kind in ("layout", "known"):
            layout = payload if kind == "layout" else self._layouts[payload]
            return self._blocks[group, RESPONSE].read(layout)
        return payload

    def is_dead(self) -> bool:
        """See `EnvClient.is_dead`."""
        return not self.process.is_alive()

    def request_exit(self) -> None:
        """See `EnvClient.request_exit`."""
        # The simulator exits when the pipe is closed, even while it sends a response.
        self._child.pipe.close()

    def close(self) -> None:
        """See `EnvClient.close`."""
        self.request_exit()
        self.process.join(END_SECONDS)
        end([self.process])
        for block in self._blocks.values():
            block.close()
        self._blocks = {}
        self._new_blocks = {}

    def _block(self, group: int, side: str, size: int) -> SharedBlock:
        block = self._blocks.get((group, side))
        if block is None or block.size < size:
            if block is not None:
                block.close()
            block = self._blocks[group, side] = SharedBlock.make(size)
            self._new_blocks[group, side] = block.name
        return block

    def _check_open(self) -> None:
        if self._death is not None:
            raise self._death
        if self._child.pipe.closed:
            raise HandoffError(f"{self.name}: its environments are closed. Make new ones.")

    def _receive(self) -> Any:
        self._check_open()
        try:
            return self._child.receive()
        except ChildEndedError as error:
            cause = str(error)
            notes: list[str] = []
        except HandoffError as error:
            # An unexpected exception that has ended the process.
            cause = f"{self._child.cause_of_death()} {error}"
            notes = error.__notes__
        where = f"process {self.process.pid}"
        if self._first is not None:
            where = f"environments {self._first}..{self._first + sum(self._sizes) - 1}"
        self._death = HandoffError(f"{self.name} ({where}) {cause}")
        for note in notes:
            self._death.add_note(note)
        raise self._death

    def _label(self) -> str:
        if self._first is None:
            return self.name
        return f"{self.name} (its environment 0 is environment {self._first} of all)"


def _serve(make: Callable[[int], VecEnv], sizes: tuple[int, ...], pipe: Connection) -> None:
    """Entry point of the process: makes the environments, then responds until the pipe is
    closed."""
    blocks: dict[tuple[int, str], SharedBlock] = {}
    try:
        server = EnvServer(make, sizes)
    except HandoffError as error:
        pipe.send(("error", str(error)))
        return
    try:
        pipe.send(("ready", server.describe()))
        _respond(server, blocks, pipe)
    except CLOSED_PIPE_ERRORS:
        # The client has closed the pipe.
        return
    finally:
        server.close()
        for block in blocks.values():
            block.close()


def _respond(
    server: EnvServer, blocks: dict[tuple[int, str], SharedBlock], pipe: Connection
) -> None:
    layouts: dict[BlockLayout, int] = {}
    while True:
        group, method, arguments, layout, new = pipe.recv()
        for key, name in new.items():
            if key in blocks:
                blocks[key].close()
            blocks[key] = SharedBlock.open(name)
        try:
            actions = blocks[group, REQUEST].read(layout) if layout else {}
            arrays, ended = server.respond(group, method, arguments, list(actions.values()))
        except HandoffError as error:
            pipe.send((group, "error", str(error), 0, 0))
            continue
        if method == "save":
            # Saving is rare, and the size may differ each time, so the pipe is used.
            pipe.send((group, "arrays", arrays, 0, 0))
        else:
            pipe.send((group, *_pack(arrays, blocks.get((group, RESPONSE)), layouts), ended))


def _pack(
    arrays: Mapping[str, np.ndarray], block: SharedBlock | None, layouts: dict[BlockLayout, int]
) -> tuple[str, Any, int]:
    """Writes the response to the block if it fits. Returns the kind of the response, the payload
    for the pipe, and the number of bytes that a larger block needs."""
    layout = layout_of(arrays)
    size = size_of(layout)
    if block is None or block.size < size:
        return "arrays", dict(arrays), size
    block.write(layout, arrays)
    if layout in layouts:
        return "known", layouts[layout], 0
    layouts[layout] = len(layouts)
    return "layout", layout, 0
