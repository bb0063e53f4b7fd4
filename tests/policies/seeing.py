"""Small demonstrations with a camera and a point cloud, whose brightness and height encode the
goal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

SIZE = (33, 64)
"""Height and width of a picture [px]; ResNet-18 makes 2 x 2 places of them."""
FIELDS = {
    "agent": FieldSpec(shape=(2,), unit="m", frame="board"),
    "camera": FieldSpec(shape=(*SIZE, 3), dtype="uint8", unit="u8"),
    "cloud": FieldSpec(shape=(5, 3), unit="m", frame="board"),
    "action": FieldSpec(shape=(2,), unit="m", frame="board"),
}


def write_seeing_demonstrations(demos: Path, episodes: int = 3, steps: int = 8) -> Path:
    """A store in the directory `demos`."""
    demos.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    schema = EpisodeSchema(
        name="seeing", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)}
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for _ in range(episodes):
            action = rng.uniform(0.1, 0.4, 2) * np.linspace(0.1, 1.0, steps)[:, None]
            camera = (
                rng.integers(0, 60, (steps, *SIZE, 3))
                + (action[:, :1] * 400).astype(int)[..., None, None]
            )
            cloud = rng.normal(0.0, 0.1, (steps, 5, 3)) + action[:, None, 1:]
            agent = np.concatenate([np.zeros((1, 2)), action[:-1]])
            values = {
                "agent": agent,
                "camera": camera.astype(np.uint8),
                "cloud": cloud,
                "action": action,
            }
            writer.append({"policy": values}, {})
    return demos
