"""Puts a family of environments into the protocol of a training: each episode is that of one
member, and all members have as many episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from robots.errors import HandoffError
from sim.environment_families.members import EnvironmentFamily, value_of
from sim.evaluation.protocol import Protocol
from sim.sensitivity.factors import Factor, check_factors, nominal
from sim.sensitivity.family import can_be_family, family


def check_mixture(protocol: Protocol, factors: Mapping[str, Factor], *, known: bool = True) -> None:
    """Checks, before anything runs, that episodes of a protocol can be those of several members.

    Args:
        protocol: environments as they are.
        factors: parameters in which the members differ.
        known: whether the protocol has its final options, so that it must tell the value of every
            factor.

    Raises:
        HandoffError: environments that lack a factor, that are of another engine or vary by
            themselves, or a factor whose value in the environments as they are is unknown.
    """
    check_factors(protocol, factors)
    if not can_be_family(protocol, factors):
        raise HandoffError(
            f"protocol {protocol.name}: its episodes cannot be those of a family, which needs the engine mujoco, "
            "factors of the kinds physics and arm, and environments that do not draw parameters by themselves."
        )
    for name, factor in factors.items():
        if known and nominal(factor, protocol) is None:
            raise HandoffError(
                f"factor {name}: only the model knows its value in the environments as they are, so members without "
                "it cannot be trained on together with others. Set it in the protocol's options.dynamics."
            )


def with_family(protocol: Protocol, members: EnvironmentFamily) -> Protocol:
    """The protocol with all members: the episode with the i-th seed of the protocol is that of
    member i, beginning again after the last; seeds before and after it go on so.

    Args:
        protocol: environments as they are.
        members: the family.

    Raises:
        HandoffError: an error of `check_mixture`.
    """
    check_mixture(protocol, members.factors)
    widened: dict[str, Factor] = {}
    places: list[np.ndarray] = []
    for name, factor in members.factors.items():
        own = [value_of(name, factor, member.values, protocol) for member in members.members]
        values = np.array(own, dtype=float)
        bounds = [bound for bound in (factor.low, factor.high) if bound is not None]
        low, high = min(*bounds, *values), max(*bounds, *values)
        widened[name] = replace(factor, values=(), low=float(low), high=float(high), log=False)
        places.append((values - low) / (high - low))
    # The last column of a design has no effect.
    unit = np.column_stack([*places, np.zeros(len(members.members))])
    return family(protocol, widened, unit)
