"""Measures the success of agents as a function of the appearance of the scene: displaced cameras,
light, distractors.

One quantity changes at a time. Every condition plays the same episodes, so conditions and agents
are paired by seed; within a quantity an episode keeps the direction of the displacement and its
first distractors (`sim.scene.appearance`), so that the conditions differ in the value alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.config import NonNegative, Positive, config, to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.evaluation import intervals
from sim.evaluation.agent import MakeAgent
from sim.evaluation.evaluate import BOOTSTRAP_SEED, EvaluateConfig, make_env, run_episodes
from sim.evaluation.groups import holm
from sim.evaluation.protocol import Protocol, check_protocol, protocol_statement
from sim.scene.appearance import Distractors

OPTION = "appearance"
"""Option of the protocol's environments that the conditions change."""
Quantity = Literal["camera_shift", "light", "clutter"]
QUANTITIES: tuple[Quantity, ...] = ("camera_shift", "light", "clutter")
NOMINAL: Mapping[Quantity, float] = {"camera_shift": 0.0, "light": 1.0, "clutter": 0}
"""Values of a scene as the task builds it."""


@config
class SweepConfig:
    """Values of every quantity; while one of them varies, the others are those of the task."""

    camera_shift: tuple[NonNegative, ...] = (0.0, 0.01, 0.02, 0.04)
    """Displacements of the cameras beside the arm [m]."""
    light: tuple[Positive, ...] = (0.5, 1.0, 1.5)
    """Factors of the brightness of all lights."""
    clutter: tuple[Distractors, ...] = (0, 4)
    """Numbers of distractors on the table."""

    def __post_init__(self) -> None:
        repeated: list[Quantity] = [
            name for name in QUANTITIES if len(set(self.values(name))) < len(self.values(name))
        ]
        if repeated:
            raise HandoffError(
                f"sweep: {repeated[0]} is {list(self.values(repeated[0]))}, expected every value once."
            )
        if len(conditions(self)) == 1:
            raise HandoffError(
                "sweep: no value differs from the task's own, expected one or more, such as camera_shift=[0, 0.02]."
            )

    def values(self, quantity: Quantity) -> tuple[float, ...]:
        """Values of a quantity, in the given order."""
        match quantity:
            case "camera_shift":
                return self.camera_shift
            case "light":
                return self.light
            case "clutter":
                return self.clutter


class SceneCondition(NamedTuple):
    """One appearance of the scene under which all episodes are played."""

    quantity: Quantity | None
    """Quantity that differs from the task's; None for the nominal scene."""
    value: float

    @property
    def name(self) -> str:
        """Name in tables and figures, such as `camera_shift=0.02`."""
        return "nominal" if self.quantity is None else f"{self.quantity}={self.value:g}"


NOMINAL_CONDITION = SceneCondition(None, 0.0)


class Robustness(NamedTuple):
    """Episodes of all agents under all conditions."""

    protocol: Protocol
    sweep: SweepConfig
    confidence: float
    solved: Mapping[str, Mapping[SceneCondition, np.ndarray]]
    """By agent and condition (N,) bool: the episodes that were solved, in the order of the
    protocol's seeds."""


def condition_of(quantity: Quantity, value: float) -> SceneCondition:
    """The condition with one value; the nominal one if it is the task's own."""
    return NOMINAL_CONDITION if value == NOMINAL[quantity] else SceneCondition(quantity, value)


def conditions(sweep: SweepConfig) -> tuple[SceneCondition, ...]:
    """The nominal condition, which is the reference, and one for every other value."""
    given = [
        condition_of(quantity, value) for quantity in QUANTITIES for value in sweep.values(quantity)
    ]
    return tuple(dict.fromkeys((NOMINAL_CONDITION, *given)))


def under_condition(protocol: Protocol, condition: SceneCondition) -> Protocol:
    """The protocol with the appearance of a condition; its other options of the appearance stay.

    Raises:
        HandoffError: environments without cameras, or of an engine that cannot vary them, or an
            appearance that varies by itself what the sweep sets.
    """
    if protocol.engine != "mujoco" or protocol.options.get("cameras") is None:
        raise HandoffError(
            f"protocol {protocol.name}: engine {protocol.engine} with cameras {protocol.options.get('cameras')}, "
            "robustness needs the engine mujoco and options.cameras. Does the policy see?"
        )
    own = to_plain(protocol.options.get(OPTION) or {})
    fixed = sorted({*own} & {*NOMINAL, "clutter_high"})
    if fixed:
        raise HandoffError(
            f"protocol {protocol.name}: options.appearance sets {fixed}, which the sweep varies. Remove them."
        )
    values = dict(NOMINAL)
    if condition.quantity is not None:
        values[condition.quantity] = condition.value
    return replace(protocol, options={**protocol.options, OPTION: {**own, **values}})


