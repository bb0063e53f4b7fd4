"""An interrupted deployment to the twin goes on with the first start that is missing, and its
metrics and episodes are those of an uninterrupted one."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flows.deployment import twin as deployment
from flows.deployment.config import DeployConfig
from flows.deployment.push_t_table import PushTTable
from flows.deployment.starts import StartJournal, StartResult, open_store
from flows.deployment.twin import JOURNAL, MAX_REPEATS, deploy_at_twin
from flows.reports.reproduction import MEASURED
from flows.runner.artifact import file_digest
from real.arm import ConnectionLostError
from real.deploy.loop import LoopConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from sim.twin.twin import TwinConfig
from tests.forked_process import forked_process_context
from tests.real.onnx_models import save_policy
from tests.sim.twin.loopback import address

STEPS, STARTS = 4, 3
SCHEMA = EpisodeSchema(
    name="x",
    streams={"policy": StreamSpec(rate_hz=10.0, fields={"action": FieldSpec(shape=(2,))})},
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    save_policy(folder / "policy.onnx", scale=0.01)
    return folder


def config(host: str) -> DeployConfig:
    return DeployConfig(
        starts=STARTS,
        videos=0,
        loop=LoopConfig(max_steps=STEPS),
        twin=TwinConfig(host=host),
    )


def deploy(host: str, bundle: Path, out: Path, progress: Any = no_progress) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    options = config(host)
    return deploy_at_twin(options, bundle, lambda c: PushTTable(options, c), out, progress)


@pytest.fixture(scope="module")
def uninterrupted(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """Metrics and folder."""
    out = tmp_path_factory.mktemp("uninterrupted")
    return deploy(address(60), bundle, out), out


def repeatable(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not MEASURED.search(name)}


def files(out: Path) -> dict[str, str]:
    """Digests of the artifact's files, without what a run measures."""
    found = (path for path in out.rglob("*") if path.is_file() and path.name != ".lock")
    measured = "inference_ms.json"
    return {str(p.relative_to(out)): file_digest(p) for p in found if p.name != measured}


def kill_in_the_third_start(host: str, bundle: Path, out: Path) -> None:
    def progress(done: int, total: int, note: str = "") -> None:
        if done == 2 * STEPS + 2:
            os.kill(os.getpid(), signal.SIGKILL)

    deploy(host, bundle, out, progress)


def test_after_kill_9_it_goes_on_with_the_start_that_was_interrupted(
    tmp_path: Path, bundle: Path, uninterrupted: tuple[dict[str, Any], Path]
) -> None:
    metrics, expected = uninterrupted
    out = tmp_path / "out"
    process = forked_process_context().Process(
        target=kill_in_the_third_start, args=(address(61), bundle, out)
    )
    process.start()
    process.join(60.0)
    assert process.exitcode == -signal.SIGKILL
    reports: list[tuple[int, int, str]] = []
    resumed = deploy(address(61), bundle, out, lambda *report: reports.append(report))
    assert reports[0] == (2, STARTS, "2 of 3 starts kept from the interrupted attempt")
    assert repeatable(resumed) == repeatable(metrics)
    assert files(out) == files(expected)


def test_the_episode_of_the_start_that_an_error_ended_is_recorded_once_after_the_next_attempt(
    tmp_path: Path, bundle: Path
) -> None:
    out = tmp_path / "out"

    def fail(done: int, total: int, note: str = "") -> None:
        if done == STEPS + 2:
            raise RuntimeError("ONNXRuntimeError: 6")

    with pytest.raises(RuntimeError):
        deploy(address(62), bundle, out, fail)
    interrupted = EpisodeStore.open(out / "store.zarr")
    assert [interrupted.metadata(i)["fault"] is None for i in range(2)] == [True, False]
    metrics = deploy(address(62), bundle, out)
    stored = EpisodeStore.open(out / "store.zarr")
    seeds = [stored.metadata(i)["seed"] for i in range(stored.num_episodes)]
    assert seeds == [start["seed"] for start in metrics["per_start"]] == [*range(100_000, 100_003)]
    assert metrics["faults"] == 0
    assert not (out / JOURNAL).exists()


