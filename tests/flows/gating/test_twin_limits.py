"""Episodes at the twin against the robot's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.gating.conditions import Condition
from flows.gating.config import (
    GateConfig,
    SpecificationLimit,
    TwinLimits,
    looser,
    tracking_limit,
)
from flows.gating.twin_limits import twin_conditions
from flows.runner.artifact import read_manifest
from robots.control.actions import CartesianDelta
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.franka import find_robot
from robots.spec import FieldSpec
from tests.flows.gating.bundles import write_manifest
from tests.real.fakes import contract

TORQUES = {name: FieldSpec(shape=(7,), dtype="float64") for name in ("tau_J_d", "tau_ext")}
SCHEMA = EpisodeSchema(
    name="reach", streams={"robot": StreamSpec(rate_hz=1000.0, fields=TORQUES)}, robot="fr3"
)
THRESHOLD = [40.0, 40.0, 36.0, 36.0, 12.0, 12.0, 12.0]


def twin(folder: Path, episodes: list[tuple[np.ndarray, np.ndarray, str | None]]) -> Path:
    """An artifact of episodes with commanded torques, external torques and faults."""
    folder.mkdir()
    with EpisodeStore.create(folder / "store.zarr", SCHEMA) as store:
        for commanded, external, fault in episodes:
            store.append({"robot": {"tau_J_d": commanded, "tau_ext": external}}, {"fault": fault})
    faults = sum(fault is not None for *_, fault in episodes)
    metrics: dict[str, Any] = {
        "starts": len(episodes),
        "success": {"k": 20, "n": 20, "low": 0.84, "high": 1.0},
        "faults": faults,
        "fault_reasons": {"joint_reflex": faults} if faults else {},
        "robot": "fr3",
        "per_start": [{"tracking_rms_m": 0.001}, {"tracking_rms_m": 0.003}, {}],
    }
    return write_manifest(
        folder,
        kind="episodes",
        inputs={"bundle": "bundle"},
        metrics=metrics,
        config={"table": {"arm": {"collision_torque": THRESHOLD}}},
    )


def judged(folder: Path) -> dict[str, tuple[str, float | None]]:
    conditions = twin_conditions(TwinLimits(), folder, "bundle")
    return {each.name.removesuffix(" at the twin"): (each.state, each.value) for each in conditions}


def still(value: float = 0.0) -> np.ndarray:
    return np.full((5, 7), value)


def test_a_calm_arm_keeps_its_margins(tmp_path: Path) -> None:
    found = judged(twin(tmp_path / "twin", [(still(), still(6.0), None)]))
    assert {state for state, _ in found.values()} == {"passed"}
    assert found["success"] == ("passed", 0.84)
    assert found["tracking"] == ("passed", 0.003)
    assert found["contact"] == ("passed", pytest.approx(6.0 / 12.0))


def test_torques_that_change_as_fast_as_the_robot_allows_leave_no_margin(tmp_path: Path) -> None:
    step = still()
    limit = find_robot("fr3").limits.dtau_max
    step[3:] += 0.95 * limit / 1000.0
    found = judged(twin(tmp_path / "twin", [(still(), still(), None), (step, still(), None)]))
    assert found["torque rate"] == ("failed", pytest.approx(0.95))


def test_a_contact_near_the_threshold_leaves_no_margin(tmp_path: Path) -> None:
    pressed = still()
    pressed[2, 4] = -11.5
    found = judged(twin(tmp_path / "twin", [(still(), pressed, None)]))
    assert found["contact"] == ("failed", pytest.approx(11.5 / 12.0))


def test_the_contact_that_stopped_the_arm_counts_as_a_fault_alone(tmp_path: Path) -> None:
    hit = still(80.0)
    found = judged(
        twin(tmp_path / "twin", [(still(), still(), None), (still(), hit, "arm: joint_reflex")])
    )
    assert found["faults"] == ("failed", 0.5)
    assert found["contact"] == ("passed", 0.0)


def test_steps_may_lag_by_their_leash_and_positions_by_twenty_millimetres() -> None:
    assert tracking_limit(TwinLimits(), None) == 0.02
    steps = CartesianDelta(leash_translation=0.03, axes=("x", "y", "z", "yaw"))
    assert tracking_limit(TwinLimits(), steps) == pytest.approx(0.03 * 3**0.5)
    assert tracking_limit(TwinLimits(tracking_rms_m=0.01), steps) == 0.01
    wider = GateConfig(twin=TwinLimits(tracking_rms_m=0.04))
    assert looser(wider, contract()) == ["twin.tracking_rms_m is 0.04, default 0.02"]
    assert looser(wider, contract(steps=steps)) == []


def specified(folder: Path, **shares: Any) -> list[Condition]:
    limits = TwinLimits(specifications={"soft": SpecificationLimit(min_share=0.8)})
    path = twin(folder, [(still(), still(), None)])
    manifest = read_manifest(path)
    metrics = {**manifest["metrics"], **({"specifications": shares} if shares else {})}
    write_manifest(
        path, kind="episodes", inputs=manifest["inputs"], metrics=metrics, config=manifest["config"]
    )
    conditions = twin_conditions(limits, path, "bundle")
    return [each for each in conditions if each.name == "specification soft at the twin"]


def test_a_specification_is_met_by_the_lower_end_of_its_share(tmp_path: Path) -> None:
    share = {"n": 20, "high": 1.0, "smallest": -0.25, "mean": 1.0}
    (met,) = specified(tmp_path / "met", soft={**share, "k": 20, "low": 0.84})
    (missed,) = specified(tmp_path / "missed", soft={**share, "k": 18, "low": 0.7})
    assert (met.state, met.value, met.limit) == ("passed", 0.84, 0.8)
    assert missed.state == "failed"
    assert missed.sentence() == (
        "specification soft at the twin is 0.7 at the lower end of its interval, at least 0.8 "
        "required (18 of 20 episodes, interval up to 1.000, smallest robustness -0.25)"
    )


def test_a_specification_that_was_not_measured_is_not_evaluated(tmp_path: Path) -> None:
    (condition,) = specified(tmp_path / "none")
    assert condition.state == "not evaluated"
