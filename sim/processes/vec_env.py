"""A vectorised environment over several processes, split into parts so that simulation of one
overlaps with inference for another.

The trajectory of an environment depends on its seed and actions only, so it depends neither on the
parts nor on the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, SplitSteps, Step, VecEnv, WorldState
from robots.spec import ActionSpec, FieldSpec
from sim.processes.cluster import Cluster
from sim.processes.config import ClusterConfig, PlacementConfig
from sim.processes.env_server import EnvClient, unflattened
from sim.processes.process import Simulator
from sim.processes.ray_process import RaySimulator


class Share(NamedTuple):
    """Environments that lie together in one process."""

    simulator: EnvClient
    group: int
    """Number of the group that they are in their process."""
    first: int
    """Number of the first of them, in the whole or in the part."""
    worlds: int

    @property
    def rows(self) -> slice:
        """Their numbers, in the whole or in the part."""
        return slice(self.first, self.first + self.worlds)


class SplitEnv:
    """Implements `robots.interfaces.SplitVecEnv` over shares of environments in several processes.

    After an error some environments may have stepped and others not: reset or restore before going
    on.
    """

    def __init__(self, shares: Sequence[Share], specs: Mapping[str, Any]) -> None:
        self.shares = tuple(shares)
        self.num_envs = sum(share.worlds for share in shares)
        self.observation_spec: Mapping[str, FieldSpec] = specs["observation_spec"]
        self.action_spec: ActionSpec = specs["action_spec"]
        self.rate_hz: float = specs["rate_hz"]
        self.parts: Sequence[SplitEnv] = (self,)
        self.takes_starts = len(self.shares) == 1
        """Several processes do not know of each other's ends."""

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`; what was sent before and not received is lost."""
        rows = self._rows(worlds)
        if len(seeds) != len(rows):
            raise HandoffError(
                f"worlds: {len(seeds)} seeds for {len(rows)} worlds, expected one each."
            )
        values = np.asarray([int(seed) for seed in seeds], np.int64)
        return self._observed("reset", rows, lambda at: values[at].tolist())

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`."""
        self.send([np.asarray(action)])
        return self.receive().steps[0]

    def send(self, actions: Sequence[np.ndarray], starts: Sequence[int] | None = None) -> None:
        """See `SplitVecEnv.send`; the one process knows which of the starts have been taken in
        answers that were not received yet."""
        size = self.action_spec.size
        for action in actions:
            if action.ndim not in (2, 3) or len(action) != self.num_envs:
                raise HandoffError(
                    f"worlds: action of shape {action.shape}, expected ({self.num_envs}, {size}) or "
                    f"({self.num_envs}, H, {size})."
                )
        if starts is not None and not self.takes_starts:
            raise HandoffError(
                f"worlds: starts ahead for worlds in {len(self.shares)} processes, expected one."
            )
        for share in self.shares:
            asked = {str(number): action[share.rows] for number, action in enumerate(actions)}
            ahead = None if starts is None else (share.simulator.ended, tuple(starts))
            share.simulator.ask(share.group, "steps", (ahead,), asked)

    def receive(self) -> SplitSteps:
        """See `SplitVecEnv.receive`."""
        told = [unflattened(arrays) for arrays in self._heard(self.shares)]
        for share, heard in zip(self.shares, told, strict=True):
            share.simulator.observed[share.group] = heard.begun or heard.steps[-1].observation
        steps = [_joined(steps) for steps in zip(*[heard.steps for heard in told], strict=True)]
        return SplitSteps(steps, told[0].begun if len(told) == 1 else None)

    def discard(self) -> None:
        """See `SplitVecEnv.discard`.

        Raises:
            HandoffError: a simulator died.
        """
        for share in self.shares:
            if share.group in share.simulator.under_way:
                try:
                    share.simulator.hear(share.group)
                except HandoffError:
                    # Nobody waits any more for an error of the environments; a dead process is
                    # another matter.
                    if share.simulator.gone():
                        raise

    def save(self) -> WorldState:
        """See `VecEnv.save`. Fields whose rows grow with time (histories) are filled up with zeros
        to one length."""
        for share in self.shares:
            share.simulator.ask(share.group, "save", (), {})
        states: list[WorldState] = self._heard(self.shares)
        return {name: _stacked([state[name] for state in states]) for name in states[0]}

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`; what was sent before and not received is lost."""
        rows = self._rows(worlds)
        lengths = {name: len(array) for name, array in state.items() if len(array) != len(rows)}
        if lengths:
            raise HandoffError(
                f"worlds: state with rows {lengths} for {len(rows)} worlds, expected one each."
            )
        return self._observed(
            "restore", rows, lambda at: {name: array[at] for name, array in state.items()}
        )

    def close(self) -> None:
        """Leaves the processes to whoever started them."""

    def _rows(self, worlds: Sequence[int] | None) -> np.ndarray:
        rows = np.arange(self.num_envs) if worlds is None else np.asarray(worlds, dtype=np.int64)
        if len(np.unique(rows)) != len(rows) or (rows < 0).any() or (rows >= self.num_envs).any():
            raise HandoffError(
                f"worlds: {rows.tolist()[:8]} were named, expected different numbers in 0..{self.num_envs - 1}."
            )
        return rows

    def _observed(
        self, method: str, rows: np.ndarray, given: Callable[[np.ndarray], object]
    ) -> Observation:
        """Observation of all environments, after `method` of some of them."""
        if len(rows) < self.num_envs and not all(
            share.group in share.simulator.observed for share in self.shares
        ):
            raise HandoffError(f"worlds: the first reset must start all {self.num_envs} worlds.")
        self.discard()
        asked = []
        for share in self.shares:
            at = np.flatnonzero((rows >= share.first) & (rows < share.first + share.worlds))
            if len(at):
                share.simulator.ask(
                    share.group, method, (given(at), (rows[at] - share.first).tolist()), {}
                )
                asked.append(share)
        for share, seen in zip(asked, self._heard(asked), strict=True):
            share.simulator.observed[share.group] = seen
        parts = [share.simulator.observed[share.group] for share in self.shares]
        return _side_by_side(parts)

    def _heard(self, shares: Sequence[Share]) -> list[Any]:
        """One answer of each; all are heard before an error is raised, so that answers match later
        questions."""
        answers, errors = [], []
        for share in shares:
            try:
                answers.append(share.simulator.hear(share.group))
            except HandoffError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers


