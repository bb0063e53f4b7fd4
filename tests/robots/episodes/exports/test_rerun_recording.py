import io
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from robots.episodes.exports.rerun_recording import write_rerun, write_rerun_episode
from robots.episodes.formats.source import SourceEpisode, SourceSchema
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.robots.episodes.exports.limited_files import limit_files
from tests.robots.episodes.exports.viewer_store import LENGTHS, RATE_HZ, arrays, make_store

WRITE = (
    "import sys; from pathlib import Path; from robots.errors import HandoffError\n"
    "from robots.episodes.store import EpisodeStore\n"
    "from robots.episodes.exports.rerun_recording import write_rerun\n"
    "try: write_rerun(EpisodeStore.open(Path(sys.argv[1])), Path(sys.argv[2]))\n"
    "except HandoffError as error: print(error)\n"
)


class Recording:
    """Columns of a recording, as Rerun's own reader gives them."""

    def __init__(self, path: Path) -> None:
        from rerun.chunk import RrdReader

        reader = RrdReader(path)
        (self.about,) = reader.recordings()
        self.blueprints = [
            chunk.to_record_batch()
            for blueprint in reader.blueprints()
            for chunk in reader.stream(store=blueprint)
        ]
        self._columns: dict[tuple[str, str, bool], list[pa.Array]] = {}
        for chunk in reader.stream():
            batch = chunk.to_record_batch()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                key = (chunk.entity_path, name, chunk.is_static)
                self._columns.setdefault(key, []).append(column)

    def timelines(self) -> set[str]:
        return {name for _, name, _ in self._columns if ":" not in name and "." not in name}

    def column(self, entity: str, name: str, static: bool = False) -> pa.Array:
        return pa.concat_arrays(self._columns[(entity, name, static)])

    def scalars(self, entity: str) -> np.ndarray:
        return np.array(self.column(entity, "Scalars:scalars").to_pylist())

    def steps(self, entity: str) -> list[int]:
        return self.column(entity, "step").cast(pa.int64()).to_pylist()

    def nanoseconds(self, entity: str) -> list[int]:
        return self.column(entity, "time").cast(pa.int64()).to_pylist()

    def texts(self, entity: str, name: str, static: bool = False) -> list[str]:
        return [row[0] for row in self.column(entity, name, static).to_pylist()]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun")
    write_rerun(make_store(folder / "s.zarr"), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def first(exported: Path) -> Recording:
    return Recording(exported / "episode_000000.rrd")


def test_an_episode_is_one_recording_of_its_own(exported, first):
    names = sorted(path.name for path in exported.iterdir())
    assert names == ["episode_000000.rrd", "episode_000001.rrd"]
    second = Recording(exported / "episode_000001.rrd")
    assert first.about.recording_id != second.about.recording_id
    name = second.column("/__properties", "RecordingInfo:name", static=True).to_pylist()
    assert name == [["drawer, episode 1"]]


@pytest.mark.parametrize(
    "field",
    ["q", "tip", "turn", "grasp_pose", "matrix", "action", "action_policy", "success", "done"],
)
def test_numbers_are_curves_with_equal_values(exported, field):
    for number, length in enumerate(LENGTHS):
        recording = Recording(exported / f"episode_{number:06d}.rrd")
        given = arrays(number)["policy"][field].reshape(length, -1)
        np.testing.assert_array_equal(recording.scalars(f"/{field}"), given)


def test_curves_have_the_names_of_the_entries(first):
    def names(entity: str) -> list[str]:
        return first.column(entity, "SeriesLines:names", static=True).to_pylist()[0]

    assert names("/action") == ["j1", "j2"]
    assert names("/action_policy") == ["j1 (proposed)", "j2 (proposed)"]
    assert names("/matrix") == ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert names("/success") == ["success"]


def test_pictures_are_png_without_loss(first):
    found = first.column("/cameras/front", "EncodedImage:blob").to_pylist()
    pictures = [np.asarray(Image.open(io.BytesIO(bytes(blob[0])))) for blob in found]
    np.testing.assert_array_equal(pictures, arrays(0)["policy"]["cameras/front"])


def test_depth_is_written_in_millimetres(first):
    found = first.column("/depth", "DepthImage:buffer").to_pylist()
    depth = [np.frombuffer(bytes(row[0]), np.uint16).reshape(6, 8) for row in found]
    np.testing.assert_array_equal(depth, arrays(0)["policy"]["depth"])
    assert first.column("/depth", "DepthImage:meter").to_pylist() == [[1000.0]] * LENGTHS[0]


def test_step_and_time_are_timelines(first):
    assert first.steps("/action") == [0, 1, 2, 3, 4]
    assert first.nanoseconds("/action") == [round(k / RATE_HZ * 1e9) for k in range(5)]


def test_samples_of_another_stream_have_the_step_of_the_policy(first):
    assert first.steps("/robot/tau") == [step for step in range(5) for _ in range(4)]
    assert first.nanoseconds("/robot/tau")[1] == round(1e9 / (4 * RATE_HZ))
    np.testing.assert_array_equal(first.scalars("/robot/tau"), arrays(0)["robot"]["tau"])


def test_text_is_written_at_every_change(first):
    assert first.texts("/instruction", "TextDocument:text") == ["open", "close"]
    assert first.steps("/instruction") == [0, 2]


def test_events_are_the_changes_of_flags(first):
    assert first.texts("/episode/events", "TextLog:text") == [
        "done becomes 1",
        "success becomes 1",
    ]
    assert first.steps("/episode/events") == [4, 4]


def test_metadata_is_json(first):
    (text,) = first.texts("/episode/metadata", "TextDocument:text", static=True)
    assert json.loads(text) == {"seed": 0, "success": True}


def test_proposed_and_executed_actions_share_a_view(first):
    contents = [
        column.to_pylist()[-1]
        for batch in first.blueprints
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name.startswith("ViewContents")
    ]
    assert ["/action", "/action_policy"] in contents
    assert ["/action_policy"] not in contents


def test_an_episode_of_another_format_has_the_times_of_its_fields(tmp_path):
    fields = {
        "q/data": FieldSpec(shape=(2,), role="observation"),
        "front": FieldSpec(shape=(2, 3, 3), dtype="uint8", unit="u8", role="observation"),
    }
    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, 2)).astype(np.float32)
    front = rng.integers(0, 256, (2, 2, 3, 3)).astype(np.uint8)
    times = {"q/data": np.array([0.0, 0.1, 0.25]), "front": np.array([0.05, 0.15])}
    schema = SourceSchema(form="MCAP", task="pour", rate_hz=None, fields=fields)
    episode = SourceEpisode({"q/data": q, "front": front}, {"instruction": "pour it"}, times)
    recording = Recording(write_rerun_episode(schema, 7, episode, tmp_path / "e.rrd"))
    np.testing.assert_array_equal(recording.scalars("/q/data"), q)
    assert recording.nanoseconds("/q/data") == [0, 100_000_000, 250_000_000]
    assert recording.nanoseconds("/front") == [50_000_000, 150_000_000]
    assert recording.texts("/instruction", "TextDocument:text", static=True) == ["pour it"]


