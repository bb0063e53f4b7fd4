"""Stage `export`: exports a policy to one ONNX file with its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.artifacts import Bundle, Episodes, Output, Policy
from flows.runner.artifact import read_manifest
from flows.stages.data.config import RolloutConfig
from policies.export.onnx import ExportConfig
from robots.control.actions import AS_RECORDED, CartesianDelta, JointDelta, JointTarget
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from policies.card import PolicyCard
    from sim.tasks.task import Task

FIXED_SEEDS = True
STEPPED = tuple(space().kind for space in (CartesianDelta, JointDelta, JointTarget))
"""Interfaces whose actions are steps, or positions with a speed."""


def check(config: ExportConfig, sources: Mapping[str, Any]) -> None:
    """Refuses rollouts in an environment of Gymnasium without a meaning of its actions, which no
    such environment states, before anything is trained."""
    from sim.evaluation.protocol import PUBLISHED_PUSH_T

    demos = sources["demos"]
    if config.action_interface is not None or not isinstance(demos, RolloutConfig):
        return
    protocol = demos.protocol
    if protocol.engine == "gym" and (protocol.engine, protocol.task) != PUBLISHED_PUSH_T:
        raise HandoffError(
            f"export: nothing states what the actions of {protocol.task} mean to a controller. Set action_interface: "
            f"{AS_RECORDED} if no arm is to take them, or another one of docs/concepts/contract.md."
        )


def run(
    config: ExportConfig, out: Path, progress: Progress, *, policy: Policy, demos: Episodes
) -> Output[Bundle]:
    """Exports `policy`; golden examples and the range of the training data are taken from `demos`,
    and the meaning of the actions from these or their simulated task, unless it is given.

    Raises:
        HandoffError: the policy cannot be exported.
    """
    from policies.checkpoint import read_card
    from policies.export.onnx import export

    metrics = export(
        with_meaning(config, read_card(policy), demos),
        policy,
        demos,
        out,
        progress,
        read_manifest(policy)["digest"],
        read_manifest(demos)["digest"],
    )
    return Output(metrics)


def with_meaning(config: ExportConfig, card: PolicyCard, demos: Path) -> ExportConfig:
    """The options with the action interface, steps and gains of the simulated task whose
    demonstrations these are, or the steps that the episodes state.

    Args:
        config: options of the export.
        card: card of the policy.
        demos: folder of the demonstrations.

    Raises:
        HandoffError: another interface than that of the task, actions of unknown meaning, or of
            several.
    """
    from policies.export.contract import stated_interface
    from robots.episodes.metadata.episode_metadata import action_steps_of
    from robots.episodes.store import EpisodeStore

    store = EpisodeStore.open(demos / "store.zarr")
    schema = store.schema
    action = schema.stream(card.model.stream).fields.get(card.model.action_field, card.action)
    task = task_of(schema.name, card.rate_hz, schema.robot)
    # Recorded actions may be others than those of the task.
    interface = action.interface or (task.actions.kind if task is not None else "")
    given = None if config.action_interface == AS_RECORDED else config.action_interface
    if None not in (given, task) and given != interface:
        raise HandoffError(
            f"export: action_interface is '{config.action_interface}', but actions of the demonstrations of "
            f"'{schema.name}' are '{interface}'. Leave it out."
        )
    config = replace(
        config,
        action_interface=stated_interface(
            config.action_interface, replace(card, action=replace(action, interface=interface))
        ),
    )
    own = None if task is None else task.actions
    if config.action_interface in STEPPED and config.steps is None:
        # Recorded at an arm, whose session has steps of its own, or with other actions.
        about = (store.metadata(episode) for episode in range(store.num_episodes))
        config = replace(config, steps=action_steps_of(about))
        # Those of the task, where episodes state nothing.
        if config.steps is None and own is not None and own.kind == config.action_interface:
            config = replace(config, steps=own)
    if config.steps is None and config.action_interface == CartesianDelta().kind:
        raise HandoffError(
            f"export: actions of '{schema.name}' are cartesian_delta, shares of a step, and the episodes state no "
            "steps. Set steps, such as {axes: [x, y, z, yaw], translation: 0.02, rotation: 0.1}, to what an entry "
            "of 1 moved [m, rad], or action_interface to as_recorded if entries are metres."
        )
    if task is None or (config.steps is None and config.action_interface != task.actions.kind):
        return config
    return replace(config, impedance=config.impedance or task.gains)


def task_of(name: str, rate_hz: float, robot: str) -> Task | None:
    """The simulated task `name` at a control rate; None if there is no such task."""
    from sim.make import find_task, is_task

    return find_task(name, rate_hz, robot or "fr3") if is_task(name) else None
