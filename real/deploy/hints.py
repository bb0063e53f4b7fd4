"""Gives hints to the person who supervises a policy, by the spread of sampled chunks and by the
distance of the observation from the training data.

The spread is sampled beside the executed chunk and never in its place: the policy acts as it does
without hints. On hardware a thread of its own samples, so that no inference waits for it; a sample
that is still under way is not begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from real.deploy.inference import InlineExecutor
from real.hints.causes import hint_text
from real.hints.config import DeploymentHints
from real.hints.monitor import HintMonitor, recorded_measures
from real.hints.signals import HINT, deployment_signals, hint_fields
from robots.contract import Contract
from robots.control.training_range import RangeCheck
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Observation, Policy, PolicyInput

LEAST_SPREAD = 1e-5
"""Spread up to which chunks count as equal [widths of the actions in the training data]."""
HINT_STREAM = 1
"""Second entry of the seed sequence of sampled chunks, behind the seed of the episode; the number
of the inference follows."""
PROBES = 32
"""Chunks that are compared to find out whether a policy is deterministic."""


class ChunkSpread:
    """Spread of chunks that a policy samples for one observation.

    Args:
        policy: a function of observation and noise.
        contract: its contract.

    Raises:
        HandoffError: the contract has no range of the actions, by which the spread is scaled.
    """

    def __init__(self, policy: Policy | MultimodalPolicy, contract: Contract) -> None:
        if contract.action_range is None:
            raise HandoffError(
                f"hints.spread: the policy of {contract.task} states no range of its actions. Export it again."
            )
        self._policy = policy
        first = contract.n_obs_steps - 1
        self._executed = slice(first, first + contract.n_action_steps)
        width = np.subtract(contract.action_range.high, contract.action_range.low)
        self._varies = width > 0.0
        self._width = width[self._varies]
        self._chunk = (contract.horizon, int(np.prod(contract.action.shape)))

    def __call__(
        self, inputs: np.ndarray | PolicyInput, samples: int, rng: np.random.Generator
    ) -> float:
        """Standard deviation over sampled chunks, as the mean over their executed actions and the
        entries that vary in the training data [widths of an entry's range there].

        Args:
            inputs: one observation, as the policy takes it.
            samples: number of chunks.
            rng: source of their noise.
        """
        noise = rng.standard_normal((samples, *self._chunk), dtype=np.float32)
        # A policy that takes instructions or cameras gets them in every row.
        chunks = self._policy(_repeated(inputs, samples), noise)  # type: ignore[arg-type]
        executed = chunks[:, self._executed][..., self._varies]
        return float((executed.std(axis=0) / self._width).mean()) if self._width.size else 0.0


class DeployHints:
    """Hints in a supervised session.

    Args:
        config: sources of hints, at least one.
        policy: the policy.
        contract: its contract.
        show: called with the sentence of the hint, empty without one, at every step.
        wait: whether robot time waits for the policy, and therefore for its samples too.

    Raises:
        HandoffError: the spread of a deterministic policy, or of one without a range of its
            actions.
    """

    def __init__(
        self,
        config: DeploymentHints,
        policy: Policy | MultimodalPolicy,
        contract: Contract,
        show: Callable[[str], None],
        *,
        wait: bool,
    ) -> None:
        self._config = config
        self._policy = policy
        self._contract = contract
        self._show = show
        signals = deployment_signals(config)
        self.monitor = HintMonitor(config, signals, contract.rate_hz)
        """Limits of the signals."""
        self.fields = hint_fields(signals)
        """Fields that are recorded with every step."""
        self._measures = [name for name in self.fields if name != HINT]
        self._range = RangeCheck(contract.observation, contract.training_range)
        self._spread = None if config.spread is None else ChunkSpread(policy, contract)
        self._executor: Executor = InlineExecutor() if wait else ThreadPoolExecutor(1, "hints")
        self._sample: Future[float] | None = None
        self._newest: float | None = None
        self._seed = 0
        self._chunks = 0
        if self._spread is not None:
            _refuse_deterministic(self._spread, contract)

    def begin(self, seed: int) -> None:
        """Begins an episode, whose samples follow from its seed."""
        # An episode that a fault ended has not been ended here.
        self.monitor.end(solved=False)
        self._seed = seed
        self._chunks = 0
        self._sample = None
        self._newest = None

    def policy(self, observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        """The policy, for the control loop; every inference begins a sample of its spread."""
        # Both kinds of policies take what they are given here.
        chunk = self._policy(observation, noise)  # type: ignore[arg-type]
        spread, source = self._spread, self._config.spread
        if spread is not None and source is not None:
            rng = np.random.default_rng([self._seed, HINT_STREAM, self._chunks])
            if self._sample is None or self._sample.done():
                self._sample = self._executor.submit(spread, observation, source.samples, rng)
        self._chunks += 1
        return chunk

    def step(self, observation: Observation, *, person: bool) -> dict[str, Any]:
        """Takes a step, before its target is sent; returns what is recorded of it.

        Args:
            observation: the contract's fields, without a leading dimension.
            person: whether the person acts at the step.
        """
        found: dict[str, float] = {}
        if self._sample is not None and self._sample.done():
            self._newest = float(np.float32(self._sample.result()))
        if self._newest is not None:
            found["action_spread"] = self._newest
        if self._config.novelty is not None:
            vector = np.concatenate([np.ravel(observation[name]) for name in self._range.names])
            found["novelty"] = float(np.float32(self._range.distance(vector)))
        measures = {name: found[name] for name in self._measures if name in found}
        causes = self.monitor.step(measures, person=person)
        self._show(hint_text(causes) if self._config.shown else "")
        recorded = recorded_measures(measures, self._measures)
        fields = {name: np.float32(value) for name, value in recorded.items()}
        return {HINT: np.uint8(causes.value), **fields}

    def end(self, *, solved: bool) -> None:
        """Ends the episode and its hint."""
        self.monitor.end(solved=solved)
        self._show("")

    def close(self) -> None:
        """Ends the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _repeated(inputs: np.ndarray | PolicyInput, rows: int) -> np.ndarray | PolicyInput:
    """One observation in `rows` rows."""
    if isinstance(inputs, np.ndarray):
        return np.repeat(inputs, rows, axis=0)
    sensors = {name: np.repeat(array, rows, axis=0) for name, array in inputs.sensors.items()}
    return inputs._replace(
        vector=np.repeat(inputs.vector, rows, axis=0),
        sensors=sensors,
        instructions=inputs.instructions * rows,
        goal=None if inputs.goal is None else np.repeat(inputs.goal, rows, axis=0),
        prefix=None if inputs.prefix is None else np.repeat(inputs.prefix, rows, axis=0),
    )


def _refuse_deterministic(spread: ChunkSpread, contract: Contract) -> None:
    """Refuses a policy whose chunk does not depend on its noise, in the middle of the training
    data."""
    middle = _middle(contract, contract.observation)
    vector = np.concatenate([np.ravel(array) for array in middle.values()]).astype(np.float32)
    window = np.repeat(vector[None, None], contract.n_obs_steps, axis=1)
    sensors = {
        name: np.repeat(array[None, None], contract.n_obs_steps, axis=1)
        for name, array in _middle(contract, contract.sensors).items()
    }
    plain = not sensors and not contract.instruction
    inputs = window if plain else PolicyInput(window, sensors)
    if spread(inputs, PROBES, np.random.default_rng(0)) <= LEAST_SPREAD:
        raise HandoffError(
            f"hints.spread: the policy of {contract.task} is deterministic: its chunk ({contract.sampler}) does not "
            "depend on the noise. Remove hints.spread; hints.novelty works with every policy."
        )


def _middle(contract: Contract, specs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Middle of the training data by field; grey pictures."""
    found = {}
    for name, spec in specs.items():
        if spec.unit == "u8":
            found[name] = np.full(spec.shape, 127, np.uint8)
            continue
        known = contract.training_range.get(name)
        low, high = (known.low, known.high) if known else ((0.0,), (0.0,))
        middle = (np.asarray(low) + np.asarray(high)) / 2.0
        # The range of a point cloud is that of its coordinates.
        whole = middle.reshape(spec.shape) if middle.size == np.prod(spec.shape) else middle
        found[name] = np.broadcast_to(whole, spec.shape).astype(np.float32)
    return found
