"""`handoff episodes weights`: its table, the copy that it writes, and the options of a mixture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flows.__main__ import main
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from policies.data.frames import FrameStorage
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import prepare
from robots.episodes.curation.edit import Edits, write_edited
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes

RECIPE = """
stages:
  demos: {uses: ingest, with: {data: towel.zarr}}
  trained:
    uses: pretrain
    inputs: {demos: demos}
    with:
      policy: {observation_fields: [q], horizon: 4, n_action_steps: 2, n_obs_steps: 2, anchor_field: null}
      validation_fraction: 0.0
"""


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """towel.zarr of 40, 20 and 20 steps, cups.zarr of 20, and "box 1.zarr" of 20 in a folder of the
    run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    for path, lengths in (
        ("towel.zarr", (40, 20, 20)),
        ("cups.zarr", (20,)),
        ("made/box 1.zarr", (20,)),
    ):
        episodes = [
            {"q": np.ones((n, 2), np.float32), "action": np.ones((n, 2), np.float32)}
            for n in lengths
        ]
        metadata = [{"operator": name} for name in ("ada", "ada", "bob")[: len(lengths)]]
        write_episodes(Path(path), episodes, task="fold", rate_hz=10.0, metadata=metadata)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", "weights", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", "weights", *words]) != 0
    return capsys.readouterr().err


def test_the_table_has_the_shares_of_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        line.split() for line in printed(capsys, "towel.zarr", "--balance", "operator").splitlines()
    ]
    assert rows[1:3] == [
        ["ada", "2", "60", "75.0", "%", "50.0", "%"],
        ["bob", "1", "20", "25.0", "%", "50.0", "%"],
    ]


def test_the_table_has_a_row_for_every_combination_of_entries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labelled = Edits(labels={0: {"success": True}, 1: {"success": False}, 2: {"success": True}})
    write_edited(Path("towel.zarr"), Path("l.zarr"), labelled)
    rows = printed(capsys, "l.zarr", "--set", "operator=ada:2", "--set", "success=true:3")
    groups = [row.rsplit("  ", 5)[0].strip() for row in rows.splitlines()[1:4]]
    assert [group.partition("  ")[0] for group in groups] == [
        "ada, true",
        "ada, false",
        "bob, true",
    ]


def test_a_copy_states_the_weights_and_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("towel.zarr", "--balance", "operator", "--out", "w.zarr", "--by", "eve")
    assert "written to w.zarr" in printed(capsys, *words)
    with EpisodeStore.open(Path("w.zarr")) as copy:
        metadata = [copy.metadata(number) for number in range(3)]
    assert [entry["weight"] for entry in metadata] == [0.667, 0.667, 2.0]
    (edit,) = metadata[2]["edits"]
    assert edit["done"] == ["weight: none to 2.0"]
    assert (edit["by"], edit["reason"]) == (
        "eve",
        "weights: balanced by operator with the exponent 0",
    )
    with EpisodeStore.open(Path("towel.zarr")) as source:
        assert "weight" not in source.metadata(0)


def test_the_weights_of_a_store_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "towel.zarr", "--set", "operator=bob:3", "--out", "w.zarr")
    rows = [line.split() for line in printed(capsys, "w.zarr").splitlines()]
    assert rows[1] == ["weight", "3", "1", "20", "25.0", "%", "50.0", "%"]
    assert rows[2] == ["weight", "1", "2", "60", "75.0", "%", "50.0", "%"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), (1, 1, 1)), (("--exponent", "1"), (4, 1, 1)), (("--exponent", "0.5"), (2, 1, 1))],
)
def test_the_printed_options_give_a_training_the_shares(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: tuple[float, ...]
) -> None:
    options = printed(capsys, "towel.zarr", "cups.zarr", "made/box 1.zarr", *words)
    Path("r.yaml").write_text(RECIPE + "".join(f"      {line}\n" for line in options.splitlines()))
    (config,) = [
        stage.config
        for stage in stages(read_recipe("r.yaml"), fetch=False)
        if stage.name == "trained"
    ]
    assert isinstance(config, PretrainConfig)
    Path("demos").mkdir()
    Path("towel.zarr").rename("demos/store.zarr")
    mixture = prepare(config, Path("demos"), FrameStorage(), torch.device("cpu")).mixture
    drawn = np.concatenate([mixture.batch(30, step, 0) for step in range(100)])
    store = np.searchsorted(np.cumsum(mixture.counts), drawn, side="right")
    shares = np.bincount(store) / len(drawn)
    assert shares == pytest.approx(np.array(expected) / sum(expected), abs=2e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("towel.zarr", "--exponent", "0.5"), "--exponent: is that of --balance"),
        (("towel.zarr", "--exponent", "2", "--balance", "operator"), "--exponent"),
        (("towel.zarr", "--out", "w.zarr"), "--out: nothing to write"),
        (("towel.zarr", "--balance", "operator", "--by", "eve"), "--out, which is missing"),
        (("towel.zarr", "--reward", "r"), "--quality, which is missing"),
        (("towel.zarr", "--returns", "0", "1"), "--quality, which is missing"),
        (("towel.zarr", "--quality"), "has no reward"),
        (("towel.zarr", "cups.zarr", "--quality"), "of several stores, only --exponent is taken"),
        (("towel.zarr", "./towel.zarr"), "expected each once"),
        (("towel.zarr", "--set", "operator=eve:2"), "no episode has operator=eve"),
    ],
)
def test_what_would_be_ignored_or_is_wrong_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    lines = [line for line in refused(capsys, *words).splitlines() if "episodes" not in line[:12]]
    assert said in lines[-1]
    assert not Path("w.zarr").exists()


def test_a_store_is_never_weighted_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("towel.zarr", "--balance", "operator", "--out", "towel.zarr")
    assert "already exists" in refused(capsys, *words)
