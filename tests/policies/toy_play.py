"""Play in a toy environment: a point that a push moves, a wall that never does, and a lamp that
switches at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from policies.rewards.config import ClassifierConfig
from policies.training.config import TrainingConfig
from policies.world_model.config import LATENT, WorldModelConfig, WorldModelSizes
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

SOLVED = 0.6
"""Where the point is to be, at least."""
PUSH = 0.1
"""Way of an action of 1."""

_DEFAULT = WorldModelConfig()
TOY = WorldModelConfig(
    fields=("point", "wall", "lamp"),
    sizes=WorldModelSizes(recurrent=32, hidden=(32,), latents=4, classes=4),
    sequence=12,
    held_out=0.1,
    horizons=(1, 10),
    training=TrainingConfig(
        steps=400,
        learning_rate=3e-3,
        batch_size=16,
        warmup_steps=20,
        max_grad_norm=10.0,
        preflight_seconds=0.0,
    ),
    success=replace(
        _DEFAULT.success,
        classifier=ClassifierConfig(
            fields=(LATENT,), label_field="success", vector_width=32, hidden=(32,)
        ),
        training=TrainingConfig(
            steps=300, learning_rate=3e-3, batch_size=128, warmup_steps=10, preflight_seconds=0.0
        ),
        precision=0.8,
    ),
)


def write_play(folder: Path, episodes: int = 60, steps: int = 40, *, labelled: bool = True) -> Path:
    """A store of play in `folder`; every episode has a wall of its own."""
    rng = np.random.default_rng(0)
    fields = {name: FieldSpec(shape=(1,)) for name in ("point", "wall", "lamp", "action")}
    if labelled:
        fields["success"] = FieldSpec(shape=(), dtype="uint8")
    folder.mkdir(parents=True, exist_ok=True)
    schema = EpisodeSchema(name="toy", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for _ in range(episodes):
            # Pushes that go on for a while, so that all of the line is seen.
            action = np.repeat(rng.uniform(-1.0, 1.0, steps // 4), 4)[:, None]
            point = np.full((steps + 1, 1), rng.uniform(-0.5, 0.5))
            for step in range(steps):
                point[step + 1] = np.clip(point[step] + PUSH * action[step], -1.0, 1.0)
            rows = {
                "point": point[:-1],
                "wall": np.full((steps, 1), rng.uniform(-1.0, 1.0)),
                "lamp": np.sign(rng.standard_normal((steps, 1))),
                "action": action,
            }
            label = {"success": (point[1:, 0] > SOLVED).astype(np.uint8)} if labelled else {}
            writer.append({"policy": {**rows, **label}}, {})
    return folder
