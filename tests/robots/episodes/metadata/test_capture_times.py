"""Names of the fields with capture times."""

from robots.episodes.metadata.capture_times import (
    capture_time_field,
    capture_time_name,
    capture_times,
)
from robots.spec import FieldSpec

PICTURE = FieldSpec(shape=(4, 4, 3), dtype="uint8", unit="u8")


def test_a_picture_is_paired_with_its_capture_time():
    fields = {
        "front": PICTURE,
        capture_time_name("front"): capture_time_field("front"),
        "wrist": PICTURE,
    }
    assert capture_times(fields) == {"front": "front_time"}


def test_a_field_of_another_unit_is_no_capture_time():
    fields = {"front": PICTURE, "front_time": FieldSpec(shape=(), dtype="float64", unit="1")}
    assert capture_times(fields) == {}


def test_no_policy_observes_a_capture_time():
    assert capture_time_field("front").role == "other"
    assert capture_time_field("front").dtype == "float64"
