"""Checks that policies observe fields which their demonstrations and environments have, that the
actions of both are of one kind, and that the table of a deployment is that of a simulated task.

Otherwise a policy that observes `drawer` in a task without one, or a forgotten protocol, fails only
after the stages before it. Tasks of an arm and gym-pusht declare their fields. Where the task is
not known from the options, e.g. after a stage of one's own, nothing is checked. Cameras, point
clouds and actions are checked where a data set is imported, whose fields are all known, and the
crops of cameras by `flows.recipes.pictures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flows.deployment.config import DeployConfig, DeployTaskConfig
from flows.runner.stage import Stage
from flows.session.config import HilEnvConfig
from flows.stages.data.config import (
    DemonstrateConfig,
    FilterEpisodesConfig,
    MergeConfig,
    RecordPlayConfig,
    RolloutConfig,
    ScriptedConfig,
)
from flows.stages.data.ingest import SHIPPED
from flows.stages.data.relabel import RelabelConfig
from policies.chunk_policy_config import EncodedPolicyConfig
from policies.rl.from_scratch.config import FromScratchConfig
from robots.episodes.curation.choose import SplitConfig, check_splits
from robots.episodes.demonstrations import field_role, open_demonstrations
from robots.episodes.ingest import IngestConfig
from robots.episodes.sources import find_demonstrations
from robots.errors import HandoffError, suggest
from sim.evaluation.protocol import Protocol, vector_fields
from sim.make import TASKS, find_task, is_task
from sim.scene.cameras import CamerasConfig

PUSH_T = "push_t"
WORLD_MODEL = "world_model"
"""Input with which a policy is fine-tuned in imagination, without the protocol's environments."""
BLOCKS = ("policy", "algorithm", "algorithm.policy", "algorithm.learner", "env")
"""Options that may hold `observation_fields`."""
OTHER_FIELDS: Mapping[str, Literal["picture", "other"]] = {
    "image_fields": "picture",
    "point_fields": "other",
    "action_field": "other",
}
"""Options beside it that name recorded fields."""
DRAWING = ("mujoco", "warp")
"""Engines whose pictures have the size that the option `cameras` states."""
POLICY_INPUTS = ("student", "policy", "bundle", "teacher")
"""Inputs whose policy observes what the policy or bundle of a stage observes, first match."""


class Fields(NamedTuple):
    """Fields of an environment or of recorded episodes."""

    of: str
    """What has the fields, for messages."""
    names: frozenset[str]
    pictures: Mapping[str, tuple[int, int]] = {}
    """Height and width [px] of the pictures of observed cameras, by field, as far as they are
    known."""
    whole: bool = False
    """Whether `names` and `pictures` are all: cameras, point clouds and actions, too."""
    drawn: bool = False
    """Whether `pictures` has all cameras."""
    most_episodes: int | None = None
    """Largest number of episodes; None if it is not known."""
    task: str = ""
    """Task of the episodes; empty if it is not known."""


class Observed(NamedTuple):
    """Fields that a policy observes or learns, under the option that names them."""

    stage: str
    option: str
    names: tuple[str, ...]
    kind: Literal["vector", "picture", "other"] = "vector"
    """What they are: pictures are known of imported data sets and of MuJoCo, what else is no vector
    of imported data sets alone."""


def check_observed(stage: Stage, *, data: bool = True) -> None:
    """Checks the fields that a stage observes.

    Args:
        stage: the stage.
        data: whether data sets that the recipe names are opened for their fields.

    Raises:
        HandoffError: the stage's demonstrations or environments have no such field, their actions
            are of different kinds, or its table is that of a task which is not simulated.
    """
    _check_table(stage, data=data)
    _check_actions(stage)
    here = list(_observed(stage))
    for name, source in stage.inputs.items():
        recorded = recorded_fields(source, data=data) if source.kind == "episodes" else None
        if recorded is not None:
            _check(stage, f"its input '{name}'", [*here, *_estimated(stage)], recorded)
            _check_parts(stage, recorded)
    environment = None if WORLD_MODEL in stage.inputs else environment_fields(stage.config)
    if environment is not None:
        _check(stage, "its environments", list(_observed_by_policy(stage)), environment)


def _check(stage: Stage, where: str, observed: list[Observed], given: Fields) -> None:
    for entry in observed:
        all_known = given.whole or (entry.kind == "picture" and given.drawn)
        if entry.kind != "vector" and not all_known:
            continue
        known = given.pictures.keys() if entry.kind == "picture" else given.names
        for field in entry.names:
            # All cameras of a data set without one are none.
            if field != "*" and not any(fnmatchcase(name, field) for name in known):
                nearest = suggest(field, sorted(known), "it has") if known else "it has none"
                owner = "" if entry.stage == stage.name else f" of the stage {entry.stage}"
                raise HandoffError(
                    f"stage {stage.name}: {entry.option}{owner} has the field '{field}', which {where} ({given.of}) "
                    f"lacks; {nearest}"
                )


