"""Refuses options of environments that their engine would ignore."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from robots.errors import HandoffError

ARM_OPTIONS = {
    "robot",
    "actions",
    "gripper_entry",
    "rate_hz",
    "reward",
    "specified_reward",
    "randomized",
    "ranges",
    "instruction",
    "phrasing",
    "dynamics",
}
"""Options that the engines of the arm's tasks read."""
MANISKILL_ARM_OPTIONS = {"robot", "actions", "rate_hz"}
"""Options that ManiSkill's environments with the interface of a task read."""
EPISODE_OPTIONS = {"engine", "task", "workers", "on_end", "max_steps"}
"""Options that apply to every engine."""


def refuse_ignored(config: Any) -> None:
    """Refuses settings that the engine would ignore: users would assume that they have an effect.

    Args:
        config: a `sim.make.EnvConfig`, which imports this module.

    Raises:
        HandoffError: options that differ from their default and that the engine does not read.
    """
    from sim.servers.engines import ARM

    served = config.engine == "server"
    engine = config.server.engine if served else config.engine
    match engine:
        case "mujoco":
            read = ARM_OPTIONS | {"places", "appearance", "cameras", "threads", "contact_threshold"}
        case "warp":
            read = ARM_OPTIONS | {"cameras", "device", "resident"}
        case "maniskill" if config.maniskill.arm is not None:
            read = {"maniskill", "specified_reward", *MANISKILL_ARM_OPTIONS}
        case "maniskill":
            read = {"maniskill", "resident", "specified_reward"}
        case "isaaclab":
            read = {"isaaclab", "robot"}
        case "gym":
            read = {"gym", "specified_reward"}
        case _:
            read = {engine}
    if served:
        read = read - {"resident"} | {"server"}
    # A light server knows no specifications, and nothing computes them on a device.
    if config.resident or (served and engine not in ARM):
        read = read - {"specified_reward"}
    default = type(config)()
    ignored = [
        each.name
        for each in fields(config)
        if each.name not in read | EPISODE_OPTIONS
        and getattr(config, each.name) != getattr(default, each.name)
    ]
    if ignored:
        raise HandoffError(
            f"environments: the engine {engine} ignores {ignored}, it reads {sorted(read)}. "
            "Is the setting meant for another engine?"
        )
