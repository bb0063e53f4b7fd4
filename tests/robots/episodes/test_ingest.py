import json
import re
import shutil

import numpy as np
import pytest

import robots.episodes.ingest as ingest_module
from robots.config import validate
from robots.episodes.config import FieldMapConfig
from robots.episodes.demonstrations import identify
from robots.episodes.formats.pusht import pusht_schema
from robots.episodes.ingest import IngestConfig, ingest
from robots.episodes.pack import pack_store
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.robots.episodes.replay_buffer import arrays, write_zip


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_zip(tmp_path / "p.zip", arrays())


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def run(data, out, progress=no_progress, **settings):
    return ingest(
        IngestConfig(data=str(data), **settings), out, progress, shipped=out / "absent.zarr.zip"
    )


def test_ingest_stores_every_episode_with_its_origin(data, out):
    metrics = run(data, out)
    assert (metrics["episodes"], metrics["frames"], metrics["images"]) == (3, 13, True)
    assert metrics["source"] == "argument"
    json.dumps(metrics)
    store = EpisodeStore.open(out / "store.zarr")
    assert store.ends("policy").tolist() == [4, 10, 13]
    assert store.metadata(2) == {
        "source_digest": metrics["source_digest"],
        "source_episode": 2,
    }
    np.testing.assert_array_equal(store.column("policy", "image"), arrays()["data/img"])


def test_only_the_first_episodes_are_taken_on_request(data, out):
    assert run(data, out, max_episodes=2, images=False)["frames"] == 10


def test_mirror_images_follow_all_episodes_and_an_interrupted_ingest_goes_on_with_them(data, out):
    def kill(done, total, note=""):
        assert total == 6
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(data, out, kill, mirror=True)
    assert run(data, out, mirror=True)["episodes"] == 6
    store = EpisodeStore.open(out / "store.zarr")
    assert [store.metadata(i).get("mirrored", False) for i in range(6)] == [False] * 3 + [True] * 3
    assert store.ends("policy").tolist() == [4, 10, 13, 17, 23, 26]
    agent = store.column("policy", "agent")
    np.testing.assert_allclose(agent[13:], 0.512 - agent[:13, ::-1], atol=1e-6)
    assert run(data, out)["episodes"] == 3


def test_an_interrupted_ingest_goes_on_and_ends_the_same(data, out, tmp_path):
    class KilledError(Exception):
        pass

    def kill(done, total, note=""):
        if done == 2:
            raise KilledError

    with pytest.raises(KilledError):
        run(data, out, kill)
    assert EpisodeStore.open(out / "store.zarr").num_episodes == 2
    calls = []
    assert run(data, out, lambda done, total, note="": calls.append(done))["episodes"] == 3
    assert calls == [3]
    np.testing.assert_array_equal(
        EpisodeStore.open(out / "store.zarr").column("policy", "image"), arrays()["data/img"]
    )


def test_what_another_source_left_is_replaced(data, out, tmp_path):
    run(data, out, images=False)
    other = write_zip(tmp_path / "other.zip", arrays(seed=1))
    run(other, out, images=False)
    expected = arrays(seed=1)["data/action"].astype(np.float64) * 1e-3
    np.testing.assert_array_equal(
        EpisodeStore.open(out / "store.zarr").column("policy", "action"),
        expected.astype(np.float32),
    )


def test_the_place_in_which_the_data_were_found_does_not_change_the_store(
    data, tmp_path, monkeypatch
):
    """Two computers keep the same file in different places."""
    stores = []
    for place, name in (("lab", None), ("home", "HANDOFF_DATA")):
        folder = tmp_path / place
        (folder / "out").mkdir(parents=True)
        shutil.copy(data, folder / f"{place}.zip")
        if name:
            monkeypatch.setenv(name, str(folder / f"{place}.zip"))
        given = None if name else str(folder / f"{place}.zip")
        ingest(IngestConfig(data=given), folder / "out", no_progress, folder / "absent.zarr.zip")
        files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
        stores.append(
            {
                str(path.relative_to(folder)): path.read_bytes()
                for path in files
                if path.name != ".lock"
            }
        )
    assert len(stores[0]) > 3
    assert stores[0] == stores[1]


def test_a_damaged_left_over_is_replaced(data, out):
    run(data, out, images=False)
    (out / "store.zarr/index.json").write_text("{")
    assert run(data, out, images=False)["episodes"] == 3


