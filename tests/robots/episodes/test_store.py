import errno
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robots.episodes.pack import pack_store, unpack_store
from robots.episodes.schema import EpisodeSchema, StreamSpec, check_episode
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec

SCHEMA = EpisodeSchema(
    name="probe",
    streams={
        "policy": StreamSpec(
            rate_hz=10.0,
            fields={
                "agent": FieldSpec(shape=(2,), unit="m", frame="board"),
                "image": FieldSpec(shape=(48, 48, 3), dtype="uint8", unit="u8"),
            },
        ),
        "robot": StreamSpec(
            rate_hz=1000.0, fields={"q": FieldSpec(shape=(7,), dtype="float64", unit="rad")}
        ),
    },
)


def episode(seed: int, steps: int = 5, robot_steps: int = 12) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        "policy": {
            "agent": rng.standard_normal((steps, 2)).astype(np.float32),
            "image": rng.integers(0, 256, (steps, 48, 48, 3), dtype=np.uint8),
        },
        "robot": {"q": rng.standard_normal((robot_steps, 7))},
    }


def assert_equal(
    store: EpisodeStore, number: int, expected: dict[str, dict[str, np.ndarray]]
) -> None:
    for stream, fields in expected.items():
        found = store.read(number, stream)
        for name, values in fields.items():
            assert found[name].dtype == values.dtype
            assert found[name].tobytes() == values.tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.zarr"


