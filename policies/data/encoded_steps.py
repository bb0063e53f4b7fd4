"""Encodes the pictures and point clouds of recorded steps once, by the encoders of a policy.

For trainings that keep the encoders, such as distillation and fine-tuning: pictures then cost one
pass over the recorded steps, instead of one in every update.

Shape suffixes: M recorded steps, B batch, T observed steps, O observation, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from policies.data.frames import FrameSource
from policies.data.stored_maps import FrozenTrunks
from policies.policy import ChunkPolicy, ObservationTensors
from robots.interfaces import Progress, no_progress

_BYTES = 2**22
"""Size of the frames of one pass [bytes]; the network needs about forty times as much memory."""
_LARGEST = 1024
"""Largest number of steps of one pass."""


@torch.no_grad()
def encoded_steps(
    policy: ChunkPolicy,
    observation_MO: Tensor,
    sensors: Mapping[str, FrameSource],
    progress: Progress = no_progress,
    instruction_M: Sequence[str] = (),
) -> Tensor:
    """(M, O + F) float32 vectors with the features of every step, without random crops; the vectors
    alone if there are no sensors.

    Args:
        policy: policy whose encoders are used, in evaluation mode.
        observation_MO: normalised vectors of the recorded steps.
        sensors: frames of every recorded step, by camera and point cloud.
        progress: called after every pass.
        instruction_M: instruction of every step; for encoders that it changes, see
            `FrozenEncoderConfig.instructed`.
    """
    if not sensors:
        return observation_MO
    steps, device = len(observation_MO), policy.device
    trunks = FrozenTrunks(policy)
    size = sum(prod(frames.step_shape) for frames in sensors.values())
    parts = []
    for rows_B in torch.arange(steps).split(min(_LARGEST, max(1, _BYTES // size))):
        vector_BTO = observation_MO[rows_B.to(observation_MO.device), None].to(device)
        frames = {
            name: trunks(name, each.steps(rows_B[:, None])).to(device)
            for name, each in sensors.items()
        }
        lines = tuple(instruction_M[int(row)] for row in rows_B) if instruction_M else ()
        encoded_BTO = policy.encode(ObservationTensors(vector_BTO, frames, lines))
        assert encoded_BTO is not None, "families with sensors that are encoded"
        parts.append(encoded_BTO[:, 0].float())
        progress(int(rows_B[-1]) + 1, steps, "steps encoded")
    return torch.cat(parts)
