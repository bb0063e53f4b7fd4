"""Recordings of an arm: what it was told, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

SHORTEST = 10
"""Fewest samples of a recording."""


class Recording(NamedTuple):
    """What the robot was told and what it did; row k of each belongs to time k / rate_hz."""

    target: np.ndarray
    """(T, J) commanded joint positions [rad]."""
    q: np.ndarray
    """(T, J) measured joint positions [rad]."""
    rate_hz: float
    dq: np.ndarray | None = None
    """(T, J) measured joint velocities [rad/s], of which the first row starts the replay; None
    starts it at rest."""


def read_recordings(
    path: Path,
    *,
    episodes: Sequence[int] | None = None,
    stream: str = "robot",
    target: str = "q_d",
    every: int = 10,
) -> list[Recording]:
    """Recordings from an `EpisodeStore`, such as a deployment's 1 kHz stream `robot`.

    `q_d` is what drove the arm only where the robot's own joint controller followed it; under
    torque control record the targets in a field of their own and name it.

    Args:
        path: of the store.
        episodes: which; None takes all.
        stream: one with the fields `q` (J,), `target` (J or more,) and perhaps `dq` (J,).
        target: field of the commanded joint positions; as many entries are taken as `q` has.
        every: keeps each `every`-th sample; 10 makes 100 Hz of 1 kHz.

    Raises:
        HandoffError: no such store, episode, stream or field, or what `check_recordings` finds.
    """
    if every < 1:
        raise HandoffError(f"recordings: every {every}th sample asked for, expected at least 1.")
    store = EpisodeStore.open(path)
    spec = store.schema.stream(stream)
    fields = ["q", target, *(["dq"] if "dq" in spec.fields else [])]
    recordings = []
    for episode in range(store.num_episodes) if episodes is None else episodes:
        arrays = store.read(episode, stream, fields)
        taken = {
            name: np.asarray(array, dtype=np.float64)[::every] for name, array in arrays.items()
        }
        commanded = taken[target][:, : taken["q"].shape[1]]
        recordings.append(Recording(commanded, taken["q"], spec.rate_hz / every, taken.get("dq")))
    check_recordings(recordings)
    return recordings


def check_recordings(recordings: Sequence[Recording], joints: int | None = None) -> None:
    """Checks that recordings can be replayed together.

    Args:
        recordings: at least one.
        joints: J, of the arm that replays them; None takes that of the first recording.

    Raises:
        HandoffError: none, another shape than (T, J), too short, not finite, different rates, or an
            arm that never left its place.
    """
    if not recordings:
        raise HandoffError("recordings: none given, at least 1 is needed. Is the store empty?")
    joints = recordings[0].q.shape[-1] if joints is None else joints
    for i, recording in enumerate(recordings):
        length = len(recording.q)
        arrays = {"q": recording.q, "target": recording.target}
        arrays |= {} if recording.dq is None else {"dq": recording.dq}
        for name, array in arrays.items():
            if array.shape != (length, joints):
                raise HandoffError(
                    f"recording {i}: {name} has shape {array.shape}, expected ({length}, {joints}). Is it the "
                    "arm's alone?"
                )
            if not np.isfinite(array).all():
                step, joint = np.argwhere(~np.isfinite(array))[0]
                raise HandoffError(
                    f"recording {i}: {name} of joint {joint + 1} at sample {step} is {array[step, joint]}, expected a "
                    "finite number. Was a sensor lost?"
                )
        if length < SHORTEST:
            raise HandoffError(
                f"recording {i}: {length} samples, at least {SHORTEST} are needed. Was it cut off at once?"
            )
        if not recording.rate_hz > 0.0:
            raise HandoffError(
                f"recording {i}: rate is {recording.rate_hz} Hz, expected more than 0."
            )
    rates = sorted({float(recording.rate_hz) for recording in recordings})
    if len(rates) > 1:
        raise HandoffError(
            f"recordings: rates {rates} Hz, expected one. Resample them before tuning."
        )
    if max(float(np.ptp(recording.target, axis=0).max()) for recording in recordings) < 1e-4:
        raise HandoffError(
            "recordings: no target moves by more than 0.0001 rad; nothing can be told from an arm at rest. "
            "Was the field of the targets the right one?"
        )
