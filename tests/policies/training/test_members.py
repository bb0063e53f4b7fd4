"""Members of an ensemble that are trained one after the other."""

from __future__ import annotations

from pathlib import Path

from policies.training.members import member_folder, member_progress, member_seed


def test_the_first_member_has_seed_and_folder_of_a_single_one() -> None:
    assert member_seed(7, 0) == 7
    assert member_folder(Path("out"), 0) == Path("out")


def test_other_members_have_their_own() -> None:
    seeds = {member_seed(seed, number) for seed in range(20) for number in range(20)}
    assert len(seeds) == 20 + 20 * 19
    assert member_folder(Path("out"), 2) == Path("out/member_2")


def test_progress_counts_all_members_and_names_the_one_of_the_note() -> None:
    reports: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        reports.append((done, total, note))

    member_progress(progress, 1, 3)(5, 10, "loss 0.1, 2 s left")
    member_progress(progress, 2, 3)(10, 10)
    member_progress(progress, 0, 1)(4, 10, "loss 0.2")
    assert reports == [
        (15, 30, "loss 0.1, 2 s left, member 2 of 3"),
        (30, 30, ""),
        (4, 10, "loss 0.2"),
    ]
