"""A simulator as an actor of a Ray cluster, whose worlds outlive it.

Who asks keeps its questions since the worlds were saved last. Where an actor or its machine is
lost, another one is given the saved worlds and asked the same questions again: a world's trajectory
depends on its seed and actions only, so the answers are those that the lost one would have given.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

from robots.code_version import code_version
from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv
from sim.processes.cluster import Cluster
from sim.processes.env_server import EnvServer, Saved

SAVE_EVERY = 64
"""Questions, of all groups together, after which the worlds are saved: about as many are asked
again at most."""
MOST_DEATHS = 3
"""Of its actors without an answer between them, before it is given up: then it is no machine's
fault."""
RETRY_S = 0.5
PACKAGES = ("numpy", "mujoco")
"""Whose versions the worlds' numbers depend on, besides Handoff's own code."""

_log = logging.getLogger(__name__)


class _Question(NamedTuple):
    group: int
    method: str
    arguments: tuple[Any, ...]
    actions: list[np.ndarray]


class RaySimulator:
    """Implements `EnvClient` for an actor of a cluster.

    Args:
        number: its own, and that of its bundle.
        cluster: where.
        make: makes n worlds; called for every group there, so it must be picklable.
        sizes: worlds of every group.
    """

    def __init__(
        self, number: int, cluster: Cluster, make: Callable[[int], VecEnv], sizes: Sequence[int]
    ) -> None:
        self.number = number
        self.under_way: set[int] = set()
        self.observed: dict[int, Observation] = {}
        self.ended = 0
        self.where: dict[str, str] = {}
        """Node and process that simulate now."""
        self.deaths = 0
        """Actors that were lost."""
        self._cluster, self._make, self._sizes = cluster, make, tuple(sizes)
        self._code = _code_of(make)
        self._actor: Any = cluster.start(number, _Actor, make, sizes)
        self._in_a_row = 0
        self._error: HandoffError | None = None
        self._answers: dict[int, Any] = {}
        self._saved: Saved | None = None
        self._saving: tuple[Any, int] | None = None
        """The answer, and how many of the questions it holds the outcome of."""
        self._since: list[_Question] = []
        """Questions since `_saved`."""

    def ready(self) -> dict[str, Any]:
        """See `EnvClient.ready`.

        Raises:
            HandoffError: also where another Handoff, Python or engine is installed than here.
        """
        import ray.exceptions

        deadline = time.monotonic() + self._cluster.config.patience_s
        while True:
            try:
                return self._described(max(1.0, deadline - time.monotonic()))
            except ray.exceptions.RayActorError as error:
                # As long as Ray has not noticed that a node is gone, new actors are sent there.
                if time.monotonic() > deadline:
                    raise self._failed(
                        f"simulator {self.number}: its actor does not come up: {error}"
                    ) from None
                time.sleep(RETRY_S)
                self._start()

    def ask(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """See `EnvClient.ask`."""
        if group in self.under_way:
            raise HandoffError(
                f"simulator {self.number}: group {group} was asked twice and not heard between."
            )
        self._check_open()
        question = _Question(group, method, arguments, [array.copy() for array in arrays.values()])
        self._since.append(question)
        self._answers[group] = self._actor.answer.remote(*question)
        self.under_way.add(group)
        if (
            self._saving is None
            and len(self._since) >= SAVE_EVERY
            and len(self.observed) == len(self._sizes)
        ):
            self._saving = (self._actor.save.remote(), len(self._since))

    def hear(self, group: int) -> Any:
        """See `EnvClient.hear`."""
        if group not in self.under_way:
            raise HandoffError(
                f"simulator {self.number}: group {group} was heard before it was asked."
            )
        self._check_open()
        kind, made, ended = self._answer(group)
        self.under_way.discard(group)
        del self._answers[group]
        self._keep_saved()
        self.ended += ended
        if kind == "error":
            raise HandoffError(f"simulator {self.number}: {made}")
        return _writable(made)

    def gone(self) -> bool:
        """See `EnvClient.gone`."""
        return self._error is not None

    def leave(self) -> None:
        """See `EnvClient.leave`; an actor is not waited for in any case."""
        self.close()

    def close(self) -> None:
        """See `EnvClient.close`."""
        import ray

        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)
        self._actor = None
        self._answers = {}
        self._saving = None

    def _described(self, timeout_s: float) -> dict[str, Any]:
        """What its worlds say of themselves, of an actor that has been started."""
        import ray.exceptions

        try:
            kind, told = ray.get(self._actor.describe.remote(self._code[0]), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise self._failed(str(self._cluster.no_room(f"simulator {self.number}"))) from None
        if kind == "error":
            raise self._failed(f"simulator {self.number}: {told}")
        here, there = _installed(self._code), told["installed"]
        differ = [
            f"{name} {there[name][:12]}, here {here[name][:12]}"
            for name in here
            if here[name] != there[name]
        ]
        if differ:
            raise self._failed(
                f"simulator {self.number}: {told['where']['host']} has {'; '.join(differ)}. Install the same on all "
                "nodes: numbers would depend on the machine."
            )
        self.where = told["where"]
        return told["worlds"]

    def _answer(self, group: int) -> tuple[str, Any, int]:
        """The answer to its last question, of whichever actor lives to give it."""
        import ray.exceptions

        while True:
            try:
                answer: tuple[str, Any, int] = ray.get(self._answers[group])  # type: ignore[assignment]
            except ray.exceptions.RayTaskError as error:
                raise self._failed(f"simulator {self.number}: {error}") from None
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                self._make_up_for(error)
            else:
                self._in_a_row = 0
                return answer

    def _make_up_for(self, error: Exception) -> None:
        """Another actor for one that was lost, led to where that one was.

        Raises:
            HandoffError: the worlds have ended too many of them at the same question, or there is
                no room.
        """
        self.deaths += 1
        self._in_a_row += 1
        if self._in_a_row > MOST_DEATHS:
            raise self._failed(
                f"simulator {self.number}: its actor died {self._in_a_row} times at the same question: {error}"
            )
        _log.warning(
            "simulator %d was lost (%s); its worlds go on in another actor.",
            self.number,
            self.where,
        )
        self._start()
        self.ready()
        self._lead_on()

    def _start(self) -> None:
        import ray

        # Where only an answer was lost, the last one still takes up the room.
        ray.kill(self._actor)
        self._actor = self._cluster.start(self.number, _Actor, self._make, self._sizes)
        self._saving = None

    def _lead_on(self) -> None:
        """Leads a new actor to where the lost one was."""
        if self._saved is not None:
            self._actor.restore.remote(self._saved)
        for question in self._since:
            answer = self._actor.answer.remote(*question)
            if question.group in self.under_way:
                self._answers[question.group] = answer

    def _keep_saved(self) -> None:
        """Takes over the worlds that were saved, if they have arrived; questions before that are
        not asked again."""
        import ray.exceptions

        if self._saving is None:
            return
        saving, questions = self._saving
        last = {question.group: number for number, question in enumerate(self._since)}
        if (
            any(last.get(group, 0) < questions for group in self.under_way)
            or not ray.wait([saving], timeout=0)[0]
        ):
            # An answer that was not heard yet may still be lost, and then its question must be
            # asked again.
            return
        self._saving = None
        try:
            self._saved = ray.get(saving)
        except ray.exceptions.RayTaskError as error:
            raise self._failed(f"simulator {self.number}: {error}") from None
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
            # Lost with its node: the questions are all still there, and the next answer tells of
            # the death.
            return
        del self._since[:questions]

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._actor is None:
            raise HandoffError(f"simulator {self.number}: its worlds are closed. Make new ones.")

    def _failed(self, reason: str) -> HandoffError:
        self._error = HandoffError(reason)
        return self._error


class _Actor:
    """That side; lives in a process that Ray starts."""

    def __init__(self, make: Callable[[int], VecEnv], sizes: Sequence[int]) -> None:
        self._error, self._groups = "", None
        try:
            self._groups = EnvServer(make, sizes)
        except HandoffError as error:
            self._error = str(error)
        except Exception:  # noqa: BLE001  whatever it is, a new actor would fail of it, too
            self._error = traceback.format_exc()

    def describe(self, module: str) -> tuple[str, Any]:
        """What it is asked first; "error" and the reason where its worlds could not be made."""
        import ray

        if self._groups is None:
            return "error", self._error
        where = {
            "node": ray.get_runtime_context().get_node_id(),
            "host": platform.node(),
            "pid": str(os.getpid()),
        }
        installed = _installed((module, code_version(module)))
        return "ready", {"worlds": self._groups.describe(), "where": where, "installed": installed}

    def answer(
        self, group: int, method: str, arguments: tuple[Any, ...], actions: list[np.ndarray]
    ) -> tuple[str, Any, int]:
        """Kind of the answer, the answer, and the worlds that began anew by themselves."""
        assert self._groups is not None
        try:
            return "arrays", *self._groups.answer(
                group, method, _writable(arguments), _writable(actions)
            )
        except HandoffError as error:
            return "error", str(error), 0

    def save(self) -> Saved:
        """See `EnvServer.save`."""
        assert self._groups is not None
        return self._groups.save()

    def restore(self, saved: Saved) -> None:
        """See `EnvServer.restore`."""
        assert self._groups is not None
        self._groups.restore(Saved(saved.ended, _writable(saved.states)))


def _writable(value: Any) -> Any:
    """Copies of the arrays in it: those that Ray hands out lie in shared memory, and may not be
    written to."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: _writable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_writable(part) for part in value])
    return value


def _code_of(make: Callable[[int], VecEnv]) -> tuple[str, str]:
    """The module that makes the worlds, and the version of its code."""
    made = getattr(make, "func", make)
    return made.__module__, code_version(made.__module__)


def _installed(code: tuple[str, str]) -> dict[str, str]:
    """What the worlds' numbers depend on."""
    found = {"Python": platform.python_version(), f"the code of {code[0]}": code[1]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