def _check_table(stage: Stage, *, data: bool) -> None:
    """Checks that the task of the policy that a stage deploys at a task's table is a simulated
    one."""
    if not isinstance(getattr(stage.config, "table", None), DeployTaskConfig):
        return
    bundle = stage.inputs.get("bundle")
    demos = None if bundle is None else bundle.inputs.get("demos")
    recorded = None if demos is None else recorded_fields(demos, data=data)
    if recorded is None or not recorded.task or is_task(recorded.task):
        return
    raise HandoffError(
        f"stage {stage.name}: its table is that of the policy's task, and '{recorded.task}' ({recorded.of}) is not "
        f"simulated. Give the stage ingest map.task=TASK if the episodes are of a simulated task, or remove "
        f"~{stage.name}; {suggest(recorded.task, TASKS)}"
    )


def _check_actions(stage: Stage) -> None:
    """Checks that the environments of a stage take the kind of action that its policy has imitated,
    as far as the demonstrations are scripted: a step of a joint and a joint position have one
    shape, and the policy would fail without a word."""
    protocol = getattr(stage.config, "protocol", None)
    demos = _imitated(stage)
    if not isinstance(protocol, Protocol) or not protocol.robot or demos is None:
        return
    config = demos.config
    recorded = _kind_of_actions(config.task, config.robot, config.demonstrate.mujoco.actions)
    taken = _kind_of_actions(protocol.task, protocol.robot, protocol.options.get("actions"))
    if recorded != taken:
        raise HandoffError(
            f"stage {stage.name}: the environments of its protocol take actions of the kind '{taken}', the policy "
            f"imitates '{recorded}' of the stage {demos.name}. Set {stage.name}.protocol.options.actions.kind="
            f"{recorded}, or {demos.name}.demonstrate.mujoco.actions.kind={taken}."
        )


def _imitated(stage: Stage) -> Stage | None:
    """The scripted demonstrations that the policy of a stage has imitated; None if it has
    others."""
    source = next((stage.inputs[name] for name in POLICY_INPUTS if name in stage.inputs), None)
    if source is None:
        return None
    demos = source.inputs.get("demos")
    if source.uses == "pretrain" and demos is not None and isinstance(demos.config, ScriptedConfig):
        return demos
    return _imitated(source)


def _kind_of_actions(task: str, robot: str, chosen: Any) -> str:
    """The kind of the actions that environments of a task take, by their option or of the task."""
    kind = chosen.get("kind") if isinstance(chosen, Mapping) else getattr(chosen, "kind", None)
    return str(kind or find_task(task, robot=robot).actions.kind)


def _check_parts(stage: Stage, recorded: Fields) -> None:
    """Checks that a stage that splits its episodes gets enough for both parts."""
    if isinstance(stage.config, SplitConfig) and recorded.most_episodes is not None:
        try:
            check_splits(recorded.most_episodes, stage.config)
        except HandoffError as error:
            raise HandoffError(f"stage {stage.name}: {error}") from None


def _observed(stage: Stage) -> Iterator[Observed]:
    """Yields the fields that the options of a stage name."""
    if isinstance(stage.config, FromScratchConfig):
        yield Observed(stage.name, "fields", stage.config.fields)
        yield Observed(stage.name, "image_fields", stage.config.image_fields, "picture")
        return
    for path in BLOCKS:
        block: Any = stage.config
        for key in path.split("."):
            block = getattr(block, key, None)
        if not hasattr(block, "observation_fields"):
            continue
        # Patterns take what the demonstrations have.
        names = tuple(name for name in block.observation_fields if "*" not in name)
        yield Observed(stage.name, f"{path}.observation_fields", names)
        anchor = getattr(block, "anchor_field", None)
        if anchor is not None:
            yield Observed(stage.name, f"{path}.anchor_field", (anchor,))
        for option, kind in OTHER_FIELDS.items():
            named = getattr(block, option, ())
            names = (named,) if isinstance(named, str) else tuple(named)
            yield Observed(stage.name, f"{path}.{option}", names, kind)


def _estimated(stage: Stage) -> Iterator[Observed]:
    """Yields the fields that a policy estimates, which its demonstrations alone must have."""
    policy = getattr(stage.config, "policy", None)
    if isinstance(policy, EncodedPolicyConfig) and policy.estimated_fields:
        yield Observed(stage.name, "policy.estimated_fields", policy.estimated_fields)


def _observed_by_policy(stage: Stage) -> Iterator[Observed]:
    """Yields the fields that the policy of a stage observes, or of the first of its inputs that has
    one."""
    here = list(_observed(stage))
    if here:
        yield from here
        return
    for name in POLICY_INPUTS:
        if name in stage.inputs:
            yield from _observed_by_policy(stage.inputs[name])
            return


