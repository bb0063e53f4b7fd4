"""Stage `scripted`: records demonstrations of a simulated task by its scripted expert, in MuJoCo or
in another simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Episodes, Family, Output
from flows.evaluation.families import OPTION, check_recorded_family, mujoco_with_members
from flows.stages.data.config import ScriptedConfig
from robots.errors import HandoffError
from robots.interfaces import Progress


def check(config: ScriptedConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a family of environments that the recording cannot have."""
    if OPTION not in sources:
        return
    if config.demonstrate.simulator is not None:
        raise HandoffError(
            "scripted: the input 'family' is for MuJoCo. Remove demonstrate.simulator, or the input."
        )
    check_recorded_family(config.demonstrate.mujoco, config.task, config.robot, sources)


def run(
    config: ScriptedConfig,
    out: Path,
    progress: Progress,
    *,
    dynamics: Dynamics | None = None,
    family: Family | None = None,
) -> Output[Episodes]:
    """Writes `out/store.zarr`; resumes an interrupted attempt at the first batch that is missing.
    With `dynamics`, the simulated arm has the tuned parameters; with `family`, the attempts are
    those of all its members in turn.

    Raises:
        HandoffError: an unknown task, instruction or phrasing, dynamics of another robot, or an
            expert that never succeeds.
    """
    from sim.identification.fit_store import read_dynamics
    from sim.make import find_task
    from sim.recording.demonstrations import demonstrate
    from sim.tasks.task import with_instruction, with_phrasing

    store = out / "store.zarr"
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    task = find_task(config.task, robot=config.robot, gripper_entry=config.gripper_entry)
    if config.instruction is not None:
        task = with_instruction(task, config.instruction)
    if config.phrasing is not None:
        task = with_phrasing(task, config.phrasing)
    options = config.demonstrate
    if dynamics is not None and options.simulator is not None:
        raise HandoffError(
            "scripted: the input 'dynamics' is for MuJoCo. Remove demonstrate.simulator, or set its entry dynamics."
        )
    stated = (config.instruction, config.phrasing, config.gripper_entry)
    if options.simulator is not None and stated != (None, None, False):
        raise HandoffError(
            "scripted: instruction, phrasing and gripper_entry are for MuJoCo. Set them in demonstrate.simulator, or "
            "remove it."
        )
    if dynamics is not None:
        mujoco = replace(options.mujoco, dynamics=read_dynamics(dynamics))
        options = replace(options, mujoco=mujoco)
    mujoco = mujoco_with_members(options.mujoco, config.task, config.robot, family)
    options = replace(options, mujoco=mujoco)
    recorded = demonstrate(task, seeds, store, options, progress)
    if not recorded.episodes:
        raise HandoffError(
            f"{config.task}: the scripted expert solved none of {config.episodes} attempts."
        )
    line = (
        f"the scripted expert of {config.task}: {recorded.episodes} of {config.episodes} attempts"
    )
    if config.demonstrate.keep == "all":
        line += f", {recorded.success_rate:.0%} of them solved"
    metrics = {
        "episodes": recorded.episodes,
        "frames": recorded.steps,
        "attempts_solved": recorded.success_rate,
        "source": "scripted",
        "source_line": line,
    }
    return Output(metrics)
