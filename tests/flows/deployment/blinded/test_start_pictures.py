"""Pictures of the start of a pair."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from flows.deployment.blinded.start_pictures import StartPictures
from real.cameras.camera import Picture


class Camera:
    """A camera with pictures of one brightness."""

    fault = None

    def __init__(self, grey: int | None) -> None:
        self.grey = grey

    def read(self) -> Picture | None:
        if self.grey is None:
            return None
        return Picture(np.full((16, 16, 3), self.grey, np.uint8), 0.0)


def greys(frames: list[bytes]) -> dict[str, int | None]:
    """Brightness by name of the picture; None for one that is taken away."""
    shown: dict[str, int | None] = {}
    for frame in frames:
        name, content = frame[1 : 1 + frame[0]].decode(), frame[1 + frame[0] :]
        image = np.asarray(Image.open(io.BytesIO(content))) if content else None
        shown[name] = None if image is None else round(float(image.mean()))
    return shown


def test_the_first_start_of_a_pair_is_kept_and_shown_for_the_others(tmp_path: Path) -> None:
    frames: list[bytes] = []
    front, wrist = Camera(40), Camera(None)
    cameras = {"front": front, "wrist/1": wrist}
    pictures = StartPictures(tmp_path, cameras, frames.append)
    assert not pictures.known(0)
    pictures.show(0)
    assert greys(frames) == {"start: front": None, "start: wrist/1": None}
    wrist.grey = 90
    pictures.keep(0)
    front.grey = 200
    pictures.keep(0)
    # Another session, after a kill.
    frames.clear()
    again = StartPictures(tmp_path, cameras, frames.append)
    assert again.known(0)
    again.show(0)
    assert greys(frames) == {"start: front": 40, "start: wrist/1": 90}
    frames.clear()
    again.show(1)
    assert not again.known(1)
    assert greys(frames) == {"start: front": None, "start: wrist/1": None}


def test_a_simulated_arm_without_cameras_has_no_pictures(tmp_path: Path) -> None:
    frames: list[bytes] = []
    pictures = StartPictures(tmp_path, {}, frames.append)
    pictures.keep(0)
    pictures.show(0)
    assert (frames, list(tmp_path.iterdir())) == ([], [])