def test_the_shipped_set_is_used_when_nothing_else_is_there(tmp_path, out, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("HANDOFF_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fields = pusht_schema(images=False).streams["policy"].fields
    with EpisodeStore.create(tmp_path / "s.zarr", pusht_schema(images=False)) as store:
        store.append(
            {
                "policy": {
                    name: np.ones((3, *spec.shape), np.float32) for name, spec in fields.items()
                }
            },
            {},
        )
    digest = pack_store(tmp_path / "s.zarr", tmp_path / "rollouts.zarr.zip")
    (tmp_path / "rollouts.json").write_text(json.dumps({"sha256": digest}))
    metrics = ingest(IngestConfig(download=False), out, no_progress, tmp_path / "rollouts.zarr.zip")
    assert (metrics["source"], metrics["frames"], metrics["images"]) == ("shipped", 3, False)
    assert "not the human demonstrations" in metrics["source_line"]


def test_a_misspelt_key_of_the_configuration_is_refused():
    with pytest.raises(HandoffError, match=r"unknown key 'ingest\.imges', did you mean 'images'"):
        validate(IngestConfig, {"imges": False}, "ingest")


def test_a_value_that_is_not_finite_is_named_with_its_file_and_episode(data, out, monkeypatch):
    def damaged(*arguments):
        for number, (streams, metadata) in enumerate(episodes(*arguments)):
            if number == 1:
                streams["policy"]["action"][2, 0] = np.nan
            yield streams, metadata

    episodes = ingest_module._episodes
    monkeypatch.setattr(ingest_module, "_episodes", damaged)
    with pytest.raises(HandoffError, match=r"p\.zip: episode 1: policy/action: .* \(2, 0\) is nan"):
        run(data, out)


def test_a_demand_for_no_episodes_is_refused(data, out):
    with pytest.raises(HandoffError, match="max_episodes: is 0"):
        run(data, out, max_episodes=0)


def store_of_another_task(path):
    fields = {
        "joint_angles": FieldSpec(shape=(2,), unit="deg", role="observation"),
        "target": FieldSpec(shape=(2,), unit="deg", role="action"),
    }
    schema = EpisodeSchema(
        name="fold_towel", streams={"policy": StreamSpec(rate_hz=20.0, fields=fields)}
    )
    with EpisodeStore.create(path, schema) as store:
        for length in (4, 6):
            rows = np.full((length, 2), 90.0, np.float32)
            store.append(
                {"policy": {"joint_angles": rows, "target": 2 * rows}}, {"instruction": "fold"}
            )
    return path


def test_a_store_of_any_task_is_taken_as_it_is(tmp_path, out, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    metrics = run(store_of_another_task(tmp_path / "s.zarr"), out)
    assert (metrics["episodes"], metrics["frames"], metrics["images"]) == (2, 10, False)
    assert metrics["fields"]["target"] == "float32 (2) [deg], action"
    store = EpisodeStore.open(out / "store.zarr")
    assert store.schema.name == "fold_towel"
    assert store.metadata(1)["instruction"] == "fold"


def test_a_map_names_and_converts_fields_and_another_map_starts_again(tmp_path, out, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = store_of_another_task(tmp_path / "s.zarr")
    radians = float(np.pi / 180.0)
    q = {"source": "joint_angles", "scale": radians, "unit": "rad"}
    values = {
        "task": "towel",
        "resample_hz": 10.0,
        "action_interface": "joint_target",
        "fields": {"q": q},
    }
    run(data, out, map=validate(FieldMapConfig, values, "map"))
    store = EpisodeStore.open(out / "store.zarr")
    stream = store.schema.streams["policy"]
    assert (store.schema.name, stream.rate_hz, list(stream.fields)) == (
        "towel",
        10.0,
        ["q", "action"],
    )
    assert store.ends("policy").tolist() == [2, 5]
    np.testing.assert_allclose(store.column("policy", "q"), np.pi / 2, rtol=1e-6)
    assert stream.fields["action"].interface == "joint_target"
    first = store.metadata(0)["source_map"]
    values["fields"] = {"q": {**q, "scale": 2.0 * radians}}
    run(data, out, map=validate(FieldMapConfig, values, "map"))
    store = EpisodeStore.open(out / "store.zarr")
    assert store.metadata(0)["source_map"] != first
    np.testing.assert_allclose(store.column("policy", "q"), np.pi, rtol=1e-6)


def test_something_of_no_known_format_is_refused_with_what_is_known(tmp_path, out):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("nothing")
    with pytest.raises(HandoffError, match="no format of demonstrations that is known") as caught:
        run(tmp_path / "notes", out)
    for name in ("LeRobot", "robomimic", "RLDS", "Minari", "NumPy"):
        assert name in str(caught.value)
    assert "`--format MODULE` of handoff episodes, or demos.format=MODULE" in str(caught.value)
    with pytest.raises(HandoffError, match="format 'lerobt': did you mean 'lerobot'"):
        run(tmp_path / "notes", out, format="lerobt")


def test_a_folder_above_a_data_set_is_answered_with_the_data_set(tmp_path):
    towel = tmp_path / "lab" / "towel.zarr"
    towel.mkdir(parents=True)
    (tmp_path / "lab" / "notes.txt").write_text("nothing")
    for name in ("index.json", "zarr.json"):
        (towel / name).write_text("{}")
    with pytest.raises(HandoffError, match=re.escape(f"Do you mean {towel} (")):
        identify(tmp_path / "lab")
