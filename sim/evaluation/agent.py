"""Acts in N environments: chunk policies with their history and noise, scripted experts, random
actions, and replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol as Interface
from typing import runtime_checkable

import numpy as np

from robots.config import config
from robots.control.noise import chunk_noise
from robots.control.temporal_ensemble import temporal_ensemble
from robots.errors import HandoffError
from robots.interfaces import Observation, Policy, PolicyInput, SeeingPolicy, VecEnv
from robots.language.text import INSTRUCTION, decode
from robots.spec import ActionSpec
from sim.episode_streams import EpisodeStream
from sim.evaluation.protocol import Protocol, Sampling, agreed


class Agent(Interface):
    """Acts in N worlds that were started together. Each row depends on its own seed and
    observations only."""

    def reset(self, seeds: Sequence[int]) -> None:
        """N episodes begin; their chance comes from `seeds`."""
        ...

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """The next action of every world.

        Args:
            observation: per field `(N, ...)`.
            running: (N,) bool; what is answered for the others is not executed.

        Returns:
            (N, A).
        """
        ...


_VECTOR = ""
"""Name of the observation vector among the histories; no field is called so."""

AgentFor = Callable[[VecEnv], Agent]
"""Makes the agent for worlds that it is about to act in; whatever is slow to load was loaded
before."""


@config
class Chunking:
    """How a chunk policy reads history and how much of each chunk is executed."""

    fields: tuple[str, ...] = ("keypoints", "agent")
    """Observation fields of one step, flattened and concatenated in this order; without any the
    vector is empty."""
    sensors: tuple[str, ...] = ()
    """Cameras and point clouds that the policy is shown, by their fields."""
    instruction: str | None = None
    """What the policy is told to do; None tells it nothing."""
    listens: bool = False
    """Whether worlds that ask for something in words (`robots.language.text.INSTRUCTION`) have
    their own say instead."""
    action_size: int = 2
    """A, entries of one action."""
    n_obs_steps: int = 2
    """Observations per inference, newest last; at the start the first one is repeated."""
    horizon: int = 16
    """Actions predicted per inference."""
    n_action_steps: int = 8
    """Actions executed per inference, starting at index `n_obs_steps - 1`, which belongs to the
    newest observation."""
    ensemble: float | None = None
    """Asks at every step, so that `n_action_steps` has no say, and acts on all chunks that foresaw
    the step, with exp(-ensemble * i) for the i-th oldest (`robots.control.temporal_ensemble`); None
    does without."""


def chunking_under(protocol: Protocol, own: Chunking) -> Chunking:
    """How a policy is executed under the protocol: as the policy would, unless the protocol rules
    otherwise.

    Raises:
        HandoffError: the protocol rules a history or a horizon that the policy's network does not
            have.
    """
    rule = protocol.chunk
    agreed("chunk.n_obs_steps", rule.n_obs_steps, own.n_obs_steps)
    agreed("chunk.horizon", rule.horizon, own.horizon)
    return own if rule.n_action_steps is None else replace(own, n_action_steps=rule.n_action_steps)


class ChunkAgent:
    """Receding horizon: a chunk policy, of whose every chunk a few actions are executed. An
    `Agent`."""

    def __init__(
        self, policy: Policy | SeeingPolicy, chunking: Chunking, sampling: Sampling | None = None
    ) -> None:
        """Takes a loaded policy.

        Args:
            policy: in the units of the worlds.
            chunking: shapes agreed with the policy.
            sampling: where its noise comes from.

        Raises:
            HandoffError: more actions are to be executed than a chunk holds.
        """
        most = chunking.horizon - chunking.n_obs_steps + 1
        if not 1 <= chunking.n_action_steps <= most:
            raise HandoffError(
                f"chunking: n_action_steps is {chunking.n_action_steps}, expected 1..{most} for a horizon of "
                f"{chunking.horizon} with {chunking.n_obs_steps} observations."
            )
        self._policy = policy
        self._chunking = chunking
        self._sampling = sampling or Sampling()
        self._foreseen = most

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`."""
        sizes = self._chunking
        self._seeds = [int(seed) for seed in seeds]
        self._step = 0
        self._history: dict[str, np.ndarray] = {}
        self._chunk_NHA = np.zeros((len(seeds), sizes.horizon, sizes.action_size), dtype=np.float32)
        self._chunks: list[np.ndarray] = []

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`; the policy is asked for the worlds that still run only.

        Raises:
            HandoffError: the policy answered a wrong shape or a non-finite value.
        """
        sizes = self._chunking
        self._told = _told(observation, sizes)
        for name, newest in _seen(observation, sizes).items():
            before = self._history.get(name)
            shown = (
                [before[:, 1:], newest[:, None]]
                if before is not None
                else [newest[:, None]] * sizes.n_obs_steps
            )
            self._history[name] = np.concatenate(shown, axis=1)
        index, offset = divmod(self._step, sizes.n_action_steps if sizes.ensemble is None else 1)
        if offset == 0:
            rows = np.flatnonzero(running)
            self._chunk_NHA[rows] = self._predict(rows, [self._seeds[i] for i in rows], index)
        self._step += 1
        if sizes.ensemble is None:
            return self._chunk_NHA[:, sizes.n_obs_steps - 1 + offset].copy()
        self._chunks = [*self._chunks, self._chunk_NHA.copy()][-self._foreseen :]
        return temporal_ensemble(np.stack(self._chunks), sizes.ensemble, sizes.n_obs_steps - 1)

    def _predict(self, rows: np.ndarray, seeds: Sequence[int], index: int) -> np.ndarray:
        """Chunk number `index` of the worlds `rows`, whose episodes are `seeds`, checked:
        (len(rows), horizon, A)."""
        shape = (self._chunking.horizon, self._chunking.action_size)
        if self._sampling.noise == "zero":
            noise = np.zeros((len(seeds), *shape), dtype=np.float32)
        else:
            noise = np.stack([chunk_noise(seed, index, *shape) for seed in seeds])
        chunk = np.asarray(self._ask(rows, noise))
        if chunk.shape != noise.shape:
            raise HandoffError(
                f"policy output: shape {chunk.shape}, expected {noise.shape} (worlds, horizon, action). "
                "Was the policy trained with another horizon or action?"
            )
        if not np.isfinite(chunk).all():
            row, step, entry = (int(i) for i in np.argwhere(~np.isfinite(chunk))[0])
            raise HandoffError(
                f"policy output: value at index ({row}, {step}, {entry}) is {chunk[row, step, entry]} in chunk {index} "
                f"of the episode with seed {seeds[row]}, expected finite. Did training diverge?"
            )
        return chunk

    def _ask(self, rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
        sizes, vector = self._chunking, self._history[_VECTOR][rows]
        if not sizes.sensors and not self._told:
            return self._policy(vector, noise)
        sensors = {name: self._history[name][rows] for name in sizes.sensors}
        told = tuple(self._told[row] for row in rows) if self._told else ()
        # Whoever names sensors or an instruction hands over a policy that can be shown them.
        return self._policy(PolicyInput(vector, sensors, told), noise)  # type: ignore[arg-type]


class RandomAgent:
    """Acts uniformly within the bounds of the actions: what no skill at all comes to. An
    `Agent`."""

    def __init__(self, spec: ActionSpec) -> None:
        """Takes the world's actions.

        Raises:
            HandoffError: an entry has no bound, so nothing is uniform over it.
        """
        self._low, self._high = np.array(spec.low), np.array(spec.high)
        if not (np.isfinite(self._low) & np.isfinite(self._high)).all():
            raise HandoffError(
                f"random agent: the actions are bounded by {spec.low} and {spec.high}, expected finite bounds. "
                "This world does not say what an ordinary action is."
            )

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`."""
        self._generators = [
            np.random.default_rng([int(seed), EpisodeStream.RANDOM_AGENT]) for seed in seeds
        ]

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`."""
        return np.stack(
            [generator.uniform(self._low, self._high) for generator in self._generators]
        )


