"""Defines the protocol of an evaluation, with a digest: the settings that must be equal for two
results to be comparable.

A protocol fixes environments, seeds, time limit and score. The agent's own settings (history,
chunks, denoising steps) are stored with the result instead, so that two ways to execute one policy
can be compared; a protocol can fix them, too, in `sampling` and `chunk`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from robots.code_version import code_version
from robots.config import Count, Whole, config, to_plain, validate
from robots.errors import HandoffError
from robots.extras import install_hint
from robots.franka.catalog import robot_module
from robots.outside import outside_module
from robots.seed_ranges import EVALUATION
from robots.spec import FieldSpec
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve
from sim.engines.isaac_lab import OWN_MODULE, OWN_TASKS
from sim.make import EnvConfig, check_task, find_task, task_module
from sim.servers.config import ServerConfig
from sim.servers.engines import ARM
from sim.servers.packages import installed_versions

SCHEMA_VERSION = 1
MANISKILL = "maniskill"
"""Engine whose environments have the fields of a task of `sim.tasks` if `options.maniskill.arm` is
set (`sim.engines.maniskill_arm`)."""
PUBLISHED_PUSH_T = ("gym", "gym_pusht/PushT-v0")
"""Engine and task of the published benchmark, whose environments are converted to metres and to the
fields of the demonstrations."""


@config
class ScoreRule:
    """Rule that computes an episode's score from a quantity of every step."""

    of: str = "success"
    """Scored quantity: `reward`, or a field of the environment's `info` with one number or flag per
    environment, such as `success` or `coverage`."""
    over: Literal["max", "sum", "last"] = "max"
    """Reduction over the episode's steps."""


@config
class Sampling:
    """Sampling of a policy's actions."""

    noise: Literal["gaussian", "zero"] = "gaussian"
    """Noise of a chunk policy: standard normal as a function of the episode's seed and the chunk's
    index (`robots.control.noise.chunk_noise`), or zeros."""
    denoising_steps: Count | None = None
    """Sampler steps; None keeps the agent's own."""


@config
class ChunkRule:
    """Execution of chunks; None keeps the agent's own setting."""

    n_obs_steps: Count | None = None
    """Observations per inference."""
    horizon: Count | None = None
    """Actions predicted per inference."""
    n_action_steps: Count | None = None
    """Actions executed per inference, which is the number of control periods between two
    inferences."""


@config
class Protocol:
    """One evaluation, as defined by a protocol file."""

    version: Whole = SCHEMA_VERSION
    """Version of this schema."""
    name: str
    """Name of the protocol in results."""
    engine: Literal["gym", "mujoco", "warp", "maniskill", "isaaclab", "server"]
    """Simulation engine; `server` names another one in `options.server`."""
    task: str
    """The engine's name or id of the task."""
    packages: tuple[str, ...] = ()
    """Installed distributions whose versions affect the environments (engine, physics, task);
    results record the versions, those of a server from its virtual environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further settings of the environments under the names of `sim.make.EnvConfig`, such as
    `randomized`."""
    first_seed: Whole = EVALUATION.start
    """Seed of the first episode; episode i uses `first_seed + i`."""
    episodes: Count = 200
    """Number of episodes, one per seed."""
    max_steps: Count
    """Time limit of an episode [control periods]."""
    score: ScoreRule = field(default_factory=ScoreRule)
    """Rule that computes an episode's score."""
    success: Literal["once", "at_end"] = "once"
    """Success criterion: solved at any step, or at the episode's last step."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampler steps and noise of the policy."""
    chunk: ChunkRule = field(default_factory=ChunkRule)
    """Observed steps, predicted actions and executed actions of a chunk."""

    def __post_init__(self) -> None:
        """Checks the name of a task of an arm.

        Raises:
            HandoffError: no task has this name.
        """
        if self.has_arm_task:
            check_task(self.task)

    @property
    def server(self) -> ServerConfig | None:
        """Environment server of the engine `server`; None for other engines."""
        if self.engine != "server":
            return None
        where = f"protocol {self.name}: options.server"
        return validate(ServerConfig, self.options.get("server", {}), where)

    @property
    def simulator(self) -> str:
        """Engine that simulates: `engine`, or that of the server."""
        server = self.server
        return self.engine if server is None else server.engine

    @property
    def has_arm_task(self) -> bool:
        """Whether `task` is a task of `sim.tasks`, or one of one's own of the same form, rather
        than an id in the engine's own registry."""
        if self.simulator == "isaaclab":
            return self.task in OWN_TASKS
        options = self.options.get(MANISKILL)
        translated = isinstance(options, Mapping) and options.get("arm") is not None
        return self.simulator in ARM or (self.engine == MANISKILL and translated)

    @property
    def robot(self) -> str:
        """Name of the arm in the environments; empty for engines with third-party
        environments."""
        if not self.has_arm_task:
            return ""
        return str(self.options.get("robot", EnvConfig().robot))

    @property
    def seeds(self) -> range:
        """Seeds of the episodes."""
        return range(self.first_seed, self.first_seed + self.episodes)


def check_protocol(protocol: Protocol) -> None:
    """Checks values that the types do not constrain.

    Raises:
        HandoffError: another schema version, a negative seed, no episodes or steps, a package that
            is not installed, or a reward from a specification that does not fit the observations.
    """
    if protocol.version != SCHEMA_VERSION:
        raise HandoffError(
            f"protocol {protocol.name}: schema version {protocol.version}, this version of Handoff reads "
            f"{SCHEMA_VERSION}."
        )
    if protocol.first_seed < 0 or protocol.episodes < 1 or protocol.max_steps < 1:
        raise HandoffError(
            f"protocol {protocol.name}: {protocol.episodes} episodes of {protocol.max_steps} steps from seed "
            f"{protocol.first_seed}; episodes and steps must be at least 1, the seed at least 0."
        )
    protocol_statement(protocol)
    check_specified_reward(protocol)


