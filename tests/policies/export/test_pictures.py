"""The statistics of the training pictures in a policy's file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from policies.data.frames import Frames
from policies.export.pictures import picture_metadata
from robots.control.training_pictures import PICTURES_KEY, from_json, judge_picture


def demonstrations(ends: list[int]) -> Any:
    """Noisy grey pictures, and a point cloud."""
    noise = torch.randint(0, 20, (ends[-1], 12, 16, 3), generator=torch.Generator().manual_seed(0))
    sensors = {
        "image_front": Frames([(100 + noise).to(torch.uint8)]),
        "points": Frames([torch.zeros(ends[-1], 5, 3)[:, :, 0]]),
    }
    return SimpleNamespace(ends_E=np.array(ends), sensors=sensors)


def test_every_camera_has_statistics_that_the_robots_side_reads() -> None:
    metadata = picture_metadata(demonstrations([10, 25, 40]))
    found = from_json(metadata[PICTURES_KEY])
    assert set(found) == {"image_front"}
    statistics = found["image_front"]
    assert (statistics.episodes, statistics.pictures) == (3, 40)
    assert judge_picture(statistics, np.full((12, 16, 3), 109, np.uint8)).distance < 2.0
    assert judge_picture(statistics, np.full((12, 16, 3), 20, np.uint8)).distance > 2.0


def test_a_policy_without_cameras_has_none() -> None:
    assert picture_metadata(SimpleNamespace(ends_E=np.array([10, 20]), sensors={})) == {}  # type: ignore[arg-type]
