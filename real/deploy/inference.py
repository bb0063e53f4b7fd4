"""Infers a policy's chunks in a thread beside the control loop, and schedules their actions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from typing import Any

import numpy as np

from real.deploy.schedule import ChunkSchedule, ObservationHistory
from robots.config import Delay, config
from robots.contract import Contract
from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Policy, PolicyInput
from robots.language.text import INSTRUCTION, decode
from robots.spec import check_field

WARM_UP = 2
"""First inferences of an episode, which say nothing about the time of later ones."""
RECENT = 50
"""Newest inferences from whose times the next one's is expected."""


class InlineExecutor(Executor):
    """Runs a call at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs the call and returns its finished future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@config
class InferenceDelay:
    """A delay of the policy that is simulated, in robot time: an action takes effect at the policy
    step after the chunk has come."""

    seconds: Delay = 0.0
    """Shortest delay [s]."""
    jitter: Delay = 0.0
    """Longest addition to it [s]; drawn uniformly per inference, by the seed of the episode."""

    def steps(self, rate_hz: float, seed: int, inference: int) -> int:
        """Policy steps by which the chunk of an inference is late.

        Args:
            rate_hz: policy steps per second.
            seed: seed of the episode.
            inference: number of the inference in it.
        """
        late = self.seconds
        if self.jitter:
            late += self.jitter * float(np.random.default_rng((seed, inference)).random())
        return _steps(late, rate_hz)

    def most_steps(self, rate_hz: float) -> int:
        """Policy steps by which a chunk is late at most."""
        return _steps(self.seconds + self.jitter, rate_hz)


class ChunkInference:
    """The observations, the running inference and the newest chunk of one episode.

    Args:
        policy: a function of observation and noise; takes instructions if the contract has them.
        contract: contract of the policy.
        executor: executor with one thread, in which the policy runs, or `InlineExecutor`.
        seed: seed of the policy's noise.
        wait: whether `action` waits for a running inference; without waiting it returns the actions
            of the last chunk until the new one has arrived.
        inference_ms: list to which the host time of every inference is appended [ms].
        grace: time for which `action` waits nevertheless in the step that begins an inference [s],
            so that a fast policy acts on the observation of the same step, as in its training.
        delay: what every inference is delayed by, if `wait` is set.

    A policy that takes decided actions (`Contract.prefix`) is given those that are executed until
    its chunk is expected: for as many steps as the simulated delay takes at most, or as 95 % of the
    last inferences took, without the first ones, which are slower. Its chunk counts from there on.
    """

    def __init__(
        self,
        policy: Policy | MultimodalPolicy,
        contract: Contract,
        executor: Executor,
        *,
        seed: int,
        wait: bool,
        inference_ms: list[float],
        grace: float = 0.0,
        delay: InferenceDelay | None = None,
    ) -> None:
        self._policy = policy
        self._contract = contract
        self._executor = executor
        self._seed = seed
        self._wait = wait
        self._grace = grace
        self._delay = delay or InferenceDelay()
        self._ready = 0
        """Policy step from which on the chunk of the running inference may be taken."""
        self._patience = 0.0
        """Rest of the grace of the running inference [s]."""
        self._inference_ms = inference_ms
        self._schedule = ChunkSchedule(contract)
        self._forget()
        self._instructions: tuple[str, ...] = ()
        self._running: tuple[Future[np.ndarray], int] | None = None
        """The running inference and the policy step of its observation."""
        self._chunks = 0
        """Number of inferences so far; it numbers their noise."""

    def observe(self, observation: Mapping[str, Any]) -> None:
        """Adds the observation of a policy step.

        Args:
            observation: fields, cameras and point clouds of the contract without a leading
                dimension, and the instruction if there is one.

        Raises:
            HandoffError: a field of the contract is missing or has another shape.
        """
        self._history.append(_vector(self._contract, observation))
        for name, history in self._sensors.items():
            array = np.asarray(observation[name])
            check_field(name, self._contract.sensors[name], array, leading=0)
            history.append(array)
        if self._contract.instruction and INSTRUCTION in observation:
            self._instructions = decode(np.asarray(observation[INSTRUCTION])[None])

    def action(self, step: int) -> np.ndarray | None:
        """(A,) action of policy step `step`; None if no chunk has one.

        Begins an inference if one is due, and takes the chunk of one that has ended, after which
        the next may be due at once.
        """
        for _ in range(2):
            if self._running is None and self._schedule.due(step):
                self._begin(step)
            self._receive(step)
        return self._schedule.action(step)

    def next_action(self, observation: Mapping[str, Any], step: int) -> np.ndarray:
        """(A,) action of policy step `step` after its observation; for an instance that waits for
        every inference."""
        self.observe(observation)
        action = self.action(step)
        if action is None:
            raise HandoffError(f"inference: no chunk has an action for step {step}.")
        return action

    def replan(self, step: int) -> np.ndarray | None:
        """(A,) action of policy step `step` by a new inference, whatever was planned before."""
        self._drop_chunks()
        self._begin(step)
        self._receive(step)
        return self._schedule.action(step)

    def restart(self) -> None:
        """Forgets all chunks, and observations that follow one another, from which a policy reads
        velocities; those of windows with a stride are what it remembers of the episode."""
        if self._contract.observation_stride == 1:
            self._forget()
        self._drop_chunks()

    def _forget(self) -> None:
        """Begins new histories of the vector and of every camera and point cloud."""
        steps, stride = self._contract.n_obs_steps, self._contract.observation_stride
        self._history = ObservationHistory(steps, stride)
        self._sensors = {name: ObservationHistory(steps, stride) for name in self._contract.sensors}

    def _drop_chunks(self) -> None:
        """Drops the newest chunk and that of a running inference."""
        self._schedule = ChunkSchedule(self._contract)
        self._running = None

    def _begin(self, step: int) -> None:
        size = int(np.prod(self._contract.action.shape))
        noise = chunk_noise(self._seed, self._chunks, self._contract.horizon, size)[None]
        vector = self._history.stacked()
        sensors = {name: history.stacked(dtype=None) for name, history in self._sensors.items()}
        late = self._delay.steps(self._contract.rate_hz, self._seed, self._chunks)
        prefix, decided = self._prefix(step)
        inputs = (
            PolicyInput(vector, sensors, self._instructions, prefix=prefix)
            if sensors or self._contract.instruction or prefix is not None
            else vector
        )
        self._running = (self._executor.submit(self._infer, inputs, noise), step)
        self._patience = self._grace
        self._ready = step + max(late, decided)
        self._chunks += 1
        self._schedule.requested(step)

    def _prefix(self, step: int) -> tuple[np.ndarray | None, int]:
        """(1, P, A + 1) actions that are executed until the chunk of step `step` is expected, and
        their number; None for a policy that takes none."""
        most = self._contract.prefix
        if not most:
            return None, 0
        steps = self._expected_steps()
        size = int(np.prod(self._contract.action.shape))
        prefix = np.zeros((1, most, size + 1), np.float32)
        for number in range(min(steps, most)):
            action = self._schedule.action(step + number)
            if action is None:
                return prefix, number
            prefix[0, number] = [*action, 1.0]
        return prefix, min(steps, most)

    def _expected_steps(self) -> int:
        """Steps that an inference is expected to take, beyond the time for which `action` waits."""
        if self._wait:
            return self._delay.most_steps(self._contract.rate_hz)
        taken = self._inference_ms[WARM_UP:][-RECENT:]
        if not taken:
            return 0
        seconds = float(np.quantile(taken, 0.95)) * 1e-3 - self._grace
        return max(0, math.ceil(seconds * self._contract.rate_hz))

    def _infer(self, inputs: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        begin = time.perf_counter()
        # The policy of a contract with an instruction takes instructions.
        chunk = self._policy(inputs, noise)[0]  # type: ignore[arg-type]
        self._inference_ms.append((time.perf_counter() - begin) * 1e3)
        return chunk

    def _receive(self, step: int) -> None:
        """Takes the chunk of the running inference in policy step `step`, once that has ended or if
        `wait` is set."""
        if self._running is None or step < self._ready:
            return
        future, began = self._running
        if self._patience and not (self._wait or future.done()):
            wait_for([future], self._patience)
            self._patience = 0.0
        if not (self._wait or future.done()):
            return
        self._running = None
        self._schedule.receive(future.result(), began)


def _steps(seconds: float, rate_hz: float) -> int:
    """A time in policy steps, rounded up; one of a whole number of steps is that number, whatever
    the last bits say."""
    return math.ceil(seconds * rate_hz - 1e-9)


def _vector(contract: Contract, observation: Mapping[str, Any]) -> np.ndarray:
    """(O,) float32, the contract's fields concatenated."""
    missing = sorted({*contract.observation, *contract.sensors} - observation.keys())
    if missing:
        raise HandoffError(
            f"observation: lacks {missing}, which the policy's contract needs; it has {sorted(observation)}."
        )
    for name, spec in contract.observation.items():
        check_field(name, spec, np.asarray(observation[name]), leading=0)
    fields = [np.ravel(observation[name]) for name in contract.observation]
    return np.concatenate(fields).astype(np.float32)
