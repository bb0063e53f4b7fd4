"""Formulas of signal temporal logic as text."""

import pytest

from robots.errors import HandoffError
from robots.spec import POSE, FieldSpec
from robots.specifications.formula import (
    Interval,
    Junction,
    Not,
    Number,
    ObservedField,
    Predicate,
    Temporal,
    Until,
)
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve

SPEC = {
    "grasp_pose": FieldSpec(shape=(6,), unit="m, m, m, rad, rad, rad", names=POSE),
    "goal": FieldSpec(shape=(3,), unit="m"),
    "width": FieldSpec(shape=(1,), unit="m"),
    "image": FieldSpec(shape=(4, 4, 3), dtype="uint8", unit="u8"),
}


def read(text):
    return resolve(parse(text, "near"), SPEC, 10.0, "near")


def test_operators_take_their_operands_from_the_tightest_to_the_loosest():
    formula = parse("always a < 1 and not b < 2 or c < 3 implies d < 4 until[0, 2.5] e < 5", "x")

    match formula:
        case Junction(
            "or",
            Not(Junction("or", Junction("and", Temporal("always"), Not()), Predicate())),
            Until(Interval(0.0, 2.5), Predicate(), Predicate()),
        ):
            return
    pytest.fail(str(formula))


def test_the_larger_side_of_a_comparison_is_first():
    match parse("0.1 <= x < 0.3", "x"):
        case Junction(
            "and",
            Predicate(ObservedField("x"), Number(0.1)),
            Predicate(Number(0.3), ObservedField("x")),
        ):
            return
    pytest.fail("another formula")


def test_brackets_hold_formulas_and_arithmetic():
    formula = parse("always ((x - 2 * (y + 1)).norm < 0.1)", "x")

    assert isinstance(formula, Temporal)
    assert isinstance(formula.of, Predicate)


def test_an_entry_has_its_name_or_its_number():
    assert read("1 > grasp_pose.z") == read("1 > grasp_pose[2]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"character 1: expected a field, a number or '\(', found the end."),
        ("always", r"character 7: expected a field, a number or '\(', found the end."),
        ("goal.norm", "character 1: a quantity alone is no requirement; compare it"),
        ("(width < 1", r"character 11: expected '\)' or an operator, found the end."),
        ("width < 1)", r"character 10: expected and, or, implies, until or the end, found '\)'."),
        ("width < 1 width", "character 11: expected and, or, implies, until or the end"),
        ("width == 1", "character 7: '=' is no part of a formula. Write >= or <="),
        ("width < 1 # x", "character 11: '#' is no part of a formula."),
        ("width < (width < 1)", "character 10: a requirement is no number"),
        ("-(width < 1) < 2", "character 3: a requirement is no number"),
        ("always[1] (width < 1)", r"character 9: expected ',', found '\]'."),
        ("always[-1, 2] (width < 1)", "character 8: expected a time in seconds, at least 0"),
        ("always[2, 1] width < 1", r"character 7: the interval \[2, 1\] s ends before it begins."),
        ("always[0.01, 0.02] width < 1", "character 7: .* contains no step at 10 Hz"),
        ("widht < 1", r"character 1: unknown field 'widht', did you mean 'width'\?"),
        ("1 < q", "character 5: unknown field 'q', fields: grasp_pose, goal, width"),
        ("norn(goal) < 1", r"character 1: unknown function 'norn', did you mean 'norm'\?"),
        ("hypot(goal) < 1", r"character 1: unknown function 'hypot', there are norm, abs, min"),
        ("alway (width < 1)", r"character 1: unknown operator 'alway', did you mean 'always'\?"),
        ("not alwys width < 1", r"character 5: unknown operator 'alwys', did you mean 'always'"),
        ("eventualy[0, 2] width < 1", r"character 1: unknown operator 'eventualy', did you mean"),
        ("norm(goal, goal) < 1", "character 1: norm takes one argument, given 2."),
        ("distance(goal) < 1", "character 1: distance takes two arguments, given 1."),
        ("goal < 1", r"character 1: 'goal', float32 \(3\) \[m\], has 3 entries, and a comparison"),
        ("distance(grasp_pose, goal) < 1", r"'grasp_pose', .* has 6 entries, 'goal', .* 3: take"),
        ("goal[3] < 1", "'goal', .* has 3 entries, without entries 3 to 3."),
        ("goal[1.5] < 1", "character 6: expected the number of an entry, counted from 0"),
        ("goal.x < 1", "'goal', .* has no entry 'x', its entries have numbers only"),
        ("grasp_pose.u < 1", "'grasp_pose', .* has no entry 'u', there are x, y, z, rx, ry, rz"),
        ("width .2 < 1", "character 1: a quantity alone is no requirement"),
        ("(goal + goal).x < 1", "character 15: expected norm, abs, min, max or, after a field"),
        ("image.norm < 1", r"character 1: 'image' is a picture \(4 x 4 x 3\), expected numbers."),
        ("width / goal < 1", "character 9: a quantity is divided by a number other than 0 only."),
        ("width / 0 < 1", "character 9: a quantity is divided by a number other than 0 only."),
        ("not " * 40 + "width < 1", "character 121: more than 30 operators and brackets"),
        ("(" * 40 + "width < 1" + ")" * 40, "character 31: more than 30 operators and brackets"),
        ("width < " + "1" * 1000, "1008 characters, at most 1000. Split it"),
    ],
)
def test_an_error_has_the_position_and_the_remedy(text, message):
    with pytest.raises(HandoffError, match=f"specification 'near'.*{message}") as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("operator", [" and width<1", "+width", " or width<1"])
def test_the_longest_formula_is_read(operator):
    text = "width<1" if operator.strip()[0] in "ao" else "1<width"
    text += operator * ((1000 - len(text)) // len(operator))

    assert read(text) is not None
