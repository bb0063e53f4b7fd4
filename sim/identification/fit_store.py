"""Tunes the simulated arm to a store of recorded motions, and writes the dynamics that environments
use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import to_plain, validate
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Progress
from robots.storage.durable import write_atomically
from sim.identification.config import TuneStoreConfig
from sim.identification.parameters import nominal_values, parameters_of
from sim.identification.recordings import Recording, read_recordings
from sim.identification.report import write_tuning
from sim.identification.tracking import Tracking
from sim.identification.tune import Tuning, tune
from sim.scene.dynamics import ArmDynamics

DYNAMICS = "dynamics.json"
"""File of the tuned dynamics."""
SEARCH = "search.npz"
"""File from which an interrupted search resumes."""


def fit_store(
    config: TuneStoreConfig, store: Path, out: Path, progress: Progress, source: str = ""
) -> dict[str, Any]:
    """Fits the parameters to the recordings in `store`, and writes `dynamics.json` and the report
    to `out`. An interrupted search resumes from its content.

    Args:
        config: parameters, recordings and effort of the search.
        store: episode store of recorded motions.
        out: existing folder.
        progress: counts parameter sets.
        source: digest of the recordings, stored with the dynamics.

    Returns:
        `mse` and `nominal_mse` [rad^2], `held_out_mse` and `held_out_nominal_mse` (None without
        held-out recordings), `recordings`, `values` by name, `undetermined` names, `trade_offs`.

    Raises:
        HandoffError: recordings of another robot, too few of them, a rate that does not divide the
            stream's, or an error of `tune`.
    """
    recordings = _read(config, store)
    robot = find_robot(config.tracking.robot)
    split = len(recordings) - config.held_out
    if split < 1:
        raise HandoffError(
            f"tune: {store} has {len(recordings)} recordings and held_out is {config.held_out}; at least one is "
            "needed for the fit. Record more motions, or lower held_out."
        )
    parameters = parameters_of(config.parameters, robot)
    tuning = tune(recordings[:split], parameters, config, progress, out / SEARCH)
    held_out = _held_out_errors(tuning, recordings[split:]) if config.held_out else None
    write_tuning(tuning, out, held_out)
    dynamics = tuning.dynamics(source, config.spread)
    write_atomically(out / DYNAMICS, (json.dumps(to_plain(dynamics), indent=2) + "\n").encode())
    (out / SEARCH).unlink(missing_ok=True)
    determined = zip(tuning.names, tuning.report.determined, strict=True)
    return {
        "mse": tuning.mse,
        "nominal_mse": tuning.nominal_mse,
        "held_out_mse": None if held_out is None else held_out[1],
        "held_out_nominal_mse": None if held_out is None else held_out[0],
        "recordings": len(recordings),
        "values": {item.name: item.value for item in dynamics.values},
        "undetermined": [name for name, found in determined if not found],
        "trade_offs": [direction.about for direction in tuning.report.open_directions],
    }


def read_dynamics(folder: Path) -> ArmDynamics:
    """Reads the dynamics that `fit_store` wrote to `folder`.

    Raises:
        HandoffError: there are none, or they are damaged.
    """
    path = folder / DYNAMICS
    try:
        plain = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HandoffError(
            f"dynamics: cannot read {path} ({error}). Is it an output of tune?"
        ) from None
    return validate(ArmDynamics, plain, str(path))


def _read(config: TuneStoreConfig, store: Path) -> list[Recording]:
    with EpisodeStore.open(store) as opened:
        schema = opened.schema
    robot = config.tracking.robot
    if schema.robot and schema.robot != robot:
        raise HandoffError(
            f"tune: {store} holds recordings of the robot '{schema.robot}', tracking.robot is '{robot}'."
        )
    ratio = schema.stream(config.stream).rate_hz / config.rate_hz
    every = round(ratio)
    if every < 1 or abs(ratio - every) > 1e-6:
        raise HandoffError(
            f"tune: rate_hz is {config.rate_hz}, expected a whole fraction of the stream's "
            f"{schema.stream(config.stream).rate_hz} Hz."
        )
    return read_recordings(store, stream=config.stream, target=config.target, every=every)


def _held_out_errors(tuning: Tuning, recordings: list[Recording]) -> tuple[float, float]:
    """Mean squared tracking errors of recordings that were not fitted, with the model's own values
    and with the tuned ones [rad^2]."""
    tracking = Tracking(recordings, tuning.parameters, tuning.config.tracking)
    try:
        nominal = nominal_values(tuning.parameters, tracking.robot)
        errors = tracking.errors(np.stack([nominal, tuning.values])).mean(axis=1)
    finally:
        tracking.close()
    return float(errors[0]), float(errors[1])
