"""Runs the robot's inference code as an agent of an evaluation, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from real.deploy.inference import ChunkInference, InlineExecutor
from real.deploy.onnx_policy import OnnxPolicy
from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv
from sim.evaluation.agent import Agent, MakeAgent
from sim.evaluation.protocol import Sampling


class RobotAgent:
    """An `Agent` whose every environment has the history, the schedule and the single-row inference
    of a robot (`real.deploy.inference.ChunkInference`).

    Args:
        policy: the exported policy.
    """

    def __init__(self, policy: OnnxPolicy) -> None:
        self._policy = policy
        self._shape = policy.contract.action.shape

    def reset(self, seeds: Sequence[int]) -> None:
        """See `Agent.reset`."""
        self._robots = [
            ChunkInference(
                self._policy,
                self._policy.contract,
                InlineExecutor(),
                seed=int(seed),
                wait=True,
                inference_ms=[],
            )
            for seed in seeds
        ]
        self._step = 0

    def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
        """See `Agent.act`.

        Raises:
            SafetyError: an observation or action that is not finite.
            HandoffError: an observation that does not fit the contract.
        """
        actions = np.zeros((len(running), *self._shape), dtype=np.float32)
        for row in np.flatnonzero(running):
            obs = {name: values[row] for name, values in observation.items()}
            actions[row] = self._robots[row].next_action(obs, self._step)
        self._step += 1
        return actions


def load_robot(path: Path, rate_hz: float, sampling: Sampling) -> MakeAgent:
    """Loads an exported policy as the robot runs it.

    Args:
        path: path of the ONNX file.
        rate_hz: rate of the contract, which must be that of the environments [1/s].
        sampling: sampling of the protocol; the robot samples Gaussian noise with the steps inside
            the graph.

    Raises:
        HandoffError: the protocol prescribes noise that no robot samples.
    """
    if sampling.noise != "gaussian":
        raise HandoffError(
            f"gate: the protocol's noise is '{sampling.noise}', a robot samples Gaussian noise. Gate under another "
            "protocol."
        )
    policy = OnnxPolicy(path)

    def make(env: VecEnv) -> Agent:
        if abs(env.rate_hz - rate_hz) > 1e-6 * rate_hz:
            raise HandoffError(
                f"gate: the policy's contract says {rate_hz:g} Hz, the environments run at {env.rate_hz:g} Hz. Was it "
                "trained for another rate, or is this the protocol of another task?"
            )
        return RobotAgent(policy)

    return make
