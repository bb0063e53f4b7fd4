"""Stage `reinforce`: trains a policy by RL from scratch in simulated environments, on vectors and
pictures, with SAC, RLPD, FastTD3, PQL, MR.Q, CQN-AS, PPO, PPO-Lagrangian or stream
AC(lambda)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flows.artifacts import Dynamics, Episodes, Family, Output, Policy
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.evaluation.families import check_family_source, with_members
from flows.stages.data.config import ScriptedConfig
from flows.stages.learn.config import TRAINING_TELEMETRY, ReinforcePolicyConfig
from policies.rl.from_scratch.config import PpoLagrangianAlgorithm
from policies.rl.from_scratch.train import (
    check_demonstrations,
    check_environments,
    check_learning,
    check_resident,
    check_sequences,
)
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = TRAINING_TELEMETRY

TASK_ENGINES = ("mujoco", "warp")
"""Engines of Handoff's own tasks, whose cost is that of contacts; those of others may report their
own."""


def check(config: ReinforcePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses demonstrations that are missing or not read, environments that stay on a device with
    an algorithm that does not or with cameras that nothing sees, several environments of an
    algorithm that learns in one, a run without an update, sequences of actions longer than an
    episode, scripted demonstrations of another task or reward, and a limit on a cost that the
    environments do not report."""
    from sim.evaluation.evaluate import stays_on_device

    algorithm, protocol = config.algorithm, config.protocol
    check_dynamics_source(protocol, sources)
    check_family_source(protocol, sources)
    check_demonstrations(config, given="demos" in sources)
    check_environments(config, config.num_envs)
    check_learning(config, config.num_envs)
    check_sequences(config, protocol.max_steps)
    _check_recorded_reward(config, sources.get("demos"))
    if stays_on_device(protocol):
        check_resident(config)
        if protocol.options.get("cameras") is not None and not config.image_fields:
            raise HandoffError(
                f"reinforce: the protocol '{protocol.name}' has cameras and resident: true, but image_fields is empty, "
                "so that pictures would be rendered at every step and never seen. Remove cameras, or set image_fields."
            )
    without_cost = (
        protocol.engine in TASK_ENGINES and protocol.options.get("contact_threshold") is None
    )
    if isinstance(algorithm, PpoLagrangianAlgorithm) and without_cost:
        raise HandoffError(
            f"reinforce: cost_limit is {algorithm.cost_limit}, but the environments of the protocol "
            f"'{protocol.name}' report no cost. Set its option contact_threshold [N], or use the algorithm ppo."
        )


def run(
    config: ReinforcePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes | None = None,
    dynamics: Dynamics | None = None,
    family: Family | None = None,
) -> Output[Policy]:
    """Trains a policy, resuming an interrupted attempt in `out`; the algorithms rlpd and cqn_as
    also learn from `demos`. With `dynamics`, the simulated arm has the tuned parameters; with
    `family`, the episodes are those of all its members, equally often. In environments that stay on
    a device, PPO, FastTD3 and PQL train there.

    Raises:
        HandoffError: the algorithm does not fit the inputs or the environments, or training
            diverges.
    """
    from policies.rl.from_scratch.train import train_from_scratch
    from sim.evaluation.evaluate import device_env, stays_on_device, training_env

    protocol = with_members(with_dynamics(config.protocol, dynamics), family)
    make_env = device_env if stays_on_device(protocol) else training_env
    metrics = train_from_scratch(
        config,
        protocol.task,
        partial(make_env, protocol, config.num_envs),
        out,
        progress,
        protocol.robot,
        None if demos is None else demos / "store.zarr",
    )
    return Output(metrics)


def _check_recorded_reward(config: ReinforcePolicyConfig, recorded: Any) -> None:
    """Refuses scripted demonstrations of another task or reward than those of the environments,
    whose steps are in one minibatch with theirs."""
    protocol = config.protocol
    if (
        not isinstance(recorded, ScriptedConfig)
        or recorded.demonstrate.simulator is not None
        or protocol.engine not in TASK_ENGINES
    ):
        return
    if recorded.task != protocol.task:
        raise HandoffError(
            f"reinforce: the demonstrations are of the task '{recorded.task}', the environments of '{protocol.task}'. "
            "Record them in the task of the protocol."
        )
    if protocol.options.get("specified_reward") is not None:
        return
    given, expected = recorded.demonstrate.mujoco.reward, protocol.options.get("reward", "dense")
    if given != expected:
        raise HandoffError(
            f"reinforce: the demonstrations have the reward '{given}', the environments '{expected}'. Set "
            f"demonstrate.mujoco.reward={expected} of the demonstrations, or the option reward of the protocol."
        )
