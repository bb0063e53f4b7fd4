"""Families of environments: members, their file, and episodes of all of them in one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.config import validate
from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.environment_families.draw import DrawFamilyConfig, draw_family
from sim.environment_families.members import (
    NOMINAL,
    EnvironmentFamily,
    read_family,
    write_family,
)
from sim.environment_families.mixture import with_family
from sim.evaluation.evaluate import env_config
from sim.evaluation.protocol import Protocol
from sim.make import find_task
from sim.sensitivity.design import DesignConfig
from sim.sensitivity.factors import with_values

REACH = read_protocol("reach")
FACTORS: dict[str, Any] = {
    "payload": {"kind": "arm", "what": "payload", "low": 0.5, "high": 2.0},
    "stiffness": {"kind": "arm", "what": "stiffness", "low": 0.5, "high": 2.0, "log": True},
    "late": {"kind": "physics", "what": "delay", "low": 0.01, "high": 0.03},
}
MEMBERS = [
    {"name": NOMINAL},
    {"name": "heavy", "values": {"payload": 2.0, "stiffness": 1.0}},
    {"name": "soft", "values": {"payload": 0.5, "stiffness": 0.5, "late": 0.02}},
]


def made(members: list[dict[str, Any]], factors: Mapping[str, Any] = FACTORS) -> EnvironmentFamily:
    return validate(EnvironmentFamily, {"factors": factors, "members": members})


def engine(protocol: Protocol, num_envs: int) -> MujocoEngine:
    env = env_config(protocol)
    options = MujocoConfig(ranges=env.ranges, places=env.places, dynamics=env.dynamics)
    return MujocoEngine(find_task(protocol.task), num_envs, options)


def test_drawn_families_have_the_nominal_member_the_corners_and_the_points() -> None:
    config = validate(
        DrawFamilyConfig, {"factors": FACTORS, "design": {"points": 5}, "corners": True}
    )
    family = draw_family(config)
    names = [member.name for member in family.members]
    assert names[0] == NOMINAL
    assert not family.members[0].values
    assert (names[1], names[8], names[9], len(names)) == ("corner 1", "corner 8", "drawn 1", 14)
    assert family.members[1].values == {"payload": 0.5, "stiffness": 0.5, "late": 0.01}
    assert family.members[8].values == {"payload": 2.0, "stiffness": 2.0, "late": 0.03}
    for member in family.members[9:]:
        assert 0.5 < float(member.values["stiffness"]) < 2.0
    # Half of a logarithmic range lies below its geometric mean.
    many = replace(config, design=DesignConfig(points=100), corners=False, nominal=False)
    below = [float(m.values["stiffness"]) < 1.0 for m in draw_family(many).members]
    assert sum(below) == 50
    only = draw_family(replace(config, design=None, nominal=False)).members
    assert [member.name for member in only] == [f"corner {i}" for i in range(1, 9)]
    with pytest.raises(HandoffError, match="family: 0 members"):
        draw_family(replace(config, design=None, nominal=False, corners=False))
    wide = {f"f{i}": FACTORS["payload"] for i in range(7)}
    seven = validate(DrawFamilyConfig, {"factors": wide, "corners": True})
    with pytest.raises(HandoffError, match="7 factors have 128 corners"):
        draw_family(seven)


def test_a_family_is_read_as_it_was_written(tmp_path: Path) -> None:
    family = made(MEMBERS)
    write_family(family, tmp_path)
    assert read_family(tmp_path) == family
    with pytest.raises(HandoffError, match="Is it an output of draw_family or worst_case"):
        read_family(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "0 members"),
        ([{"name": "a"}, {"name": "a"}], "'a' is listed more than once"),
        ([{"name": "a", "values": {"mass": 1.0}}], r"a sets mass, which is none of the factors"),
    ],
)
def test_families_that_make_no_sense_are_refused(
    members: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        made(members)


def test_each_episode_has_the_parameters_of_the_member_of_its_seed() -> None:
    family = made(MEMBERS)
    mixed = engine(with_family(REACH, family), 5)
    seeds = REACH.first_seed + np.array([0, 1, 2, 3, 8])
    mixed.reset(np.arange(5), seeds)
    for env_id, number in enumerate((0, 1, 2, 0, 2)):
        # A model with a payload of nothing, as the mixture has one.
        values = {"payload": 0.0, **family.members[number].values}
        alone = engine(with_values(REACH, family.factors, values), 1)
        alone.reset(np.arange(1), seeds[env_id : env_id + 1])
        for name in ("actuator_gainprm", "body_mass", "dof_invweight0"):
            own = getattr(alone._models[0], name)
            np.testing.assert_allclose(getattr(mixed._models[env_id], name), own, rtol=1e-7)
        assert mixed._delay[env_id] == alone._delay[0]
    masses = {round(float(model.body("payload").mass[0]), 3) for model in mixed._models}
    assert masses == {0.0, 2.0, 0.5}


def test_consecutive_episodes_are_those_of_all_members_equally_often() -> None:
    mixed = engine(with_family(REACH, made(MEMBERS)), 30)
    mixed.reset(np.arange(30), 1_000_000 + np.arange(30))
    masses = [round(float(model.body("payload").mass[0]), 3) for model in mixed._models]
    assert {mass: masses.count(mass) for mass in masses} == {0.0: 10, 2.0: 10, 0.5: 10}
    # An episode's parameters are a function of its seed alone.
    again = engine(with_family(REACH, made(MEMBERS)), 2)
    again.reset(np.arange(2), 1_000_000 + np.array([7, 20]))
    models = [mixed._models[7], mixed._models[20]]
    for own, other in zip(again._models, models, strict=True):
        assert own.body("payload").mass[0] == other.body("payload").mass[0]


@pytest.mark.parametrize(
    ("protocol", "factors", "message"),
    [
        ({"engine": "warp"}, {}, "needs the engine mujoco"),
        ({"options": {"randomized": True}}, {"late": None}, "do not draw parameters by themselves"),
        (
            {},
            {"hertz": {"kind": "option", "option": "rate_hz", "low": 10, "high": 20}},
            "factors of the kinds physics and arm",
        ),
        (
            {},
            {"rub": {"kind": "arm", "what": "friction", "low": 0, "high": 2}},
            "factor rub: only the model knows its value",
        ),
        (
            {},
            {"mass": {"kind": "option", "option": "weight", "low": 0, "high": 2}},
            r"factor mass = 0: .*weight",
        ),
    ],
)
def test_environments_that_cannot_be_those_of_several_members_are_refused(
    protocol: dict[str, Any], factors: dict[str, Any], message: str
) -> None:
    given = {name: each for name, each in {**FACTORS, **factors}.items() if each is not None}
    with pytest.raises(HandoffError, match=message):
        with_family(replace(REACH, **protocol), made([{"name": NOMINAL}], given))
