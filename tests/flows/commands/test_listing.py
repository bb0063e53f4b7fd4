"""`handoff list` names everything that can be named in a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from flows.__main__ import main
from flows.commands import catalog, listing
from flows.config.files import available, recipes
from flows.runner.signature import stage_kinds


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
    assert rows["pretrain"][1:3] == ("demos", "policy")
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