def test_an_episode_without_a_rate_has_steps_alone(tmp_path):
    schema = SourceSchema("HDF5", "pour", None, {"action": FieldSpec(shape=(2,))})
    episode = SourceEpisode({"action": np.ones((3, 2), np.float32)}, {})
    recording = Recording(write_rerun_episode(schema, 0, episode, tmp_path / "e.rrd"))
    assert recording.steps("/action") == [0, 1, 2]
    with pytest.raises(KeyError):
        recording.nanoseconds("/action")


def test_a_field_with_too_many_entries_for_curves_is_a_tensor_per_step(tmp_path):
    schema = SourceSchema("HDF5", "pour", 10.0, {"action": FieldSpec(shape=(200,))})
    given = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    episode = SourceEpisode({"action": given}, {})
    recording = Recording(write_rerun_episode(schema, 0, episode, tmp_path / "e.rrd"))
    tensors = [row[0] for row in recording.column("/action", "Tensor:data").to_pylist()]
    np.testing.assert_array_equal([tensor["buffer"] for tensor in tensors], given)
    assert recording.steps("/action") == [0, 1, 2]
    assert recording.nanoseconds("/action") == [0, 100_000_000, 200_000_000]
    assert "log_time" not in recording.timelines()


def test_a_recording_of_one_episode_is_replaced_and_nothing_else_is_left(tmp_path):
    schema = SourceSchema("HDF5", "pour", 10.0, {"action": FieldSpec(shape=(1,))})
    for value in (1.0, 2.0):
        episode = SourceEpisode({"action": np.full((2, 1), value, np.float32)}, {})
        write_rerun_episode(schema, 0, episode, tmp_path / "e.rrd")
    np.testing.assert_array_equal(Recording(tmp_path / "e.rrd").scalars("/action"), [[2.0], [2.0]])
    assert [path.name for path in tmp_path.iterdir()] == ["e.rrd"]


def test_writing_connects_to_nobody_even_if_the_environment_asks_for_it(tmp_path):
    make_store(tmp_path / "s.zarr")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        asked = {
            "TELEMETRY_ENABLED": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": address,
            "RERUN_TELEMETRY_ENDPOINT": address,
            "HOME": str(tmp_path / "home"),
        }
        (tmp_path / "home").mkdir()
        command = [sys.executable, "-c", WRITE, tmp_path / "s.zarr", tmp_path / "out"]
        subprocess.run(command, env={**os.environ, **asked}, check=True, timeout=60)
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()
    assert (tmp_path / "out/episode_000001.rrd").exists()
    # Rerun's reports of use would leave an identity here.
    assert list((tmp_path / "home").rglob("*rerun*")) == []


def test_rerun_that_is_turned_off_is_no_empty_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("RERUN", "off")
    with pytest.raises(HandoffError, match="RERUN=off is set in the environment"):
        write_rerun(make_store(tmp_path / "s.zarr"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


# The samples take about 90 kB, and the manifest after them 80 kB.
@pytest.mark.parametrize("size", [2000, 120_000])
def test_a_full_disk_is_explained_in_one_line(tmp_path, size):
    make_store(tmp_path / "s.zarr")
    command = [sys.executable, "-c", WRITE, tmp_path / "s.zarr", tmp_path / "out"]
    limit = partial(limit_files, size)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, check=True, timeout=60
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{tmp_path}/out: the recordings were not written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_an_existing_folder_is_refused_and_kept(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(HandoffError, match="exists already"):
        write_rerun(make_store(tmp_path / "s.zarr"), tmp_path / "out")


def test_nothing_is_left_after_an_interruption(tmp_path):
    def stop(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    store = make_store(tmp_path / "s.zarr")
    with pytest.raises(KeyboardInterrupt):
        write_rerun(store, tmp_path / "out", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]
