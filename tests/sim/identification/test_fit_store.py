"""A whole store is tuned: hidden values are found, held-out motions confirm them, a killed search
resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import no_progress
from sim.identification.config import (
    CrossEntropySearch,
    ExcitationConfig,
    ListedParameters,
    Parameter,
    PerJointParameters,
    SharedParameters,
    TrackingConfig,
    TuneStoreConfig,
)
from sim.identification.excitation import record_excitation
from sim.identification.fit_store import DYNAMICS, SEARCH, fit_store, read_dynamics
from sim.identification.parameters import parameters_of
from sim.scene.dynamics import DynamicsValue

HIDDEN = (
    DynamicsValue(what="friction", value=0.8),
    DynamicsValue(what="payload", value=0.6),
    DynamicsValue(what="delay", value=0.012),
)
CONFIG = TuneStoreConfig(
    parameters=ListedParameters(
        items=(
            Parameter(what="friction", low=0.0, high=2.0),
            Parameter(what="payload", low=0.0, high=2.0),
            Parameter(what="delay", low=0.0, high=0.04),
        )
    ),
    algorithm=CrossEntropySearch(samples=64, rounds=1, round_samples=64, elites=10, polish=4),
    profile_points=3,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("motions") / "store.zarr"
    record_excitation(ExcitationConfig(motions=2, seconds=2.0, deviations=HIDDEN), path)
    return path


def test_hidden_values_are_found_and_confirmed_by_a_motion_that_was_not_fitted(
    store: Path, tmp_path: Path
) -> None:
    metrics = fit_store(CONFIG, store, tmp_path, no_progress, source="abc")
    assert metrics["undetermined"] == []
    for hidden in HIDDEN:
        assert metrics["values"][hidden.name] == pytest.approx(hidden.value, rel=0.05)
    assert metrics["held_out_mse"] < 0.02 * metrics["held_out_nominal_mse"]
    dynamics = read_dynamics(tmp_path)
    assert dynamics.source == "abc"
    assert {item.name: item.value for item in dynamics.values} == metrics["values"]
    page = (tmp_path / "report.html").read_text()
    for word in ("friction of all joints", "not fitted", "tracking.png", "profiles.png"):
        assert word in page
    written = json.loads((tmp_path / "tuning.json").read_text())
    assert written["held_out_mse"] == metrics["held_out_mse"]
    assert not (tmp_path / SEARCH).exists()


def test_a_killed_search_resumes_with_the_same_result(store: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected = fit_store(CONFIG, store, whole, no_progress)

    def kill(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_store(CONFIG, store, killed, kill)
    with np.load(killed / SEARCH) as saved:
        assert saved["errors"].shape == (64, 7)
    assert fit_store(CONFIG, store, killed, no_progress) == expected
    assert (killed / DYNAMICS).read_bytes() == (whole / DYNAMICS).read_bytes()


def test_errors_of_another_search_are_not_reused(store: Path, tmp_path: Path) -> None:
    def kill(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_store(CONFIG, store, tmp_path, kill)
    other = replace(CONFIG, seed=1)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert fit_store(other, store, tmp_path, no_progress) == fit_store(
        other, store, fresh, no_progress
    )


def test_shared_parameters_are_six_and_those_of_seven_joints_thirty() -> None:
    fr3 = find_robot("fr3")
    assert [item.name for item in parameters_of(SharedParameters(), fr3)] == [
        "stiffness of all joints",
        "damping of all joints",
        "friction of all joints",
        "armature of all joints",
        "payload",
        "delay",
    ]
    assert len(parameters_of(PerJointParameters(), fr3)) == 4 * fr3.num_joints + 2


def test_stores_that_cannot_be_tuned_are_refused(store: Path, tmp_path: Path) -> None:
    for bad, message in (
        (replace(CONFIG, held_out=2), "has 2 recordings and held_out is 2"),
        (replace(CONFIG, rate_hz=60.0), "rate_hz is 60.0, expected a whole fraction"),
        (replace(CONFIG, stream="arm"), "no stream 'arm'"),
        (
            replace(CONFIG, tracking=TrackingConfig(robot="panda")),
            "recordings of the robot 'fr3', tracking.robot is 'panda'",
        ),
    ):
        with pytest.raises(HandoffError, match=message):
            fit_store(bad, store, tmp_path, no_progress)
    with pytest.raises(HandoffError, match="Is it an output of tune"):
        read_dynamics(tmp_path)


def test_episodes_draw_from_multiples_of_the_interval_within_the_range(
    store: Path, tmp_path: Path
) -> None:
    fit_store(replace(CONFIG, spread=2.0), store, tmp_path, no_progress)
    written = json.loads((tmp_path / "tuning.json").read_text())["parameters"]
    limits = {"friction of all joints": 2.0, "payload": 2.0, "delay": 0.04}
    for item in read_dynamics(tmp_path).values:
        low, high = written[item.name]["interval_95"]
        expected = (
            max(0.0, item.value - 2.0 * (item.value - low)),
            min(limits[item.name], item.value + 2.0 * (high - item.value)),
        )
        assert item.bounds == pytest.approx(expected)
        assert item.bounds[0] < item.value < item.bounds[1]
