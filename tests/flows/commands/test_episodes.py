"""`handoff episodes`: what it prints of data sets, and the stores that it writes."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from robots import extras
from robots.episodes.running_episode import RunningEpisode
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from tests.robots.episodes.formats.rosbag_files import messages, values, write_mcap


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    episodes = []
    for length in (30, 40, 35, 45):
        q = np.sin(np.linspace(0, 5, length)[:, None] + rng.uniform(0, 6, 3)).astype(np.float32)
        episodes.append({"q": q, "action": np.roll(q, -1, axis=0), "reward": q[:, 0] * 0 + 1})
    write_episodes(
        tmp_path / "towel.zarr",
        episodes,
        task="fold",
        rate_hz=10.0,
        units={"q": "rad"},
        instructions=["fold it"] * 4,
        metadata=[{"success": number != 1} for number in range(4)],
    )
    return tmp_path / "towel.zarr"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", *words]) != 0
    return capsys.readouterr().err


def test_info_names_format_task_rate_and_fields(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "info", "towel.zarr").splitlines()
    assert lines[:4] == [
        "format    episode stores of Handoff",
        "task      fold",
        "rate      10 Hz",
        "episodes  4",
    ]
    assert "  q       float32 (3) [rad], observation" in lines
    assert "  action  float32 (3), action" in lines


def test_ls_has_a_row_per_episode(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in printed(capsys, "ls", "towel.zarr").splitlines()]
    assert rows[0][:5] == ["episode", "steps", "seconds", "success", "instruction"]
    assert rows[2] == ["1", "40", "4.0", "no", "fold", "it"]
    assert len(rows) == 5


def test_info_and_ls_show_when_and_by_whom_episodes_were_recorded(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {
        "began": "2026-11-27T03:01:10.500Z",
        "ended": "2026-11-27T03:01:20.500Z",
        "session": "2026-11-27T03:00:00Z",
        "operator": "ada",
        "ended_by": "label",
        "calibration": {
            "front": {
                "width": 64,
                "height": 48,
                "focal_length": [60.0, 60.0],
                "principal_point": [32.0, 24.0],
                "frame": "world",
                "position": [0.0, 0.0, 1.0],
                "quaternion": [1.0, 0.0, 0.0, 0.0],
            }
        },
    }
    arrays = {"action": np.zeros((20, 1), np.float32), "q": np.zeros((20, 1), np.float32)}
    write_episodes(
        store.with_name("own.zarr"), [arrays], task="fold", rate_hz=10.0, metadata=[about]
    )
    info = printed(capsys, "info", "own.zarr").splitlines()
    assert "recorded  2026-11-27T03:01:10Z to 2026-11-27T03:01:20Z, 1 session" in info
    assert "operators ada 1" in info
    rows = [line.split() for line in printed(capsys, "ls", "own.zarr").splitlines()]
    assert rows[0][5:] == ["began", "operator", "ended", "by"]
    assert rows[1] == ["0", "20", "2.0", "-", "-", "2026-11-27T03:01:10Z", "ada", "label"]


def test_import_maps_fields_by_a_file(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("map.yaml").write_text("task: towel\nrename: {q: joints}\ndrop: [reward]\n")
    assert "written to" in printed(capsys, "import", "towel.zarr", "in.zarr", "--map", "map.yaml")
    schema = EpisodeStore.open(Path("in.zarr")).schema
    assert schema.name == "towel"
    assert list(schema.streams["policy"].fields) == ["joints", "action"]
    Path("bad.yaml").write_text("renam: {q: joints}\n")
    assert "unknown key 'map.renam'" in refused(
        capsys, "import", "towel.zarr", "b.zarr", "--map", "bad.yaml"
    )
    assert not Path("b.zarr").exists()
    assert sorted(path.name for path in Path.cwd().iterdir() if path.name.startswith(".")) == []


def test_edits_write_new_stores(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "delete", "towel.zarr", "1", "3", "--out", "d.zarr", "--reason", "covered")
    assert EpisodeStore.open(Path("d.zarr")).num_episodes == 2
    printed(capsys, "trim", "towel.zarr", "0", "--first", "5", "--stop", "20", "--out", "t.zarr")
    assert EpisodeStore.open(Path("t.zarr")).ends("policy")[0] == 15
    words = ("relabel", "towel.zarr", "2", "--set", "success=false", "--by", "ada")
    printed(capsys, *words, "--out", "r.zarr")
    metadata = EpisodeStore.open(Path("r.zarr")).metadata(2)
    assert (metadata["success"], metadata["edits"][0]["by"]) == (False, "ada")
    printed(capsys, "merge", "d.zarr", "t.zarr", "--out", "m.zarr")
    assert EpisodeStore.open(Path("m.zarr")).num_episodes == 6
    printed(capsys, "split", "towel.zarr", "--part", "held_out", "--out", "h.zarr")
    assert EpisodeStore.open(Path("h.zarr")).num_episodes == 1
    assert EpisodeStore.open(store).num_episodes == 4
    assert "already exists" in refused(capsys, "delete", "towel.zarr", "0", "--out", "d.zarr")


def test_view_writes_a_page(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "view", "towel.zarr", "2", "--page", "e.html")
    assert "fold, episode 2" in Path("e.html").read_text()
    assert "no episode 9, expected 0 to 3" in refused(capsys, "view", "towel.zarr", "9")


def test_view_writes_a_recording_of_rerun_instead_of_the_page(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "view", "towel.zarr", "2", "--rrd", "e.rrd")
    assert said.split() == ["rrd", "e.rrd"]
    assert not Path("episode.html").exists()
    q = EpisodeStore.open(store).read(2, "policy", ["q"])["q"]
    np.testing.assert_array_equal(curves(Path("e.rrd"), "/q"), q)
    said = printed(capsys, "view", "towel.zarr", "2", "--rrd", "e.rrd", "--page", "e.html")
    assert said.split() == ["page", "e.html", "rrd", "e.rrd"]


def curves(recording: Path, entity: str) -> list[list[float]]:
    """Numbers in a recording of Rerun, `(T, entries)`."""
    from rerun.chunk import RrdReader

    batches = [
        chunk.to_record_batch()
        for chunk in RrdReader(recording).stream()
        if chunk.entity_path == entity and not chunk.is_static
    ]
    return [row for batch in batches for row in batch.column("Scalars:scalars").to_pylist()]


@pytest.mark.parametrize(
    "words", [("view", "towel.zarr", "--rrd", "e.rrd"), ("export", "towel.zarr", "--to", "rrd")]
)
def test_without_rerun_the_extra_that_brings_it_is_named(
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    project = tomllib.loads((Path(extras.__file__).parents[1] / "pyproject.toml").read_text())
    declared = [
        f"{package}; extra == '{extra}'"
        for extra, packages in project["project"]["optional-dependencies"].items()
        for package in packages
    ]
    monkeypatch.setattr(extras, "requires", lambda name: declared)
    monkeypatch.setitem(sys.modules, "rerun", None)
    out = ("--out", "out") if words[0] == "export" else ()
    said = refused(capsys, *words, *out).splitlines()
    assert [line for line in said if "episodes" not in line] == [
        "handoff: rerun is not installed. Install it in the checkout: pip install -c constraints.txt -e '.[rerun]'."
    ]
    assert not Path("out").exists()
    assert not Path("e.rrd").exists()


def test_doctor_finds_a_duplicate_and_writes_its_page(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "4 episodes, 150 steps: 0 errors" in printed(capsys, "doctor", "towel.zarr")
    printed(capsys, "merge", "towel.zarr", str(store), "--out", "m.zarr")
    assert main(["episodes", "doctor", "m.zarr", "--page", "faults.html"]) == 1
    said = capsys.readouterr()
    assert "duplicate" in said.out
    assert said.err.endswith("handoff: m.zarr: 1 error found in the episodes, see above.\n")
    assert "Examination of" in Path("faults.html").read_text()


def test_doctor_counts_recordings_that_were_cut_off_and_repairs_them(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "repaired nothing" in printed(capsys, "doctor", "towel.zarr", "--repair")
    with EpisodeStore.open(store, "a") as opened:
        episode = RunningEpisode(opened, {"operator": "ada"})
        for number in range(5):
            episode.append("policy", opened_step(opened, number))
        # What a kill leaves.
        episode._end()
    assert "recordings that were not committed: 1" in printed(capsys, "doctor", "towel.zarr")
    # An episode of five steps is much shorter than the others, which is an error.
    assert main(["episodes", "doctor", "towel.zarr", "--repair"]) == 1
    assert "is now episode 4 (5 of policy)" in capsys.readouterr().out
    about = EpisodeStore.open(store).metadata(4)
    assert about == {
        "operator": "ada",
        "success": False,
        "ended_by": "interrupted",
        "labelled_by": None,
        "discard_reason": "interrupted",
    }


def opened_step(store: EpisodeStore, number: int) -> dict[str, np.ndarray]:
    fields = store.schema.stream("policy").fields
    return {name: np.full(field.shape, number, field.dtype) for name, field in fields.items()}


def test_stats_print_values_and_quality(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "stats", "towel.zarr")
    assert "episodes  4, 30 to 45 steps, median 37.5" in said
    assert "return    37.5 on average" in said
    assert "distinct pairs of state and action in 150 steps" in said


@pytest.mark.parametrize(
    "target", ["lerobot", "lerobot-v2.1", "robomimic", "isaaclab", "zarr", "mcap"]
)
def test_an_export_is_read_again(
    store: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    out = "out.hdf5" if target in ("robomimic", "isaaclab") else "out"
    printed(capsys, "export", "towel.zarr", "--to", target, "--out", out)
    words = [out, "again.zarr"]
    if target in ("robomimic", "isaaclab", "zarr"):
        Path("map.yaml").write_text("rate_hz: 10\n")
        words += ["--map", "map.yaml"]
    printed(capsys, "import", *words)
    again, before = EpisodeStore.open(Path("again.zarr")), EpisodeStore.open(store)
    assert again.num_episodes == 4
    np.testing.assert_array_equal(
        again.column("policy", "action"), before.column("policy", "action")
    )


def test_info_of_a_recording_asks_for_the_rate_at_which_topics_are_resampled(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mcap(Path("d.mcap"), messages(values()[0]))
    lines = printed(capsys, "info", "d.mcap").splitlines()
    asked = [line for line in lines if "resample_hz" in line or "rate_hz:" in line]
    assert asked == [
        "rate      not stated; for 10 Hz give resample_hz: 10 in a file of import --map, or "
        "demos.map.resample_hz=10 to run",
        "note      Topics have capture times of their own, so the map has to state resample_hz, the rate of the store.",
    ]
    assert "give rate_hz" not in "".join(lines)


def test_an_export_to_mcap_says_what_handoff_alone_reads(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, "export", "towel.zarr", "--to", "mcap", "--out", "out")
    assert "\nnote             metadata, units, roles, names and number types are JSON on" in shown


def test_an_export_and_an_import_say_what_is_lost(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = {"front": np.zeros((5, 16, 16, 3), np.uint8), "action": np.zeros((5, 3))}
    write_episodes(Path("seen.zarr"), [picture], task="fold", rate_hz=10.0)
    shown = printed(capsys, "export", "seen.zarr", "--to", "lerobot", "--out", "out")
    assert "\nnote             front: encoded as lossy video (h264, crf 18, yuv420p" in shown
    Path("map.yaml").write_text("fields: {first: {source: q, entries: [0, 1]}}\n")
    shown = printed(capsys, "import", "towel.zarr", "in.zarr", "--map", "map.yaml")
    assert "\nnote             q: no field takes the entries 1, 2 of 3" in shown


def test_an_export_to_rerun_has_a_recording_per_episode(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", "towel.zarr", "--to", "rrd", "--out", "out")
    assert len(list(Path("out").glob("*.rrd"))) == 4
    action = EpisodeStore.open(store).read(3, "policy", ["action"])["action"]
    np.testing.assert_array_equal(curves(Path("out/episode_000003.rrd"), "/action"), action)


def test_a_data_set_of_another_format_is_imported_before_it_is_edited(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", "towel.zarr", "--to", "zarr", "--out", "buffer")
    said = refused(capsys, "delete", "buffer", "0", "--out", "x.zarr")
    assert "Import it first: handoff episodes import buffer OUT" in said
    assert "no such file or folder" in refused(capsys, "info", "absent")


def test_import_says_what_was_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "import", "towel.zarr", "in.zarr").splitlines()
    assert "read from        towel.zarr" in shown
    assert not any(line.startswith(("source line", "source  ")) for line in shown)


def test_an_import_that_grows_names_video_and_video_prevents_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    y, x = np.mgrid[0:240, 0:320]
    film = np.zeros((40, 240, 320, 3), np.uint8)
    for t, frame in enumerate(film):
        frame[..., 0] = 128 + 100 * np.sin((x + 2 * t) / 31)
        frame[..., 1] = 128 + 100 * np.cos((y + t) / 23)
        frame[..., 2] = (x + y) / 3
    q = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    episode = {"q": q, "action": q, "front": film}
    write_episodes(Path("film.zarr"), [episode], task="fold", rate_hz=10.0, instructions=["fold"])
    printed(capsys, "export", "film.zarr", "--to", "lerobot", "--out", "lerobot")
    (note,) = [
        line
        for line in printed(capsys, "import", "lerobot", "in.zarr").splitlines()
        if "MB" in line
    ]
    assert "times its source" in note
    assert "handoff episodes import --video" in note
    shown = printed(capsys, "import", "lerobot", "small.zarr", "--video")
    assert "times its source" not in shown
    with EpisodeStore.open(Path("small.zarr")) as small:
        assert len(small.schema.videos) == 1
