"""Stages on a real Ray cluster of two nodes of this machine, which share nothing but a storage or
the folder of a test."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flows.config.resources import Resources
from flows.orchestration import ray_pool
from flows.orchestration.ray_pool import check_cluster, ray_options, run_on_ray
from flows.orchestration.ray_worker import StageJob, check_data, compute, versions
from flows.orchestration.recipe_run import run_in_threads
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.artifact import Artifact
from flows.runner.isolate import StageProcessError
from flows.runner.provenance import package_lock
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage
from flows.storage.shared_runs import Runs, open_runs
from robots.errors import HandoffError, error_text
from robots.interfaces import no_progress
from tests.flows.counting_stage import CountingConfig
from tests.flows.storage.conftest import Storage, new_bucket
from tests.flows.test_served_runs import keys
from tests.flows.waiting_stage import BEGUN, CLEANED, WaitingConfig

LONG = 60.0
"""Time limit of a wait [s], reached only by a defect."""
MEMORY = 100 * 2**20
SPREAD = """# Only the first node has two cores, and only the second one a GPU.
name: spread
stages:
  demos:
    uses: "tests.flows.storage.storage_stages:numbers"
    pool: ray
    resources: {cores: 2}
  total:
    uses: "tests.flows.storage.storage_stages:add"
    inputs: {demos: demos}
    pool: ray
    resources: {gpus: 1, memory_gb: 0.5}
"""


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    started = new_bucket()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The cache folders of three computers."""
    folder = tmp_path_factory.mktemp("caches")
    return {name: folder / name for name in ("here", "first", "second")}


