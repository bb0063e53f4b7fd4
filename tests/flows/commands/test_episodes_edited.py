"""`handoff episodes`: what is recorded of edits, which labels are accepted, and data sets that are
no stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from robots.episodes.schema import EpisodeSchema, StreamSpec, with_videos
from robots.episodes.segments.video_codec import Ffv1Config, H264Config
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.spec import FieldSpec

LENGTHS = (30, 40, 35)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOGNAME", "grace")
    monkeypatch.chdir(tmp_path)
    episodes, metadata = [], []
    for number, length in enumerate(LENGTHS):
        q = np.sin(np.linspace(0, 5, length + 1)[:, None] + number + np.arange(3))
        q = q.astype(np.float32)
        episodes.append({"q": q[:-1], "action": q[1:]})
        state = {"articulations": {"panda": list(range(40))}}
        metadata.append({"success": True, "seed": number, "initial_state": state})
    write_episodes(tmp_path / "towel.zarr", episodes, task="fold", rate_hz=10, metadata=metadata)
    return tmp_path / "towel.zarr"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", *words]) == 1
    return capsys.readouterr().err.strip().splitlines()[-1]


def edited(capsys: pytest.CaptureFixture[str], store: str) -> list[str]:
    """What `info` says about edits, without the date."""
    lines = printed(capsys, "info", store).splitlines()
    said = [line for line in lines if line.startswith("edited")]
    assert all(line[10:].startswith("20") and line[29] == "Z" for line in said)
    return [line[31:] for line in said]


def test_info_says_what_was_deleted_by_whom_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "delete", "towel.zarr", "1", "--out", "d.zarr", "--reason", "covered")
    assert edited(capsys, "d.zarr") == ["by grace: deleted episode 1 of towel.zarr (covered)"]


def test_every_edit_of_a_store_is_a_line_of_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert edited(capsys, "towel.zarr") == []
    words = ("--set", "success=False", "--by", "ada", "--out", "r.zarr")
    printed(capsys, "relabel", "towel.zarr", "0", "2", *words)
    printed(capsys, "trim", "r.zarr", "0", "--stop", "9", "--out", "t.zarr", "--reason", "idle")
    assert edited(capsys, "t.zarr") == [
        "by ada: success: true to false in episodes 0, 2",
        "by grace: steps [0, 9) in episode 0 (idle)",
    ]


def test_a_label_is_stored_as_the_type_of_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "relabel", "towel.zarr", "0", "--set", "success=False", "--out", "r.zarr")
    assert EpisodeStore.open(Path("r.zarr")).metadata(0)["success"] is False


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sucess=false", "label 'sucess': is unknown; did you mean 'success'?"),
        ("weight=-1", "label 'weight': is -1 (a number), expected a number of 0 to 1e+12."),
        ("success=no", "expected true or false."),
    ],
)
def test_a_label_that_does_not_exist_writes_nothing(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "relabel", "towel.zarr", "0", "--set", word, "--out", "r.zarr")
    assert message in said
    assert not Path("r.zarr").exists()


def test_a_new_label_of_ones_own_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("relabel", "towel.zarr", "0", "--set", "quality=3", "--out", "r.zarr")
    assert "--new accepts a label of your own" in refused(capsys, *words)
    printed(capsys, *words, "--new")
    assert EpisodeStore.open(Path("r.zarr")).metadata(0)["quality"] == 3


def test_ls_leaves_out_structured_entries(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, "ls", "towel.zarr").splitlines()
    assert rows[1].split() == ["0", "30", "3.0", "yes", "-", "seed", "0"]


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (H264Config(crf=21), "kept as h264 video with loss (crf 21)"),
        (Ffv1Config(), "kept as ffv1 video without loss"),
        (None, "kept without loss"),
    ],
)
def test_info_says_how_pictures_are_kept(
    codec: H264Config | Ffv1Config | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {
        "front": FieldSpec(shape=(64, 64, 3), dtype="uint8", unit="u8", role="observation"),
        "action": FieldSpec(shape=(1,), role="action"),
    }
    streams = {"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    schema = with_videos(EpisodeSchema(name="look", streams=streams), codec)
    pictures = np.zeros((4, 64, 64, 3), np.uint8)
    with EpisodeStore.create(Path("v.zarr"), schema) as store:
        store.append({"policy": {"front": pictures, "action": np.zeros((4, 1))}}, {})
    lines = printed(capsys, "info", "v.zarr").splitlines()
    assert f"  front   picture (64 x 64 x 3), observation, {said}" in lines


@pytest.mark.parametrize("target", ["lerobot", "mcap", "zarr"])
def test_statistics_and_faults_of_a_data_set_that_is_no_store_are_those_of_its_import(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "export", "towel.zarr", "--to", target, "--out", "out")
    if target == "zarr":
        for command in ("stats", "doctor"):
            said = refused(capsys, command, "out")
            assert "does not state the rate" in said
            assert "handoff episodes import out OUT --map FILE" in said
        return
    printed(capsys, "import", "out", "again.zarr")
    for command in ("stats", "doctor"):
        said = printed(capsys, command, "out")
        assert said == printed(capsys, command, "again.zarr")
        assert "105" in said, "the steps of all episodes"


def test_a_data_set_that_is_no_store_has_no_recordings_to_repair(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed(capsys, "export", "towel.zarr", "--to", "lerobot", "--out", "out")
    assert "Import it first" in refused(capsys, "doctor", "out", "--repair")


def test_figures_are_printed_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "delete", "towel.zarr", "0", "2", "--out", "d.zarr").splitlines()
    assert "deleted          0, 2" in said
    said = printed(capsys, "merge", "towel.zarr", "d.zarr", "--out", "m.zarr").splitlines()
    assert "episodes of      towel.zarr (3), d.zarr (1)" in said
    assert [line for line in said if line.startswith(("padded", "dropped"))] == []
    (warning,) = (line for line in said if line.startswith("warning"))
    assert warning[17:].startswith("1 episode is the same as an earlier one: 3 as 1.")


def test_one_finding_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "merge", "towel.zarr", str(Path("towel.zarr").resolve()), "--out", "m.zarr")
    assert main(["episodes", "doctor", "m.zarr"]) == 1
    assert "6 episodes, 210 steps: 1 error, " in capsys.readouterr().out
