"""Twenty faults that can be planted in synthetic tele-operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robots.franka import find_robot
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import EPISODES, JOINTS, RATE_HZ, Recording


@dataclass(frozen=True)
class Fault:
    """A fault, with the check that must name it and the episodes that it concerns."""

    name: str
    check: str
    plant: Callable[[Recording, np.random.Generator], list[int]]
    """Changes the recording; returns the episodes concerned, empty for the whole set."""


def _one(rng: np.random.Generator) -> int:
    return int(rng.integers(EPISODES))


def _stuck_camera(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    pictures = recording.episodes[episode]["camera"]
    start = int(rng.integers(20, len(pictures) - 60))
    pictures[start : start + 40] = pictures[start]
    return [episode]


def _lag(recording: Recording, rng: np.random.Generator) -> list[int]:
    """Observations reach the recorder three steps late."""
    for arrays in recording.episodes:
        for name in ("joints", "velocities", "gripper", "tool_rotation", "camera"):
            arrays[name] = arrays[name][:-3]
        for name in ("action", "reward", "timestamp"):
            arrays[name] = arrays[name][3:]
    return []


def _swapped(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    first, second = rng.choice(7, 2, replace=False)
    joints = recording.episodes[episode]["joints"]
    joints[:, [first, second]] = joints[:, [second, first]]
    return [episode]


def _duplicate(recording: Recording, rng: np.random.Generator) -> list[int]:
    first, second = (int(number) for number in rng.choice(EPISODES, 2, replace=False))
    recording.episodes[second] = recording.episodes[first]
    return sorted((first, second))


def _degrees_once(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    _to_degrees(recording.episodes[episode])
    return [episode]


def _degrees_everywhere(recording: Recording, rng: np.random.Generator) -> list[int]:
    for arrays in recording.episodes:
        _to_degrees(arrays)
    return []


def _to_degrees(arrays: dict[str, np.ndarray]) -> None:
    arrays["joints"] = np.degrees(arrays["joints"])
    arrays["action"][:, :7] = np.degrees(arrays["action"][:, :7])


def _dead_joint(recording: Recording, rng: np.random.Generator) -> list[int]:
    joint, value = int(rng.integers(7)), np.float32(rng.uniform(-0.5, 0.5))
    for arrays in recording.episodes:
        arrays["joints"][:, joint] = value
    return []


def _black_camera(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    pictures = recording.episodes[episode]["camera"]
    pictures[:] = rng.integers(0, 3, pictures.shape)
    return [episode]


def _idle_head(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    arrays, rest = recording.episodes[episode], round(3.0 * RATE_HZ)
    noise = {"joints": 5e-4, "velocities": 5e-3, "gripper": 1e-5, "action": 3e-4}
    for name, values in arrays.items():
        head = np.repeat(values[:1], rest, axis=0)
        if name in noise:
            head = head + rng.normal(0.0, noise[name], head.shape).astype(np.float32)
        if name == "camera":
            head = np.clip(head + rng.normal(0.0, 1.5, head.shape), 0, 255).astype(np.uint8)
        if name == "timestamp":
            head = values[0] + np.arange(-rest, 0) / RATE_HZ
        arrays[name] = np.concatenate([head, values])
    return [episode]


def _jump(recording: Recording, rng: np.random.Generator) -> list[int]:
    """A joint leaps at one step and stays displaced for a while."""
    episode = _one(rng)
    joints = recording.episodes[episode]["joints"]
    start = int(rng.integers(20, len(joints) - 40))
    joints[start : start + 15, int(rng.integers(7))] += 0.6
    return [episode]


def _missing_instructions(recording: Recording, rng: np.random.Generator) -> list[int]:
    episodes = sorted(int(i) for i in rng.choice(EPISODES, EPISODES // 3, replace=False))
    for episode in episodes:
        if rng.uniform() < 0.5:
            del recording.metadata[episode]["instruction"]
        else:
            recording.metadata[episode]["instruction"] = ""
    return episodes


def _sign_flips(recording: Recording, rng: np.random.Generator) -> list[int]:
    episodes = sorted(int(i) for i in rng.choice(EPISODES, 3, replace=False))
    for episode in episodes:
        rotation = recording.episodes[episode]["tool_rotation"]
        rotation[int(rng.integers(10, len(rotation) - 10)) :] *= -1.0
    return episodes


def _not_unit_length(recording: Recording, rng: np.random.Generator) -> list[int]:
    episodes = sorted(int(i) for i in rng.choice(EPISODES, 2, replace=False))
    for episode in episodes:
        recording.episodes[episode]["tool_rotation"] *= np.float32(rng.uniform(0.9, 0.97))
    return episodes


def _frozen_state(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    joints = recording.episodes[episode]["joints"]
    start = int(rng.integers(10, len(joints) - 60))
    joints[start : start + 40] = joints[start]
    return [episode]


def _padded_tail(recording: Recording, rng: np.random.Generator) -> list[int]:
    episodes = sorted(int(i) for i in rng.choice(EPISODES, 4, replace=False))
    for episode in episodes:
        arrays, rows = recording.episodes[episode], int(rng.integers(8, 30))
        for name, values in arrays.items():
            arrays[name] = np.concatenate([values, np.repeat(values[-1:], rows, axis=0)])
        arrays["timestamp"][-rows:] += np.arange(1, rows + 1) / RATE_HZ
    return episodes


def _beyond_limit(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode, joint = _one(rng), int(rng.integers(7))
    arrays, limits = recording.episodes[episode], find_robot("fr3").limits
    joints = arrays["joints"][:, joint]
    shift = limits.q_max[joint] + 0.05 - joints.max()
    arrays["joints"][:, joint] += np.float32(shift)
    arrays["action"][:, joint] += np.float32(shift)
    return [episode]


def _too_short(recording: Recording, rng: np.random.Generator) -> list[int]:
    episode = _one(rng)
    arrays = recording.episodes[episode]
    for name, values in arrays.items():
        arrays[name] = values[: len(values) // 10]
    return [episode]


def _saturated(recording: Recording, rng: np.random.Generator) -> list[int]:
    """Two joints of the action are clipped in all episodes to the middle 60 % of their values."""
    for joint in rng.choice(7, 2, replace=False):
        values = np.concatenate([arrays["action"][:, joint] for arrays in recording.episodes])
        low, high = np.percentile(values, (20, 80))
        for arrays in recording.episodes:
            arrays["action"][:, joint] = np.clip(arrays["action"][:, joint], low, high)
    return []


def _same_fields(recording: Recording, rng: np.random.Generator) -> list[int]:
    recording.extra["joints_desired"] = FieldSpec(
        shape=(7,), unit="rad", names=(JOINTS,), role="observation"
    )
    for arrays in recording.episodes:
        arrays["joints_desired"] = arrays["joints"].copy()
    return []


def _jittered_times(recording: Recording, rng: np.random.Generator) -> list[int]:
    episodes = sorted(int(i) for i in rng.choice(EPISODES, 3, replace=False))
    for episode in episodes:
        times = recording.episodes[episode]["timestamp"]
        times += rng.uniform(-0.4, 0.4, len(times)) / RATE_HZ
    return episodes


FAULTS = (
    Fault("stuck camera", "stuck_camera", _stuck_camera),
    Fault("lag of 3 steps", "lag", _lag),
    Fault("swapped joints in one episode", "swapped_entries", _swapped),
    Fault("duplicate episode", "duplicates", _duplicate),
    Fault("one episode in degrees", "units", _degrees_once),
    Fault("whole set in degrees", "units", _degrees_everywhere),
    Fault("dead joint", "dead_entries", _dead_joint),
    Fault("black camera", "blank_pictures", _black_camera),
    Fault("idle head of 3 s", "idle", _idle_head),
    Fault("jump", "jumps", _jump),
    Fault("missing instructions", "labels", _missing_instructions),
    Fault("quaternion sign flips", "quaternions", _sign_flips),
    Fault("quaternion not of unit length", "quaternions", _not_unit_length),
    Fault("frozen state", "frozen_observation", _frozen_state),
    Fault("padded tail", "padding", _padded_tail),
    Fault("joint beyond its limit", "joint_limits", _beyond_limit),
    Fault("episode too short", "lengths", _too_short),
    Fault("saturated actions", "saturation", _saturated),
    Fault("two fields with the same content", "equal_fields", _same_fields),
    Fault("jittered times", "times", _jittered_times),
)
