"""Runs a simulator as an actor in a Ray cluster and recovers its environments if the actor is lost.

The client keeps all requests since the environments were last saved. If an actor or its machine is
lost, a new actor restores the saved environments and processes the same requests again: an
environment's trajectory depends only on its seed and actions, so the responses are identical.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.code_version import code_version
from robots.errors import HandoffError
from robots.imported_code import note_all
from robots.interfaces import Observation, VecEnv
from robots.outside import add_place
from sim.processes.cluster import Cluster
from sim.processes.env_server import EnvServer, SavedEnvs

SAVE_EVERY = 64
"""Number of requests of all groups after which the environments are saved; about as many are
repeated at most."""
MAX_DEATHS = 3
"""Maximum number of consecutive deaths without a response; more are not caused by lost machines."""
RETRY_S = 0.5
PACKAGES = ("numpy", "mujoco")
"""Packages whose versions affect the environments' results, besides Handoff's own code."""

_log = logging.getLogger(__name__)


class _Request(NamedTuple):
    group: int
    method: str
    arguments: tuple[Any, ...]
    actions: list[np.ndarray]


class RaySimulator:
    """Implements `EnvClient` for an actor in a cluster.

    Args:
        number: index of the simulator and of its bundle.
        cluster: resources of the simulators.
        make: makes n environments; called for every group in the actor, so it must be picklable.
        sizes: number of environments of every group.
    """

    def __init__(
        self, number: int, cluster: Cluster, make: Callable[[int], VecEnv], sizes: Sequence[int]
    ) -> None:
        self.number = number
        self.pending: set[int] = set()
        self.observations: dict[int, Observation] = {}
        self.ended = 0
        self.where: dict[str, str] = {}
        """Node, host and process of the current actor."""
        self.deaths = 0
        """Number of lost actors."""
        self._cluster = cluster
        self._make = make
        self._sizes = tuple(sizes)
        self._code = _code_of(make)
        self._actor: Any = cluster.start(number, _Actor, make, sizes)
        self._in_a_row = 0
        self._error: HandoffError | None = None
        self._responses: dict[int, Any] = {}
        self._saved: SavedEnvs | None = None
        self._saving: tuple[Any, int] | None = None
        """Reference to the saved environments, and the number of requests that precede them."""
        self._since: list[_Request] = []
        """Requests since `_saved`."""

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`.

        Raises:
            HandoffError: the environments could not be made, or another version of Handoff, Python
                or the engine is installed on the actor's machine.
        """
        import ray.exceptions

        deadline = time.monotonic() + self._cluster.config.patience_s
        while True:
            try:
                return self._described(max(1.0, deadline - time.monotonic()))
            except ray.exceptions.RayActorError as error:
                # Until Ray has detected the loss of a node, it starts new actors there.
                if time.monotonic() > deadline:
                    raise self._failed(
                        f"simulator {self.number}: its actor does not start: {error}"
                    ) from None
                time.sleep(RETRY_S)
                self._start()

    def request(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.request`."""
        if group in self.pending:
            raise HandoffError(
                f"simulator {self.number}: group {group} already has a pending request. Receive its response first."
            )
        self._check_open()
        request = _Request(group, method, arguments, [array.copy() for array in arrays.values()])
        self._since.append(request)
        self._responses[group] = self._actor.respond.remote(*request)
        self.pending.add(group)
        if (
            self._saving is None
            and len(self._since) >= SAVE_EVERY
            and len(self.observations) == len(self._sizes)
        ):
            self._saving = (self._actor.save.remote(), len(self._since))

    def receive(self, group: int) -> Any:
        """See `EnvClient.receive`."""
        if group not in self.pending:
            raise HandoffError(
                f"simulator {self.number}: group {group} has no pending request to receive."
            )
        self._check_open()
        kind, payload, ended = self._wait_for_response(group)
        self.pending.discard(group)
        del self._responses[group]
        self._keep_saved()
        self.ended += ended
        if kind == "error":
            raise HandoffError(f"simulator {self.number}: {payload}")
        return _writable(payload)

    def is_dead(self) -> bool:
        """See `EnvClient.is_dead`."""
        return self._error is not None

    def request_exit(self) -> None:
        """See `EnvClient.request_exit`; ending an actor never waits."""
        self.close()

    def close(self) -> None:
        """See `EnvClient.close`."""
        import ray

        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)
        self._actor = None
        self._responses = {}
        self._saving = None

    def _described(self, timeout_s: float) -> dict[str, Any]:
        """Specifications of the environments from an actor that has been started."""
        import ray.exceptions

        try:
            kind, reply = ray.get(self._actor.describe.remote(self._code[0]), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise self._failed(str(self._cluster.no_room(f"simulator {self.number}"))) from None
        if kind == "error":
            raise self._failed(f"simulator {self.number}: {reply}")
        here = _installed(self._code)
        there = reply["installed"]
        differ = [
            f"{name} {there[name][:12]}, here {here[name][:12]}"
            for name in here
            if here[name] != there[name]
        ]
        if differ:
            raise self._failed(
                f"simulator {self.number}: {reply['where']['host']} has {'; '.join(differ)}. Install the same "
                "versions on all nodes, otherwise results would depend on the machine."
            )
        self.where = reply["where"]
        return reply["env"]

    def _wait_for_response(self, group: int) -> tuple[str, Any, int]:
        """The response to the group's pending request, from the first actor that survives."""
        import ray.exceptions

        while True:
            try:
                response: tuple[str, Any, int] = ray.get(self._responses[group])  # type: ignore[assignment]
            except ray.exceptions.RayTaskError as error:
                raise self._failed(f"simulator {self.number}: {error}") from None
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                self._replace_actor(error)
            else:
                self._in_a_row = 0
                return response

    def _replace_actor(self, error: Exception) -> None:
        """Starts another actor for a lost one and restores its state.

        Raises:
            HandoffError: too many actors have died at the same request, or there are no free
                resources.
        """
        self.deaths += 1
        self._in_a_row += 1
        if self._in_a_row > MAX_DEATHS:
            raise self._failed(
                f"simulator {self.number}: its actor died {self._in_a_row} times at the same request: {error}"
            )
        _log.warning(
            "simulator %d was lost (%s); its environments continue in another actor.",
            self.number,
            self.where,
        )
        self._start()
        self.ready()
        self._replay()

    def _start(self) -> None:
        import ray

        # If only a response was lost, the old actor still occupies the resources.
        ray.kill(self._actor)
        self._actor = self._cluster.start(self.number, _Actor, self._make, self._sizes)
        self._saving = None

    def _replay(self) -> None:
        """Restores the saved environments in a new actor and repeats the requests since then."""
        if self._saved is not None:
            self._actor.restore.remote(self._saved)
        for request in self._since:
            response = self._actor.respond.remote(*request)
            if request.group in self.pending:
                self._responses[request.group] = response

    def _keep_saved(self) -> None:
        """Adopts the saved environments if they have arrived, and drops the requests before
        them."""
        import ray.exceptions

        if self._saving is None:
            return
        saving, num_requests = self._saving
        last = {request.group: number for number, request in enumerate(self._since)}
        if (
            any(last.get(group, 0) < num_requests for group in self.pending)
            or not ray.wait([saving], timeout=0)[0]
        ):
            # A response that has not been received may still be lost, and its request must then be
            # repeated.
            return
        self._saving = None
        try:
            self._saved = ray.get(saving)
        except ray.exceptions.RayTaskError as error:
            raise self._failed(f"simulator {self.number}: {error}") from None
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
            # Lost with its node: all requests are kept, and the next response reveals the death.
            return
        del self._since[:num_requests]

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._actor is None:
            raise HandoffError(
                f"simulator {self.number}: its environments are closed. Make new ones."
            )

    def _failed(self, reason: str) -> HandoffError:
        self._error = HandoffError(reason)
        return self._error


class _Actor:
    """Server of the environments in a process that Ray starts."""

    def __init__(
        self, make: Callable[[int], VecEnv], sizes: Sequence[int], places: Sequence[str]
    ) -> None:
        """Makes the environments; `places` are the folders in which the caller finds modules, such
        as a task beside its recipe, which Ray does not pass on."""
        for place in places:
            if Path(place).is_dir():
                add_place(Path(place))
        self._error = ""
        self._server = None
        try:
            self._server = EnvServer(make, sizes)
        except HandoffError as error:
            self._error = str(error)
        except Exception:  # noqa: BLE001  a new actor would fail with any error, too
            self._error = traceback.format_exc()

    def describe(self, module: str) -> tuple[str, Any]:
        """First request: "ready" with the specifications, or "error" with the reason if the
        environments could not be made."""
        import ray

        if self._server is None:
            return "error", self._error
        where = {
            "node": ray.get_runtime_context().get_node_id(),
            "host": platform.node(),
            "pid": str(os.getpid()),
        }
        installed = _installed((module, code_version(module)))
        return "ready", {"env": self._server.describe(), "where": where, "installed": installed}

    def respond(
        self, group: int, method: str, arguments: tuple[Any, ...], actions: list[np.ndarray]
    ) -> tuple[str, Any, int]:
        """Kind of the response, the response, and the number of environments that were reset."""
        assert self._server is not None
        try:
            return "arrays", *self._server.respond(
                group, method, _writable(arguments), _writable(actions)
            )
        except HandoffError as error:
            return "error", str(error), 0

    def save(self) -> SavedEnvs:
        """See `EnvServer.save`."""
        assert self._server is not None
        return self._server.save()

    def restore(self, saved: SavedEnvs) -> None:
        """See `EnvServer.restore`."""
        assert self._server is not None
        self._server.restore(SavedEnvs(saved.ended, _writable(saved.states)))


def _writable(value: Any) -> Any:
    """Copies all arrays in `value`, because arrays from Ray are in shared memory and read-only."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: _writable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_writable(part) for part in value])
    return value


def _code_of(make: Callable[[int], VecEnv]) -> tuple[str, str]:
    """The module of `make`, and the version of its code."""
    function = getattr(make, "func", make)
    note_all(function.__module__)
    return function.__module__, code_version(function.__module__)


def _installed(code: tuple[str, str]) -> dict[str, str]:
    """Versions that affect the environments' results."""
    versions = {"Python": platform.python_version(), f"the code of {code[0]}": code[1]}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    return versions
