"""Defines agents that act in N environments: chunk policies with their history and noise, scripted
experts, random actions and replays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol as Interface
from typing import runtime_checkable

import numpy as np

from robots.config import Count, Finite, config
from robots.control.noise import chunk_noise
from robots.control.temporal_ensemble import temporal_ensemble
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Observation, Policy, PolicyInput, VecEnv
from robots.language.text import INSTRUCTION, decode
from robots.spec import ActionSpec
from sim.engines.observed_arm import ObservedArm
from sim.episode_streams import EpisodeStream
from sim.evaluation.protocol import Protocol, Sampling, require_match
from sim.tasks.task import Task


class Agent(Interface):
    """Acts in N environments that are reset together. Each row depends only on its own seed and
    observations."""

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts N episodes, whose randomness is derived from `seeds`."""
        ...

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """The next action of every environment.

        Args:
            observation: per field `(N, ...)`.
            running: (N,) bool; the actions of the other environments are not executed.

        Returns:
            Actions (N, A).
        """
        ...


_VECTOR = ""
"""Key of the observation vector in the history; no field has this name."""

MakeAgent = Callable[[VecEnv], Agent]
"""Makes the agent for given environments; weights have been loaded before."""


@config
class Chunking:
    """Observations and executed actions of a chunk policy."""

    fields: tuple[str, ...] = ("keypoints", "agent")
    """Observation fields of one step, flattened and concatenated in this order; the vector is empty
    if there are none."""
    sensors: tuple[str, ...] = ()
    """Observation fields of the cameras and point clouds that the policy observes."""
    blind: bool = False
    """Whether the sensors are all zeros, black pictures, as a negative control."""
    instruction: str | None = None
    """Instruction to a language-conditioned policy; None passes none."""
    listens: bool = False
    """Whether an instruction observed from the environment (`robots.language.text.INSTRUCTION`)
    takes precedence over `instruction`."""
    action_size: Count = 2
    """A, entries of one action."""
    n_obs_steps: Count = 2
    """Observations per inference, newest last; at the start of an episode the first one is
    repeated."""
    observation_stride: Count = 1
    """Steps between two of them."""
    horizon: Count = 16
    """Actions predicted per inference."""
    n_action_steps: Count = 8
    """Actions executed per inference, starting at index `n_obs_steps - 1`, which belongs to the
    newest observation."""
    ensemble: Finite | None = None
    """Temporal ensembling: infers at every step, ignoring `n_action_steps`, and averages the
    predictions of all chunks for that step with weight exp(-ensemble * i) for the i-th oldest
    (`robots.control.temporal_ensemble`); None executes one chunk at a time."""


def chunking_under(protocol: Protocol, chunking: Chunking) -> Chunking:
    """The policy's own chunking with the settings that the protocol prescribes.

    Raises:
        HandoffError: the protocol prescribes a history or a horizon that the policy's network does
            not have.
    """
    rule = protocol.chunk
    require_match("chunk.n_obs_steps", rule.n_obs_steps, chunking.n_obs_steps)
    require_match("chunk.horizon", rule.horizon, chunking.horizon)
    if rule.n_action_steps is None:
        return chunking
    return replace(chunking, n_action_steps=rule.n_action_steps)


