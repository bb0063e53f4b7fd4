"""Factors: what a value changes in a protocol's options, and which factors are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flows.config.protocols import read_protocol
from robots.config import validate
from robots.errors import HandoffError
from sim.evaluation.evaluate import env_config
from sim.sensitivity.factors import (
    AppearanceFactor,
    ArmFactor,
    Factor,
    OptionFactor,
    PhysicsFactor,
    check_factors,
    label,
    nominal,
    with_values,
)
from sim.sensitivity.measure import SensitivityConfig, check_study

PICK = read_protocol("pick_cube")
SEEN = read_protocol("pick_cube_cameras")
MASS = PhysicsFactor(what="mass", names=("cube",), values=(0.5, 2.0), low=0.5, high=8.0, log=True)
DELAY = ArmFactor(what="delay", values=(0, 0.02))
RATE = OptionFactor(option="rate_hz", values=(10,))
FACTORS: dict[str, Factor] = {"mass": MASS, "delay": DELAY, "rate": RATE}


def test_values_are_options_of_the_environments_and_nothing_else_changes() -> None:
    changed = with_values(PICK, FACTORS, {"mass": 2.0, "delay": 0.02, "rate": 10, "dummy": 0.3})
    assert changed.options == {
        "ranges": [{"what": "mass", "names": ["cube"], "low": 2.0, "high": 2.0}],
        "dynamics": {
            "robot": "fr3",
            "values": [{"what": "delay", "joints": [], "value": 0.02}],
        },
        "rate_hz": 10,
    }
    assert replace(changed, options=PICK.options) == PICK
    env = env_config(changed)
    assert env.dynamics is not None
    assert (env.dynamics.delay, env.ranges[0].high, env.rate_hz) == (0.02, 2.0, 10)


def test_a_value_of_the_arm_replaces_the_tuned_one_and_keeps_the_others() -> None:
    values = [{"what": "payload", "value": 0.4}, {"what": "delay", "value": 0.01, "high": 0.03}]
    tuned = replace(PICK, options={"dynamics": {"robot": "fr3", "values": values}})
    changed = with_values(tuned, FACTORS, {"delay": 0.02})
    assert changed.options["dynamics"]["values"] == [
        values[0],
        {"what": "delay", "joints": [], "value": 0.02},
    ]
    assert (nominal(DELAY, tuned), nominal(DELAY, PICK)) == (0.01, 0.0)


def test_the_nominal_value_is_that_of_the_environments_as_they_are() -> None:
    assert nominal(MASS, PICK) == 1.0
    assert nominal(AppearanceFactor(what="light", values=(0.5,)), SEEN) == 1.0
    assert nominal(ArmFactor(what="armature", values=(0.2,)), PICK) is None
    nested = OptionFactor(option="server.options.size", values=(3,))
    server = {"engine": "gym", "options": {"size": 2}}
    assert nominal(nested, replace(PICK, options={"server": server})) == 2
    assert nominal(nested, PICK) is None


def test_an_option_of_any_depth_is_set_beside_the_others() -> None:
    nested = OptionFactor(option="server.options.size", values=(3,))
    given = replace(PICK, options={"server": {"engine": "gym", "options": {"other": 1}}})
    changed = with_values(given, {"size": nested}, {"size": 3})
    assert changed.options["server"] == {"engine": "gym", "options": {"other": 1, "size": 3}}
    with pytest.raises(HandoffError, match=r"options\.rate_hz is 5"):
        with_values(
            replace(PICK, options={"rate_hz": 5}),
            {"deep": OptionFactor(option="rate_hz.deep", values=(1,))},
            {"deep": 1},
        )


def test_places_are_even_in_the_value_or_in_its_logarithm() -> None:
    assert MASS.place(0.5) == pytest.approx(2.0)
    assert replace(MASS, log=False).place(0.5) == pytest.approx(4.25)
    clutter = AppearanceFactor(what="clutter", low=0, high=8)
    assert clutter.rounded(clutter.place(0.45)) == 4
    assert OptionFactor(option="n", low=1, high=9, whole=True).rounded(2.6) == 3


def test_labels_name_quantity_and_unit() -> None:
    assert label("heavy", MASS) == "heavy: mass of cube (factor)"
    payload = ArmFactor(what="payload", values=(1,))
    assert label("load", payload) == "load: payload [kg]"


def test_a_name_that_says_what_the_factor_is_stands_alone() -> None:
    assert label("mass", MASS) == "mass of cube (factor)"
    assert label("pay", ArmFactor(what="payload", values=(1,))) == "pay: payload [kg]"
    assert label("payload", ArmFactor(what="payload", values=(1,))) == "payload [kg]"


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ({"kind": "arm", "what": "delay"}, "expected values, or low and high"),
        ({"kind": "arm", "what": "delay", "low": 0.0}, "expected both or neither"),
        ({"kind": "arm", "what": "delay", "low": 2, "high": 1}, "expected low < high"),
        ({"kind": "arm", "what": "delay", "values": [1, 1]}, "each once"),
        ({"kind": "arm", "what": "delay", "values": ["fast"]}, "expected numbers"),
        ({"kind": "arm", "what": "payload", "low": 0, "high": 1, "log": True}, "above 0"),
        ({"kind": "physics", "what": "mass", "values": [1]}, r"names \[\], expected one or more"),
        (
            {"kind": "physics", "what": "delay", "names": ["cube"], "values": [1]},
            r"\['cube'\], expected none",
        ),
        ({"kind": "arm", "what": "delay", "names": []}, r"unknown key 'factors\.one\.names'"),
    ],
)
def test_a_factor_that_says_nothing_or_too_much_is_refused(
    factor: dict[str, Any], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        validate(SensitivityConfig, {"factors": {"one": factor}})


def test_environments_without_a_factor_are_refused_before_anything_runs() -> None:
    with pytest.raises(HandoffError, match="0 are given"):
        check_factors(PICK, {})
    with pytest.raises(HandoffError, match="'dummy' is the name"):
        check_factors(PICK, {"dummy": MASS})
    light: dict[str, Factor] = {"light": AppearanceFactor(what="light", values=(0.5,))}
    check_factors(SEEN, light)
    with pytest.raises(HandoffError, match=r"factor light = 0\.5: .*nothing sees the change"):
        check_factors(PICK, light)
    with pytest.raises(HandoffError, match=r"factor mass = 0\.5: .*gym ignores \['ranges'\]"):
        check_factors(read_protocol("gym_hil_pick_cube"), {"mass": MASS})
    randomized = replace(PICK, options={"randomized": True})
    with pytest.raises(HandoffError, match="randomized draws what the factor sets"):
        check_factors(randomized, {"mass": MASS})
    check_factors(randomized, {"delay": DELAY})


def test_two_factors_of_one_quantity_are_refused() -> None:
    with pytest.raises(HandoffError, match="factor heavy: mass of cube is set by factor mass, too"):
        check_factors(PICK, {"mass": MASS, "heavy": replace(MASS, names=("target", "cube"))})
    drawn = replace(PICK, options={"ranges": [{"what": "mass", "names": ["cube"], "high": 2.0}]})
    with pytest.raises(HandoffError, match=r"mass of cube is set by options\.ranges"):
        check_factors(drawn, {"mass": MASS})


def test_a_design_without_a_factor_to_vary_is_refused() -> None:
    design = {"points": 64}
    given = validate(SensitivityConfig, {"factors": {}, "design": design})
    with pytest.raises(HandoffError, match="no factor has low and high"):
        check_study(PICK, replace(given, factors={"delay": DELAY}))
    check_study(PICK, replace(given, factors={"mass": MASS}))
