"""Stage `excite_arm`: records exciting motions of the twin behind the robot's network protocol, for
the tuning of the simulated arm."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.identification.config import ExciteArmConfig
from robots.interfaces import Progress

EXCLUSIVE = True


def run(config: ExciteArmConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes `out/store.zarr` with commanded and measured joint positions; resumes an interrupted
    attempt at the first motion that is missing.

    Raises:
        HandoffError: motions within the arm's limits do not keep the clearance, deviations that the
            twin cannot have, or a fault of the arm.
    """
    from flows.identification.arm_motions import record_at_twin

    return Output(record_at_twin(config, out / "store.zarr", progress))
