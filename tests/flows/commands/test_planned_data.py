"""`handoff plan` shows the format and the fields of the data sets that a recipe names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from flows.commands import planning
from flows.commands.requirements import missing
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.stage import Stage
from flows.stages.data.ingest import SHIPPED
from robots.episodes import demonstrations
from robots.episodes.ingest import IngestConfig
from robots.episodes.write_episodes import write_episodes


@pytest.fixture(autouse=True)
def towel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """towel.zarr, three episodes of a robot with a camera."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    episode = {
        "q": np.zeros((9, 7), np.float32),
        "front": np.zeros((9, 12, 16, 3), np.uint8),
        "action": np.zeros((9, 7), np.float32),
    }
    write_episodes(
        Path("towel.zarr"),
        [episode] * 3,
        task="fold",
        rate_hz=20.0,
        units={"q": "rad", "action": "rad"},
        robot="fr3",
    )
    Path("r.yaml").write_text("stages: {demos: {uses: ingest, with: {data: towel.zarr}}}\n")


def lines(*overrides: str) -> list[str]:
    declared = stages(read_recipe("r.yaml", overrides), fetch=False)
    return list(planning.data_lines(declared))


def never_opened(*arguments: object) -> None:
    raise AssertionError("the data set was opened")


def test_format_episodes_rate_robot_and_fields_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "r.yaml"]) == 0
    shown = capsys.readouterr().out.splitlines()
    first = shown.index("demos: episode stores of Handoff, 3 episodes, fold, 20 Hz, fr3")
    assert shown[first + 1 : first + 4] == [
        "  q       float32 (7) [rad], observation",
        "  front   picture (12 x 16 x 3), observation",
        "  action  float32 (7) [rad], action",
    ]


def test_fields_are_those_after_the_map_and_of_the_episodes_that_are_taken() -> None:
    shown = lines(
        "demos.map={rename: {q: joints}, rate_hz: 5}", "demos.max_episodes=2", "demos.images=false"
    )
    assert shown[1:] == [
        "demos: episode stores of Handoff, 3 episodes (2 taken), fold, 5 Hz, fr3",
        "  joints  float32 (7) [rad], observation",
        "  action  float32 (7) [rad], action",
        "  note: the data set states 20 Hz, but rate_hz: 5 of the map is taken",
    ]


def test_entries_that_the_map_leaves_out_are_a_line() -> None:
    shown = lines("demos.map={fields: {arm: {source: q, entries: [0, 6]}}}")
    (note,) = [line for line in shown if "note: q: no field takes the entries 6" in line]
    assert note.startswith("  note: ")


def test_a_line_says_why_a_data_set_does_not_become_a_store() -> None:
    np.savez("box.npz", q=np.zeros((9, 2)), action=np.zeros((9, 2)), episode_ends=np.array([9]))
    (line,) = lines("demos.data=box.npz")[1:]
    assert line.startswith("demos: NumPy archives (npz), 1 episode. ")
    assert (
        "does not state its rate. Give rate_hz: 50 in the file of `handoff episodes import" in line
    )
    assert "or demos.map.rate_hz=50 to `handoff run" in line


def test_a_damaged_data_set_is_a_line_and_the_plan_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (Path("towel.zarr") / "zarr.json").write_text("{")
    assert main(["plan", "r.yaml"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("demos: ") and "zarr.json" in line]
    assert shown[-1].startswith("1 stage to run")


def test_many_fields_are_cut() -> None:
    episode = {f"q{number:02}": np.zeros((9, 1), np.float32) for number in range(30)}
    episode["action"] = np.zeros((9, 1), np.float32)
    write_episodes(Path("wide.zarr"), [episode], task="t", rate_hz=1.0)
    shown = lines("demos.data=wide.zarr")
    assert len(shown) == 2 + planning.MOST_FIELDS + 1
    assert shown[-1] == "  and 19 more fields: handoff episodes info wide.zarr"


def test_a_large_data_set_without_an_index_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(f"demos.data={SHIPPED}")[1].startswith("demos: episode stores of Handoff, 200")
    monkeypatch.setattr(planning, "LARGEST_READ", 1000)
    monkeypatch.setattr(demonstrations, "_opened", never_opened)
    assert lines(f"demos.data={SHIPPED}")[1:] == [
        f"demos: {SHIPPED}, whose fields are not read for a plan: handoff episodes info {SHIPPED}"
    ]


def test_nothing_in_a_bucket_is_read() -> None:
    config = IngestConfig(data="s3://nowhere.invalid/towel.zarr")
    stage = Stage(name="demos", kind="episodes", module="", config=config, inputs={}, uses="ingest")
    (_, line) = planning.data_lines([stage])
    assert line.startswith("demos: s3://nowhere.invalid/towel.zarr, whose fields are not read")
    # No second line says that a file of this name does not exist.
    (needed,) = missing([stage])
    assert needed.startswith("s3://nowhere.invalid/towel.zarr: ")


def test_a_copy_that_the_run_would_refuse_is_missing_in_the_plan() -> None:
    np.savez("box.npz", q=np.zeros((9, 2)), action=np.zeros((9, 2)), episode_ends=np.array([9]))
    config = IngestConfig(data="box.npz", copy=False)
    stage = Stage(name="demos", kind="episodes", module="", config=config, inputs={}, uses="ingest")
    (needed,) = missing([stage])
    assert needed.startswith("copy: is false, but ")


def test_demonstrations_that_no_recipe_names_are_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("r.yaml").write_text("stages: {demos: {uses: ingest, with: {download: false}}}\n")
    monkeypatch.setattr(demonstrations, "_opened", never_opened)
    assert lines() == []


def test_a_recipe_is_read_for_completion_and_registration_without_its_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demonstrations, "_opened", never_opened)
    recipe = read_recipe("own_data", ("demos.data=towel.zarr",))
    assert "trained" in [stage.name for stage in stages(recipe, fetch=None)]
    assert main(["__complete", "plan", "own_data", "demos.data=towel.zarr", "--until", ""]) == 0
    assert "trained" in capsys.readouterr().out
