"""Labels that a person gives: what words mean, and which names and types are accepted."""

from typing import Any

import pytest

from robots.episodes.metadata.labels import check_labels, parse_labels
from robots.errors import HandoffError

STATED = [{"success": True, "seed": 3}, {"success": False, "seed": 4, "note": None}]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("success=false", False),
        ("success=False", False),
        ("weight=0.5", 0.5),
        ("instruction=fold it", "fold it"),
        ("instruction=5", "5"),
        ('instruction="5"', "5"),
        ("operator=7", "7"),
        ("policy=12", "12"),
        ("operator=null", None),
        ("seed=7", 7),
        ("quality=a=b", "a=b"),
    ],
)
def test_a_value_has_the_type_of_its_entry(word: str, value: Any) -> None:
    (found,) = parse_labels([word]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("word", ["success", "=true"])
def test_a_word_without_a_key_or_a_value_is_refused(word: str) -> None:
    with pytest.raises(HandoffError, match="expected KEY=VALUE"):
        parse_labels([word])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sucess=false", "label 'sucess': is unknown; did you mean 'success'?"),
        ("success=no", "label 'success': is \"no\" (text), expected true or false."),
        ("success=1", "label 'success': is 1 (a number), expected true or false."),
        ("weight=-1", "label 'weight': is -1 (a number), expected a number of 0 to 1e+12."),
        ("weight=NaN", "label 'weight': is NaN (a number), expected a number of 0 to 1e+12."),
        ("weight=Infinity", "expected a number of 0 to 1e+12."),
        ("weight=true", "label 'weight': is true (true or false), expected a number"),
        ("weight=heavy", "(text), expected a number"),
        ("ended_by=lunch", "expected one of task, classifier, label"),
        ("calibration=5", "label 'calibration': is 5 (a number), expected"),
        ("seed=abc", 'is "abc" (text), the episodes of the store state a number.'),
        ("edits=null", "edits: is written by every copy"),
        ("source_episode=3", "source_episode: is written by every copy"),
    ],
)
def test_a_label_that_does_not_exist_or_has_another_type_is_refused(
    word: str, message: str
) -> None:
    with pytest.raises(HandoffError) as caught:
        check_labels(parse_labels([word]), STATED)
    assert message in str(caught.value)


def test_known_labels_those_of_the_store_and_new_ones_are_accepted() -> None:
    check_labels(
        parse_labels(["success=true", "weight=0", "host=real", "operator=ada", "seed=9"]), STATED
    )
    check_labels(parse_labels(['split=["train"]', "policy_versions=[1, 2]", "seed=null"]), STATED)
    check_labels(parse_labels(["quality=3"]), STATED, new=True)


def test_an_instruction_that_looks_like_a_list_is_text() -> None:
    assert parse_labels(["instruction=[1]"]) == {"instruction": "[1]"}
