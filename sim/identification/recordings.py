"""Reads recordings of an arm's commanded and measured motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

SHORTEST = 10
"""Minimum number of samples of a recording."""
STILL = 1e-4
"""Largest motion of an arm at rest [rad]."""
ECHO = 1e-7
"""Largest distance of a target that repeats the measurement [rad]."""


class Recording(NamedTuple):
    """Commanded and measured motion of the robot; row k of each array is at time k / rate_hz."""

    target: np.ndarray
    """(T, J) commanded joint positions [rad]."""
    q: np.ndarray
    """(T, J) measured joint positions [rad]."""
    rate_hz: float
    dq: np.ndarray | None = None
    """(T, J) measured joint velocities [rad/s], whose first row is the replay's initial velocity;
    None starts it at rest."""


def read_recordings(
    path: Path,
    *,
    episodes: Sequence[int] | None = None,
    stream: str = "robot",
    target: str = "q_d",
    every: int = 10,
) -> list[Recording]:
    """Reads recordings from an `EpisodeStore`, such as a deployment's 1 kHz stream `robot`.

    `q_d` is the commanded position only if the robot's own joint controller tracked it; with torque
    control, record the targets in a separate field and name it.

    Args:
        path: folder of the store.
        episodes: numbers of the episodes; None takes all.
        stream: stream with the fields `q` (J,), `target` (J or more,) and optionally `dq` (J,).
        target: field of the commanded joint positions, of which the first J entries are used.
        every: keeps each `every`-th sample; 10 converts 1 kHz to 100 Hz.

    Raises:
        HandoffError: no such store, episode, stream or field, a target that repeats the
            measurement, or an error of `check_recordings`.
    """
    if every < 1:
        raise HandoffError(f"recordings: every is {every}, expected at least 1.")
    store = EpisodeStore.open(path)
    if stream not in store.schema.streams:
        raise HandoffError(
            f"recordings: {path} has no stream '{stream}' with motions of a robot, it has "
            f"{sorted(store.schema.streams)}. The stages `excite` and `excite_arm` record such a stream."
        )
    spec = store.schema.stream(stream)
    fields = ["q", target, *(["dq"] if "dq" in spec.fields else [])]
    recordings = []
    for episode in range(store.num_episodes) if episodes is None else episodes:
        arrays = store.read(episode, stream, fields)
        _check_commanded(path, episode, target, arrays)
        samples = {
            name: np.asarray(array, dtype=np.float64)[::every] for name, array in arrays.items()
        }
        commanded = samples[target][:, : samples["q"].shape[1]]
        recordings.append(
            Recording(commanded, samples["q"], spec.rate_hz / every, samples.get("dq"))
        )
    check_recordings(recordings)
    return recordings


def _check_commanded(
    path: Path, episode: int, target: str, arrays: Mapping[str, np.ndarray]
) -> None:
    """Checks that the target is no echo of the measurement, of the same or of the last sample: as
    `q_d` is while torques are commanded.

    Args:
        path: folder of the store, for the message.
        episode: number of the episode.
        target: field of the commanded joint positions.
        arrays: (T, J) `q`, and the field `target`, whose first J entries are used.

    Raises:
        HandoffError: it is.
    """
    q = np.asarray(arrays["q"], dtype=np.float64)
    commanded = np.asarray(arrays[target], dtype=np.float64)[:, : q.shape[1]]
    if commanded.shape != q.shape or np.ptp(q, axis=0).max() < STILL:
        return
    echoes = ((commanded, q), (commanded[1:], q[:-1]))
    if any(np.abs(asked - measured).max() < ECHO for asked, measured in echoes):
        raise HandoffError(
            f"recordings: in episode {episode} of {path} the target '{target}' repeats the measured positions: the arm "
            "was commanded by torques, as in every session of `handoff deploy` and `handoff record`. Record motions "
            "under a joint controller (docs/guides/identification.md), or name the field of the targets."
        )


def check_recordings(recordings: Sequence[Recording], joints: int | None = None) -> None:
    """Checks that recordings can be replayed together.

    Args:
        recordings: at least one recording.
        joints: J, number of joints of the replaying arm; None takes that of the first recording.

    Raises:
        HandoffError: no recordings, a shape other than (T, J), too few samples, non-finite values,
            different rates, or an arm that does not move.
    """
    if not recordings:
        raise HandoffError("recordings: 0 given, at least 1 is needed. Is the store empty?")
    joints = recordings[0].q.shape[-1] if joints is None else joints
    for i, recording in enumerate(recordings):
        length = len(recording.q)
        arrays = {"q": recording.q, "target": recording.target}
        arrays |= {} if recording.dq is None else {"dq": recording.dq}
        for name, array in arrays.items():
            if array.shape != (length, joints):
                raise HandoffError(
                    f"recording {i}: {name} has shape {array.shape}, expected ({length}, {joints}). Does it contain "
                    "more than the arm's joints?"
                )
            if not np.isfinite(array).all():
                step, joint = np.argwhere(~np.isfinite(array))[0]
                raise HandoffError(
                    f"recording {i}: {name} of joint {joint + 1} at sample {step} is {array[step, joint]}, expected a "
                    "finite number. Did a sensor fail?"
                )
        if length < SHORTEST:
            raise HandoffError(
                f"recording {i}: {length} samples, at least {SHORTEST} are needed. Was the recording aborted?"
            )
        if not recording.rate_hz > 0.0:
            raise HandoffError(
                f"recording {i}: rate is {recording.rate_hz} Hz, expected a positive rate."
            )
    rates = sorted({float(recording.rate_hz) for recording in recordings})
    if len(rates) > 1:
        raise HandoffError(
            f"recordings: rates {rates} Hz, expected one common rate. Resample them before tuning."
        )
    if max(float(np.ptp(recording.target, axis=0).max()) for recording in recordings) < STILL:
        raise HandoffError(
            "recordings: no target moves by more than 0.0001 rad; an arm at rest determines no parameter. "
            "Is the field of the targets the right one?"
        )