def environment_fields(config: Any) -> Fields | None:
    """The fields of the environments that the options of a stage name; None if unknown."""
    if isinstance(getattr(config, "table", None), DeployConfig):
        return Fields("the push-T table", frozenset(find_task(PUSH_T).observations))
    if isinstance(getattr(config, "env", None), HilEnvConfig):
        return _task(config.env.task, config.env.robot)
    if isinstance(config, ScriptedConfig):
        simulator = config.demonstrate.simulator
        if simulator is not None and "rgb" in simulator.maniskill.observation:
            # ManiSkill's own cameras.
            return None
        options = simulator or config.demonstrate.mujoco
        gripper = config.gripper_entry if simulator is None else simulator.gripper_entry
        fields = _task(config.task, config.robot, options.cameras, gripper_entry=gripper)
        return fields._replace(drawn=simulator is None)
    if isinstance(config, RecordPlayConfig):
        return _task(config.task, config.robot, config.play.mujoco.cameras)
    for block in (config, getattr(config, "algorithm", None)):
        protocol = getattr(block, "protocol", None)
        if isinstance(protocol, Protocol):
            known = vector_fields(protocol)
            if known is None:
                return None
            of, drawn = f"protocol {protocol.name}", protocol.engine in DRAWING
            return Fields(of, frozenset(known), _drawn(protocol) if drawn else {}, drawn=drawn)
    return None


def _drawn(protocol: Protocol) -> dict[str, tuple[int, int]]:
    """Height and width of the pictures of the cameras among the options of a protocol, which are
    checked elsewhere."""
    cameras = protocol.options.get("cameras")
    if not isinstance(cameras, Mapping):
        return {}
    size = cameras.get("height", CamerasConfig.height), cameras.get("width", CamerasConfig.width)
    return {f"image_{name}": size for name in cameras.get("names", CamerasConfig.names)}


def _imported(config: IngestConfig) -> Fields | None:
    """The fields of imported demonstrations; None where the recipe names no data set, or one that
    is on another computer."""
    if config.data is None or not Path(config.data).expanduser().exists():
        return None
    source = find_demonstrations(data=Path(config.data), form=config.format, shipped=SHIPPED)
    path = source.path
    with open_demonstrations(path, config.images, config.format, config.map) as demonstrations:
        schema = demonstrations.schema
        taken = min(demonstrations.num_episodes, config.max_episodes or demonstrations.num_episodes)
    fields = {
        name: spec for stream in schema.streams.values() for name, spec in stream.fields.items()
    }
    pictures = {
        name: (spec.shape[0], spec.shape[1])
        for name, spec in fields.items()
        if spec.unit == "u8" and len(spec.shape) == 3 and field_role(name, spec) == "observation"
    }
    of = f"{path.name}, episodes of {schema.name}"
    most = 2 * taken if config.mirror else taken
    return Fields(of, frozenset(fields), pictures, True, True, most, schema.name)


def _task(
    task: str, robot: str, cameras: CamerasConfig | None = None, *, gripper_entry: bool = False
) -> Fields:
    pictures = {}
    if cameras is not None:
        size = cameras.height, cameras.width
        pictures = {f"image_{name}": size for name in cameras.names}
    names = frozenset(find_task(task, robot=robot, gripper_entry=gripper_entry).observations)
    return Fields(f"task {task}", names, pictures, task=task)


def recorded_fields(stage: Stage, *, data: bool = True) -> Fields | None:
    """The fields of the episodes that a stage makes; None if unknown.

    Args:
        stage: a stage that makes episodes.
        data: whether data sets that the recipe names are opened for their fields.

    Raises:
        HandoffError: a data set cannot be read.
    """
    config = stage.config
    if isinstance(config, ScriptedConfig | RecordPlayConfig | DemonstrateConfig | RolloutConfig):
        return environment_fields(config)
    if isinstance(config, IngestConfig):
        return _imported(config) if data else None
    if not isinstance(config, MergeConfig | RelabelConfig | FilterEpisodesConfig | SplitConfig):
        return None
    inputs = [source for source in stage.inputs.values() if source.kind == "episodes"]
    sources = [recorded_fields(source, data=data) for source in inputs]
    known = [source for source in sources if source is not None]
    if len(known) < len(sources):
        return None
    names = frozenset[str]().union(*(source.names for source in known))
    pictures = {name: size for source in known[::-1] for name, size in source.pictures.items()}
    if isinstance(config, MergeConfig) and config.fields:
        names &= frozenset(config.fields)
        pictures = {name: pictures[name] for name in pictures if name in config.fields}
    of = ", ".join(dict.fromkeys(source.of for source in known))
    numbers = [source.most_episodes for source in known if source.most_episodes is not None]
    most = sum(numbers) if len(numbers) == len(known) else None
    tasks = {source.task for source in known}
    task = (config.task if isinstance(config, MergeConfig) else None) or ""
    task = task or (tasks.pop() if len(tasks) == 1 else "")
    # Another reward adds fields, which no policy observes.
    whole = all(source.whole for source in known)
    drawn = all(source.whole or source.drawn for source in known)
    return Fields(of, names, pictures, whole, drawn, most, task)
