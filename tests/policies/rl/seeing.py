"""Walking environments with a camera, and their demonstrations: a stripe shows the place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.interfaces import Observation
from robots.spec import FieldSpec
from tests.policies.rl.walking import Walking

EDGE = 32
CAMERA = FieldSpec(shape=(EDGE, EDGE, 3), dtype="uint8", unit="u8")


def picture(place: float) -> np.ndarray:
    """What the camera shows: a stripe whose column is the place, from -2 to 2."""
    image = np.zeros((EDGE, EDGE, 3), np.uint8)
    column = int(np.clip((place + 2.0) / 4.0 * EDGE, 0, EDGE - 4))
    image[:, column : column + 4] = 255
    return image


class SeeingWalking(Walking):
    """Walking environments whose camera shows the place."""

    def __init__(self, num_envs: int, saves: bool = True) -> None:
        super().__init__(num_envs, saves)
        self.observation_spec: Mapping[str, FieldSpec] = {**self.observation_spec, "front": CAMERA}

    def _obs(self) -> Observation:
        return {**super()._obs(), "front": np.stack([picture(place) for place in self.place])}


def write_walks(folder: Path, episodes: int = 4) -> Path:
    """Solved and unsolved walks as steps of a replay buffer: rewards, success, pictures."""
    one = FieldSpec(shape=(1,), unit="m")
    scalar = FieldSpec(shape=())
    fields = {"place": one, "twice": one, "front": CAMERA, "action": FieldSpec(shape=(1,))}
    fields |= {"reward": scalar, "success": scalar}
    schema = EpisodeSchema(
        name="walking", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    folder.mkdir()
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for number in range(episodes):
            solved = number % 2 == 0
            place_T = np.array([1.4, 1.0, 0.6] if solved else [-1.4, -1.2, -1.0], np.float32)
            action_T = np.array([-0.8, -0.8, -0.8] if solved else [0.4, 0.4, 0.4], np.float32)
            after_T = place_T + 0.5 * action_T
            columns = {
                "place": place_T[:, None],
                "twice": 2 * place_T[:, None],
                "front": np.stack([picture(place) for place in place_T]),
                "action": action_T[:, None],
                "reward": -np.abs(after_T),
                "success": np.array([0.0, 0.0, float(solved)], np.float32),
            }
            writer.append({"policy": columns}, {"success": solved})
    return folder