def measure_robustness(
    protocol: Protocol,
    sweep: SweepConfig,
    agents: Mapping[str, Callable[[], MakeAgent]],
    config: EvaluateConfig,
    progress: Progress,
    *,
    journal: Path | None = None,
) -> Robustness:
    """Plays the protocol's episodes with every agent under every condition.

    Args:
        protocol: task, seeds and rules.
        sweep: values of the quantities.
        agents: loaders by name; see `sim.evaluation.evaluate.evaluate`.
        config: execution of the evaluations, whose videos are not used.
        progress: counts control periods of all episodes.
        journal: folder in which finished batches are kept; see
            `sim.evaluation.evaluate.run_episodes`. None keeps nothing.

    Raises:
        HandoffError: see `under_condition` and `run_episodes`.
    """
    check_protocol(protocol)
    varied = {condition: under_condition(protocol, condition) for condition in conditions(sweep)}
    each = protocol.episodes * protocol.max_steps
    total = each * len(agents) * len(varied)
    solved: dict[str, dict[SceneCondition, np.ndarray]] = {}
    finished = 0
    for name, load in agents.items():
        solved[name] = {}
        for condition, changed in varied.items():
            episodes = run_episodes(
                changed,
                load,
                partial(make_env, changed),
                config.batch,
                config.workers,
                partial(_report, progress, finished, total, f"{name}, {condition.name}"),
                journal=None if journal is None else journal / name / condition.name,
            )
            solved[name][condition] = np.array([episode.success for episode in episodes])
            finished += each
    return Robustness(protocol, sweep, config.confidence, solved)


def _report(
    progress: Progress, before: int, steps: int, label: str, done: int, total: int, note: str = ""
) -> None:
    """Reports the progress of one evaluation, whose own `total` is a part of `steps`."""
    progress(before + done, steps, f"{label}: {note}" if note else label)


def robustness_figures(measured: Robustness) -> dict[str, Any]:
    """JSON-ready figures: per condition and agent `success` (`intervals.success_rate`), the paired
    difference from the nominal scene, `against_nominal`, and for every agent but the first the
    paired difference from the first, `against_first`.

    A difference has `mean`, `low`, `high` (bootstrap over episodes), the discordant pairs and
    McNemar's `p_value`, and `p_holm` with Holm's correction over the conditions and agents.
    """
    first = next(iter(measured.solved))
    rows: list[dict[str, Any]] = []
    for condition in conditions(measured.sweep):
        agents: dict[str, dict[str, Any]] = {}
        for name, solved in measured.solved.items():
            agents[name] = {
                "success": intervals.success_rate(solved[condition], measured.confidence)
            }
            if condition.quantity is not None:
                agents[name]["against_nominal"] = success_difference(
                    solved[NOMINAL_CONDITION], solved[condition], measured.confidence
                )
            if name != first:
                agents[name]["against_first"] = success_difference(
                    measured.solved[first][condition], solved[condition], measured.confidence
                )
        rows.append(
            {
                "name": condition.name,
                "quantity": condition.quantity,
                "value": condition.value,
                "agents": agents,
            }
        )
    for kind in ("against_nominal", "against_first"):
        correct_differences([each for row in rows for each in _differences(row, kind)])
    return {
        "protocol": protocol_statement(measured.protocol),
        "sweep": to_plain(measured.sweep),
        "confidence": measured.confidence,
        "agents": list(measured.solved),
        "conditions": rows,
    }


def success_difference(first: np.ndarray, second: np.ndarray, confidence: float) -> dict[str, Any]:
    """Difference of success, `second - first` (N,) bool each, over the same starts: `mean`, `low`,
    `high` (bootstrap over episodes), and McNemar's test (`intervals.mcnemar`)."""
    return {
        **intervals.paired_difference(first, second, BOOTSTRAP_SEED, confidence),
        **intervals.mcnemar(first, second),
    }


def _differences(row: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    for agent in row["agents"].values():
        if kind in agent:
            yield agent[kind]


def correct_differences(differences: list[dict[str, Any]]) -> None:
    """Adds `p_holm`, Holm's correction of `p_value`, to the entries of one family of tests."""
    corrected = holm([each["p_value"] for each in differences])
    for each, p_value in zip(differences, corrected, strict=True):
        each["p_holm"] = p_value
