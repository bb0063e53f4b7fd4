"""Figures of the episodes, and the strip of the running one."""

import json
import math

import pytest

from real.console.telemetry import LONGEST, Telemetry


def step(episode: int, **others):
    return {
        "episode": episode,
        "reward": 0.0,
        "probability": None,
        "person": False,
        "hand": None,
        **others,
    }


def end(
    success: bool,
    steps: int = 10,
    corrected: int = 0,
    takeovers: int = 0,
    seconds: float = 1.0,
    dropped=False,
):
    return {
        "success": success,
        "label": "none",
        "steps": steps,
        "corrected": corrected,
        "takeovers": takeovers,
        "seconds": seconds,
        "dropped": dropped,
    }


def test_counters_by_hand():
    story = Telemetry()
    story.end(end(True, 10, 5, 2, 4.0))
    story.end(end(False, 30, 5, 0, 9.0))
    counters = story.counters()
    assert counters["success"] == 0.5
    assert (counters["low"], counters["high"]) == pytest.approx((0.0945, 0.9055), abs=1e-4)
    assert counters["takeovers"] == 1.0
    assert counters["corrected"] == 0.25
    assert counters["cycle"] == 4.0


def test_dropped_episodes_are_counted_apart():
    story = Telemetry()
    story.end(end(False, dropped=True))
    assert story.counters() == {"episodes": 0}
    story.end(end(True))
    assert (story.counters()["episodes"], story.counters()["dropped"]) == (1, 1)


def test_only_the_last_twenty_count():
    story = Telemetry()
    for _ in range(20):
        story.end(end(False))
    for _ in range(20):
        story.end(end(True))
    assert story.counters()["success"] == 1.0


def test_a_new_episode_begins_the_strip_anew():
    story = Telemetry()
    story.step(step(0, reward=1.0))
    story.step(step(1, reward=2.0, person=True))
    assert list(story.steps) == [[1.0, 2.0, None, None]]


def test_a_full_strip_lets_the_oldest_fall_and_says_how_many():
    story = Telemetry()
    for number in range(LONGEST + 3):
        story.step(step(0, reward=float(number)))
    assert (len(story.steps), story.first, story.steps[0][1]) == (LONGEST, 3, 3.0)


def test_what_json_cannot_say_is_left_out():
    story = Telemetry()
    story.step(step(0, reward=math.nan, probability=math.inf, q=[0.0, math.nan]))
    assert json.loads(json.dumps(list(story.steps))) == [[0.0, None, None, None]]
    assert story.robot["q"] == [0.0, None]


def test_statistics_go_on_from_episodes_that_ended_before():
    story = Telemetry([end(True), {"success": True}, end(False)])
    story.end(end(True))
    assert story.counters()["episodes"] == 3
    assert story.counters()["success"] == pytest.approx(2 / 3)


def test_an_episode_that_a_fault_ends_counts_as_not_solved():
    story = Telemetry()
    story.begin({"rate_hz": 20.0})
    assert story.interrupted() is None
    for person in (False, True, True, False, True):
        story.step(step(0, person=person))
    report = story.interrupted()
    assert report is not None
    assert (report["success"], report["label"], report["dropped"]) == (False, "fault", False)
    assert (report["steps"], report["corrected"], report["takeovers"]) == (5, 3, 2)
    assert report["seconds"] == 0.25
    story.end(report)
    assert story.interrupted() is None, "it is counted once"
    story.step(step(1))
    assert story.interrupted() is not None


def test_a_hint_ends_with_its_episode_and_with_its_robot():
    story = Telemetry()
    story.begin({})
    story.begin_episode({"episode": 0})
    story.step(step(0, hint="a hint"))
    assert story.hint == "a hint"
    story.step(step(0, hint=""))
    assert story.hint == ""
    for over in (
        lambda: story.end(end(False)),
        lambda: story.begin_episode({"episode": 1}),
        lambda: story.step(step(2)),
        story.leave,
        lambda: story.begin({}),
    ):
        story.hint = "a hint"
        over()
        assert story.hint == ""
