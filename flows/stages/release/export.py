"""Stage `export`: exports a policy to one ONNX file with its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Bundle, Episodes, Output, Policy
from flows.runner.artifact import read_manifest
from flows.stages.data.config import ScriptedConfig
from policies.export.onnx import ExportConfig
from real.deploy.action_space import CartesianSteps
from robots.control.actions import PD_TARGET, CartesianDelta
from robots.errors import HandoffError
from robots.interfaces import Progress

FIXED_SEEDS = True


def check(config: ExportConfig, sources: Mapping[str, Any]) -> None:
    """Refuses demonstrations whose action steps are not those of their task."""
    demos = sources["demos"]
    if config.action_interface == PD_TARGET or config.steps is not None:
        return
    if isinstance(demos, ScriptedConfig) and demos.demonstrate.mujoco.actions is not None:
        raise HandoffError(
            "export: the demonstrations have other actions than their task (demonstrate.mujoco.actions); "
            "give the same as 'steps' of the export."
        )


def run(
    config: ExportConfig, out: Path, progress: Progress, *, policy: Policy, demos: Episodes
) -> Output[Bundle]:
    """Exports `policy`; golden examples are taken from `demos`, and the step sizes of Cartesian
    actions from the simulated task of `demos`, unless they are given.

    Raises:
        HandoffError: the policy cannot be exported.
    """
    from policies.export.onnx import export

    metrics = export(
        _with_steps(config, demos),
        policy,
        demos,
        out,
        progress,
        read_manifest(policy)["digest"],
        read_manifest(demos)["digest"],
    )
    return Output(metrics)


def _with_steps(config: ExportConfig, demos: Path) -> ExportConfig:
    """The options with the action interface and steps of the simulated task whose demonstrations
    these are.

    Raises:
        HandoffError: another interface than that of the task.
    """
    steps = _task_steps(demos)
    if config.action_interface is None:
        config = replace(config, action_interface=PD_TARGET if steps is None else steps.kind)
    if config.action_interface == PD_TARGET and steps is not None:
        raise HandoffError(
            f"export: action_interface is '{PD_TARGET}', but actions of the demonstrations are Cartesian steps; "
            f"leave it out, or give '{CartesianSteps.interface}'."
        )
    if config.action_interface == PD_TARGET or config.steps is not None:
        return config
    return replace(config, steps=steps)


def _task_steps(demos: Path) -> CartesianDelta | None:
    """Steps of the simulated task of the demonstrations; None if they are of none, or if its
    actions are no Cartesian steps."""
    from robots.episodes.store import EpisodeStore
    from sim.make import find_task, is_task

    schema = EpisodeStore.open(demos / "store.zarr").schema
    if not is_task(schema.name):
        return None
    rate_hz = schema.stream("policy").rate_hz
    actions = find_task(schema.name, rate_hz, schema.robot or "fr3").actions
    return actions if isinstance(actions, CartesianDelta) else None
