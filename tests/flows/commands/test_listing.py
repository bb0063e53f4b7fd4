"""`handoff list` names everything that can be named in a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from flows.__main__ import main
from flows.commands import catalog, listing
from flows.config.files import available, recipes
from flows.runner.signature import find_kind, stage_kinds
from robots.config import key_paths


@pytest.mark.parametrize("topic", get_args(listing.Topic))
def test_every_entry_of_every_topic_has_a_phrase(topic: listing.Topic) -> None:
    rows = list(listing.listings()[topic].rows())
    assert rows
    assert [row for row in rows if not row[0] or not row[-1] or "\n" in row[-1]] == []


@pytest.mark.parametrize("topic", get_args(listing.Topic))
def test_every_topic_prints_its_headings_and_first_entry(
    topic: listing.Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", topic]) == 0
    shown = capsys.readouterr().out
    listed = listing.listings()[topic]
    assert shown.split()[: len(listed.headings)] == list(listed.headings)
    assert next(iter(listed.rows()))[0] in shown


def test_names_are_those_that_recipes_accept() -> None:
    def names(topic: listing.Topic) -> list[str]:
        return [row[0] for row in listing.listings()[topic].rows()]

    assert names("recipes") == recipes()
    assert names("stages") == sorted(stage_kinds())
    assert names("protocols") == available("protocol")
    assert names("robots") == ["fr3", "fr3v2", "panda"]


def test_algorithms_are_listed_by_stage() -> None:
    rows = {(row[0], row[1]) for row in catalog.algorithm_rows()}
    assert {("finetune", "dppo"), ("finetune", "best_of_n"), ("distill", "one_step")} <= rows


def test_optional_inputs_and_lists_are_marked() -> None:
    rows = {row[0]: row for row in catalog.stage_rows()}
    assert rows["pretrain"][1:3] == ("demos, policy?", "policy")
    assert "demos?" in rows["distill"][1]


def test_first_comment_ends_with_its_first_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# One sentence,\n# over two lines. Another one.\nname: a\n# Not this.\n")
    assert catalog.first_comment(file) == "One sentence, over two lines"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One"),
        ("Widths of 0.5 m. Two.", "Widths of 0.5 m"),
        ("Zhao et al., RSS 2023; sizes are defaults.", "Zhao et al., RSS 2023; sizes are defaults"),
        ("Without a full stop", "Without a full stop"),
        ("One\nline `code`.\n\nMore.", "One line code"),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert catalog.first_sentence(text) == sentence


def test_the_options_of_a_stage_are_listed_by_path_with_the_defaults_of_the_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = find_kind("pretrain")
    rows = {catalog.bare(row[0]): row for row in catalog.option_rows_of("pretrain")}
    expected = {key for key in key_paths(kind.config) if not key.endswith(".kind")}
    assert expected <= set(rows)
    assert [row for row in rows.values() if not all(row)] == []
    # The class of training options states no number of steps; the stage does.
    assert rows["training.steps"][1:3] == ("integer ≥ 1", "20000")
    assert main(["list", "stages", "pretrain.training"]) == 0
    shown = capsys.readouterr().out
    assert "training.steps" in shown
    assert "validation_fraction" not in shown


def test_options_of_a_kind_are_marked_by_it_and_found_without() -> None:
    names = [row[0] for row in catalog.option_rows_of("offline.algorithm.expectile")]
    assert "algorithm (kind: iql).expectile" in names
    assert {catalog.bare(name) for name in names} == {"algorithm.expectile"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["stages", "pretrian"], "did you mean 'pretrain'?"),
        (["stages", "pretrain.trainin"], "did you mean 'training'?"),
        (["tasks", "reach"], "only 'handoff list stages' takes a name"),
    ],
)
def test_what_has_no_options_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 1
    assert problem in capsys.readouterr().err