@runtime_checkable
class Demonstrating(Interface):
    """An engine whose task has a scripted expert."""

    def expert_action(self) -> np.ndarray:
        """(N, A) what the expert does now."""
        ...


class ExpertAgent:
    """Does what the task's scripted expert does; it sees the worlds' state, not their observations.
    An `Agent`."""

    def __init__(self, env: VecEnv) -> None:
        """Takes the worlds to act in.

        Raises:
            HandoffError: their engine has no scripted expert, or is in other processes.
        """
        engine = getattr(env, "engine", None)
        if not isinstance(engine, Demonstrating):
            raise HandoffError(
                f"expert: {type(env).__name__} has no scripted expert within reach. Is it a task of `sim.make.TASKS`?"
            )
        self._engine = engine

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`; the expert is a function of the present."""

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`."""
        return self._engine.expert_action()


class ReplayAgent:
    """Takes recorded actions again. An `Agent`."""

    def __init__(self, actions: Sequence[np.ndarray]) -> None:
        """Takes one `(steps, A)` array per world; after its end a world is told its last action
        again."""
        longest = max(len(array) for array in actions)
        self._actions_NTA = np.stack(
            [np.pad(a, ((0, longest - len(a)), (0, 0)), mode="edge") for a in actions]
        )

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`."""
        self._step = 0

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`."""
        self._step += 1
        return self._actions_NTA[:, self._step - 1]


def _told(observation: Observation, sizes: Chunking) -> tuple[str, ...]:
    """What every world's policy is told; empty where it is told nothing."""
    if sizes.listens and INSTRUCTION in observation:
        return decode(observation[INSTRUCTION])
    count = len(next(iter(observation.values())))
    return () if sizes.instruction is None else (sizes.instruction,) * count


def _seen(observation: Observation, sizes: Chunking) -> Mapping[str, np.ndarray]:
    """Per sensor `(N, ...)` as the world shows it, and under `_VECTOR` `(N, O)` float32 of all
    fields."""
    missing = [name for name in (*sizes.fields, *sizes.sensors) if name not in observation]
    if missing:
        raise HandoffError(
            f"observation: no field {missing}; the world has {sorted(observation)}. Another task, or a protocol whose "
            "worlds make no pictures?"
        )
    count = len(next(iter(observation.values())))
    parts = [observation[name].reshape(count, -1) for name in sizes.fields]
    vector_NO = (
        np.concatenate(parts, axis=1).astype(np.float32)
        if parts
        else np.zeros((count, 0), np.float32)
    )
    return {_VECTOR: vector_NO, **{name: observation[name] for name in sizes.sensors}}