def check_specified_reward(protocol: Protocol) -> None:
    """Checks, before anything runs, the formulas by which environments are rewarded.

    Raises:
        HandoffError: one does not fit the observations, see `check_specifications`.
    """
    # Options that are wrong in themselves are named where the environments are made.
    rewarded = protocol.options.get("specified_reward")
    stated = rewarded.get("specifications") if isinstance(rewarded, Mapping) else None
    if isinstance(stated, Mapping):
        check_specifications(stated, protocol)


def protocol_statement(protocol: Protocol) -> dict[str, Any]:
    """The protocol as stored in a result: JSON-serialisable, with the installed version of every
    package.

    For the tasks of `sim.tasks` it also holds `code`, the version of the code that defines the task
    (scene, initial states, rewards, success, action space) and its robot: results from before and
    after a change of that code are not comparable. So it does for an engine of one's own on a
    server, if its module is also on this side.

    Raises:
        HandoffError: one of its packages is not installed, there is no such task or robot, or no
            such server.
    """
    statement = to_plain(protocol)
    statement["packages"] = _versions(protocol)
    modules: tuple[str, ...] = ()
    if protocol.has_arm_task:
        others = {MANISKILL: "sim.engines.maniskill_arm", "isaaclab": OWN_MODULE}
        engine = others.get(protocol.simulator, f"sim.engines.{protocol.simulator}")
        modules = (
            task_module(protocol.task),
            robot_module(protocol.robot),
            engine,
            "sim.vec_env",
        )
    elif protocol.server is not None:
        own = outside_module(protocol.server.engine)
        modules = () if own is None else (own, "sim.vec_env")
    if modules:
        statement["code"] = {module: code_version(module) for module in modules}
    return statement


def digest(statement: Mapping[str, Any]) -> str:
    """sha256 (hex) of the canonical JSON of a `protocol_statement`."""
    return hashlib.sha256(
        json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Sorted dotted names of all entries in which two statements differ."""
    names: list[str] = []
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b or (key in first) != (key in second):
            names.append(prefix + key)
    return names


def check_trained_with(protocol: Protocol, robot: str) -> None:
    """Checks that the environments have the robot with which a policy was trained.

    Args:
        protocol: protocol of the evaluation.
        robot: name of the policy's robot; empty if unknown.

    Raises:
        HandoffError: the environments have another robot.
    """
    if robot and protocol.robot and protocol.robot != robot:
        raise HandoffError(
            f"protocol {protocol.name}: its environments have the robot '{protocol.robot}', the policy was "
            f"trained with '{robot}'. Set options.robot={robot} in the protocol, or evaluate another policy."
        )


def vector_fields(protocol: Protocol) -> dict[str, FieldSpec] | None:
    """The numbers that the environments of a protocol observe, without cameras; None if only the
    environments themselves know them, as with most third-party ones."""
    if (protocol.engine, protocol.task) == PUBLISHED_PUSH_T:
        from sim.engines.gym_push_t import PushTEngine

        return dict(PushTEngine.board_spec)
    if not protocol.robot:
        return None
    gripper_entry = protocol.options.get("gripper_entry", False)
    task = find_task(protocol.task, robot=protocol.robot, gripper_entry=gripper_entry)
    return {name: term.spec for name, term in task.observations.items()}


def check_specifications(specifications: Mapping[str, str], protocol: Protocol) -> None:
    """Checks, before anything runs, that formulas fit the observations of a protocol's
    environments, as far as these are known.

    Args:
        specifications: formulas of signal temporal logic by name.
        protocol: task and options of the environments.

    Raises:
        HandoffError: an unknown field, sizes that do not match, or an interval between two steps.
    """
    fields = vector_fields(protocol)
    if fields is None or not specifications:
        return
    if protocol.robot:
        rate_hz = find_task(protocol.task, protocol.options.get("rate_hz"), protocol.robot).rate_hz
    else:
        from sim.engines.gym_push_t import RATE_HZ

        rate_hz = RATE_HZ
    for name, text in specifications.items():
        resolve(parse(text, name), fields, rate_hz, name)


def require_match(name: str, prescribed: int | None, fixed: int) -> int:
    """Returns a setting that the agent cannot change, such as the horizon of its network.

    Args:
        name: name of the setting in the protocol.
        prescribed: the protocol's value; None prescribes nothing.
        fixed: the agent's value.

    Raises:
        HandoffError: the two values differ.
    """
    if prescribed is not None and prescribed != fixed:
        raise HandoffError(
            f"protocol: {name} is {prescribed}, this agent has {fixed}. Evaluate it under another protocol."
        )
    return fixed


def _versions(protocol: Protocol) -> dict[str, str]:
    """Versions of the protocol's packages, on the side of the environments."""
    server = protocol.server
    if server is None:
        return {package: _version(protocol, package) for package in protocol.packages}
    there = installed_versions(server, protocol.packages)
    missing = [package for package, number in there.items() if not number]
    if missing:
        raise HandoffError(
            f"protocol {protocol.name}: {', '.join(missing)} not installed on the side of the server "
            f"{server.venv or server.python or server.address}. Is it the right one?"
        )
    own = [package for package in protocol.packages if package not in there]
    return there | {package: _version(protocol, package) for package in own}


def _version(protocol: Protocol, package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise HandoffError(
            f"protocol {protocol.name}: {install_hint(package) or f'{package} is not installed.'}"
        ) from None
