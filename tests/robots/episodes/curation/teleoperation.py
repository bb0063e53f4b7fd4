"""Synthetic tele-operation: minimum-jerk motions of a seven-joint arm with noise, a camera, a
gripper, instructions, success and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec, check_samples
from robots.episodes.store import EpisodeStore
from robots.franka import find_robot
from robots.spec import WXYZ, FieldSpec

RATE_HZ = 20.0
EPISODES = 12
HEIGHT, WIDTH = 32, 48
JOINTS = tuple(f"joint{i}" for i in range(1, 8))
INSTRUCTIONS = ("put the cube into the box", "lift the cube")


def schema(extra: dict[str, FieldSpec] | None = None) -> EpisodeSchema:
    fields = {
        "joints": FieldSpec(shape=(7,), unit="rad", names=(JOINTS,), role="observation"),
        "velocities": FieldSpec(shape=(7,), unit="rad/s", names=(JOINTS,), role="observation"),
        "gripper": FieldSpec(shape=(1,), unit="m", role="observation"),
        "tool_rotation": FieldSpec(shape=(4,), names=WXYZ, role="observation"),
        "camera": FieldSpec(shape=(HEIGHT, WIDTH, 3), dtype="uint8", unit="u8", role="observation"),
        "action": FieldSpec(
            shape=(8,),
            unit="rad, rad, rad, rad, rad, rad, rad, m",
            names=((*JOINTS, "gripper"),),
            role="action",
        ),
        "reward": FieldSpec(shape=(), role="outcome"),
        "timestamp": FieldSpec(shape=(), dtype="float64", unit="s", role="other"),
        **(extra or {}),
    }
    return EpisodeSchema(
        name="lift", streams={"policy": StreamSpec(rate_hz=RATE_HZ, fields=fields)}, robot="fr3"
    )


@dataclass(frozen=True)
class MemoryStore:
    """The part of an episode store that an examination reads."""

    schema: EpisodeSchema
    stored: list[dict[str, dict[str, np.ndarray]]]
    about: list[dict[str, Any]]
    path: Path = Path("memory")

    @property
    def num_episodes(self) -> int:
        return len(self.stored)

    def metadata(self, episode: int) -> dict[str, Any]:
        return dict(self.about[episode])

    def ends(self, stream: str) -> np.ndarray:
        return np.cumsum([len(next(iter(streams[stream].values()))) for streams in self.stored])

    def read(
        self,
        episode: int,
        stream: str,
        fields: list[str] | None = None,
        steps: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        arrays = self.stored[episode][stream]
        return {name: arrays[name][steps] for name in (arrays if fields is None else fields)}


def memory_store(
    fields: dict[str, FieldSpec],
    episodes: list[dict[str, np.ndarray]],
    rate_hz: float = 10.0,
    robot: str = "",
) -> EpisodeStore:
    """A store in memory with the given fields and episodes."""
    stream = StreamSpec(rate_hz=rate_hz, fields=fields)
    stored = [{"policy": arrays} for arrays in episodes]
    layout = EpisodeSchema(name="small", streams={"policy": stream}, robot=robot)
    return cast(EpisodeStore, MemoryStore(layout, stored, [{} for _ in episodes]))


@dataclass
class Recording:
    """Episodes in memory, before and after a fault was planted."""

    episodes: list[dict[str, np.ndarray]]
    metadata: list[dict[str, Any]]
    extra: dict[str, FieldSpec] = field(default_factory=dict)

    def in_memory(self) -> EpisodeStore:
        """A store that only reads, without a disk."""
        spec = schema(self.extra).streams["policy"]
        stored = [{"policy": check_samples("policy", spec, arrays)} for arrays in self.episodes]
        return cast(EpisodeStore, MemoryStore(schema(self.extra), stored, self.metadata))

    def write(self, path: Path) -> EpisodeStore:
        with (
            EpisodeStore.create(path, schema(self.extra)) as store,
            store.writer() as writer,
        ):
            for arrays, metadata in zip(self.episodes, self.metadata, strict=True):
                writer.append({"policy": arrays}, metadata)
        return EpisodeStore.open(path)


def record(seed: int, episodes: int = EPISODES) -> Recording:
    rng = np.random.default_rng(seed)
    arrays = [_episode(rng) for _ in range(episodes)]
    successes = rng.permutation([True] * (episodes - 2) + [False] * 2).tolist()
    metadata = [
        {"instruction": INSTRUCTIONS[number % 2], "success": success}
        for number, success in enumerate(successes)
    ]
    return Recording(arrays, metadata)


def _episode(rng: np.random.Generator) -> dict[str, np.ndarray]:
    target, opening = _targets(rng)
    steps = len(target)
    # The controller reaches four fifths of a target within one step.
    joints = target.copy()
    width = opening.copy()
    for t in range(1, steps):
        joints[t] = joints[t - 1] + 0.8 * (target[t - 1] - joints[t - 1])
        width[t] = width[t - 1] + 0.4 * (opening[t - 1] - width[t - 1])
    velocities = np.gradient(joints, 1.0 / RATE_HZ, axis=0)
    measured = joints + rng.normal(0.0, 5e-4, joints.shape)
    reward = np.zeros(steps)
    reward[-1] = 1.0
    return {
        "joints": measured.astype(np.float32),
        "velocities": (velocities + rng.normal(0.0, 5e-3, joints.shape)).astype(np.float32),
        "gripper": (width[:, None] + rng.normal(0.0, 1e-5, (steps, 1))).astype(np.float32),
        "tool_rotation": _rotation(joints).astype(np.float32),
        "camera": _pictures(joints, width, rng),
        "action": np.column_stack([target + rng.normal(0.0, 3e-4, target.shape), opening]).astype(
            np.float32
        ),
        "reward": reward.astype(np.float32),
        "timestamp": (np.arange(steps) + rng.normal(0.0, 0.01, steps)) / RATE_HZ,
    }


def _targets(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Joint targets (T, 7) through a few postures near the ready posture, and openings (T,)."""
    home = find_robot("fr3").q_home
    posture = home + rng.normal(0.0, 0.05, 7)
    opening, parts, openings = 0.08, [], []
    for number in range(int(rng.integers(3, 6))):
        goal = home + rng.uniform(-0.45, 0.45, 7)
        steps = round(rng.uniform(1.5, 3.0) * RATE_HZ)
        tau = np.arange(1, steps + 1) / steps
        course = 10.0 * tau**3 - 15.0 * tau**4 + 6.0 * tau**5
        parts.append(posture + course[:, None] * (goal - posture))
        openings.append(np.full(steps, opening))
        posture = goal
        pause = round(rng.uniform(0.2, 0.5) * RATE_HZ)
        opening = 0.02 if number % 2 == 0 else 0.08
        parts.append(np.tile(posture, (pause, 1)))
        openings.append(np.full(pause, opening))
    return np.concatenate(parts), np.concatenate(openings)


