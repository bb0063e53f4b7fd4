"""Arrays are what their specs say, or the error says where not."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.spec import FieldSpec, check_field, check_fields, describe, is_immutable

AGENT = FieldSpec(shape=(2,), unit="m", frame="board")
IMAGE = FieldSpec(shape=(4, 4, 3), dtype="uint8", unit="u8")


def test_fitting_arrays_pass() -> None:
    check_fields(
        {"agent": AGENT, "image": IMAGE},
        {"agent": np.zeros((5, 2)), "image": np.zeros((5, 4, 4, 3), np.uint8)},
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 3)), r"agent: shape \(5, 3\)"),
        (np.zeros(2), r"agent: shape \(2,\)"),
        (np.zeros((5, 2), complex), "dtype complex128 cannot become float32"),
        (
            np.array([[0.0, 1.0], [0.0, np.nan]]),
            r"agent: value at index \(1, 1\) is nan, expected finite m",
        ),
        (np.array([[np.inf, 1.0]]), r"value at index \(0, 0\) is inf"),
    ],
)
def test_misfit_is_named(array: np.ndarray, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        check_field("agent", AGENT, array)


def test_floats_are_no_image() -> None:
    with pytest.raises(HandoffError, match="image: dtype float64 cannot become uint8"):
        check_field("image", IMAGE, np.zeros((1, 4, 4, 3)))


def test_missing_and_unknown_fields_are_both_named() -> None:
    with pytest.raises(HandoffError, match=r"missing \['agent'\], unknown \['agnet'\]"):
        check_fields({"agent": AGENT}, {"agnet": np.zeros((1, 2))})


@pytest.mark.parametrize(
    ("unit", "size", "said"),
    [
        ("rad", 3, "[rad]"),
        ("rad, rad, rad", 3, "[rad]"),
        ("rad, rad, 1, rad", 4, "[rad (2), 1 (1), rad (1)]"),
        ("m, rad", 6, "[m, rad]"),
    ],
)
def test_units_of_single_entries_are_counted(unit: str, size: int, said: str) -> None:
    assert describe(FieldSpec(shape=(size,), unit=unit)) == f"float32 ({size}) {said}"


def test_an_array_is_immutable_if_nobody_can_write_its_memory() -> None:
    own = np.zeros((2, 3), np.uint8)
    assert not is_immutable(own)
    view = own[None]
    view.flags.writeable = False
    assert not is_immutable(view)
    own.flags.writeable = False
    assert is_immutable(own)
    assert is_immutable(own.reshape(3, 2)[None])
    assert not is_immutable(np.frombuffer(bytearray(6), np.uint8))
