"""Worlds spread over processes: each worker holds a slice of them, and the whole is again a
`VecEnv`.

A world's trajectory depends on its seed and actions only, so it does not depend on the number of
workers. Arrays travel over pipes as raw buffers beside a small pickle (PEP 574), which costs one
copy on each side.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, Step, VecEnv, WorldState
from robots.spec import ActionSpec, FieldSpec

CLOSE_SECONDS = 10.0
"""How long a worker may take to close its worlds before it is ended."""


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    worlds: np.ndarray
    """Which of all worlds it holds, ascending."""


class WorkerWorlds:
    """Implements `robots.interfaces.VecEnv` over W spawned processes.

    Workers end with this process: they are daemons, and one that was left alone by a killed parent
    finds its pipe closed. After an error some worlds may have stepped and others not: reset or
    restore before going on.
    """

    def __init__(self, make: Callable[[int], VecEnv], num_envs: int, workers: int) -> None:
        """Starts the processes and waits until each has made its worlds.

        Args:
            make: makes n worlds; called once in each process, so it must be picklable (a module's
                function or a `functools.partial` of one).
            num_envs: N, shared out as evenly as possible.
            workers: W, at most N.

        Raises:
            HandoffError: W is not in 1..N, `make` raised one, or a worker died.
        """
        if not 1 <= workers <= num_envs:
            raise HandoffError(f"workers: {workers} for {num_envs} worlds, expected 1..{num_envs}.")
        self.num_envs = num_envs
        self._workers: list[_Worker] = []
        self._observations: dict[int, Observation] = {}
        spawn = get_context("spawn")
        for number, worlds in enumerate(np.array_split(np.arange(num_envs), workers)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(make, len(worlds), theirs), daemon=True)
            process.start()
            # Only the worker may hold its end, or its death would not show as a closed pipe.
            theirs.close()
            self._workers.append(_Worker(number, process, ours, worlds))
        try:
            specs = self._receive(self._workers)[0]
        except HandoffError:
            self.close()
            raise
        self.observation_spec: Mapping[str, FieldSpec] = specs["observation_spec"]
        self.action_spec: ActionSpec = specs["action_spec"]
        self.rate_hz: float = specs["rate_hz"]

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`."""
        rows = self._rows(worlds)
        if len(seeds) != len(rows):
            raise HandoffError(
                f"workers: {len(seeds)} seeds for {len(rows)} worlds, expected one each."
            )
        values = [int(seed) for seed in seeds]
        requests = {
            worker.number: ("reset", [values[i] for i in at], local.tolist())
            for worker, at, local in self._shares(rows)
        }
        return self._observed(requests)

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`."""
        action = np.asarray(action)
        if action.ndim not in (2, 3) or len(action) != self.num_envs:
            size = self.action_spec.size
            raise HandoffError(
                f"workers: action of shape {action.shape}, expected ({self.num_envs}, {size}) or "
                f"({self.num_envs}, H, {size})."
            )
        steps: list[Step] = self._ask(
            {worker.number: ("step", action[worker.worlds]) for worker in self._workers}
        )
        self._observations = {
            worker.number: step.observation
            for worker, step in zip(self._workers, steps, strict=True)
        }
        return Step(
            observation=_joined([step.observation for step in steps]),
            reward=np.concatenate([step.reward for step in steps]),
            terminated=np.concatenate([step.terminated for step in steps]),
            truncated=np.concatenate([step.truncated for step in steps]),
            final_observation=_joined([step.final_observation for step in steps]),
            info=_joined([step.info for step in steps]),
            executed=np.concatenate([step.executed for step in steps]),
        )

    def save(self) -> WorldState:
        """See `VecEnv.save`. Fields whose rows grow with time (histories) are filled up with zeros
        to one length."""
        states: list[WorldState] = self._ask({worker.number: ("save",) for worker in self._workers})
        return {name: _stacked([state[name] for state in states]) for name in states[0]}

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`."""
        rows = self._rows(worlds)
        lengths = {name: len(array) for name, array in state.items() if len(array) != len(rows)}
        if lengths:
            raise HandoffError(
                f"workers: state with rows {lengths} for {len(rows)} worlds, expected one each."
            )
        requests = {
            worker.number: (
                "restore",
                {name: array[at] for name, array in state.items()},
                local.tolist(),
            )
            for worker, at, local in self._shares(rows)
        }
        return self._observed(requests)

    def close(self) -> None:
        """Ends the processes; a second call does nothing."""
        for worker in self._workers:
            try:
                _send(worker.connection, ("close",))
            except (BrokenPipeError, ConnectionResetError):
                # It is dead already, which is what is wanted.
                continue
        for worker in self._workers:
            worker.process.join(CLOSE_SECONDS)
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join()
            worker.connection.close()
        self._workers = []

    def _rows(self, worlds: Sequence[int] | None) -> np.ndarray:
        rows = np.arange(self.num_envs) if worlds is None else np.asarray(worlds, dtype=np.int64)
        if len(np.unique(rows)) != len(rows) or (rows < 0).any() or (rows >= self.num_envs).any():
            raise HandoffError(
                f"workers: worlds {rows.tolist()[:8]}, expected different numbers in 0..{self.num_envs - 1}."
            )
        if not self._observations and len(rows) != self.num_envs:
            raise HandoffError(f"workers: the first reset must start all {self.num_envs} worlds.")
        return rows

    def _shares(self, rows: np.ndarray) -> list[tuple[_Worker, np.ndarray, np.ndarray]]:
        """Per worker that holds any of `rows`: positions in `rows`, and the worlds' numbers
        there."""
        shares = []
        for worker in self._workers:
            at = np.flatnonzero(np.isin(rows, worker.worlds))
            if len(at):
                shares.append((worker, at, rows[at] - worker.worlds[0]))
        return shares

    def _observed(self, requests: Mapping[int, tuple[Any, ...]]) -> Observation:
        observations = self._ask(requests)
        self._observations |= dict(zip(requests, observations, strict=True))
        return _joined([self._observations[worker.number] for worker in self._workers])

    def _ask(self, requests: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Sends each worker its request at once and returns their answers, in the workers'
        order."""
        if not self._workers:
            raise HandoffError("workers: these worlds are closed. Make new ones.")
        asked = [worker for worker in self._workers if worker.number in requests]
        for worker in asked:
            try:
                _send(worker.connection, requests[worker.number])
            except (BrokenPipeError, ConnectionResetError):
                raise _dead(worker) from None
        return self._receive(asked)

    def _receive(self, workers: list[_Worker]) -> list[Any]:
        """One answer of each; all are read before an error is raised, so that answers match later
        requests."""
        answers, errors = [], []
        for worker in workers:
            try:
                kind, answer = _receive(worker.connection)
            except (EOFError, ConnectionResetError):
                errors.append(_dead(worker))
                continue
            if kind == "error":
                errors.append(
                    HandoffError(
                        f"worker {worker.number} (its world 0 is world {worker.worlds[0]} of all): {answer}"
                    )
                )
            answers.append(answer)
        if errors:
            raise errors[0]
        return answers