def _rotation(joints: np.ndarray) -> np.ndarray:
    """(T, 4) a smooth unit quaternion that depends on the wrist."""
    vector = 0.5 * (joints[:, 4:7] - find_robot("fr3").q_home[4:7])
    angle = np.linalg.norm(vector, axis=1, keepdims=True)
    axis = vector / np.maximum(angle, 1e-9)
    return np.concatenate([np.cos(angle / 2.0), axis * np.sin(angle / 2.0)], axis=1)


def _pictures(joints: np.ndarray, width: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(T, 48, 64, 3) a disc that moves with the joints before a gradient, with noise."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    background = 80.0 + 60.0 * columns / WIDTH + 30.0 * rows / HEIGHT
    x = WIDTH / 2 + 30.0 * joints[:, 0] + 12.0 * joints[:, 4]
    y = HEIGHT / 2 + 20.0 * (joints[:, 1] + 0.785) + 10.0 * (joints[:, 3] + 2.356)
    distance = np.hypot(columns - x[:, None, None], rows - y[:, None, None])
    cover = np.clip(9.0 + 40.0 * width[:, None, None] - distance, 0.0, 1.0)[..., None]
    colour = np.array([210.0, 120.0, 40.0])
    pictures = (1.0 - cover) * background[..., None] + cover * colour
    pictures += rng.normal(0.0, 1.5, pictures.shape)
    return np.clip(pictures, 0, 255).astype(np.uint8)