def test_results_of_another_configuration_are_not_taken_over(tmp_path: Path) -> None:
    tracking = {"tracking_rms_m": 1e-3}
    result = StartResult(1, True, {"coverage": 0.5}, 1.0, tracking, inference_ms=[1.5])
    journal = StartJournal(tmp_path / JOURNAL, {"starts": 3})
    journal.add(result, episodes=1)
    assert StartJournal(tmp_path / JOURNAL, {"starts": 3}).starts == [result]
    assert StartJournal(tmp_path / JOURNAL, {"starts": 4}).starts == []


def test_results_whose_episodes_are_gone_are_computed_again(tmp_path: Path) -> None:
    journal = StartJournal(tmp_path / JOURNAL, {})
    journal.add(StartResult(1, True, {}, 1.0, {}), episodes=1)
    with open_store(tmp_path / "store.zarr", SCHEMA, journal) as store:
        assert (store.num_episodes, journal.starts) == (0, [])


def test_a_start_that_loses_its_line_is_run_again_and_counted(
    tmp_path: Path, bundle: Path, uninterrupted: tuple[dict[str, Any], Path]
) -> None:
    undisturbed, expected = uninterrupted
    stalled = False

    def stall(done: int, total: int, note: str = "") -> None:
        nonlocal stalled
        if done == STEPS + 2 and not stalled:
            stalled = True
            lose_line()

    metrics = deploy(address(63), bundle, tmp_path / "out", stall)
    assert stalled
    assert (undisturbed["repeated_starts"], metrics["repeated_starts"]) == (0, 1)
    assert repeatable(metrics) == repeatable(undisturbed)
    assert files(tmp_path / "out") == files(expected)


def lose_line() -> None:
    """Stops the twin, and what repeats its states, for longer than libfranka waits for a state."""
    processes = psutil.Process().children(recursive=True)
    silent = [one for one in processes if "keep_alive.py" in " ".join(one.cmdline())]
    assert silent
    stopped = [*silent, *(one.parent() for one in silent)]
    for process in stopped:
        assert process is not None
        process.suspend()
    time.sleep(1.5)
    for process in stopped:
        assert process is not None
        process.resume()


def test_a_line_that_is_lost_every_time_ends_the_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[bool] = []

    def lose(setup: Any, seed: int, progress: Any, repeatable: bool) -> StartResult:
        attempts.append(repeatable)
        raise ConnectionLostError("arm: connection lost")

    monkeypatch.setattr(deployment, "run_start", lose)
    setup: Any = SimpleNamespace(config=config(address(64)))
    with pytest.raises(HandoffError, match="connection lost"):
        deployment._run_with_repeats(setup, 7, no_progress)
    assert attempts == [True] * MAX_REPEATS + [False]


def test_a_lost_line_in_real_time_is_a_fault_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[bool] = []

    def lose(setup: Any, seed: int, progress: Any, repeatable: bool) -> StartResult:
        attempts.append(repeatable)
        raise ConnectionLostError("arm: connection lost")

    monkeypatch.setattr(deployment, "run_start", lose)
    options = config(address(64))
    options = replace(options, twin=replace(options.twin, clock="real"))
    setup: Any = SimpleNamespace(config=options)
    with pytest.raises(HandoffError, match="connection lost"):
        deployment._run_with_repeats(setup, 7, no_progress)
    assert attempts == [False]


def test_a_start_is_the_same_after_others_as_in_a_new_twin(
    tmp_path: Path, bundle: Path, uninterrupted: tuple[dict[str, Any], Path]
) -> None:
    """What a resumed deployment rests on."""
    _, expected = uninterrupted
    options = config(address(65))
    alone = replace(options, starts=1, first_seed=options.first_seed + STARTS - 1)
    deploy_at_twin(alone, bundle, lambda c: PushTTable(alone, c), tmp_path, no_progress)
    after = EpisodeStore.open(expected / "store.zarr").read(STARTS - 1, "robot")
    new = EpisodeStore.open(tmp_path / "store.zarr").read(0, "robot")
    assert {name: after[name].tobytes() == new[name].tobytes() for name in new} == dict.fromkeys(
        new, True
    )
