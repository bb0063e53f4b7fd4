"""Converts the observations of chunk environments to a policy's inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from policies.policy import InstructionTokens, ObservationTensors
from robots.language.text import INSTRUCTION, decode


def observation_tensors(obs: Any) -> ObservationTensors:
    """A policy's inputs from an observation of `policies.rl.collection.chunk_env.ChunkEnv`."""
    if isinstance(obs, Tensor):
        return ObservationTensors(obs)
    names = [str(name) for name in obs.keys()]  # noqa: SIM118 - iterating goes through the rows
    sensors = {
        name: obs[name][:, None]
        for name in names
        if name not in (VECTOR, INSTRUCTION, TOKENS, MASK)
    }
    if TOKENS in names:
        # Environments on a device have tokenised the instructions.
        return ObservationTensors(
            obs[VECTOR], sensors, instruction_tokens=InstructionTokens(obs[TOKENS], obs[MASK])
        )
    instructions = decode(obs[INSTRUCTION].numpy()) if INSTRUCTION in names else ()
    return ObservationTensors(obs[VECTOR], sensors, instructions)


VECTOR = "vector"
"""Key of the observation vector in a TensorDict of several fields."""


TOKENS, MASK = "tokens", "mask"
"""Keys of the instruction's tokens and mask, where the environments tokenise."""
