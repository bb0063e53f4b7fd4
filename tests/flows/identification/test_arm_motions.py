"""Motions of the twin through the driver of an arm: what is recorded is what tuning needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.identification.arm_motions import record_at_twin
from flows.identification.config import ExciteArmConfig
from flows.stages.learn import tune
from flows.stages.learn.config import TuneArmConfig
from real.franka.config import FrankaConfig
from real.franka.impedance import ImpedanceConfig
from robots.config import validate
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.interfaces import no_progress
from sim.identification.config import (
    CrossEntropySearch,
    ListedParameters,
    Parameter,
    TuneStoreConfig,
)
from sim.identification.excitation import exciting_targets
from sim.identification.fit_store import fit_store
from sim.scene.deviations import Deviations
from sim.twin.twin import TwinConfig
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

HIDDEN = {
    "arm": [
        {"what": "friction", "value": 0.5},
        {"what": "payload", "value": 0.6},
        {"what": "delay", "value": 0.02},
    ]
}


def config(host: int, deviations: dict) -> ExciteArmConfig:
    twin = TwinConfig(host=address(host), deviations=validate(Deviations, deviations, ""))
    return ExciteArmConfig(
        motions=1, seconds=2.0, settle=0.5, limit_fraction=0.3, clearance=0.1, twin=twin
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExciteArmConfig, Path]:
    path = tmp_path_factory.mktemp("motions") / "store.zarr"
    options = config(51, HIDDEN)
    record_at_twin(options, path, no_progress)
    return options, path


def test_the_store_holds_targets_and_positions_and_nothing_of_what_is_hidden(
    recorded: tuple[ExciteArmConfig, Path],
) -> None:
    options, path = recorded
    store = EpisodeStore.open(path)
    motion = store.read(0, "robot")
    assert set(motion) == {"q", "q_d"}
    targets = exciting_targets(options, find_robot("fr3"), 0)
    np.testing.assert_array_equal(motion["q_d"], targets)
    assert motion["q"].shape == targets.shape
    assert 1e-4 < np.abs(motion["q"] - targets).max() < 0.2
    assert store.metadata(0)["robot"] == "fr3 twin"
    assert "payload" not in str(store.metadata(0))


def test_tuning_finds_what_the_twin_has(
    recorded: tuple[ExciteArmConfig, Path], tmp_path: Path
) -> None:
    settings = TuneStoreConfig(
        parameters=ListedParameters(
            items=(
                Parameter(what="friction", low=0.0, high=2.0),
                Parameter(what="payload", low=0.0, high=2.0),
                Parameter(what="delay", low=0.0, high=0.05),
            )
        ),
        algorithm=CrossEntropySearch(samples=48, rounds=1, round_samples=32, elites=8, polish=5),
        profile_points=0,
        held_out=0,
    )
    values = fit_store(settings, recorded[1], tmp_path, no_progress)["values"]
    assert values["friction of all joints"] == pytest.approx(0.5, abs=0.15)
    assert values["payload"] == pytest.approx(0.6, abs=0.1)
    assert values["delay"] == pytest.approx(0.02, abs=0.005)


def test_a_payload_that_the_driver_finds_before_it_moves_ends_the_recording(
    tmp_path: Path,
) -> None:
    heavy = {"arm": [{"what": "payload", "value": 2.0}]}
    with pytest.raises(SafetyError, match=r"feels .* at rest"):
        record_at_twin(config(52, heavy), tmp_path / "store.zarr", no_progress)


def test_targets_between_the_ticks_are_refused(tmp_path: Path) -> None:
    options = replace(config(53, {}), rate_hz=150.0)
    with pytest.raises(HandoffError, match=r"rate_hz is 150\.0, expected targets"):
        record_at_twin(options, tmp_path / "store.zarr", no_progress)


def test_another_law_than_the_recorded_one_is_refused_before_anything_runs() -> None:
    law = ImpedanceConfig(controller="joint", joint_stiffness=(500.0,) * 7)
    motions = ExciteArmConfig(arm=FrankaConfig(realtime="ignore", impedance=law))
    with pytest.raises(HandoffError, match=r"tracking\.gains are not those"):
        tune.check(TuneArmConfig(), {"demos": motions})
    tune.check(TuneArmConfig(), {"demos": ExciteArmConfig()})


def test_the_cartesian_law_takes_no_joint_targets() -> None:
    cartesian = ImpedanceConfig(controller="cartesian")
    with pytest.raises(
        HandoffError, match=r"excite_arm: arm\.impedance\.controller is 'cartesian'"
    ):
        ExciteArmConfig(arm=FrankaConfig(realtime="ignore", impedance=cartesian))
    with pytest.raises(HandoffError, match="is 'left to the policy's actions', expected 'joint'"):
        ExciteArmConfig(arm=FrankaConfig(realtime="ignore"))