class ChunkAgent:
    """An `Agent` that executes a chunk policy with a receding horizon: some actions of each
    chunk."""

    def __init__(
        self,
        policy: Policy | MultimodalPolicy,
        chunking: Chunking,
        sampling: Sampling | None = None,
    ) -> None:
        """Takes a loaded policy.

        Args:
            policy: maps observations to chunks in the units of the environments.
            chunking: shapes that match the policy.
            sampling: source of the noise.

        Raises:
            HandoffError: `n_action_steps` exceeds the actions of a chunk.
        """
        max_action_steps = chunking.horizon - chunking.n_obs_steps + 1
        if not 1 <= chunking.n_action_steps <= max_action_steps:
            raise HandoffError(
                f"chunking: n_action_steps is {chunking.n_action_steps}, expected 1..{max_action_steps} for a "
                f"horizon of {chunking.horizon} with {chunking.n_obs_steps} observations."
            )
        self._policy = policy
        self._chunking = chunking
        self._sampling = sampling or Sampling()
        self._max_chunks = max_action_steps

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`."""
        sizes = self._chunking
        self._seeds = [int(seed) for seed in seeds]
        self._step = 0
        self._history: dict[str, deque[np.ndarray]] = {}
        self._chunk_NHA = np.zeros((len(seeds), sizes.horizon, sizes.action_size), dtype=np.float32)
        self._chunks: list[np.ndarray] = []

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`; inference covers only the running environments.

        Raises:
            HandoffError: the policy returned a wrong shape or a non-finite value.
        """
        sizes = self._chunking
        span = (sizes.n_obs_steps - 1) * sizes.observation_stride + 1
        # Append the observation to the history; the first one fills it.
        self._instructions = _instructions(observation, sizes)
        for name, newest in _policy_inputs(observation, sizes).items():
            past = self._history.setdefault(name, deque(maxlen=span))
            past.append(np.array(newest))
            if len(past) == 1:
                past.extend([newest] * (span - 1))
        # Predict a new chunk where the last one has been executed.
        index, offset = divmod(self._step, sizes.n_action_steps if sizes.ensemble is None else 1)
        if offset == 0:
            rows = np.flatnonzero(running)
            self._chunk_NHA[rows] = self._predict(rows, [self._seeds[i] for i in rows], index)
        self._step += 1
        if sizes.ensemble is None:
            return self._chunk_NHA[:, sizes.n_obs_steps - 1 + offset].copy()
        self._chunks = [*self._chunks, self._chunk_NHA.copy()][-self._max_chunks :]
        return temporal_ensemble(np.stack(self._chunks), sizes.ensemble, sizes.n_obs_steps - 1)

    def _predict(self, rows: np.ndarray, seeds: Sequence[int], index: int) -> np.ndarray:
        """Predicts and checks chunk number `index` of the environments `rows` with episode seeds
        `seeds`: (len(rows), horizon, A)."""
        shape = (self._chunking.horizon, self._chunking.action_size)
        if self._sampling.noise == "zero":
            noise = np.zeros((len(seeds), *shape), dtype=np.float32)
        else:
            noise = np.stack([chunk_noise(seed, index, *shape) for seed in seeds])
        chunk = np.asarray(self._infer(rows, noise))
        if chunk.shape != noise.shape:
            raise HandoffError(
                f"policy output: shape {chunk.shape}, expected {noise.shape} (environments, horizon, action). "
                "Was the policy trained with another horizon or action?"
            )
        if not np.isfinite(chunk).all():
            row, step, entry = (int(i) for i in np.argwhere(~np.isfinite(chunk))[0])
            raise HandoffError(
                f"policy output: value at index ({row}, {step}, {entry}) is {chunk[row, step, entry]} in chunk {index} "
                f"of the episode with seed {seeds[row]}, expected finite. Did training diverge?"
            )
        return chunk

    def _observed(self, name: str, rows: np.ndarray) -> np.ndarray:
        """The observed steps (rows, T, ...) of the vector or a sensor, newest last."""
        past = [*self._history[name]][:: self._chunking.observation_stride]
        return np.stack([step[rows] for step in past], axis=1)

    def _infer(self, rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
        sizes = self._chunking
        vector = self._observed(_VECTOR, rows)
        if not sizes.sensors and not self._instructions:
            return self._policy(vector, noise)
        sensors = {name: self._observed(name, rows) for name in sizes.sensors}
        if sizes.blind:
            sensors = {name: np.zeros_like(frames) for name, frames in sensors.items()}
        texts = tuple(self._instructions[row] for row in rows) if self._instructions else ()
        # A chunking with sensors or an instruction belongs to a policy that takes a PolicyInput.
        return self._policy(PolicyInput(vector, sensors, texts), noise)  # type: ignore[arg-type]


class RandomAgent:
    """An `Agent` that acts uniformly at random within the action bounds, as a baseline."""

    def __init__(self, spec: ActionSpec) -> None:
        """Takes the environment's action specification.

        Raises:
            HandoffError: an entry of the action has no finite bound.
        """
        self._low = np.array(spec.low)
        self._high = np.array(spec.high)
        if not (np.isfinite(self._low) & np.isfinite(self._high)).all():
            raise HandoffError(
                f"random agent: the actions are bounded by {spec.low} and {spec.high}, expected finite bounds. "
                "Does this environment leave its actions unbounded?"
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
class ExpertEngine(Interface):
    """An engine whose task has a scripted expert."""

    def expert_action(self) -> np.ndarray:
        """(N, A) the expert's action in the current state."""
        ...


class ExpertAgent:
    """An `Agent` that follows the task's scripted expert, which reads the simulator's state instead
    of observations."""

    def __init__(self, env: VecEnv) -> None:
        """Takes the environments to act in.

        Raises:
            HandoffError: their engine has no scripted expert, or runs in other processes.
        """
        engine = getattr(env, "engine", None)
        if not isinstance(engine, ExpertEngine):
            raise HandoffError(
                f"expert: {type(env).__name__} has no scripted expert in this process. Is it a task of "
                "`sim.make.TASKS`, with workers: 1?"
            )
        self._engine = engine

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`; the expert depends only on the current state."""

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`."""
        return self._engine.expert_action()


class ObservedExpertAgent:
    """An `Agent` that follows the scripted expert of a task.

    Args:
        task: the task.
        env: the environments to act in.
    """

    def __init__(self, task: Task, env: VecEnv) -> None:
        self._arm = ObservedArm(task, env.num_envs)

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`; the expert depends only on the current state."""

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`."""
        self._arm.observe(observation)
        return self._arm.expert_action()


class ReplayAgent:
    """An `Agent` that repeats recorded actions."""

    def __init__(self, actions: Sequence[np.ndarray]) -> None:
        """Takes one `(steps, A)` array per environment, whose last action is repeated after its
        end."""
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


def _instructions(observation: Observation, sizes: Chunking) -> tuple[str, ...]:
    """The instruction of every environment; empty if the policy takes none."""
    if sizes.listens and INSTRUCTION in observation:
        return decode(observation[INSTRUCTION])
    count = len(next(iter(observation.values())))
    return () if sizes.instruction is None else (sizes.instruction,) * count


def _policy_inputs(observation: Observation, sizes: Chunking) -> Mapping[str, np.ndarray]:
    """Per sensor the observed `(N, ...)`, and under `_VECTOR` all fields as `(N, O)` float32."""
    missing = [name for name in (*sizes.fields, *sizes.sensors) if name not in observation]
    if missing:
        raise HandoffError(
            f"observation: no field {missing}; the environment has {sorted(observation)}. Is it another task, or "
            "a protocol without cameras?"
        )
    count = len(next(iter(observation.values())))
    columns = [observation[name].reshape(count, -1) for name in sizes.fields]
    vector_NO = (
        np.concatenate(columns, axis=1).astype(np.float32)
        if columns
        else np.zeros((count, 0), np.float32)
    )
    return {_VECTOR: vector_NO, **{name: observation[name] for name in sizes.sensors}}