def _serve(make: Callable[[int], VecEnv], num_envs: int, connection: Connection) -> None:
    """A worker's life: makes its worlds, then answers one request after another until told to
    close."""
    try:
        env = make(num_envs)
    except HandoffError as error:
        _send(connection, ("error", str(error)))
        return
    specs = {
        "observation_spec": dict(env.observation_spec),
        "action_spec": env.action_spec,
        "rate_hz": env.rate_hz,
    }
    _send(connection, ("ready", specs))
    try:
        while True:
            method, *arguments = _receive(connection)
            if method == "close":
                break
            try:
                answer = ("answer", getattr(env, method)(*arguments))
            except HandoffError as error:
                answer = ("error", str(error))
            _send(connection, answer)
    except (EOFError, ConnectionResetError, BrokenPipeError, KeyboardInterrupt):
        # The parent is gone, or Ctrl-C reached the whole group: nobody is left to answer.
        return
    finally:
        env.close()


def _send(connection: Connection, message: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((head, [view.nbytes for view in views])))
    for view in views:
        if view.nbytes:
            connection.send_bytes(view)


def _receive(connection: Connection) -> Any:
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(head, buffers=buffers)


def _dead(worker: _Worker) -> HandoffError:
    worker.process.join(CLOSE_SECONDS)
    return HandoffError(
        f"worker {worker.number} (worlds {worker.worlds[0]}..{worker.worlds[-1]}) died with exit code "
        f"{worker.process.exitcode}. Its own message stands above; -9 usually means that memory ran out."
    )


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([part.shape[1:] for part in parts], axis=0) if parts[0].ndim > 1 else ()
    filled = [
        np.pad(
            part,
            [
                (0, 0),
                *((0, int(most) - size) for most, size in zip(shape, part.shape[1:], strict=True)),
            ],
        )
        for part in parts
    ]
    return np.concatenate(filled)
