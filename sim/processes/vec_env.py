"""Provides a vectorised environment over several processes, split into parts so that simulation of
one overlaps with inference for another.

The trajectory of an environment depends only on its seed and actions, not on the parts or the
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation, SplitSteps, Step, VecEnv
from robots.spec import ActionSpec, FieldSpec
from sim.processes.cluster import Cluster
from sim.processes.config import ClusterConfig, PlacementConfig
from sim.processes.env_server import EnvClient, unflatten_steps
from sim.processes.process import Simulator
from sim.processes.ray_process import RaySimulator


class Shard(NamedTuple):
    """Consecutive environments that are simulated in one process."""

    simulator: EnvClient
    group: int
    """Index of the environments' group in their process."""
    first: int
    """Index of the first environment among all, or within the part."""
    num_envs: int

    @property
    def rows(self) -> slice:
        """Indices of the environments among all, or within the part."""
        return slice(self.first, self.first + self.num_envs)


class SplitEnv:
    """Implements `robots.interfaces.SplitVecEnv` over shards of environments in several processes.

    After an error some environments may have stepped and others not: reset or restore before
    continuing.
    """

    def __init__(self, shards: Sequence[Shard], specs: Mapping[str, Any]) -> None:
        self.shards = tuple(shards)
        self.num_envs = sum(shard.num_envs for shard in shards)
        self.observation_spec: Mapping[str, FieldSpec] = specs["observation_spec"]
        self.action_spec: ActionSpec = specs["action_spec"]
        self.rate_hz: float = specs["rate_hz"]
        self.parts: Sequence[SplitEnv] = (self,)
        self.accepts_starts = len(self.shards) == 1
        """Several processes cannot share one sequence of starts."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`; results that were not received are dropped."""
        rows = self._rows(env_ids)
        if len(seeds) != len(rows):
            raise HandoffError(
                f"environments: {len(seeds)} seeds for {len(rows)} environments, expected one each."
            )
        values = np.asarray([int(seed) for seed in seeds], np.int64)
        return self._call_and_observe("reset", rows, lambda at: values[at].tolist())

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`."""
        self.send([np.asarray(action)])
        return self.receive().steps[0]

    def send(self, actions: Sequence[np.ndarray], starts: Sequence[int] | None = None) -> None:
        """See `SplitVecEnv.send`; the process knows which starts were used in responses that have
        not been received."""
        size = self.action_spec.size
        for action in actions:
            if action.ndim not in (2, 3) or len(action) != self.num_envs:
                raise HandoffError(
                    f"environments: action of shape {action.shape}, expected ({self.num_envs}, {size}) or "
                    f"({self.num_envs}, H, {size})."
                )
        if starts is not None and not self.accepts_starts:
            raise HandoffError(
                f"environments: starts for environments in {len(self.shards)} processes, expected one process."
            )
        for shard in self.shards:
            arrays = {str(number): action[shard.rows] for number, action in enumerate(actions)}
            argument = None if starts is None else (shard.simulator.ended, tuple(starts))
            shard.simulator.request(shard.group, "steps", (argument,), arrays)

    def receive(self) -> SplitSteps:
        """See `SplitVecEnv.receive`."""
        results = [unflatten_steps(arrays) for arrays in self._receive(self.shards)]
        for shard, result in zip(self.shards, results, strict=True):
            observation = result.reset_observation or result.steps[-1].observation
            shard.simulator.observations[shard.group] = observation
        steps = [
            _concatenate_steps(steps)
            for steps in zip(*[result.steps for result in results], strict=True)
        ]
        return SplitSteps(steps, results[0].reset_observation if len(results) == 1 else None)

    def discard(self) -> None:
        """See `SplitVecEnv.discard`.

        Raises:
            HandoffError: a simulator died.
        """
        for shard in self.shards:
            if shard.group in shard.simulator.pending:
                try:
                    shard.simulator.receive(shard.group)
                except HandoffError:
                    # An error of the environments is dropped with the result, but not the death of
                    # the process.
                    if shard.simulator.is_dead():
                        raise

    def save(self) -> EnvState:
        """See `VecEnv.save`. Fields whose rows grow with time (histories) are padded with zeros to
        equal length."""
        for shard in self.shards:
            shard.simulator.request(shard.group, "save", (), {})
        states: list[EnvState] = self._receive(self.shards)
        return {name: _pad_and_concatenate([state[name] for state in states]) for name in states[0]}

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`; results that were not received are dropped."""
        rows = self._rows(env_ids)
        lengths = {name: len(array) for name, array in state.items() if len(array) != len(rows)}
        if lengths:
            raise HandoffError(
                f"environments: state with rows {lengths} for {len(rows)} environments, expected one each."
            )
        return self._call_and_observe(
            "restore", rows, lambda at: {name: array[at] for name, array in state.items()}
        )

    def close(self) -> None:
        """Does nothing: the owner of the processes closes them."""

    def _rows(self, env_ids: Sequence[int] | None) -> np.ndarray:
        rows = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        if len(np.unique(rows)) != len(rows) or (rows < 0).any() or (rows >= self.num_envs).any():
            raise HandoffError(
                f"environments: indices {rows.tolist()[:8]}, expected different numbers in 0..{self.num_envs - 1}."
            )
        return rows

    def _call_and_observe(
        self, method: str, rows: np.ndarray, argument: Callable[[np.ndarray], object]
    ) -> Observation:
        """Calls `method` in the environments `rows` and returns the observation of all."""
        if len(rows) < self.num_envs and not all(
            shard.group in shard.simulator.observations for shard in self.shards
        ):
            raise HandoffError(
                f"environments: the first reset must start all {self.num_envs} environments."
            )
        self.discard()
        requested = []
        for shard in self.shards:
            at = np.flatnonzero((rows >= shard.first) & (rows < shard.first + shard.num_envs))
            if len(at):
                shard.simulator.request(
                    shard.group, method, (argument(at), (rows[at] - shard.first).tolist()), {}
                )
                requested.append(shard)
        for shard, observation in zip(requested, self._receive(requested), strict=True):
            shard.simulator.observations[shard.group] = observation
        return _concatenate([shard.simulator.observations[shard.group] for shard in self.shards])

    def _receive(self, shards: Sequence[Shard]) -> list[Any]:
        """Receives one response of each shard; all are received before an error is raised, so that
        later responses match their requests."""
        responses, errors = [], []
        for shard in shards:
            try:
                responses.append(shard.simulator.receive(shard.group))
            except HandoffError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return responses


class ProcessVecEnv(SplitEnv):
    """N environments in P parts, each of which is distributed over all S processes.

    The order of environments is kept: parts contain consecutive environments, and so do the
    processes within a part.
    """

    def __init__(
        self,
        make: Callable[[int], VecEnv],
        num_envs: int,
        parts: int = 1,
        simulators: int = 1,
        cluster: ClusterConfig | None = None,
        noun: str = "simulator",
    ) -> None:
        """Starts the processes and waits until each has made its environments.

        Args:
            make: makes n environments; called in the processes, so it must be picklable (a
                module-level function or a `functools.partial` of one).
            num_envs: N, distributed as evenly as possible.
            parts: P.
            simulators: S.
            cluster: Ray cluster of the processes; None runs them on this machine.
            noun: name of a local process in messages.

        Raises:
            HandoffError: fewer environments than P * S, an error of `make`, a process that died, or
                a cluster without free resources.
        """
        if not 1 <= parts * simulators <= num_envs:
            raise HandoffError(
                f"placement: {parts} parts over {simulators} simulators of {num_envs} environments, "
                "expected at least one environment of every part in each simulator."
            )
        sizes = _sizes(np.arange(num_envs), parts, simulators)
        self._cluster: Cluster | None = None
        self._simulators: list[EnvClient] = []
        try:
            if cluster is not None:
                self._cluster = Cluster(cluster, simulators)
            for number in range(simulators):
                self._simulators.append(self._simulator(number, make, sizes, noun))
            # Waits for all, and raises the error of a simulator that could not make its
            # environments.
            specs, *_ = [simulator.ready() for simulator in self._simulators]
        except BaseException:
            self.close()
            raise
        # Each part has one shard per simulator.
        shards: list[Shard] = []
        split_envs: list[SplitEnv] = []
        first = 0
        for group, part in enumerate(sizes):
            begins = np.cumsum([0, *part])
            inside = [
                Shard(simulator, group, int(begins[number]), part[number])
                for number, simulator in enumerate(self._simulators)
            ]
            split_envs.append(SplitEnv(inside, specs))
            shards += [shard._replace(first=shard.first + first) for shard in inside]
            first += sum(part)
        super().__init__(shards, specs)
        self.parts = tuple(split_envs)

    def close(self) -> None:
        """Ends the processes; a second call does nothing."""
        for simulator in self._simulators:
            simulator.request_exit()
        for simulator in self._simulators:
            simulator.close()
        self._simulators = []
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _simulator(
        self, number: int, make: Callable[[int], VecEnv], sizes: list[list[int]], noun: str
    ) -> EnvClient:
        groups = [part[number] for part in sizes]
        if self._cluster is not None:
            return RaySimulator(number, self._cluster, make, groups)
        first = sum(sizes[0][:number]) if len(sizes) == 1 else None
        return Simulator(f"{noun} {number}", make, groups, first)


def place_vec_env(config: PlacementConfig, make: Callable[[int], VecEnv], num_envs: int) -> VecEnv:
    """Makes N environments in this process or in others, according to the placement.

    Args:
        config: placement of the environments.
        make: makes n environments; must be picklable unless they are collocated.
        num_envs: N.

    Raises:
        HandoffError: an error of `make` or `ProcessVecEnv`.
    """
    if config.kind == "collocated":
        return make(num_envs)
    return ProcessVecEnv(make, num_envs, config.stages, config.simulators, config.cluster)


def worker_vec_env(make: Callable[[int], VecEnv], num_envs: int, workers: int) -> ProcessVecEnv:
    """Makes N environments in W processes on this machine, in one part.

    Args:
        make: makes n environments; must be picklable.
        num_envs: N.
        workers: W, at most N.

    Raises:
        HandoffError: W is not in 1..N, or an error of `ProcessVecEnv`.
    """
    if not 1 <= workers <= num_envs:
        raise HandoffError(
            f"workers: {workers} for {num_envs} environments, expected 1..{num_envs}."
        )
    return ProcessVecEnv(make, num_envs, simulators=workers, noun="worker")


def _sizes(env_ids: np.ndarray, parts: int, simulators: int) -> list[list[int]]:
    """Number of environments of every part in each simulator."""
    return [
        [len(ids) for ids in np.array_split(part, simulators)]
        for part in np.array_split(env_ids, parts)
    ]


def _concatenate_steps(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    return Step(
        observation=_concatenate([step.observation for step in steps]),
        reward=np.concatenate([step.reward for step in steps]),
        terminated=np.concatenate([step.terminated for step in steps]),
        truncated=np.concatenate([step.truncated for step in steps]),
        final_observation=_concatenate([step.final_observation for step in steps]),
        info=_concatenate([step.info for step in steps]),
        executed=np.concatenate([step.executed for step in steps]),
    )


def _concatenate(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _pad_and_concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([part.shape[1:] for part in parts], axis=0) if parts[0].ndim > 1 else ()
    padded = [
        np.pad(
            part,
            [
                (0, 0),
                *(
                    (0, int(largest) - size)
                    for largest, size in zip(shape, part.shape[1:], strict=True)
                ),
            ],
        )
        for part in parts
    ]
    return np.concatenate(padded)