class ProcessVecEnv(SplitEnv):
    """N environments in P parts, every part over all of S processes.

    Environment i is the same wherever it lies: parts hold environments in their order, and so do
    the processes within a part.
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
            make: makes n environments; called in the processes, so it must be picklable (a module's
                function or a `functools.partial` of one).
            num_envs: N, shared out as evenly as possible.
            parts: P.
            simulators: S.
            cluster: where they run; None: on this machine.
            noun: what messages call a process of this machine.

        Raises:
            HandoffError: fewer environments than P * S, `make` raised one, a process died, or the
                cluster has no room.
        """
        if not 1 <= parts * simulators <= num_envs:
            raise HandoffError(
                f"placement: {parts} parts over {simulators} simulators of {num_envs} worlds, expected at least one "
                "world of every part in each."
            )
        sizes = _sizes(np.arange(num_envs), parts, simulators)
        self._cluster: Cluster | None = None
        self._simulators: list[EnvClient] = []
        try:
            if cluster is not None:
                self._cluster = Cluster(cluster, simulators)
            for number in range(simulators):
                self._simulators.append(self._simulator(number, make, sizes, noun))
            # All are asked: one that could not make its environments is told of here.
            specs, *_ = [simulator.ready() for simulator in self._simulators]
        except BaseException:
            self.close()
            raise
        shares: list[Share] = []
        found: list[SplitEnv] = []
        first = 0
        for group, part in enumerate(sizes):
            begins = np.cumsum([0, *part])
            inside = [
                Share(simulator, group, int(begins[number]), part[number])
                for number, simulator in enumerate(self._simulators)
            ]
            found.append(SplitEnv(inside, specs))
            shares += [share._replace(first=share.first + first) for share in inside]
            first += sum(part)
        super().__init__(shares, specs)
        self.parts = tuple(found)

    def close(self) -> None:
        """Ends the processes; a second call does nothing."""
        for simulator in self._simulators:
            simulator.leave()
        for simulator in self._simulators:
            simulator.close()
        self._simulators = []
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _simulator(
        self, number: int, make: Callable[[int], VecEnv], sizes: list[list[int]], noun: str
    ) -> EnvClient:
        mine = [part[number] for part in sizes]
        if self._cluster is not None:
            return RaySimulator(number, self._cluster, make, mine)
        first = sum(sizes[0][:number]) if len(sizes) == 1 else None
        return Simulator(f"{noun} {number}", make, mine, first)


def placed(config: PlacementConfig, make: Callable[[int], VecEnv], num_envs: int) -> VecEnv:
    """N environments where they are to be simulated: in this process, or in others.

    Args:
        config: where.
        make: makes n environments; picklable, unless they are collocated.
        num_envs: N.

    Raises:
        HandoffError: see `ProcessVecEnv`.
    """
    if config.kind == "collocated":
        return make(num_envs)
    return ProcessVecEnv(make, num_envs, config.stages, config.simulators, config.cluster)


def worker_vec_env(make: Callable[[int], VecEnv], num_envs: int, workers: int) -> ProcessVecEnv:
    """N environments over W processes of this machine, in one part.

    Args:
        make: makes n environments; picklable.
        num_envs: N.
        workers: W, at most N.

    Raises:
        HandoffError: W is not in 1..N, or see `ProcessVecEnv`.
    """
    if not 1 <= workers <= num_envs:
        raise HandoffError(f"workers: {workers} for {num_envs} worlds, expected 1..{num_envs}.")
    return ProcessVecEnv(make, num_envs, simulators=workers, noun="worker")


def _sizes(worlds: np.ndarray, parts: int, simulators: int) -> list[list[int]]:
    """How many environments of every part lie with each simulator."""
    return [
        [len(here) for here in np.array_split(part, simulators)]
        for part in np.array_split(worlds, parts)
    ]


def _joined(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    return Step(
        observation=_side_by_side([step.observation for step in steps]),
        reward=np.concatenate([step.reward for step in steps]),
        terminated=np.concatenate([step.terminated for step in steps]),
        truncated=np.concatenate([step.truncated for step in steps]),
        final_observation=_side_by_side([step.final_observation for step in steps]),
        info=_side_by_side([step.info for step in steps]),
        executed=np.concatenate([step.executed for step in steps]),
    )


def _side_by_side(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
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
