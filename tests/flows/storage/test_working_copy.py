"""Two computers that share nothing but a storage: artifacts are complete there or absent, and are
checked when they are fetched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows import run as runner
from flows.commands.app import main
from flows.recipes.recipe import read_recipe
from flows.reports.explain import explain
from flows.runner.artifact import (
    MANIFEST,
    MANIFEST_DIGEST,
    json_digest,
    load_artifact,
    verify_artifact,
)
from flows.storage.objects import Objects
from flows.storage.shared_runs import fetch_lineage, open_runs
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.storage.conftest import Computer, Storage

Computers = tuple[Computer, Computer]
ROOT = Path(__file__).parents[3]


def cached(rows: dict) -> dict[str, bool]:
    return {name: row["cached"] for name, row in rows.items()}


def test_a_second_computer_finds_all_cached_and_fetches_nothing(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    first = one.run()
    assert storage.artifact_keys() == [
        *("demos/artifact.json", "demos/empty.txt", "demos/extra.txt", "demos/plot.png"),
        *("demos/store/0.txt", "demos/store/1.txt", "demos/store/2.txt"),
        *("total/artifact.json", "total/total.txt"),
    ]
    second = two.run()
    assert cached(second) == {"demos": True, "total": True}
    assert second["total"]["digest"] == first["total"]["digest"]
    assert second["total"]["metrics"] == {"total": 3.0}
    assert two.fetched() == []
    # The manifests are here, and are enough for the lineage.
    assert "demos (episodes)" in explain(two.folder / "sums" / "total")


def test_only_the_inputs_of_stages_that_are_computed_are_fetched(computers: Computers) -> None:
    one, two = computers
    one.run()
    rows = two.run("total.offset=10")
    assert cached(rows) == {"demos": True, "total": False}
    assert rows["total"]["metrics"] == {"total": 13.0}
    assert two.fetched() == ["demos", "total"]
    verify_artifact(two.folder / rows["demos"]["artifact"])
    # A file that was fetched is as read-only as one that was made here.
    file = two.folder / rows["demos"]["artifact"] / "store" / "0.txt"
    assert file.stat().st_mode & 0o222 == 0
    # The first computer finds what the second one made.
    assert cached(one.run("total.offset=10")) == {"demos": True, "total": True}


def test_a_plan_and_an_all_cached_run_need_the_manifests_alone(
    computers: Computers, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = computers
    one.run()
    two.use()
    runs = f"runs={two.storage.address}"
    assert main(["plan", str(two.recipe), runs]) == 0
    assert "All stages are cached." in capsys.readouterr().out
    assert main(["run", str(two.recipe), runs]) == 0
    out = capsys.readouterr().out
    assert f"published  {two.storage.address}/sums" in out
    assert "a-secret" not in out
    assert two.fetched() == []


def test_credentials_are_in_no_file(computers: Computers, storage: Storage) -> None:
    one, _ = computers
    one.run()
    files = [file.read_bytes() for file in one.cache.rglob("*") if file.is_file()]
    objects = [storage.objects.read(key) or b"" for key in storage.objects.sizes("")]
    assert len(files) > 8
    assert not any(b"a-secret" in content for content in [*files, *objects])


def test_published_results_link_to_the_artifacts_of_the_storage(
    computers: Computers, storage: Storage
) -> None:
    one, _ = computers
    one.run()
    objects = storage.objects
    page = (objects.read("sums/report.html") or b"").decode()
    picture = storage.key("/plot.png")
    assert f"<img src='../{picture}'" in page
    assert b"storage_stages:add" in (objects.read("sums/recipe.yaml") or b"")
    summary = json.loads(objects.read("sums/summary.json") or b"")
    assert summary["stages"]["total"]["metrics"] == {"total": 3.0}


def test_a_flipped_byte_is_refused_when_it_is_fetched_and_named(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    one.run()
    key = storage.key("store/1.txt")
    storage.objects.write(key, b"7")
    with pytest.raises(HandoffError, match=r"store/1\.txt has sha256 7902699be42c, the") as caught:
        two.run("total.offset=1")
    assert f"artifact {storage.address}/artifacts/demos-" in str(caught.value)
    assert two.fetched() == []
    assert [path.name for path in (two.folder / "artifacts").glob(".*.fetching")] == []


def test_a_changed_manifest_is_refused(computers: Computers, storage: Storage) -> None:
    one, two = computers
    one.run()
    key = f"{storage.key('total.txt').rsplit('/', 2)[0]}/{MANIFEST}"
    manifest = json.loads(storage.objects.read(key) or b"")
    manifest["metrics"]["total"] = 4.0
    storage.objects.write(key, json.dumps(manifest).encode())
    with pytest.raises(HandoffError, match=r"artifacts/total-.*the manifest was changed"):
        two.run()
    assert list((two.folder / "artifacts").glob("total-*")) == []


def test_a_manifest_cannot_name_a_file_outside_its_artifact(
    computers: Computers, storage: Storage
) -> None:
    _, two = computers
    files = {"../../x": {"size": 1, "sha256": "a" * 64}}
    record = {"kind": "episodes", "stage": "demos", "inputs": {}, "metrics": {}, "files": files}
    manifest = {**record, "digest": json_digest({"../../x": "a" * 64})}
    data = json.dumps({**manifest, MANIFEST_DIGEST: json_digest(manifest)}).encode()
    storage.objects.write(f"artifacts/demos-0123456789ab/{MANIFEST}", data)
    with pytest.raises(
        HandoffError, match=r"demos-0123456789ab: the manifest names the file '\.\."
    ):
        two.run()


def test_a_file_that_the_storage_lost_is_missed_by_an_all_cached_run(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    one.run()
    storage.objects.delete([storage.key("store/2.txt")])
    with pytest.raises(HandoffError, match=r"store/2\.txt is missing, the manifest says 1 bytes"):
        two.run()


KILLED = """
import os, signal, sys
from flows.storage.objects import Objects

