"""Draws the members of a family from a design over the ranges of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import product

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from sim.environment_families.members import NOMINAL, EnvironmentFamily, Member
from sim.sensitivity.design import DesignConfig, draw_design, ranged, values_at
from sim.sensitivity.factors import DUMMY, AnyFactor, Factor, Value

MOST_CORNERS = 64
"""Largest number of corners, those of six ranges."""


@config
class DrawFamilyConfig:
    """Members of a family: points of a design, with the nominal member and the corners."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters of the environments by a name of one's own, each with `low` and `high`."""
    design: DesignConfig | None = field(default_factory=lambda: DesignConfig(points=32))
    """Points between the bounds, one member each; None draws none."""
    nominal: bool = True
    """Whether the environments as they are also are a member."""
    corners: bool = False
    """Whether all combinations of lower and upper bounds also are members."""


def check_ranges(factors: Mapping[str, Factor], *, corners: bool = False) -> None:
    """Checks that members can be placed between the bounds of all factors.

    Raises:
        HandoffError: a factor without a range, or too many corners.
    """
    if without := sorted({*factors} - {*ranged(factors)}):
        raise HandoffError(
            f"factor {without[0]}: has no low and high, between which members of a family lie. Give them, or remove "
            "the factor."
        )
    if corners and 2 ** len(factors) > MOST_CORNERS:
        raise HandoffError(
            f"corners: {len(factors)} factors have {2 ** len(factors)} corners, at most {MOST_CORNERS} are played. Set "
            "corners: false."
        )


def corner_places(size: int) -> np.ndarray:
    """(2^F, F) the corners of the unit cube of `size` F dimensions."""
    return np.array(list(product((0.0, 1.0), repeat=size)))


def values_of(factors: Mapping[str, Factor], places: np.ndarray) -> dict[str, Value]:
    """Values of all factors at places (F,) between their bounds."""
    values = values_at(factors, np.append(places, 0.0))
    del values[DUMMY]
    return values


def draw_family(config: DrawFamilyConfig) -> EnvironmentFamily:
    """Draws a family.

    Raises:
        HandoffError: an error of `check_ranges`, or no members.
    """
    check_ranges(config.factors, corners=config.corners)
    members = [Member(name=NOMINAL)] if config.nominal else []
    if config.corners:
        for index, row in enumerate(corner_places(len(config.factors)), start=1):
            members.append(Member(name=f"corner {index}", values=values_of(config.factors, row)))
    points = np.zeros((0, len(config.factors) + 1))
    if config.design is not None:
        points = draw_design(config.factors, config.design)
    # The last column of a design has no effect.
    for index, row in enumerate(points[:, :-1], start=1):
        members.append(Member(name=f"drawn {index}", values=values_of(config.factors, row)))
    return EnvironmentFamily(factors=config.factors, members=tuple(members))
