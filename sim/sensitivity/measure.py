"""Plays the episodes of a sensitivity measurement: every value of every factor from the protocol's
starts, and one episode at each point of a design over all factors.

All conditions and agents play the same starts, so that they are paired by seed. Point i of the
design plays start i of the protocol, beginning again after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.evaluation.agent import MakeAgent
from sim.evaluation.evaluate import EvaluateConfig, make_env
from sim.evaluation.protocol import Protocol, check_protocol
from sim.sensitivity.design import DesignConfig, draw_design, ranged, values_at
from sim.sensitivity.factors import (
    AnyFactor,
    Factor,
    Value,
    check_factors,
    nominal,
    shown,
    with_values,
)
from sim.sensitivity.family import can_be_family, family
from sim.sensitivity.pieces import Piece, part_of, play_pieces

NOMINAL = "nominal"
"""Name of the condition in which all factors are as in the protocol."""


@config
class SensitivityConfig:
    """Factors of a measurement and the design over them."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters of the environments by a name of one's own."""
    design: DesignConfig = field(default_factory=DesignConfig)
    """Points over all factors that have a range."""


class FactorCondition(NamedTuple):
    """Environments in which some factors have given values."""

    factor: str | None
    """Factor whose value was set; None for the nominal condition and points of the design."""
    values: Mapping[str, Value]

    @property
    def name(self) -> str:
        """Name in tables and figures, such as `delay=0.02`."""
        return (
            NOMINAL if self.factor is None else f"{self.factor}={shown(self.values[self.factor])}"
        )


class Sensitivity(NamedTuple):
    """Episodes of all agents under all conditions."""

    protocol: Protocol
    config: SensitivityConfig
    confidence: float
    solved: Mapping[str, Mapping[str, np.ndarray]]
    """By agent and name of the condition (N,) bool: the episodes that were solved, in the order of
    the protocol's seeds."""
    unit: np.ndarray
    """(P, F + 1) the design's points between the bounds of the F factors with a range; empty
    without such factors."""
    design_solved: Mapping[str, np.ndarray]
    """By agent (P,) bool: the solved episodes of the design."""


def conditions(protocol: Protocol, factors: Mapping[str, Factor]) -> tuple[FactorCondition, ...]:
    """The nominal condition, which is the reference, and one for every other value of a factor."""
    listed = [FactorCondition(None, {})]
    for name, factor in factors.items():
        own = nominal(factor, protocol)
        listed += [FactorCondition(name, {name: value}) for value in factor.values if value != own]
    return tuple(listed)


def check_study(protocol: Protocol, config: SensitivityConfig) -> None:
    """Checks, before anything runs, that the environments of a protocol have all factors, and that
    the design has one to vary.

    Raises:
        HandoffError: an error of `sim.sensitivity.factors.check_factors`, or a design that would
            have no effect.
    """
    check_factors(protocol, config.factors)
    if config.design != DesignConfig() and not ranged(config.factors):
        raise HandoffError(
            "design: is given, but no factor has low and high between which it varies. Give them, or remove design."
        )


def start_of(protocol: Protocol, points: int) -> np.ndarray:
    """(P,) number of the protocol's episode from whose start each point of a design is played."""
    return np.arange(points) % protocol.episodes


def measure_sensitivity(
    protocol: Protocol,
    config: SensitivityConfig,
    agents: Mapping[str, Callable[[], MakeAgent]],
    execution: EvaluateConfig,
    progress: Progress,
    *,
    journal: Path | None = None,
) -> Sensitivity:
    """Plays all episodes of a measurement.

    Args:
        protocol: task, seeds and rules; its environments are the nominal condition.
        config: factors and design.
        agents: loaders by name; see `sim.evaluation.evaluate.evaluate`.
        execution: batch and processes of the episodes.
        progress: counts control periods of all episodes.
        journal: folder in which finished batches are kept, and from which an interrupted call with
            the same arguments takes them. None keeps nothing.

    Raises:
        HandoffError: see `sim.sensitivity.factors.check_factors` and
            `sim.evaluation.evaluate.run_episodes`.
    """
    check_protocol(protocol)
    check_study(protocol, config)
    _try_factors(protocol, config.factors)
    varied = conditions(protocol, config.factors)
    within = ranged(config.factors)
    unit = draw_design(within, config.design) if within else np.zeros((0, 1))
    seeds = list(protocol.seeds)
    played = [
        (with_values(protocol, config.factors, condition.values), condition.name, seeds)
        for condition in varied
    ]
    played += [(points, "design", each) for points, each in _design(protocol, within, unit)]
    solved: dict[str, dict[str, np.ndarray]] = {}
    design_solved: dict[str, np.ndarray] = {}
    steps = protocol.max_steps * sum(len(each) for _, _, each in played)
    for number, (agent, load) in enumerate(agents.items()):
        pieces = [
            Piece(
                changed,
                tuple(each[first : first + execution.batch]),
                f"{agent}, {label}",
                None if journal is None else journal / agent / str(index),
            )
            for index, (changed, label, each) in enumerate(played)
            for first in range(0, len(each), execution.batch)
        ]
        counted = part_of(progress, number * steps, len(agents) * steps)
        episodes = play_pieces(load, pieces, execution.workers, counted)
        success = np.array([episode.success for episode in episodes])
        count = len(varied) * len(seeds)
        rows = success[:count].reshape(len(varied), len(seeds))
        solved[agent] = dict(zip([each.name for each in varied], rows, strict=True))
        design_solved[agent] = success[count:]
    return Sensitivity(protocol, config, execution.confidence, solved, unit, design_solved)


def _design(
    protocol: Protocol, factors: Mapping[str, Factor], unit: np.ndarray
) -> Iterator[tuple[Protocol, list[int]]]:
    """The environments and seeds of the points (P, F + 1) of a design, in order; as many points
    together as the environments allow."""
    seeds = list(protocol.seeds)
    if len(unit) == 0 or not can_be_family(protocol, factors):
        for row, start in zip(unit, start_of(protocol, len(unit)), strict=True):
            yield with_values(protocol, factors, values_at(factors, row)), [seeds[start]]
        return
    for first in range(0, len(unit), len(seeds)):
        rows = unit[first : first + len(seeds)]
        yield family(protocol, factors, rows), seeds[: len(rows)]


def _try_factors(protocol: Protocol, factors: Mapping[str, Factor]) -> None:
    """Makes and resets an environment at every value that is named, so that one that the engine
    refuses ends the measurement before its first episode."""
    for name, factor in factors.items():
        for value in dict.fromkeys(factor.extremes):
            try:
                env = make_env(with_values(protocol, factors, {name: value}), 1)
                try:
                    env.reset([protocol.first_seed])
                finally:
                    env.close()
            except HandoffError as error:
                raise HandoffError(f"factor {name} = {shown(value)}: {error}") from None
