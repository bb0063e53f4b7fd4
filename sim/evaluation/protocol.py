"""The protocol of an evaluation: all that must be equal for two results to be set side by side,
with a digest.

What stands in it is the question put to an agent: worlds, seeds, time limit, score. How an agent
answers (its history, its chunks, its denoising steps) is the agent's own and told beside the
result, so that two ways to execute one policy can be compared; a protocol that is about execution
fixes these too, in `sampling` and `chunk`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from robots.code_version import code_version
from robots.config import config, to_plain
from robots.errors import HandoffError
from robots.extras import install_hint
from robots.franka.catalog import robot_module
from robots.seed_ranges import EVALUATION
from sim.make import WorldConfig, task_module

SCHEMA_VERSION = 1


@config
class ScoreRule:
    """An episode's score, from numbers that the world tells at every step."""

    of: str = "success"
    """`reward`, or a field of the world's `info` with one number or flag per world, such as
    `success`, `coverage`."""
    over: Literal["max", "sum", "last"] = "max"
    """How the episode's steps become one number."""


@config
class Sampling:
    """How chance enters an agent's actions."""

    noise: Literal["gaussian", "zero"] = "gaussian"
    """What a chunk policy samples from: standard normal, a function of the episode's seed and the
    chunk's number (`robots.control.noise.chunk_noise`), or zeros."""
    denoising_steps: int | None = None
    """Sampler steps; None leaves them to the agent."""


@config
class ChunkRule:
    """How chunks are executed; None leaves an entry to the agent."""

    n_obs_steps: int | None = None
    """Observations per inference."""
    horizon: int | None = None
    """Actions predicted per inference."""
    n_action_steps: int | None = None
    """Actions executed per inference, so the control periods between two plans."""


@config
class Protocol:
    """One evaluation, as a protocol file states it."""

    version: int = SCHEMA_VERSION
    """Version of this schema."""
    name: str
    """Name under which results state the protocol."""
    engine: Literal["gym", "mujoco", "warp", "maniskill", "isaaclab"]
    """Simulation engine."""
    task: str
    """The task's name or id, as the engine knows it."""
    packages: tuple[str, ...] = ()
    """Installed distributions whose versions decide what the worlds do: engine, physics, task. A
    result states them."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further settings of the worlds that decide what they do, as the engine names them, such as
    randomised masses."""
    first_seed: int = EVALUATION.start
    """Episode i starts from seed `first_seed + i`."""
    episodes: int = 200
    """Seeds, one episode each."""
    max_steps: int
    """Time limit of an episode [control periods]."""
    score: ScoreRule = field(default_factory=ScoreRule)
    """Rule by which an episode is scored."""
    success: Literal["once", "at_end"] = "once"
    """Solved at any step, or at the episode's last one."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampler steps and noise of the policy."""
    chunk: ChunkRule = field(default_factory=ChunkRule)
    """Observed steps, predicted actions and executed actions of a chunk."""

    @property
    def robot(self) -> str:
        """Name of the arm in the worlds; empty for engines that bring environments of their own."""
        if self.engine not in ("mujoco", "warp"):
            return ""
        return str(self.options.get("robot", WorldConfig().robot))

    @property
    def seeds(self) -> range:
        """One per episode."""
        return range(self.first_seed, self.first_seed + self.episodes)


def check_protocol(protocol: Protocol) -> None:
    """Checks what the types cannot say.

    Raises:
        HandoffError: another schema version, a negative seed, nothing to run, or a package that is
            not installed.
    """
    if protocol.version != SCHEMA_VERSION:
        raise HandoffError(
            f"protocol {protocol.name}: schema version {protocol.version}, this build reads {SCHEMA_VERSION}."
        )
    if protocol.first_seed < 0 or protocol.episodes < 1 or protocol.max_steps < 1:
        raise HandoffError(
            f"protocol {protocol.name}: {protocol.episodes} episodes of {protocol.max_steps} steps from seed "
            f"{protocol.first_seed}; episodes and steps must be at least 1, the seed at least 0."
        )
    stated(protocol)


def stated(protocol: Protocol) -> dict[str, Any]:
    """The protocol as a result carries it: plain, with the installed versions in place of the
    packages' names.

    For a task of our own it also holds `code`, the version of all that states the task (scene,
    start, rewards, success, action space) and its robot: results from before and after a change of
    these are not about the same problem.

    Raises:
        HandoffError: one of its packages is not installed, or there is no such task or robot.
    """
    statement = to_plain(protocol)
    statement["packages"] = {package: _version(protocol, package) for package in protocol.packages}
    if protocol.engine in ("mujoco", "warp"):
        modules = (
            task_module(protocol.task),
            robot_module(protocol.robot),
            f"sim.engines.{protocol.engine}",
            "sim.vec_env",
        )
        statement["code"] = {module: code_version(module) for module in modules}
    return statement


def digest(statement: Mapping[str, Any]) -> str:
    """sha256 (hex) of the canonical JSON of what `stated` returned."""
    return hashlib.sha256(
        json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names, sorted, of all entries in which two statements differ."""
    names: list[str] = []
    for key in sorted({*first, *second}):
        one, two = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            names += differences(one, two, f"{prefix}{key}.")
        elif one != two or (key in first) != (key in second):
            names.append(prefix + key)
    return names


def check_trained_with(protocol: Protocol, robot: str) -> None:
    """Checks that the worlds have the robot that a policy was trained with.

    Args:
        protocol: of the evaluation.
        robot: its name; empty where it is not known.

    Raises:
        HandoffError: they have another one.
    """
    if robot and protocol.robot and protocol.robot != robot:
        raise HandoffError(
            f"protocol {protocol.name}: its worlds have the robot '{protocol.robot}', the policy was trained with "
            f"'{robot}'. Set options.robot={robot} in the protocol, or evaluate another policy."
        )


def agreed(what: str, ruled: int | None, own: int) -> int:
    """What the protocol rules and the agent can do only in its own way, such as the horizon of its
    network.

    Raises:
        HandoffError: they differ.
    """
    if ruled is not None and ruled != own:
        raise HandoffError(
            f"protocol: {what} is {ruled}, this agent has {own}. Evaluate it under another protocol."
        )
    return own


def _version(protocol: Protocol, package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise HandoffError(
            f"protocol {protocol.name}: {install_hint(package) or f'{package} is not installed.'}"
        ) from None
