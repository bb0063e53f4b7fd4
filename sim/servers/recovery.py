"""Replaces an environment server that died or whose connection was lost, without a change of
results.

The client keeps the requests since the state of all environments was last known: since a reset or
restore of all of them, or since they were saved, which happens every `SAVE_EVERY` requests where
the engine can save. A new server is given that state and the same requests again. An environment's
trajectory depends only on its seed and actions, so the responses must be those of the lost server;
this is checked by a checksum of each, because not every engine keeps to it.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation
from sim.processes.env_server import unflatten_steps
from sim.servers.client import (
    EnvServerClient,
    LostServerError,
    UnreachableServerError,
    addresses,
)
from sim.servers.config import ServerConfig
from sim.servers.engines import EnvRequest

SAVE_EVERY = 64
"""Number of requests after which the environments are saved; about as many are repeated at most."""
MOST_REQUESTS = 4096
"""Largest number of requests kept where the engine cannot save."""
RETRY_SECONDS = 0.5
"""Time between two attempts to reach another machine [s]."""

_log = logging.getLogger(__name__)


@dataclass
class _Request:
    """A request that a new server would get again."""

    method: str
    arguments: tuple[Any, ...]
    arrays: Mapping[str, np.ndarray]
    answer: int | str | None = None
    """Checksum of the response, or the error that the environments raised; None until one has been
    received."""


class RecoveringClient:
    """Implements `EnvClient` for environments in one group that survive their server.

    Args:
        name: name in messages, such as `environment server gym_hil`.
        config: place of the server, time limits, and number of restarts.
        request: the environments.
        number: index of the server among those of the environments, which chooses the address.

    Raises:
        HandoffError: see `EnvServerClient`.
    """

    def __init__(
        self, name: str, config: ServerConfig, request: EnvRequest, number: int = 0
    ) -> None:
        self.name = name
        self.pending: set[int] = set()
        self.observations: dict[int, Observation] = {}
        self.ended = 0
        self.lost = 0
        """Number of servers that were lost."""
        self._config = config
        self._request = request
        self._place = number
        self._in_a_row = 0
        self._error: HandoffError | None = None
        self._client = self._connected(0.0)
        self._client.make(request)
        self._specs: dict[str, Any] = {}
        self._kept: list[_Request] = []
        """Requests since the state of all environments was known; the first one establishes it."""
        self._repeatable = False
        self._can_save = True
        self._ended_before = 0
        """Number of environments that had ended before the first kept request."""
        self._ended_elsewhere = 0
        """Number of environments that had ended before the current server was started."""

    @property
    def pid(self) -> int | None:
        """Process id of the current server; None if it runs on another machine."""
        return self._client.pid

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`; a server that cannot make its environments is not replaced."""
        self._specs = self._client.ready()
        return self._specs

    def request(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.request`."""
        if group in self.pending:
            raise HandoffError(
                f"{self.name}: it already has a pending request. Receive its response first."
            )
        if self._error is not None:
            raise self._error
        entry = _Request(method, *_copied(arguments, arrays))
        self._keep(entry)
        self.pending.add(group)
        try:
            self._send(entry)
        except LostServerError as error:
            self._replace(error, entry)
        except HandoffError:
            self.pending.discard(group)
            self._forget()
            raise
        self._sent = entry

    def receive(self, group: int) -> Any:
        """See `EnvClient.receive`."""
        if group not in self.pending:
            raise HandoffError(f"{self.name}: it has no pending request to receive.")
        self.pending.discard(group)
        if self._error is not None:
            raise self._error
        try:
            response, ended = self._response()
        except HandoffError as error:
            self._sent.answer = str(error)
            if self._client.is_dead():
                self._error = error
            elif self._kept[:1] == [self._sent]:
                # The state from which a new server would start was not established.
                self._forget()
            raise
        self._in_a_row = 0
        self._sent.answer = _checksum(response)
        self.ended += ended
        if self._can_save and len(self._kept) >= SAVE_EVERY:
            self._save(response)
        return response

    def is_dead(self) -> bool:
        """See `EnvClient.is_dead`."""
        return self._error is not None

    def request_exit(self) -> None:
        """See `EnvClient.request_exit`."""
        self._client.request_exit()

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._client.close()

    def _keep(self, entry: _Request) -> None:
        """Adds a request to those that a new server would get again."""
        if entry.method == "save":
            return
        rows = entry.arguments[1] if entry.method in ("reset", "restore") else ()
        if len(rows) == self._request.num_envs:
            self._kept = []
            self._repeatable = True
            self._ended_before = self.ended
        if len(self._kept) == MOST_REQUESTS:
            self._forget()
        if self._repeatable:
            self._kept.append(entry)

    def _forget(self) -> None:
        """Gives up repetition until all environments are reset or restored."""
        self._kept = []
        self._repeatable = False

    def _response(self) -> tuple[dict[str, np.ndarray], int]:
        """The response to the pending request from the first server that survives, and the number
        of environments that ended in it."""
        while True:
            ended = self._client.ended
            try:
                response = self._client.receive(0)
            except LostServerError as error:
                self._replace(error, self._sent)
            else:
                return response, self._client.ended - ended

    def _send(self, entry: _Request) -> None:
        arguments = entry.arguments
        if entry.method == "steps" and arguments[0] is not None:
            received, starts = arguments[0]
            arguments = ((received - self._ended_elsewhere, starts),)
        self._client.request(0, entry.method, arguments, entry.arrays)

    def _save(self, response: Mapping[str, np.ndarray]) -> None:
        """Replaces the kept requests by the state after them; `response` is the last one."""
        try:
            self._client.request(0, "save", (), {})
            state = self._client.receive(0)
        except LostServerError:
            # The next request reveals it again.
            return
        except HandoffError:
            if self._client.is_dead():
                raise
            self._can_save = False
            return
        observation = response
        if self._sent.method == "steps":
            result = unflatten_steps(response)
            observation = result.reset_observation or result.steps[-1].observation
        rows = list(range(self._request.num_envs))
        self._kept = [_Request("restore", (state, rows), {}, _checksum(observation))]
        self._ended_before = self.ended

    def _replace(self, error: HandoffError, pending: _Request) -> None:
        """Starts another server for a lost one, repeats its requests, and sends the pending one.

        Raises:
            HandoffError: too many servers were lost at one request, none can be reached in time,
                or the environments do not repeat their responses.
        """
        while True:
            self.lost += 1
            self._in_a_row += 1
            if self._in_a_row > self._config.restarts or not self._repeatable:
                raise self._given_up(error)
            _log.warning("%s Its environments continue in a new server.", error)
            self._client.close()
            try:
                self._start()
                self._repeat(pending)
                return
            except LostServerError as again:
                error = again
            except HandoffError as final:
                self._error = final
                raise

    def _given_up(self, error: HandoffError) -> HandoffError:
        text = str(error)
        if self._in_a_row > 1:
            text = f"{text} It was restarted {self._in_a_row - 1} times at the same request."
        elif not self._repeatable and self._config.restarts:
            text = (
                f"{text} It was not restarted: its engine cannot save, and no reset of all environments is "
                f"among the last {MOST_REQUESTS} requests."
            )
        self._error = HandoffError(text)
        for note in getattr(error, "__notes__", ()):
            self._error.add_note(note)
        return self._error

    def _start(self) -> None:
        """Starts a new server, at the next address that answers."""
        self._client = self._connected(self._config.patience_s)
        self._ended_elsewhere = self._ended_before
        self._client.make(self._request)
        if self._client.ready() != self._specs:
            raise HandoffError(
                f"{self.name}: its new server has other observations or actions. Are the same packages installed "
                "at all addresses?"
            )

    def _connected(self, patience_s: float) -> EnvServerClient:
        """A new server at the first address that answers, from the present one on.

        Args:
            patience_s: time [s] after which no address is tried again; each is tried once.
        """
        tries = len(addresses(self._config))
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return EnvServerClient(self.name, self._config, self._place)
            except UnreachableServerError:
                tries -= 1
                if tries <= 0 and time.monotonic() >= deadline:
                    raise
                self._place += 1
            if tries <= 0:
                time.sleep(RETRY_SECONDS)

    def _repeat(self, pending: _Request) -> None:
        """Sends the kept requests again, compares the responses, and sends the pending one."""
        for entry in self._kept:
            if entry is pending:
                break
            self._send(entry)
            try:
                answer: int | str = _checksum(self._client.receive(0))
            except LostServerError:
                raise
            except HandoffError as error:
                answer = str(error)
            if answer != entry.answer:
                raise HandoffError(
                    f"{self.name}: its server was lost, and a new one does not repeat the response to "
                    f"'{entry.method}', so it cannot be replaced without a change of results. Is the engine "
                    "deterministic, and are the machines alike?"
                )
        self._send(pending)


def _copied(
    arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
) -> tuple[tuple[Any, ...], dict[str, np.ndarray]]:
    """Copies of arrays that the caller may change later."""
    copied = tuple(
        {name: np.array(array) for name, array in argument.items()}
        if isinstance(argument, Mapping)
        else argument
        for argument in arguments
    )
    return copied, {name: np.array(array) for name, array in arrays.items()}


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """CRC-32 of the names, types and values of arrays."""
    value = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data, value)
    return value
