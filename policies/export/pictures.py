"""Describes the training pictures of a policy's cameras in its file, so that a session at an arm
can say when a camera's picture looks unlike them."""

from __future__ import annotations

import numpy as np
import torch

from policies.data.demonstrations import DemonstrationArrays
from policies.data.frames import FrameSource
from robots.control.training_pictures import PICTURES_KEY, picture_statistics, to_json


def picture_metadata(data: DemonstrationArrays) -> dict[str, str]:
    """Metadata of the graph with the statistics of the training pictures; empty for a policy
    without cameras, and for demonstrations of too few episodes.

    Args:
        data: demonstrations of the policy.
    """
    ends = [int(end) for end in data.ends_E]
    found = {}
    for name, frames in data.sensors.items():
        if len(frames.step_shape) == 3:
            statistics = picture_statistics(lambda step, of=frames: _picture(of, step), ends)
            if statistics is not None:
                found[name] = statistics
    return {PICTURES_KEY: to_json(found)} if found else {}


def _picture(frames: FrameSource, step: int) -> np.ndarray:
    return frames.steps(torch.tensor([step]))[0].numpy()
