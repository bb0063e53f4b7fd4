"""Crops of image encoders are checked against the data set of a recipe before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from flows.recipes.graph import stages
from flows.recipes.pictures import crop_lines
from flows.recipes.recipe import read_recipe
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError

RECIPE = """
stages:
  demos: {uses: ingest, with: {data: fold.zarr, download: false}}
  train: {uses: split, inputs: {demos: demos}, with: {part: train}}
  trained:
    uses: pretrain
    inputs: {demos: train}
    with:
      policy: {kind: bc, observation_fields: ["*"], image_fields: ["*"], anchor_field: null}
      training: {steps: 1}
"""
CROP = "trained.policy.image_encoder.crop"


@pytest.fixture(autouse=True)
def fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fold.zarr, two episodes with a large and a small camera."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    episode = {
        "q": np.zeros((3, 2), np.float32),
        "front": np.zeros((3, 480, 640, 3), np.uint8),
        "wrist": np.zeros((3, 60, 80, 3), np.uint8),
        "action": np.zeros((3, 2), np.float32),
    }
    write_episodes(Path("fold.zarr"), [episode, episode], task="fold", rate_hz=20.0)
    Path("r.yaml").write_text(RECIPE)


def lines(*overrides: str) -> list[str]:
    return list(crop_lines(list(stages(read_recipe("r.yaml", overrides), fetch=False))))


def test_the_plan_shows_what_is_seen_of_every_camera(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "r.yaml"]) == 0
    shown = capsys.readouterr().out.splitlines()
    first = shown.index("trained: sees 84 x 112 px of front (480 x 640, resized to 96 x 128)")
    assert shown[first + 1] == "trained: sees 53 x 70 px of wrist (60 x 80)"
    assert not [line for line in shown if "covers only" in line]


def test_the_plan_notes_crops_of_less_than_half_of_a_picture() -> None:
    assert lines(f"{CROP}=[60,80]", "trained.policy.image_fields=[wrist, front]")[1:] == [
        "trained: sees 60 x 80 px of wrist (60 x 80)",
        "trained: sees 60 x 80 px of front (480 x 640)",
        "trained: a crop of image_encoder covers only 2% of the pictures of 'front'",
    ]


def test_a_crop_larger_than_the_pictures_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("plan", "run"):
        assert main([command, "r.yaml", f"{CROP}=[84,84]"]) == 1
        assert capsys.readouterr().err.startswith(
            "handoff: stage trained: policy.image_encoder.crop: 84 x 84 px (height x width) is larger than the "
            "pictures of 'wrist', which have 60 x 80 px."
        )
    assert not Path("runs").exists()


def test_cameras_that_the_policy_does_not_observe_are_not_checked() -> None:
    assert lines(f"{CROP}=[84,84]", "trained.policy.image_fields=[front]")[1] == (
        "trained: sees 84 x 84 px of front (480 x 640)"
    )


def test_pictures_that_are_renamed_or_resized_by_ingest_are_those_of_the_store() -> None:
    mapped = "demos.map={fields: {top: {source: front, size: [48, 64]}}, drop: [wrist]}"
    assert lines(mapped)[1:] == ["trained: sees 42 x 56 px of top (48 x 64)"]
    with pytest.raises(HandoffError, match="pictures of 'top', which have 48 x 64 px"):
        lines(mapped, f"{CROP}=[84,84]")


def test_a_policy_that_sees_whole_pictures_says_so() -> None:
    assert lines("trained.policy.kind=act")[1:] == [
        "trained: sees all of front (480 x 640)",
        "trained: sees all of wrist (60 x 80)",
    ]


def test_nothing_is_said_where_the_data_set_is_not_named() -> None:
    assert lines("demos.data=null") == []


def test_simulated_cameras_have_the_size_with_which_they_record() -> None:
    def shown(*overrides: str) -> list[str]:
        recipe = read_recipe("reach_by_name_cameras", overrides)
        return list(crop_lines(list(stages(recipe, fetch=False))))

    assert shown()[1] == "pretrained: sees 160 x 160 px of image_front (160 x 160)"
    assert shown("pretrained.policy.image_encoder.resize=null")[1] == (
        "pretrained: sees 96 x 96 px of image_front (160 x 160, resized to 96 x 96)"
    )


WARP = "scores.protocol={uses: warp_pick_cube, options: {cameras: {names: [front, wrist, overview], %s}}}"


def test_cameras_of_another_size_than_those_of_the_demonstrations_are_refused() -> None:
    expected = r"stage scores: image_front .*protocol warp_pick_cube\) is 128 x 64 px, but trained .* 96 x 96 px"
    with pytest.raises(HandoffError, match=expected):
        stages(read_recipe("pick_cube_cameras", [WARP % "width: 64", "~gate"]))
    assert stages(read_recipe("pick_cube_cameras", [WARP % "width: 96, height: 96", "~gate"]))


def test_the_cameras_of_a_merge_of_rollouts_are_known() -> None:
    declared = stages(read_recipe("fr3_rldg"))
    seen = [line for line in crop_lines(declared) if line.startswith("generalist")]
    assert seen == [
        f"generalist: sees 96 x 96 px of image_{name} (96 x 96)"
        for name in ("front", "wrist", "overview")
    ]
