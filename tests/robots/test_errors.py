"""The hints of errors."""

from __future__ import annotations

from robots.errors import MAX_LISTED_NAMES, suggest


def test_the_nearest_name_is_suggested() -> None:
    assert suggest("pik_cube", ["reach", "pick_cube"]) == "did you mean 'pick_cube'?"


def test_where_none_is_near_all_are_listed() -> None:
    assert suggest("zzz", ["reach", "pick_cube"]) == "there are reach, pick_cube"
    assert suggest("zzz", iter(["steps"]), "known keys:") == "known keys: steps"


def test_a_long_list_is_cut_and_says_how_much_is_left_out() -> None:
    names = [f"task{number}" for number in range(MAX_LISTED_NAMES + 3)]
    hint = suggest("zzz", names)
    assert hint.startswith("there are task0, task1, ")
    assert hint.endswith(f"task{MAX_LISTED_NAMES - 1} and 3 more")
