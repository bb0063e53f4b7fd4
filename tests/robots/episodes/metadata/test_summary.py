"""Lines and cells about the recordings of a store."""

from robots.episodes.metadata.summary import (
    filled,
    other_entries,
    recording_cells,
    recording_lines,
)

EPISODES = [
    {
        "began": f"2026-11-27T03:0{minute}:10.500Z",
        "ended": f"2026-11-27T03:0{minute}:40.500Z",
        "session": session,
        "host": "twin",
        "operator": person,
        "policy_digest": "a" * 64,
        "ended_by": ended,
        "discard_reason": reason,
        "seed": minute,
    }
    for minute, session, person, ended, reason in (
        (1, "one", "ada", "label", None),
        (3, "two", "ben", "discarded", "redo"),
        (2, "one", "ada", "label", None),
    )
]


def test_lines_state_when_where_by_whom_and_the_end():
    assert list(recording_lines(EPISODES)) == [
        "recorded  2026-11-27T03:01:10Z to 2026-11-27T03:03:40Z, 2 sessions",
        "host      twin 3",
        "operators ada 2, ben 1",
        "policies  aaaaaaaaaaaa 3",
        "ended by  label 2, discarded 1",
        "discarded redo 1",
    ]


def test_the_worst_figures_of_an_arm_name_their_episodes():
    executed = [
        {"tracking_max_m": 0.002, "min_success_rate": 0.98},
        {"success": True},
        {"tracking_max_m": 0.0041, "min_success_rate": 1.0},
    ]
    assert list(recording_lines(executed)) == [
        "tracking  largest distance of the arm from its reference 4.1 mm (episode 2; tracking_max_m)",
        "commands  smallest share of commands that arrived in time 0.980 (episode 0; min_success_rate)",
    ]


def test_episodes_that_state_nothing_have_no_line():
    assert list(recording_lines([{"success": True}, {}])) == []


def test_cells_name_the_end_once():
    assert recording_cells(EPISODES[1]) == ("2026-11-27T03:03:10Z", "ben", "discarded redo")
    assert recording_cells({"ended_by": "interrupted", "discard_reason": "interrupted"}) == (
        "",
        "",
        "interrupted",
    )


def test_shared_entries_are_not_among_the_others():
    assert dict(other_entries(EPISODES[0])) == {"seed": 1}


def test_columns_that_no_row_fills_are_left_out():
    rows = [("0", "", "x"), ("1", "", "")]
    assert list(filled(("number", "empty", "word"), rows, always=1)) == [
        ("number", "word"),
        ("0", "x"),
        ("1", ""),
    ]
