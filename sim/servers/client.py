"""Is the client of one environment server, on this machine or another."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.processes import END_SECONDS, cause_of_death
from robots.spec import ActionSpec, FieldSpec
from robots.wire.policy import TOKEN_VARIABLE, check_token
from sim.servers.authentication import SECONDS, BusyListenerError, prove_as_client
from sim.servers.channel import (
    Arrays,
    Channel,
    ClosedChannelError,
    Message,
    SilentChannelError,
    limit_unacknowledged,
    set_tcp_options,
)
from sim.servers.child import ServerChild
from sim.servers.config import ServerConfig
from sim.servers.engines import EnvRequest
from sim.servers.serve import PROTOCOL, ROWS, SEEDS, STARTS, STATE, code_digest
from sim.servers.venvs import server_python

LOST_SECONDS = 2.0
"""Time for a process to end after it has closed its connection [s]."""


class LostServerError(HandoffError):
    """The server has ended, or the connection to it was lost; a new one may answer."""


class UnreachableServerError(LostServerError):
    """Nobody answers at the address, or as many servers run there as may."""


class EnvServerClient:
    """Implements `EnvClient` for a server with one group of environments.

    Args:
        name: name in messages, such as `environment server gym_hil`.
        config: place of the server, and time limits.
        number: index of the address, counted on from the first one after the last.

    Raises:
        HandoffError: no such virtual environment or Python, nobody listens at the address
            (`UnreachableServerError`), or another token.
    """

    def __init__(self, name: str, config: ServerConfig, number: int = 0) -> None:
        self.name = name
        self.pending: set[int] = set()
        self.observations: dict[int, Observation] = {}
        self.ended = 0
        self._config = config
        self._child: ServerChild | None = None
        self._death: HandoffError | None = None
        self._closed = False
        if config.address:
            self._channel = _connect(config, number)
        else:
            ours, theirs = socket.socketpair()
            self._channel = Channel(ours, shared=True, seconds=config.response_s)
            try:
                python = server_python(config)
                self._child = ServerChild(python, theirs, "shared", config.variables)
            except HandoffError:
                self._channel.close()
                raise

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if it runs on another machine."""
        return None if self._child is None else self._child.pid

    def make(self, request: EnvRequest) -> None:
        """Requests environments; `ready` waits for them."""
        self._send("make", request._asdict(), {})

    def versions(self, packages: list[str]) -> dict[str, str]:
        """Versions of packages on the other side; empty for those that are not installed.

        Raises:
            HandoffError: the server does not answer.
        """
        self._send("versions", {"packages": packages}, {})
        self._check_hello("versions")
        answer, _ = self._receive("versions", self._config.start_s)
        return {str(name): str(number) for name, number in answer["versions"].items()}

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`."""
        self._check_hello("start")
        answer, _ = self._receive("start", self._config.start_s)
        self._raise_error(answer)
        specs = answer["specifications"]
        return {
            "observation_spec": {
                name: validate(FieldSpec, spec, f"{self.name}: {name}")
                for name, spec in specs["observation_spec"].items()
            },
            "action_spec": validate(ActionSpec, specs["action_spec"], f"{self.name}: action"),
            "rate_hz": float(specs["rate_hz"]),
        }

    def request(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.request`."""
        self._check_open()
        if group in self.pending:
            raise HandoffError(
                f"{self.name}: it already has a pending request. Receive its response first."
            )
        sent = dict(arrays)
        values: Message = {}
        match method:
            case "reset":
                sent[SEEDS] = np.asarray(arguments[0], np.int64)
                sent[ROWS] = np.asarray(arguments[1], np.int64)
            case "restore":
                sent |= {STATE + name: array for name, array in arguments[0].items()}
                sent[ROWS] = np.asarray(arguments[1], np.int64)
            case "steps" if arguments[0] is not None:
                values["received"] = arguments[0][0]
                sent[STARTS] = np.asarray(arguments[0][1], np.int64)
        self._send(method, values, sent)
        self.pending.add(group)
        self._method = method

    def receive(self, group: int) -> Any:
        """See `EnvClient.receive`."""
        if group not in self.pending:
            raise HandoffError(f"{self.name}: it has no pending request to receive.")
        self.pending.discard(group)
        answer, arrays = self._receive(self._method, self._config.response_s)
        self._raise_error(answer)
        self.ended += int(answer["ended"])
        return arrays

    def is_dead(self) -> bool:
        """See `EnvClient.is_dead`."""
        return self._death is not None

    def request_exit(self) -> None:
        """See `EnvClient.request_exit`."""
        if not self._closed:
            self._channel.end_requests()

    def close(self) -> None:
        """See `EnvClient.close`."""
        if self._closed:
            return
        self._closed = True
        self._channel.end_requests()
        if self._child is not None:
            self._child.end(END_SECONDS)
        self._channel.close()

    def _check_hello(self, method: str) -> None:
        hello, _ = self._receive(method, self._config.start_s)
        if hello.get("protocol") != PROTOCOL or hello.get("code") != code_digest():
            self._die(
                f"it runs another version of Handoff (protocol {str(hello.get('protocol'))[:40]!r}, here "
                f"{PROTOCOL!r}). Install the same version on both sides."
            )

    def _raise_error(self, answer: Message) -> None:
        match answer.get("answer"):
            case "error":
                raise HandoffError(f"{self.name}: {answer['text']}")
            case "crash":
                self._die(f"its engine failed: {answer['text']}", answer["trace"])
            case "death":
                self._die(str(answer["text"]), lost=True)

    def _send(self, method: str, values: Message, arrays: Arrays) -> None:
        self._check_open()
        try:
            self._channel.send({"call": method, **values}, arrays)
        except (ClosedChannelError, SilentChannelError):
            # What it sent before it died says more.
            self._raise_error(self._receive(method, LOST_SECONDS)[0])
            self._die("it does not receive any more.", lost=True)

    def _receive(self, method: str, seconds: float) -> tuple[Message, Arrays]:
        self._check_open()
        try:
            return self._channel.receive(seconds)
        except ClosedChannelError as error:
            self._die(self._cause(str(error)), lost=True)
        except SilentChannelError:
            option = "start_s" if method == "start" else "response_s"
            self._die(
                f"no answer to '{method}' within {seconds:g} s, so it was ended. Does it hang, or is "
                f"server.{option} too short?"
            )
        raise AssertionError

    def _cause(self, error: str) -> str:
        """A sentence about how the server ended."""
        if self._child is None:
            return f"{error} Is the link or the machine down? Otherwise the output of the listener says why."
        code = self._child.wait(LOST_SECONDS)
        return "it closed its connection." if code is None else f"it {cause_of_death(code)}"

    def _die(self, cause: str, trace: str = "", *, lost: bool = False) -> None:
        """Ends the server, and raises the error that all further calls raise.

        Raises:
            HandoffError: always; `LostServerError` if `lost`.
        """
        output = ""
        if self._child is not None:
            self._child.end(0.0)
            output = self._child.output()
        self._channel.close()
        place = self.name if self.pid is None else f"{self.name} (process {self.pid})"
        kind = LostServerError if lost else HandoffError
        self._death = kind(f"{place}: {cause}{output}")
        if trace:
            self._death.add_note(trace)
        raise self._death

    def _check_open(self) -> None:
        if self._death is not None:
            raise self._death
        if self._closed:
            raise HandoffError(f"{self.name}: its environments are closed. Make new ones.")


def addresses(config: ServerConfig) -> list[str]:
    """The addresses HOST:PORT of a configuration; empty for servers of this machine."""
    return [address.strip() for address in config.address.split(",") if address.strip()]


def _connect(config: ServerConfig, number: int) -> Channel:
    places = addresses(config) or [config.address]
    address = places[number % len(places)]
    host, _, port = address.rpartition(":")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not host or not port.isdigit():
        raise HandoffError(
            f"server.address is '{config.address}', expected HOST:PORT, or several separated by commas."
        )
    check_token(token)
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
    except (OSError, OverflowError) as error:
        raise UnreachableServerError(
            f"environment server {address}: cannot be reached ({error}). Does `python -m "
            "sim.servers.listen` run there?"
        ) from None
    set_tcp_options(connection)
    limit_unacknowledged(connection)
    channel = Channel(connection, shared=False, seconds=config.response_s)
    try:
        prove_as_client(channel, token, address)
    except (ClosedChannelError, SilentChannelError, BusyListenerError) as error:
        channel.close()
        raise UnreachableServerError(f"environment server {address}: {error}") from None
    except HandoffError:
        channel.close()
        raise
    return channel
