"""Plays the points of a design as one family of environments, which are stepped together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from robots.config import to_plain
from sim.evaluation.evaluate import env_config
from sim.evaluation.protocol import Protocol
from sim.sensitivity.factors import ArmFactor, Factor, PhysicsFactor, with_values


def can_be_family(protocol: Protocol, factors: Mapping[str, Factor]) -> bool:
    """Whether the environments of all points can be members of one family: MuJoCo, factors of the
    physics and the arm, and a protocol whose environments are all alike."""
    if protocol.engine != "mujoco":
        return False
    if not all(isinstance(factor, PhysicsFactor | ArmFactor) for factor in factors.values()):
        return False
    env = env_config(protocol)
    drawn = env.ranges or env.randomized
    return not drawn and (env.dynamics is None or not env.dynamics.varies)


def family(protocol: Protocol, factors: Mapping[str, Factor], unit: np.ndarray) -> Protocol:
    """The protocol with a family of environments of which the episode with the i-th seed has the
    values of point i.

    Args:
        protocol: environments as they are.
        factors: the factors with a range, for which `can_be_family` holds.
        unit: (M, F + 1) at most as many points as the protocol has episodes, between the factors'
            bounds; see `sim.sensitivity.design.draw_design`.
    """
    highest: dict[str, Any] = {name: factor.high for name, factor in factors.items()}
    options = dict(with_values(protocol, factors, highest).options)
    columns = {
        name: _between(factor, unit[:, i]) for i, (name, factor) in enumerate(factors.items())
    }
    physics = [name for name, factor in factors.items() if isinstance(factor, PhysicsFactor)]
    arm = [name for name, factor in factors.items() if isinstance(factor, ArmFactor)]
    places = [columns[name] for name in physics]
    if physics:
        options["ranges"] = [
            {**item, "low": factors[name].low}
            for name, item in zip(physics, options["ranges"], strict=True)
        ]
    if arm:
        values = list(options["dynamics"]["values"])
        kept = values[: len(values) - len(arm)]
        varied = [
            {**item, "low": factors[name].low, "high": factors[name].high}
            for name, item in zip(arm, values[len(kept) :], strict=True)
        ]
        options["dynamics"] = {**options["dynamics"], "values": [*kept, *varied]}
        places += [np.zeros(len(unit))] * len(kept) + [columns[name] for name in arm]
    # The member of an episode is its seed modulo the number of members.
    rows = np.column_stack(places)
    shifted = np.roll(rows, protocol.first_seed % len(unit), axis=0)
    changed = replace(protocol, options={**options, "places": shifted.tolist()})
    return replace(changed, options=to_plain(changed.options))


def _between(factor: Factor, unit: np.ndarray) -> np.ndarray:
    """Linear places between the factor's bounds at which its values are those of `unit`."""
    assert factor.low is not None
    assert factor.high is not None
    values = np.array([factor.place(float(at)) for at in unit])
    return np.clip((values - factor.low) / (factor.high - factor.low), 0.0, 1.0)
