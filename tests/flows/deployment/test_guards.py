"""The force guard and the energy tank in deployments to the twin, each with its control: the same
policy without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.deployment.config import DeployTaskConfig
from flows.deployment.starts import StartResult
from flows.deployment.task_table import TaskTable
from flows.deployment.twin import (
    COUNTED,
    TwinSetup,
    deploy_at_twin,
    fault_reason,
    run_start,
    summarise_starts,
)
from real.driver.driver import Driver
from real.motion.energy_tank import EnergyTankConfig
from real.motion.force_guard import ForceGuardConfig
from robots.contract import Contract
from robots.episodes.corrections import open_corrections
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.flows.deployment.test_task_table import contract_for
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

CONTRACT = contract_for("pick_cube", ("grasp_pose", "cube_position"))
STEPS = 100


class Pressing:
    """Goes down on the cube with closed fingers, and then does something.

    Args:
        then: action along z, by the number of steps near the table.
    """

    def __init__(self, then: Callable[[int], float]) -> None:
        self.contract: Contract = CONTRACT
        self._then = then
        self._calls = 0

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        grasp, cube = observation.reshape(-1)[:3], observation.reshape(-1)[6:9]
        near = grasp[2] < 0.15
        self._calls += near
        action = np.zeros(noise.shape, np.float32)
        action[..., :2] = np.clip(30.0 * (cube - grasp)[:2], -1.0, 1.0)
        action[..., 2] = self._then(self._calls) if near else -1.0
        action[..., -1] = -1.0
        return action


def press(step: int) -> float:
    """Down, at 60 mm/s: at five times the speed the blow itself is a reflex of the robot."""
    return -0.15


def swing(step: int) -> float:
    """Down, and then up and down."""
    return press(step) if step < 60 else (0.2 if step % 10 < 5 else -0.2)


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    with start_twin(TwinConfig(host=address(142)), partial(TaskWorld, "pick_cube")) as running:
        yield running


def played(
    twin: Twin, folder: Path, then: Callable[[int], float], steps: int = STEPS, **limits: Any
) -> tuple[StartResult, dict[str, np.ndarray], dict[str, Any]]:
    """The outcome of an episode, its references and its metadata."""
    usual = DeployTaskConfig(twin=TwinConfig(host=twin.host), max_steps=steps, videos=0)
    config = replace(usual, loop=replace(usual.loop, **limits))
    table = Endless(config, CONTRACT)
    with Driver() as driver, open_corrections(folder / "store.zarr", table.schema(twin)) as store:
        setup = TwinSetup(config, Pressing(then), table, twin, store, driver)  # type: ignore[arg-type]
        result = run_start(setup, 100_000, no_progress)
    read = EpisodeStore.open(folder / "store.zarr", "r")
    return result, read.read(0, "reference"), dict(read.metadata(0))


class Endless(TaskTable):
    """A table whose task is never over."""

    def is_over(self) -> bool:
        """See `TaskTable`."""
        return False


MEASURED = ForceGuardConfig(fault_force=99.0)
"""Measures, and ends nothing."""


def test_a_policy_that_presses_presses_with_the_limit(twin: Twin, tmp_path: Path) -> None:
    forces = {}
    for name, force in (("free", MEASURED), ("soft", ForceGuardConfig(limit=15.0))):
        (tmp_path / name).mkdir()
        result, reference, about = played(twin, tmp_path / name, press, force=force)
        assert result.fault is None
        forces[name] = np.linalg.norm(reference["wrench_ext"][:, :3], axis=1)
        assert about["peak_external_force_n"] == pytest.approx(forces[name].max())
    assert np.median(forces["free"][-100:]) > 30.0, "the control"
    assert np.median(forces["soft"][-100:]) == pytest.approx(15.0, abs=3.0)


def test_a_force_that_lasts_ends_the_start_below_the_reflex(twin: Twin, tmp_path: Path) -> None:
    force = ForceGuardConfig(fault_force=20.0)
    result, reference, about = played(twin, tmp_path, press, force=force)
    assert fault_reason(str(result.fault)) == "force"
    assert "external force of" in about["fault"]
    assert not result.success
    assert np.linalg.norm(reference["wrench_ext"][-1, :3]) > 20.0
    qpos, _ = twin.call("scene")
    twin.advance(0.5)
    assert np.abs(twin.call("scene")[0][:7] - qpos[:7]).max() < 0.02, "the arm is at rest"


def test_a_policy_that_swings_on_a_cube_is_stopped_by_the_tank(twin: Twin, tmp_path: Path) -> None:
    (tmp_path / "free").mkdir()
    free, _, _ = played(twin, tmp_path / "free", swing, 260)
    assert free.fault is None, "the control: it goes on without end"
    tank = EnergyTankConfig(size=4.0, recovery=0.5)
    result, reference, about = played(twin, tmp_path, swing, 260, energy_tank=tank)
    assert fault_reason(str(result.fault)) == "energy tank"
    level = reference["tank_energy"]
    assert level[0] > 3.9
    assert about["min_tank_energy_j"] == pytest.approx(level.min())
    assert -0.3 < level.min() < 0.2


def test_what_the_robot_would_do_first_is_refused(tmp_path: Path) -> None:
    usual = DeployTaskConfig()
    config = replace(usual, loop=replace(usual.loop, force=ForceGuardConfig(fault_force=100.0)))
    with (
        contextlib.suppress(FileNotFoundError),
        pytest.raises(HandoffError, match=r"loop\.force\.fault_force is 100\.0 N, not below"),
    ):
        deploy_at_twin(config, tmp_path, lambda contract: None, tmp_path, no_progress)  # type: ignore[arg-type, return-value]


def test_a_specification_is_recorded_and_stops_the_start_if_it_should(
    twin: Twin, tmp_path: Path
) -> None:
    formulas = {"high": "always grasp_pose.z > 0.1", "there": "always cube_position.z > -1"}
    results = {}
    for name, stop_on in (("free", ()), ("stopped", ("high",))):
        (tmp_path / name).mkdir()
        given: dict[str, Any] = {"specifications": formulas, "stop_on": stop_on}
        results[name], _, about = played(twin, tmp_path / name, press, **given)
        assert results[name].specifications == about["specifications"]
    free, stopped = (results[name].specifications for name in ("free", "stopped"))
    assert results["free"].fault is None
    assert fault_reason(str(results["stopped"].fault)) == "specification 'high'"
    assert [each["satisfied"] for each in stopped.values()] == [False, True]
    assert free["high"]["robustness"] < stopped["high"]["robustness"] < 0.0

    counted = replace(results["stopped"], twin=dict.fromkeys(COUNTED, 1.0))
    metrics = summarise_starts(Endless(DeployTaskConfig(), CONTRACT), [counted], formulas)
    assert metrics["specifications"]["high"]["k"] == 0
    assert metrics["specifications"]["there"]["k"] == 1
    assert metrics["fault_reasons"] == {"specification 'high'": 1}
    assert metrics["per_start"][0]["specifications"] == stopped


def test_a_start_without_a_step_satisfies_no_specification() -> None:
    start = StartResult(1, False, {}, 0.0, {}, twin=dict.fromkeys(COUNTED, 1.0))
    table = Endless(DeployTaskConfig(), CONTRACT)
    metrics = summarise_starts(table, [start], {"high": "always grasp_pose.z > 0.1"})
    assert metrics["specifications"]["high"]["k"] == 0
