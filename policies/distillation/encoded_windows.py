"""Encodes the pictures and point clouds of all states once, by the encoder that teacher and student
share.

A one-step student begins with the weights of its teacher and answers the same observations, so
the teacher's encoder is kept, and only what turns noise into a chunk learns. Pictures then cost one
pass over the recorded steps, instead of one in every update.

Shape suffixes: M recorded steps, B batch, T observed steps, O observation with features.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from policies.data.windows import Windows
from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.training.loop import autocast
from robots.interfaces import Progress

_BYTES = 2**22
"""Size of the frames of one pass [bytes]; the network needs about forty times as much memory."""
_LARGEST = 1024
"""Largest number of steps of one pass."""


@torch.no_grad()
def encoded_windows(
    policy: DiffusionPolicy, windows: Windows, precision: str, progress: Progress
) -> Windows:
    """Windows whose vectors are the encoded observations; those of a policy without sensors are the
    same.

    Args:
        policy: policy whose encoder is used, in evaluation mode: with centre crops.
        windows: windows of recorded steps.
        precision: `bf16` or `fp32`.
        progress: called after every pass.
    """
    if not windows.sensors:
        return windows
    steps = len(windows.observation_MO)
    parts = []
    done = 0
    sizes = {name: frames.step_shape for name, frames in windows.sensors.items()}
    for rows_B in torch.arange(steps).split(_rows(sizes)):
        sensors = {name: frames.steps(rows_B[:, None]) for name, frames in windows.sensors.items()}
        vector_BTO = windows.observation_MO[rows_B.to(windows.observation_MO.device), None]
        parts.append(_encoded(policy, ObservationTensors(vector_BTO, sensors), precision)[:, 0])
        done += len(rows_B)
        progress(done, steps, "steps encoded")
    return replace(windows, observation_MO=torch.cat(parts), sensors={})


def _encoded(policy: DiffusionPolicy, states: ObservationTensors, precision: str) -> Tensor:
    device = policy.device
    sensors = {name: frames.to(device) for name, frames in states.sensors.items()}
    with autocast(precision, device):
        encoded = policy.encoder(ObservationTensors(states.vector_BTO.to(device), sensors))
    return encoded.float()


def _rows(sizes: dict[str, tuple[int, ...]]) -> int:
    """States per pass, given the shapes of their frames."""
    return min(_LARGEST, max(1, _BYTES // sum(map(prod, sizes.values()))))
