"""Stage `excite`: records exciting motions of a simulated arm, for the tuning of its dynamics."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.interfaces import Progress
from sim.identification.config import ExcitationConfig


def run(config: ExcitationConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes `out/store.zarr` with commanded and measured joint positions; resumes an
    interrupted attempt at the first motion that is missing.

    Raises:
        HandoffError: motions within the arm's limits do not keep the clearance, or deviations that
            the arm cannot have.
    """
    from sim.identification.excitation import record_excitation

    return Output(record_excitation(config, out / "store.zarr", progress))