def kill(*given):
    os.kill(os.getpid(), signal.SIGKILL)

upload = Objects.upload

def part(self, files, done):
    upload(self, dict(list(files.items())[:2]), done)
    kill()

Objects.upload, Objects.create = (part, kill) if sys.argv[1] == "files" else (upload, kill)
from flows.attended import run_in_order
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
recipe = read_recipe(sys.argv[2], ["runs=" + sys.argv[3]])
run_in_order(recipe, stages(recipe), isolate=False)
"""


@pytest.mark.parametrize(("moment", "uploaded"), [("files", 2), ("manifest", 6)])
def test_a_publication_that_is_killed_leaves_no_artifact(
    computers: Computers, storage: Storage, moment: str, uploaded: int
) -> None:
    one, two = computers
    one.use()
    words = [moment, str(one.recipe), str(storage.address)]
    command = [sys.executable, "-c", KILLED, *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert len(storage.artifact_keys()) == uploaded
    assert f"demos/{MANIFEST}" not in storage.artifact_keys()
    # Nobody takes it, and the computer that was killed completes it.
    two.use()
    assert open_runs(str(storage.address), ["demos"]).folder == two.folder
    assert list((two.folder / "artifacts").iterdir()) == []
    assert cached(one.run()) == {"demos": True, "total": False}
    assert cached(two.run()) == {"demos": True, "total": True}


def test_a_fetch_that_is_interrupted_leaves_the_manifest_and_is_begun_again(
    computers: Computers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = computers
    one.run()
    download = Objects.download

    def interrupted(self, files, done) -> None:
        download(self, dict(list(files.items())[:2]), done)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            two.run("total.offset=1")
    assert two.fetched() == []
    rows = two.run("total.offset=1")
    assert rows["total"]["metrics"] == {"total": 4.0}
    assert two.fetched() == ["demos", "total"]
    assert not list((two.folder / "artifacts").glob(".*.fetching"))


def test_of_two_computers_that_compute_one_artifact_the_first_decides(
    computers: Computers, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = computers
    with monkeypatch.context() as patched:
        # The second computer looks before the first one has published.
        patched.setattr(Objects, "folders", lambda self, prefix: [])
        one.run(number="1")
        rows = two.run(number="2")
    # 0 + 1 + 2 + 1: the sum is of the first computer's numbers, not of those made here.
    assert rows["total"]["metrics"] == {"total": 4.0}
    assert [key for key in storage.artifact_keys() if key.endswith("extra.txt")] == [
        "demos/extra.txt"
    ]
    assert storage.objects.read(storage.key("extra.txt")) == b"1"
    [kept] = (two.folder / "artifacts").glob("demos-*.superseded")
    assert (kept / "extra.txt").read_text() == "2"
    assert cached(two.run()) == {"demos": True, "total": True}


def test_an_artifact_stays_here_if_the_storage_is_unreachable_and_is_published_later(
    computers: Computers, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = computers
    upload = Objects.upload

    def unplugged(self, files, done) -> None:
        storage.stop()
        upload(self, files, done)

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "upload", unplugged)
        with pytest.raises(HandoffError, match="nothing answers there") as caught:
            one.run()
    message = str(caught.value)
    assert "\n" not in message
    assert f"are in {one.folder} only: run the same command again to publish them" in message
    assert "demos-" in message
    assert "total-" in message
    assert one.fetched() == ["demos", "total"]
    assert (one.folder / "sums" / "summary.json").is_file()
    storage.start()
    assert storage.artifact_keys() == []
    assert cached(one.run()) == {"demos": True, "total": True}
    assert cached(two.run()) == {"demos": True, "total": True}


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_unreachable_storage_is_one_line_before_anything_runs(
    computers: Computers, storage: Storage, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = computers
    one.use()
    storage.stop()
    assert main([command, str(one.recipe), f"runs={storage.address}"]) == 1
    place = f"storage {storage.address} at {storage.endpoint}"
    assert capsys.readouterr().err == f"handoff: {place}: nothing answers there.\n"
    assert list((one.folder / "artifacts").iterdir()) == []
    storage.start()


def test_a_bucket_that_does_not_exist_is_named(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(HandoffError, match=r"^storage s3://no-such-bucket at .*does not exist\.$"):
        open_runs("s3://no-such-bucket", ["demos"])


def test_an_artifact_that_was_deleted_in_the_storage_is_computed_again(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    one.run()
    two.run()
    storage.objects.delete([f"artifacts/{key}" for key in storage.objects.sizes("artifacts")])
    assert cached(two.run()) == {"demos": False, "total": False}
    assert len(storage.artifact_keys()) == 9


def test_a_manifest_that_comes_while_the_storage_is_listed_stays(
    computers: Computers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = computers
    one.run()
    two.use()
    opened = open_runs(str(two.storage.address), [])
    listed = Objects.folders

    def before_the_publication(self, prefix: str) -> list[str]:
        monkeypatch.setattr(Objects, "folders", listed)
        # Another thread, which sees the publication.
        open_runs(str(two.storage.address), ["demos"])
        return []

    monkeypatch.setattr(Objects, "folders", before_the_publication)
    assert opened.store is not None
    opened.store.mirror([])
    assert len(list((two.folder / "artifacts").glob("demos-*"))) == 1


def test_what_has_to_be_delivered_is_in_the_storage_or_the_delivery_fails(
    computers: Computers, storage: Storage
) -> None:
    one, _ = computers
    rows = one.run()
    storage.objects.delete([f"artifacts/{key}" for key in storage.objects.sizes("artifacts")])
    opened = open_runs(str(storage.address), [])
    assert opened.store is not None
    artifact = load_artifact(one.folder / rows["demos"]["artifact"])
    storage.stop()
    with pytest.raises(HandoffError, match="nothing answers there"):
        opened.store.deliver(artifact, no_progress)
    storage.start()
    assert opened.store.deliver(artifact, no_progress) == artifact
    assert "demos/artifact.json" in storage.artifact_keys()


def test_artifacts_of_a_storage_are_not_computed_again(computers: Computers) -> None:
    one, _ = computers
    one.run()
    with pytest.raises(HandoffError, match="redo: total cannot be computed again in s3://"):
        runner.run(str(one.recipe), [f"runs={one.storage.address}"], redo=["total"])


def test_a_lineage_is_fetched_by_the_address_of_a_stage(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    one.run()
    two.use()
    path = fetch_lineage(f"{storage.address}/sums/total", no_progress)
    assert (path / "total.txt").read_text() == "3.0"
    assert two.fetched() == ["demos", "total"]
    assert explain(path, verify=True).count("verified") == 2
    with pytest.raises(HandoffError, match="sums/scores: no published run with a stage 'scores'"):
        fetch_lineage(f"{storage.address}/sums/scores", no_progress)


def test_results_of_a_run_with_a_name_of_two_parts_link_and_are_found(
    computers: Computers, storage: Storage
) -> None:
    one, two = computers
    one.run("name=hil/sums")
    page = (storage.objects.read("hil/sums/report.html") or b"").decode()
    assert f"<img src='../../{storage.key('/plot.png')}'" in page
    two.use()
    fetch_lineage(f"{storage.address}/hil/sums/total", no_progress)
    assert two.fetched() == ["demos", "total"]


def test_files_that_were_not_fetched_are_missed_with_the_command_that_fetches_them(
    computers: Computers,
) -> None:
    one, two = computers
    one.run()
    rows = two.run()
    link = two.folder / "sums" / "total"
    with pytest.raises(HandoffError, match=r"only its manifest is here.*handoff fetch"):
        verify_artifact(link)
    with pytest.raises(HandoffError, match="only its manifest is here"):
        explain(link, verify=True)
    assert fetch_lineage(str(link), no_progress) == two.folder / rows["total"]["artifact"]
    verify_artifact(link)


def test_a_run_by_prefect_fetches_and_publishes(
    computers: Computers, prefect_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = computers
    one.run()
    two.use()
    runs = f"runs={two.storage.address}"
    path = runner.run(str(two.recipe), [runs, "total.offset=5"])
    rows = json.loads(path.read_text())["stages"]
    assert cached(rows) == {"demos": True, "total": False}
    one.use()
    recipe = read_recipe(str(one.recipe), [runs, "total.offset=5"])
    opened = open_runs(recipe.runs, recipe.stages)
    assert (
        load_artifact(opened.folder / rows["total"]["artifact"]).digest == rows["total"]["digest"]
    )


def test_the_working_copy_is_found_by_the_environment_of_the_run(
    computers: Computers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = computers
    one.run()
    link = one.folder / "sums" / "total"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(HandoffError, match="Is AWS_ENDPOINT_URL that of its run"):
        fetch_lineage(str(link), no_progress)
    with pytest.raises(HandoffError, match="not an artifact of a storage's working copy"):
        fetch_lineage(os.curdir, no_progress)
