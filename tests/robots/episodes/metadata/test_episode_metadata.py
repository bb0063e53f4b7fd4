"""Entries of an episode's metadata that all recorders share."""

import json
import re
from datetime import UTC, datetime

import pytest

from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.episodes.metadata.episode_metadata import (
    EpisodeEnd,
    EpisodeOrigin,
    episode_end,
    new_session,
    next_start,
    utc_now,
)
from robots.interfaces import Label

CAMERA = CameraCalibration(
    width=64,
    height=48,
    focal_length=(50.0, 50.0),
    principal_point=(32.0, 24.0),
    frame="world",
    position=(1.0, 0.0, 0.5),
    quaternion=(1.0, 0.0, 0.0, 0.0),
)


def test_what_is_not_known_has_no_entry():
    origin = EpisodeOrigin(robot="", host="simulated", source="demonstration")
    assert origin.entries() == {"host": "simulated", "source": "demonstration"}


def test_an_origin_is_json_with_its_calibration():
    origin = EpisodeOrigin(
        robot="fr3",
        host="real",
        source="practice",
        session="monday",
        policy="still",
        policy_digest="d" * 64,
        calibration={"image_front": CAMERA},
    )
    entries = json.loads(json.dumps(origin.entries()))
    assert entries["calibration"]["image_front"]["focal_length"] == [50.0, 50.0]
    assert (entries["session"], entries["policy_digest"]) == ("monday", "d" * 64)


@pytest.mark.parametrize(
    ("label", "terminated", "judge", "expected"),
    [
        (Label.NONE, True, "task", ("task", "task", None)),
        (Label.NONE, True, "classifier", ("classifier", "classifier", None)),
        (Label.NONE, False, "task", ("time_limit", "task", None)),
        (Label.SUCCESS, True, "task", ("label", "ada", None)),
        (Label.FAILURE, False, "classifier", ("label", "ada", None)),
        (Label.REDO, False, "task", ("discarded", "ada", "redo")),
        (Label.DISCARD, True, "task", ("discarded", "ada", "discard")),
    ],
)
def test_a_label_counts_before_the_task_and_the_time_limit(label, terminated, judge, expected):
    end = episode_end(label, "ada", terminated=terminated, judge=judge)
    assert (end.ended_by, end.labelled_by, end.discard_reason) == expected


def test_a_fault_has_an_entry_only_if_there_was_one():
    assert "fault" not in EpisodeEnd(ended_by="task").entries()
    fault = EpisodeEnd(ended_by="fault", discard_reason="fault", fault="sensor lost")
    assert fault.entries()["fault"] == "sensor lost"


def test_wall_times_are_utc_and_sort_as_text():
    first, second = utc_now(), utc_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first)
    assert first <= second
    age = datetime.now(UTC) - datetime.fromisoformat(first)
    assert 0.0 <= age.total_seconds() + 0.001 < 60.0
    assert new_session()[:10] in (first[:10], second[:10])


class Attempts:
    """A store of attempts that ended with these reasons to discard them."""

    def __init__(self, *reasons: str | None) -> None:
        self.num_episodes = len(reasons)
        self._reasons = reasons

    def metadata(self, episode: int) -> dict[str, str | None]:
        return {"discard_reason": self._reasons[episode]}


@pytest.mark.parametrize(
    ("attempts", "number"),
    [
        ((), 0),
        ((None,), 1),
        ((None, "redo"), 1),
        ((None, "redo", "redo", "redo"), 1),
        ((None, "redo", "redo", None), 2),
        ((None, "discard", "failure"), 3),
    ],
)
def test_an_attempt_that_is_to_be_repeated_keeps_its_start(
    attempts: tuple[str | None, ...], number: int
) -> None:
    assert next_start(Attempts(*attempts)) == number  # type: ignore[arg-type]
    kept, dropped = attempts[::2], attempts[1::2]
    assert next_start(Attempts(*kept), Attempts(*dropped)) == number  # type: ignore[arg-type]