@pytest.fixture(scope="module")
def nodes(storage: Storage, caches: dict[str, Path]) -> Iterator[Any]:
    """A node of two cores, and one of a core and a GPU."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()

    def node(name: str, cores: int, gpus: int) -> dict[str, Any]:
        variables = {**keys(storage), "XDG_CACHE_HOME": str(caches[name])}
        room = {"num_cpus": cores, "num_gpus": gpus, "object_store_memory": MEMORY}
        return {
            **room,
            "env_vars": variables,
            "include_dashboard": False,
            "include_log_monitor": False,
        }

    cluster = Cluster(initialize_head=True, head_node_args=node("first", 2, 0))
    os.environ["RAY_ADDRESS"] = str(cluster.address)
    try:
        cluster.add_node(**node("second", 1, 1))
        cluster.wait_for_nodes()
        yield cluster
    finally:
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """The end of the run, which is taken back after the test."""
    yield RUN_ENDED
    RUN_ENDED.clear()


def counting(**options: Any) -> Stage:
    config = CountingConfig(**options)
    return Stage("count", "number", "tests.flows.counting_stage", config, pool="ray")


def waiting(folder: Path) -> Stage:
    folder.mkdir()
    config = WaitingConfig(folder=str(folder))
    return Stage("wait", "nothing", "tests.flows.waiting_stage", config, pool="ray")


def once_begun(folder: Path, act: Callable[[], None]) -> threading.Thread:
    """Acts once the stage runs."""

    def wait() -> None:
        await_file(folder / BEGUN)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def await_file(file: Path) -> None:
    deadline = time.monotonic() + LONG
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} never came"
        time.sleep(0.02)


def stage_process() -> psutil.Process:
    """The process of the stage `wait`, on whichever node."""
    [found] = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "handoff: wait" in " ".join(process.info["cmdline"] or ())
    ]
    return found


def test_without_ray_or_a_cluster_a_stage_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(HandoffError, match=r"stage count \(pool: ray\): no Ray cluster at '127"):
        check_cluster([counting()])
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        HandoffError, match=r"needs Ray\. Install it: pip install -c constraints.txt -e '\.\[ray\]'"
    ):
        check_cluster([counting()])
    check_cluster([])


def test_resources_are_those_of_the_actor_in_rays_units() -> None:
    assert ray_options(Resources()) == {"num_cpus": 1, "num_gpus": 0}
    asked = Resources(cores=4, memory_gb=1.5, gpus=2)
    assert ray_options(asked) == {"num_cpus": 4, "num_gpus": 2, "memory": 1_500_000_000}


def test_a_folder_that_a_node_does_not_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ray_pool, "_reply", lambda stage, reference: not Path(reference).exists())
    node = SimpleNamespace(sees=SimpleNamespace(remote=lambda file: asked.append(file) or file))
    with pytest.raises(HandoffError, match=r"count: \S+/artifacts on far is not that of the run"):
        ray_pool._check_folder(counting(), "far", node, tmp_path)
    assert not Path(asked[0]).exists(), "nothing is left"


def test_a_node_with_another_library_is_refused_by_name(tmp_path: Path) -> None:
    stage = counting()
    job = StageJob(stage, {}, str(tmp_path), {**versions(stage), "numpy": "0.9"}, False)
    with pytest.raises(HandoffError, match=r"^numpy is \d\S+ there, 0\.9 here\. Its result"):
        compute(job, no_progress)
    assert not list(tmp_path.iterdir()), "nothing was computed"


def test_a_node_that_lacks_an_input_names_it(tmp_path: Path) -> None:
    stage = counting()
    lost = Artifact("number", Path("/elsewhere/artifacts/part-000000000000"), "0" * 64)
    job = StageJob(stage, {"part": lost}, str(tmp_path), versions(stage), False)
    with pytest.raises(HandoffError, match=r"its input 'part', part-0{12}, is not in /"):
        compute(job, no_progress)


def test_a_node_with_other_data_is_refused() -> None:
    recipe = read_recipe("demo", ["demos.download=false"])
    [demos] = [stage for stage in stages(recipe) if stage.name == "demos"]
    check_data(demos)
    with pytest.raises(HandoffError, match=r"its data 'source' is \w{12} there, 0{12} here"):
        check_data(replace(demos, external={"source": "0" * 64}))


def test_two_nodes_that_share_only_the_storage_compute_what_their_resources_allow(
    nodes: Any,
    storage: Storage,
    caches: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**keys(storage), "XDG_CACHE_HOME": str(caches["here"])}.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "spread.yaml"
    file.write_text(SPREAD)
    recipe = read_recipe(str(file), [f"runs={storage.address}"])
    runs = open_runs(recipe.runs, recipe.stages)
    handler = signal.getsignal(signal.SIGTERM)
    summary = run_in_threads(recipe, stages(recipe), runs)
    assert signal.getsignal(signal.SIGTERM) is handler, "a signal still ends the run"
    runs.publish(recipe.name)
    files = {
        name: sorted(file.name for file in cache.glob("handoff/storage/*/artifacts/[a-z]*/*.txt"))
        for name, cache in caches.items()
    }
    # The second node fetched the demonstrations; nothing here needs a file.
    assert files == {
        "here": [],
        "first": ["empty.txt", "extra.txt"],
        "second": ["empty.txt", "extra.txt", "total.txt"],
    }
    assert [(row.name, row.cached) for row in summary.stages] == [
        ("demos", False),
        ("total", False),
    ]
    published = json.loads(storage.objects.read("spread/summary.json") or b"{}")
    assert published["stages"]["total"]["metrics"] == {"total": 3.0}


def test_a_stage_that_no_node_suffices_for_is_refused_with_what_they_have(nodes: Any) -> None:
    large = replace(counting(), resources=Resources(cores=3))
    with pytest.raises(HandoffError, match="cores=3 gpus=0 memory_gb=0, and no node of") as caught:
        check_cluster([replace(counting(), resources=Resources(cores=2)), large])
    for node in ("cores=2 gpus=0", "cores=1 gpus=1"):
        assert node in str(caught.value)


def test_a_stage_that_fails_is_named_with_its_node(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"^stage count on \S+: counting: value 3, limit 2\."):
        run_on_ray(counting(fail="error"), {}, Runs(tmp_path), no_progress)


def test_a_stage_whose_process_dies_shows_its_log_and_resumes(
    nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, stage = Runs(tmp_path), counting(value=5, fail="exit once")
    shown: list[str] = []
    with pytest.raises(StageProcessError) as caught:
        run_on_ray(stage, {}, runs, lambda done, total, note="": shown.append(note))
    assert re.fullmatch(
        r"stage count on \S+: its process died with exit code 7 and no result\. "
        r"The last line of its log: out of luck\.",
        error_text(caught.value),
    )
    assert "out of luck" in capsys.readouterr().err
    assert "half way" in shown
    outcome = run_on_ray(stage, {}, runs, no_progress)
    assert outcome.artifact.manifest["metrics"] == {"total": 5, "resumed": True}
    assert outcome.artifact.manifest["lock"] == package_lock()


def test_the_end_of_the_run_ends_its_stage_on_the_node_cleanly(
    nodes: Any, tmp_path: Path, ended: threading.Event
) -> None:
    folder = tmp_path / "files"
    stage = waiting(folder)
    thread = once_begun(folder, ended.set)
    with pytest.raises(HandoffError, match="stage wait: stopped because its run ended"):
        run_on_ray(stage, {}, Runs(tmp_path), no_progress)
    thread.join()
    assert (folder / CLEANED).exists()


def test_a_worker_that_is_lost_ends_its_stage_and_is_named(nodes: Any, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    stage = waiting(folder)

    def kill() -> None:
        worker = stage_process().parent()
        assert worker is not None
        worker.kill()

    thread = once_begun(folder, kill)
    with pytest.raises(StageProcessError, match=r"stage wait: its Ray worker on \S+ was lost: .+"):
        run_on_ray(stage, {}, Runs(tmp_path), no_progress)
    thread.join()
