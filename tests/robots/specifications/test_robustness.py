"""Robustness of formulas: hand-computed values, and random formulas against the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.specifications.formula import (
    Junction,
    Not,
    Number,
    ObservedField,
    Predicate,
    Temporal,
)
from robots.specifications.monitor import SpecificationMonitor
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve
from robots.specifications.robustness import robustness
from robots.specifications.shares import outcomes, satisfied_shares

RATE_HZ = 10.0
SPEC = {"x": FieldSpec(shape=()), "p": FieldSpec(shape=(3,), unit="m")}


def of(text, **fields):
    """Robustness of an episode by both implementations, which must agree."""
    arrays = {"x": np.zeros(len(next(iter(fields.values())))), **fields}
    arrays = {name: np.asarray(values, dtype=float) for name, values in arrays.items()}
    whole = robustness(resolve(parse(text, "near"), SPEC, RATE_HZ, "near"), arrays, RATE_HZ)
    steps = len(whole)
    monitor = SpecificationMonitor(text, "near", SPEC, rate_hz=RATE_HZ, max_steps=steps + 3)
    for step in range(steps):
        monitor.update({name: values[step : step + 1] for name, values in arrays.items()})
    assert monitor.finish()[0] == whole[0]
    return whole[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x < 5", 4.0),
        ("always x < 5", 1.0),
        ("always[0.1, 0.2] x < 5", 1.0),
        ("eventually x > 5", -1.0),
        ("eventually[0, 0.1] x > 0", 4.0),
        ("not eventually x > 5", 1.0),
        ("x < 5 and x > 0.5", 0.5),
        ("0.5 < x < 5", 0.5),
        ("x > 5 or x > 0", 1.0),
        ("x > 0 implies x > 5", -1.0),
        # At the second step x is above 2 by 2, and before it below 5 by 4.
        ("x < 5 until x >= 2", 2.0),
        ("x < 2 until[0, 0.1] x >= 2", 1.0),
        # Of the two last steps that an interval of 0.2 s has, one is left.
        ("eventually always[0, 0.2] x < 1", -1.0),
        ("always eventually x < 3", 1.0),
        ("always[1, 2] x > 100", np.inf),
        ("eventually[1, 2] x > -100", -np.inf),
        ("x > 0 until[1, 2] x > 0", -np.inf),
    ],
)
def test_an_episode_has_the_robustness_computed_by_hand(text, expected):
    assert of(text, x=[1.0, 4.0, 3.0, 2.0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("p.norm", 13.0),
        ("norm(p)", 13.0),
        ("p[0:2].norm", 5.0),
        ("distance(p, p + 1)", 3.0**0.5),
        ("p.max", 4.0),
        ("p.min", -12.0),
        ("abs(p).max", 12.0),
        ("max(p[0], p[1], 3.5)", 4.0),
        ("min(p, 0)[0]", 0.0),
        ("-p[2] / 4 - 2 * p[0]", -3.0),
        ("x + 1e1", 10.0),
    ],
)
def test_a_quantity_has_the_value_computed_by_hand(quantity, expected):
    assert of(f"{quantity} > 0", p=[[3.0, 4.0, -12.0]]) == pytest.approx(expected)


def value(quantity, fields, at):
    if isinstance(quantity, Number):
        return quantity.value
    assert isinstance(quantity, ObservedField)
    return fields[quantity.name][at]


def by_definition(formula, fields, at):
    """Robustness from one step on, as the definition has it."""
    steps = len(fields["x"])

    def times(interval):
        end = np.inf if interval.end is None else round(interval.end * RATE_HZ)
        return [t for t in range(at, steps) if round(interval.start * RATE_HZ) <= t - at <= end]

    match formula:
        case Predicate():
            return value(formula.larger, fields, at) - value(formula.smaller, fields, at)
        case Not():
            return -by_definition(formula.of, fields, at)
        case Junction():
            sides = (formula.left, formula.right)
            values = [by_definition(side, fields, at) for side in sides]
            return min(values) if formula.kind == "and" else max(values)
        case Temporal():
            values = [by_definition(formula.of, fields, t) for t in times(formula.interval)]
            if formula.kind == "always":
                return min(values, default=np.inf)
            return max(values, default=-np.inf)
    return max(
        (
            min(
                by_definition(formula.right, fields, t),
                *(by_definition(formula.left, fields, before) for before in range(at, t)),
                np.inf,
            )
            for t in times(formula.interval)
        ),
        default=-np.inf,
    )


TWO = {"x": FieldSpec(shape=()), "y": FieldSpec(shape=())}
PREDICATES = st.builds(
    "{} {} {}".format,
    st.sampled_from(["x", "y"]),
    st.sampled_from("<>"),
    st.sampled_from(["y", "0", "0.5", "-1"]),
)
INTERVALS = st.one_of(
    st.just(""),
    st.tuples(st.integers(0, 4), st.integers(0, 4)).map(
        lambda ends: f"[{ends[0] / 10}, {sum(ends) / 10}]"
    ),
    st.integers(0, 4).map(lambda start: f"[{start / 10}, inf]"),
)
FORMULAS = st.recursive(
    PREDICATES,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or", "implies"]), inner),
        st.builds("{}{} ({})".format, st.sampled_from(["always", "eventually"]), INTERVALS, inner),
        st.builds("({}) until{} ({})".format, inner, INTERVALS, inner),
    ),
    max_leaves=5,
)
SIGNALS = st.lists(
    st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=1, max_size=7
).map(lambda rows: np.array(rows, dtype=float).T)


@settings(max_examples=400, deadline=None)
@given(FORMULAS, st.lists(SIGNALS, min_size=1, max_size=3))
def test_random_formulas_have_the_robustness_of_the_definition(text, signals):
    formula = resolve(parse(text, "random"), TWO, RATE_HZ, "random")
    expected = []
    for x, y in signals:
        fields = {"x": x, "y": y}
        values = [by_definition(formula, fields, at) for at in range(len(x))]
        expected.append(values[0])
        np.testing.assert_array_equal(robustness(formula, fields, RATE_HZ), values)

    # The same episodes together, step by step; each has its own length.
    lengths = np.array([len(x) for x, _ in signals])
    monitor = SpecificationMonitor(
        text, "random", TWO, rate_hz=RATE_HZ, max_steps=int(max(lengths)) - 1, robots=len(signals)
    )
    for _ in range(2):
        bounds = []
        for step in range(max(lengths)):
            observation = {
                name: np.array([signal[i][min(step, signal.shape[1] - 1)] for signal in signals])
                for i, name in enumerate(TWO)
            }
            bounds.append((step < lengths, monitor.update(observation, step < lengths)))
        np.testing.assert_array_equal(monitor.finish(), expected)
        for running, (low, high) in bounds:
            assert (low <= expected)[running].all()
            assert (high >= expected)[running].all()
        monitor.reset()


def test_an_always_that_was_violated_can_no_longer_be_satisfied():
    text = "always (x > 0 implies eventually[0, 0.2] x < 0)"
    monitor = SpecificationMonitor(text, "back", SPEC, rate_hz=RATE_HZ, max_steps=10)
    values = [-1.0, 1.0, 2.0, 3.0, 3.0]

    highest = [monitor.update({"x": np.array([value])}).high[0] < 0.0 for value in values]

    # x is above 0 from the second step on, and has not returned two steps later.
    assert highest == [False, False, False, True, True]


def test_the_memory_of_a_monitor_does_not_grow_with_the_episode():
    import tracemalloc

    text = "always (x < 3 and eventually[0, 0.5] always[0, 0.3] x > -1)"
    monitor = SpecificationMonitor(
        text, "near", SPEC, rate_hz=RATE_HZ, max_steps=100_000, robots=50
    )

    def play(steps):
        for step in range(steps):
            monitor.update({"x": np.full(50, np.sin(step))})
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early = play(100)
        late = play(2000)
    finally:
        tracemalloc.stop()
    assert late < early + 10_000


def test_a_value_that_is_not_a_number_is_refused():
    monitor = SpecificationMonitor("always p.norm < 3", "near", SPEC, rate_hz=RATE_HZ, max_steps=3)

    with pytest.raises(HandoffError, match="'near', character 8: a compared value is not a number"):
        monitor.update({"p": np.full((1, 3), np.nan)})


def test_shares_have_intervals_and_leave_out_what_no_step_decides():
    episodes = [outcomes({"a": value, "b": -np.inf}) for value in (0.5, 0.0, -0.1, np.inf)]

    shares = satisfied_shares(episodes, {"a": "x < 1", "b": "x < 2"})

    assert episodes[3]["a"] == {"robustness": None, "satisfied": True}
    assert [shares["a"][key] for key in ("k", "n", "smallest")] == [3, 4, -0.1]
    assert shares["a"]["mean"] == pytest.approx(0.4 / 3)
    # Wilson's interval of 3 of 4.
    assert [shares["a"]["low"], shares["a"]["high"]] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    assert [shares["b"][key] for key in ("k", "smallest", "mean")] == [0, None, None]
