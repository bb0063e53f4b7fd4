"""Stage `tune`: fits parameters of the simulated arm to recorded motions of a robot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Episodes, Output
from flows.identification.config import ExciteArmConfig
from flows.runner.artifact import read_manifest, tree_digest
from flows.stages.learn.config import TRAINING_TELEMETRY, TuneArmConfig
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.identification.config import MotionsConfig

TELEMETRY = TRAINING_TELEMETRY


def external(config: TuneArmConfig, fetch: bool) -> dict[str, str]:
    """Returns the digest of the store from outside the pipeline."""
    return {} if config.store is None else {"store": tree_digest(_outside(config.store))}


def check(config: TuneArmConfig, sources: Mapping[str, Any]) -> None:
    """Refuses motions of another robot, fewer motions than are held out, and none or two sources of
    motions."""
    if (config.store is None) == ("demos" not in sources):
        raise HandoffError(
            "tune: expected either the input 'demos' or the option 'store', the path of a store of recorded motions."
        )
    demos = sources.get("demos")
    if not isinstance(demos, MotionsConfig):
        return
    if isinstance(demos, ExciteArmConfig):
        _check_gains(config, demos)
    if demos.robot != config.tracking.robot:
        raise HandoffError(
            f"tune: the motions are of the robot '{demos.robot}', tracking.robot is '{config.tracking.robot}'."
        )
    if demos.motions <= config.held_out:
        raise HandoffError(
            f"tune: {demos.motions} motions, of which held_out leaves none for the fit. Record more motions, or lower "
            f"held_out ({config.held_out})."
        )


def run(
    config: TuneArmConfig, out: Path, progress: Progress, *, demos: Episodes | None = None
) -> Output[Dynamics]:
    """Fits the parameters to the motions in `demos`, or in a store from outside, and writes
    `dynamics.json`, which the environments of later stages take, and `report.html`: values,
    intervals, and which of them the motions determine. An interrupted search resumes.

    Raises:
        HandoffError: recordings that cannot be replayed, or a simulation that diverges for all
            parameters.
    """
    from sim.identification.fit_store import fit_store

    if demos is not None:
        source = read_manifest(demos)["digest"]
        return Output(fit_store(config, demos / "store.zarr", out, progress, source))
    assert config.store is not None
    store = _outside(config.store)
    return Output(fit_store(config, store, out, progress, tree_digest(store)))


def _check_gains(config: TuneArmConfig, motions: ExciteArmConfig) -> None:
    """Refuses another joint law than that of the recorded arm."""
    law = motions.arm.impedance
    own = (law.joint_stiffness, law.joint_damping)
    gains = config.tracking.gains
    if law.controller == "joint" and own != (gains.joint_stiffness, gains.joint_damping):
        raise HandoffError(
            "tune: tracking.gains are not those of the recorded arm's joint law, arm.impedance of the motions. Set "
            "joint_stiffness and joint_damping of both alike."
        )


def _outside(path: str) -> Path:
    store = Path(path).expanduser()
    if not store.is_dir():
        raise HandoffError(f"tune: {store}: no such episode store. Is the path right?")
    return store
