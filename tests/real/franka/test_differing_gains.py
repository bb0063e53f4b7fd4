"""Gains of an arm that a policy was not trained with are named."""

from __future__ import annotations

from dataclasses import replace

from real.franka.impedance import ImpedanceConfig, differing_gains
from robots.control.impedance import ImpedanceGains

SOFT = (800.0, 800.0, 800.0, 150.0, 150.0, 150.0)


def test_the_defaults_are_those_of_the_simulation() -> None:
    for law in (None, "cartesian", "joint"):
        assert differing_gains(ImpedanceConfig(controller=law), ImpedanceGains()) == []


def test_a_softer_spring_is_named_with_both_values() -> None:
    (said,) = differing_gains(ImpedanceConfig(stiffness=SOFT), ImpedanceGains())
    assert said == f"stiffness {SOFT}, in training {ImpedanceGains().stiffness}"


def test_gains_of_the_other_law_do_not_matter() -> None:
    joint = ImpedanceConfig(controller="joint", stiffness=SOFT)
    assert differing_gains(joint, ImpedanceGains()) == []
    trained = replace(ImpedanceGains(), joint_damping=(40.0,) * 7)
    assert [said.split()[0] for said in differing_gains(joint, trained)] == ["joint_damping"]


def test_a_contract_without_gains_says_nothing() -> None:
    assert differing_gains(ImpedanceConfig(stiffness=SOFT), None) == []
