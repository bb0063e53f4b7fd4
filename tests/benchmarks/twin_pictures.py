"""Measures the twin in lockstep with two rendered cameras, and the age of the pictures there.

    python -m tests.benchmarks.twin_pictures --json

Policies of `tests.benchmarks.picture_inference`, with the frozen encoder and pictures of 96 px, run
at the table of `pick_cube` for a few seconds from every start, as in the stage `deploy`: a policy
step at 20 Hz, at each of which the newest pictures of both cameras are observed, of cameras that
have clocks of their own. The weights are untrained, so the arm drifts; nothing is solved.

realtime_factor: simulated time of the motions relative to their wall time, median of the repeats.
    Limit: 1.
age_ms_p95: age of a picture when it is observed, by the simulated clock: 95th percentile of the
    start with the oldest. It follows from the options of the cameras' clock, and a computer that is
    busy does not change it. Limit: 50 ms.
inference_ms_p95: host time of an inference.
rendered_per_s: pictures that were rendered per simulated second. The twin renders those that are
    observed, of the 60 that the two cameras capture.
faults: starts that the robot or a limit ended.

`camera`: 30 Hz and a latency of 30 ms (the defaults), `quick`: a latency of 15 ms, `sixty`: 60 Hz,
`none`: the control, a policy of numbers without cameras. The contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.picture_inference import CAMERAS, encoders, save_policy
from tests.sim.twin.loopback import address

if TYPE_CHECKING:
    from sim.rendering.camera_clock import CameraClockConfig

SIZE = 96
ENCODER = "efficientnet_lite0"
LIMITS = {"realtime_factor": 1.0, "age_ms_p95": 50.0}
SEEING, BLIND = "seeing", "blind"


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--repeats", type=int, default=3, help="deployments of every contender")
    parser.add_argument("--starts", type=int, default=2, help="of every deployment")
    parser.add_argument("--steps", type=int, default=100, help="policy steps of a start")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.repeats, arguments.starts, arguments.steps)
    for name, figures in found.items():
        print(f"{name:10s} " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    if arguments.json:
        print(json.dumps(found))


def contenders() -> dict[str, tuple[str, CameraClockConfig]]:
    """Policy and clock of the cameras, by name."""
    from sim.rendering.camera_clock import CameraClockConfig

    return {
        "camera": (SEEING, CameraClockConfig()),
        "quick": (SEEING, CameraClockConfig(latency=0.015)),
        "sixty": (SEEING, CameraClockConfig(rate_hz=60.0)),
        "none": (BLIND, CameraClockConfig()),
    }


def measure(folder: Path, repeats: int, starts: int, steps: int) -> dict[str, dict[str, Any]]:
    """Figures of every contender, by name."""
    (encoder,) = encoders([ENCODER]).values()
    for name in (SEEING, BLIND):
        (folder / name).mkdir()
        cameras = CAMERAS if name == SEEING else ()
        save_policy(folder / name / "policy.onnx", encoder, SIZE, cameras)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders()}
    for number in range(repeats):
        for name, (policy, clock) in contenders().items():
            out = folder / f"{name}_{number}"
            runs[name].append(deployed(folder / policy, clock, out, starts, steps))
    return {name: {**summarised(each), "limits": LIMITS} for name, each in runs.items()}


def deployed(
    bundle: Path, clock: CameraClockConfig, out: Path, starts: int, steps: int
) -> dict[str, Any]:
    """Metrics of one deployment, with its pictures and inferences."""
    from flows.deployment.config import INFERENCES, DeployTaskConfig
    from flows.deployment.task_table import TaskTable
    from flows.deployment.twin import deploy_at_twin
    from robots.episodes.metadata.capture_times import capture_time_name
    from robots.episodes.store import EpisodeStore
    from robots.interfaces import no_progress
    from sim.twin.twin import TwinConfig

    out.mkdir()
    config = DeployTaskConfig(
        starts=starts,
        max_steps=steps,
        videos=0,
        twin=TwinConfig(host=address(1)),
        cameras=clock,
    )
    metrics = deploy_at_twin(config, bundle, partial(TaskTable, config), out, no_progress)
    store = EpisodeStore.open(out / "store.zarr")
    rendered = 0
    for episode in range(store.num_episodes):
        read = store.read(episode, "policy")
        for camera in CAMERAS:
            captured = read.get(capture_time_name(f"image_{camera}"), np.zeros(0))
            rendered += len(np.unique(captured))
    took = [ms for each in json.loads((out / INFERENCES).read_text()).values() for ms in each]
    return {**metrics, "rendered": rendered, "inference_ms": took}


def summarised(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the deployments of one contender."""
    factors = [run["realtime_factor"] for run in runs]
    took = [ms for run in runs for ms in run["inference_ms"]]
    seconds = sum(run["robot_seconds"] for run in runs)
    ages = [1e3 * run["picture_age_p95_s"] for run in runs if "picture_age_p95_s" in run]
    return {
        "realtime_factor": round(statistics.median(factors), 2),
        "realtime_factors": [round(factor, 2) for factor in factors],
        "age_ms_p95": round(max(ages), 1) if ages else None,
        "inference_ms_p95": round(float(np.percentile(took, 95)), 2),
        "rendered_per_s": round(sum(run["rendered"] for run in runs) / seconds, 1),
        "robot_seconds": round(seconds, 1),
        "faults": sum(run["faults"] for run in runs),
    }


if __name__ == "__main__":
    main()
