"""Observations far outside the training data are refused, others are passed."""

from __future__ import annotations

import numpy as np
import pytest

from robots.control.training_range import RangeCheck, data_range, input_range
from robots.errors import SafetyError
from robots.spec import FieldSpec

BOARD = FieldSpec(shape=(2, 2), unit="m", names=(("left", "right"), ("x", "y")))


def ranged(unit: str, *rows: list[float]):
    return input_range(unit, np.array(rows, np.float32))


def test_the_limit_is_ten_widths_beyond_the_data() -> None:
    found = ranged("m", [0.0], [0.5])
    assert (found.low, found.high) == ((0.0,), (0.5,))
    assert (found.refuse_below, found.refuse_above) == ((-5.0,), (5.5,))


@pytest.mark.parametrize(
    ("unit", "above"), [("m", 0.5 + 1.0), ("rad", 0.5 + 5.0), ("1", 0.5 + 10.0), ("mm", 0.5 + 10.0)]
)
def test_data_without_variation_have_a_width_by_their_unit(unit: str, above: float) -> None:
    assert ranged(unit, [0.5], [0.5]).refuse_above == (pytest.approx(above),)


def test_units_without_a_bound_take_the_size_of_the_values() -> None:
    assert ranged("mm", [400.0], [400.0]).refuse_above == (4400.0,)


def test_every_entry_has_the_width_of_its_own_unit() -> None:
    found = ranged("m, m, rad", [0.0, 0.0, 0.0])
    assert found.refuse_above == (1.0, 1.0, 5.0)
    assert ranged("m, rad", *[[0.0] * 6]).refuse_above == (5.0,) * 6


def test_the_range_contains_that_of_the_normaliser() -> None:
    fitted = (np.array([-1.0]), np.array([0.2]))
    found = input_range("m", np.array([[0.0], [0.5]], np.float32), fitted)
    assert (found.low, found.high) == ((-1.0,), (0.5,))


def test_quantiles_tell_outliers_from_the_data() -> None:
    rows = np.concatenate([np.linspace(0.0, 1.0, 999), [50.0]])[:, None].astype(np.float32)
    found = data_range(rows)
    assert found.high == (50.0,)
    assert found.q99[0] < 1.0


@pytest.fixture
def check() -> RangeCheck:
    rows = np.array([[0.1, 0.1, 0.2, 0.1], [0.4, 0.4, 0.5, 0.4]], np.float32)
    return RangeCheck({"board": BOARD}, {"board": input_range("m", rows)})


def test_a_state_beside_the_data_is_passed(check: RangeCheck) -> None:
    check(np.array([[0.1, 0.2, 0.3, 0.2], [-1.0, 3.0, 3.0, 3.0]], np.float32))


def test_the_refusal_names_entry_value_range_and_cause(check: RangeCheck) -> None:
    vector = np.full((1, 2, 4), 0.2, np.float32)
    vector[0, 1, 3] = 256.0
    expected = (
        r"policy: board\[right, y\] is 256 m, in the training data it was 0.1 to 0.4, limits -2.9 to "
        r"3.4\. Is it in other units, such as pixels, millimetres or degrees\?"
    )
    with pytest.raises(SafetyError, match=expected):
        check(vector)


def test_fields_without_a_range_are_not_checked() -> None:
    RangeCheck({"board": BOARD}, {})(np.full((1, 4), 1e9, np.float32))


def test_the_distance_is_in_widths_of_the_data_and_nothing_inside(check: RangeCheck) -> None:
    inside = np.array([0.1, 0.4, 0.3, 0.2], np.float32)
    assert check.distance(inside) == 0.0
    # Every entry has a width of 0.3 m; the farthest outside counts.
    assert check.distance(inside + np.array([0.0, 0.15, -0.4, 0.0])) == pytest.approx(1.0)


def test_a_field_without_a_range_has_no_distance() -> None:
    specs = {"board": BOARD, "other": FieldSpec(shape=(1,), unit="m")}
    rows = np.array([[0.1, 0.1, 0.2, 0.1], [0.4, 0.4, 0.5, 0.4]], np.float32)
    check = RangeCheck(specs, {"board": input_range("m", rows)})
    assert check.names == ("board", "other")
    assert check.distance(np.array([0.2, 0.2, 0.3, 0.2, 1e6])) == 0.0
    assert RangeCheck(specs, {}).distance(np.full(5, 1e6)) == 0.0