def test_an_episode_reads_back_bit_exact_after_reopening(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        assert store.append(episode(0), {"operator": "ann"}) == 0
        assert store.append(episode(1, steps=40), {}) == 1
    store = EpisodeStore.open(path)
    assert store.schema == SCHEMA
    assert store.num_episodes == 2
    assert store.metadata(0) == {"operator": "ann"}
    assert_equal(store, 0, episode(0))
    assert_equal(store, 1, episode(1, steps=40))


def test_negative_zero_and_a_black_image_read_back_bit_exact(path):
    values = episode(0)
    values["policy"]["agent"][:] = -0.0
    values["policy"]["image"][:] = 0
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(values, {})
    assert_equal(EpisodeStore.open(path), 0, values)


def test_ends_are_cumulative_and_exclusive_per_stream(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        assert store.ends("policy").shape == (0,)
        store.append(episode(0, 5, 12), {})
        store.append(episode(1, 3, 20), {})
    assert store.ends("policy").tolist() == [5, 8]
    assert store.ends("robot").tolist() == [12, 32]
    assert store.ends("policy").dtype == np.int64


def test_the_column_is_every_episode_in_order_across_segments(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
        with store.writer() as writer:
            writer.append(episode(1), {})
            writer.append(episode(2), {})
        expected = np.concatenate([episode(i)["robot"]["q"] for i in range(3)])
        np.testing.assert_array_equal(store.column("robot", "q"), expected)
        for number in range(3):
            assert_equal(store, number, episode(number))


def test_a_window_of_an_episode_is_a_slice_of_it(path):
    with EpisodeStore.create(path, SCHEMA) as store, store.writer() as writer:
        writer.append(episode(0, steps=30), {})
        writer.append(episode(1, steps=50), {})
    window = store.read(1, "policy", ["image"], slice(20, 36))
    np.testing.assert_array_equal(window["image"], episode(1, steps=50)["policy"]["image"][20:36])
    assert list(window) == ["image"]


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    commit_bytes=st.integers(1, 400_000),
)
def test_any_lengths_and_commit_sizes_read_back_exactly(tmp_path, lengths, commit_bytes):
    path = tmp_path / "any.zarr"
    shutil.rmtree(path, ignore_errors=True)
    with EpisodeStore.create(path, SCHEMA) as store, store.writer(commit_bytes) as writer:
        for number, steps in enumerate(lengths):
            assert writer.append(episode(number, steps), {"n": number}) == number
    store = EpisodeStore.open(path)
    assert store.ends("policy").tolist() == np.cumsum(lengths).tolist()
    for number, steps in enumerate(lengths):
        assert_equal(store, number, episode(number, steps))


def test_the_writer_commits_the_episodes_before_a_bad_one(path):
    store = EpisodeStore.create(path, SCHEMA)
    bad = episode(1)
    bad["robot"]["q"][3, 2] = np.nan
    with store.writer() as writer:
        writer.append(episode(0), {})
        with pytest.raises(HandoffError, match=r"robot/q: value at index \(3, 2\) is nan"):
            writer.append(bad, {})
    store.close()
    assert EpisodeStore.open(path).num_episodes == 1


def test_the_writer_commits_what_it_took_when_its_block_ends_in_an_error(path):
    store = EpisodeStore.create(path, SCHEMA)
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        _interrupted(writer)
    assert EpisodeStore.open(path).num_episodes == 1


def test_the_writer_does_not_see_later_changes_of_the_arrays_it_took(path):
    values = episode(0)
    with EpisodeStore.create(path, SCHEMA) as store, store.writer() as writer:
        writer.append(values, {})
        values["robot"]["q"][:] = 0.0
    assert_equal(store, 0, episode(0))


def test_numbers_are_cast_to_the_declared_dtype(path):
    values = episode(0)
    values["policy"]["agent"] = values["policy"]["agent"].astype(np.float64)
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(values, {})
    assert_equal(store, 0, episode(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda e: e["policy"].update(agent=np.zeros((5, 3), np.float32)),
            r"policy/agent: shape \(5, 3\)",
        ),
        (lambda e: e["policy"].update(agent=np.zeros((4, 2), np.float32)), "unequal length"),
        (lambda e: e["policy"].update(agent=np.full((5, 2), 1e300)), "do not fit float32"),
        (lambda e: e["policy"].pop("agent"), r"missing \['agent'\]"),
        (lambda e: e.pop("robot"), r"streams missing \['robot'\]"),
        (lambda e: e["robot"].update(q=np.zeros((0, 7))), "0 samples"),
        (
            lambda e: e["policy"].update(image=np.zeros((5, 48, 48, 3), np.float32)),
            "float32 cannot become uint8",
        ),
    ],
)
def test_an_episode_against_the_schema_is_refused(path, change, message):
    values = episode(0)
    change(values)
    with EpisodeStore.create(path, SCHEMA) as store:
        with pytest.raises(HandoffError, match=message):
            store.append(values, {})
        assert store.num_episodes == 0


def test_metadata_that_is_not_json_is_refused(path):
    with EpisodeStore.create(path, SCHEMA) as store, pytest.raises(HandoffError, match="metadata"):
        store.append(episode(0), {"q": np.zeros(2)})


def test_integers_that_overflow_the_declared_dtype_are_refused():
    schema = EpisodeSchema(
        name="i",
        streams={"s": StreamSpec(rate_hz=1.0, fields={"n": FieldSpec(shape=(), dtype="int8")})},
    )
    with pytest.raises(HandoffError, match="200 do not fit int8"):
        check_episode(schema, {"s": {"n": np.array([1, 200])}})


def test_a_second_writer_is_refused_and_told_who_writes(path):
    with EpisodeStore.create(path, SCHEMA):
        with pytest.raises(HandoffError, match=r"open for writing by process \d+"):
            EpisodeStore.open(path, "a")
        assert EpisodeStore.open(path).num_episodes == 0
    EpisodeStore.open(path, "a").close()


def test_a_reader_cannot_append(path):
    EpisodeStore.create(path, SCHEMA).close()
    with pytest.raises(HandoffError, match="reading only"):
        EpisodeStore.open(path).append(episode(0), {})


def test_committed_files_are_never_touched_by_later_appends(path):
    def contents() -> dict[Path, tuple[int, bytes]]:
        files = (
            file
            for file in path.rglob("*")
            if file.is_file() and file.name not in ("index.json", ".lock")
        )
        return {file: (file.stat().st_ino, file.read_bytes()) for file in files}

    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
        before = contents()
        store.append(episode(1), {})
        after = contents()
    assert len(after) > len(before)
    assert {file: after[file] for file in before} == before


def test_a_reader_keeps_its_view_while_another_writes(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
        reader = EpisodeStore.open(path)
        store.append(episode(1), {})
        assert reader.num_episodes == 1
        assert_equal(reader, 0, episode(0))


def _interrupted(writer):
    writer.append(episode(0), {})
    raise KeyboardInterrupt


@pytest.mark.parametrize("failing_write", range(12))
def test_a_full_disk_is_one_clear_error_and_the_store_stays_as_it_was(
    path, monkeypatch, failing_write
):
    import zarr.storage._local as local

    put, writes = local._put, []

    def full(*args, **kwargs):
        writes.append(args)
        if len(writes) > failing_write:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(*args, **kwargs)

    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
        with monkeypatch.context() as patch:
            patch.setattr(local, "_put", full)
            with pytest.raises(HandoffError, match=r"1 episode\(s\) not stored.*disk is full"):
                store.append(episode(1), {})
        assert EpisodeStore.open(path).num_episodes == 1
        assert_equal(store, 0, episode(0))
        assert store.append(episode(2), {}) == 1
    assert_equal(EpisodeStore.open(path), 1, episode(2))


def test_a_really_full_file_system_keeps_the_earlier_episodes(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True
        )
    except OSError as error:
        pytest.skip(f"cannot mount a small file system: {error}")
    if made.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {made.stderr.decode().strip()}")
    try:
        store = EpisodeStore.create(mount / "store.zarr", SCHEMA)
        with pytest.raises(HandoffError, match=r"disk is full or over quota \(\d+ MB free\)"):
            _append_for_ever(store)
        written = store.num_episodes
        store.close()
        store = EpisodeStore.open(mount / "store.zarr")
        assert 1 <= written == store.num_episodes
        for number in range(written):
            assert_equal(store, number, episode(number))
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_an_index_that_cannot_be_replaced_leaves_the_old_one(path, monkeypatch):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
        with monkeypatch.context() as patch:
            patch.setattr("robots.storage.durable.os.replace", _no_space)
            with pytest.raises(HandoffError, match="disk is full"):
                store.append(episode(1), {})
    assert EpisodeStore.open(path).num_episodes == 1


def _append_for_ever(store: EpisodeStore) -> None:
    while True:
        store.append(episode(store.num_episodes), {})


def _no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_truncated_array_is_named_at_opening(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    shard = path / "segments/000000/policy/image/c.0.0.0.0"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(
        HandoffError, match=r"000000/policy/image: files hold \d+ bytes, expected \d+"
    ):
        EpisodeStore.open(path)


def test_a_missing_array_is_named_at_opening(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    shutil.rmtree(path / "segments/000000/robot/q")
    with pytest.raises(HandoffError, match="robot/q: files hold 0 bytes"):
        EpisodeStore.open(path)


@pytest.mark.parametrize("place", [10, 1000, -4])
def test_a_flipped_bit_is_an_error_when_read(path, place):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    shard = path / "segments/000000/policy/image/c.0.0.0.0"
    content = bytearray(shard.read_bytes())
    content[place] ^= 1
    shard.write_bytes(content)
    with pytest.raises(HandoffError, match="cannot be decoded"):
        EpisodeStore.open(path).read(0, "policy")


def test_opening_what_is_no_store_says_so(tmp_path):
    with pytest.raises(HandoffError, match="no such folder"):
        EpisodeStore.open(tmp_path / "absent")
    with pytest.raises(HandoffError, match=r"has no zarr\.json"):
        EpisodeStore.open(tmp_path)
    (tmp_path / "zarr.json").write_text('{"attributes": {}}')
    with pytest.raises(HandoffError, match="made by another tool"):
        EpisodeStore.open(tmp_path)


def test_a_newer_format_version_is_refused(path):
    EpisodeStore.create(path, SCHEMA).close()
    file = path / "zarr.json"
    content = json.loads(file.read_text())
    content["attributes"]["handoff"]["version"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(HandoffError, match="version is 99, this build reads 1"):
        EpisodeStore.open(path)


def test_a_damaged_index_is_refused(path):
    EpisodeStore.create(path, SCHEMA).close()
    (path / "index.json").write_text('{"segments": [')
    with pytest.raises(HandoffError, match=r"index\.json: cannot be read .*\. Was it damaged\?$"):
        EpisodeStore.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda first: first["episodes"][0]["lengths"].update(policy=-3),
            r"'segments\.0\.episodes\.0\.lengths\.policy' is -3",
        ),
        (lambda first: first["episodes"][0]["lengths"].update(policy=0), "has 0 samples of policy"),
        (lambda first: first.update(name="000001"), "000001 comes after 000001, expected rising"),
    ],
)
def test_an_index_with_impossible_entries_is_refused(path, change, message):
    with EpisodeStore.create(path, SCHEMA) as store:
        for seed in range(2):
            store.append(episode(seed), {})
    index = json.loads((path / "index.json").read_text())
    change(index["segments"][0])
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(HandoffError, match=message):
        EpisodeStore.open(path)


def test_an_episode_longer_than_its_arrays_is_refused_when_it_is_read(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    index = json.loads((path / "index.json").read_text())
    index["segments"][0]["episodes"][0]["lengths"]["policy"] += 1
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(HandoffError, match=r"samples, index\.json says at least"):
        EpisodeStore.open(path).read(0, "policy")


def test_create_refuses_a_path_in_use(path):
    EpisodeStore.create(path, SCHEMA).close()
    with pytest.raises(HandoffError, match="already exists"):
        EpisodeStore.create(path, SCHEMA)


def test_unknown_episode_stream_and_field_are_named(path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    with pytest.raises(HandoffError, match="no episode 1, expected 0 to 0"):
        store.read(1, "policy")
    with pytest.raises(HandoffError, match="no stream 'camera'"):
        store.read(0, "camera")
    with pytest.raises(HandoffError, match="no field 'dq'"):
        store.read(0, "robot", ["dq"])


def test_a_field_name_that_leaves_the_store_is_refused(path):
    schema = EpisodeSchema(
        name="x", streams={"s": StreamSpec(rate_hz=1.0, fields={"../../y": FieldSpec(shape=())})}
    )
    with pytest.raises(HandoffError, match="cannot name an array"):
        EpisodeStore.create(path, schema)


def test_a_packed_store_is_reproducible_and_reads_back(path, tmp_path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {"seed": 0})
        digest = pack_store(path, tmp_path / "a.zip")
        assert pack_store(path, tmp_path / "b.zip") == digest
    unpacked = EpisodeStore.open(unpack_store(tmp_path / "a.zip", tmp_path / "copy.zarr"))
    assert unpacked.metadata(0) == {"seed": 0}
    assert_equal(unpacked, 0, episode(0))


def test_a_truncated_pack_leaves_nothing_behind(path, tmp_path):
    with EpisodeStore.create(path, SCHEMA) as store:
        store.append(episode(0), {})
    pack_store(path, tmp_path / "a.zip")
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-50])
    with pytest.raises(HandoffError, match="cut short"):
        unpack_store(tmp_path / "a.zip", tmp_path / "copy.zarr")
    assert not (tmp_path / "copy.zarr").exists()
