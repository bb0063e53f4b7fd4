"""Finds and makes ManiSkill environments, and describes their observations and actions."""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robots.config import Metres, Pixels, config
from robots.errors import HandoffError
from robots.extras import pip_install
from robots.spec import ActionSpec, FieldSpec
from sim.engines.opencv_substitute import kept_search_path

OBSERVATION_MODES = {"state": "state_dict", "rgb": "rgb", "state+rgb": "state_dict+rgb"}
DRIVERS = Path("/usr/share/vulkan/icd.d")
DRIVER_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
NO_VULKAN = ("rendering device", "vk::", "vulkan")
"""Substrings of SAPIEN's messages about a missing Vulkan device."""
UNITS = {
    "qpos": ("rad", "", "joint positions, m for prismatic joints such as fingers"),
    "qvel": ("rad/s", "", "joint velocities, m/s for prismatic joints such as fingers"),
    "pose": ("m", "world", "position x y z [m], orientation quaternion w x y z"),
    "pos": ("m", "world", "position or difference of positions, x y z"),
    "half_size": ("m", "", "half edges"),
    "radius": ("m", "", "radius"),
}
"""Unit, frame and description by the ending of a field's name, as used in ManiSkill's own tasks."""


@config
class ManiSkillArm:
    """An environment of ManiSkill that has the observations and actions of a task of Handoff."""

    environment: str
    """Registered id, such as `PickCube-v1`, of an environment with a Panda."""
    bodies: Mapping[str, str] = field(default_factory=dict)
    """ManiSkill's field with the pose of every body of the task's scene, such as `extra/obj_pose`
    of `cube`."""
    goal: str | None = None
    """ManiSkill's field with the task's goal position; None for tasks without one."""
    base: tuple[Metres, Metres, Metres] = (-0.615, 0.0, 0.0)
    """Position of the robot's base in ManiSkill's world [m]; the default is that of its tasks at a
    table."""


@config
class ManiSkillConfig:
    """Options of ManiSkill."""

    arm: ManiSkillArm | None = None
    """Environment that has the observations, actions and expert of a task of Handoff, which the
    entry `task` then names; None keeps ManiSkill's own, and `task` is its id."""

    observation: Literal["state", "rgb", "state+rgb"] = "state"
    """Observed fields: the state with the poses of objects, images with the robot's own state, or
    both."""
    image_size: tuple[Pixels, Pixels] | None = None
    """Height and width of every camera [px]; None takes the environment's own."""
    control_mode: str | None = None
    """Control mode, such as `pd_ee_delta_pose` or `pd_joint_delta_pos`; None takes the robot's
    first."""
    reward_mode: str | None = None
    """Reward mode: `normalized_dense`, `dense`, `sparse` or `none`; None takes the environment's
    first."""
    sim_backend: Literal["physx_cpu", "physx_cuda"] = "physx_cpu"
    """Physics backend; on the first use of CUDA, SAPIEN downloads NVIDIA's GPU library of PhysX."""
    render_backend: str = "auto"
    """Render backend: `gpu`, `cpu` or a device of SAPIEN; `auto` takes an NVIDIA GPU if there is
    one."""
    saving: Literal["replay", "state"] | None = None
    """Method of `restore`. `replay` repeats the actions since the reset: bit for bit on the CPU,
    but takes as many steps. `state` copies poses, velocities, controller targets and elapsed steps:
    fast, and the only method on CUDA, but PhysX's contact forces and friction anchors cannot be
    copied, so trajectories diverge at the next contact. None takes `replay` on the CPU and `state`
    on CUDA."""
    rebuild: bool | None = None
    """Whether each reset on the CPU rebuilds the scene (about 0.1 s). None rebuilds if a trial
    shows that the task's own reset is incomplete, like those of Empty-v1 and
    RotateSingleObjectInHandLevel0-v1."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the environment, such as `robot_uids`."""


def software_vulkan(
    environment: Mapping[str, str], drivers: Path = DRIVERS, devices: Path = Path("/dev")
) -> Path | None:
    """Mesa's software driver (lavapipe) if no driver was chosen and the machine has no GPU,
    otherwise None.

    Args:
        environment: environment variables of the process.
        drivers: folder of the installed drivers' manifests.
        devices: folder of device files.
    """
    if any(environment.get(name) for name in DRIVER_VARIABLES) or _has_gpu(devices):
        return None
    names = ("lvp_icd.json", f"lvp_icd.{platform.machine()}.json")
    return next((drivers / name for name in names if (drivers / name).is_file()), None)


def _has_gpu(devices: Path) -> bool:
    return _has_cuda(devices) or any((devices / "dri").glob("renderD*"))


def _has_cuda(devices: Path = Path("/dev")) -> bool:
    return (devices / "nvidia0").exists()


def find_task(name: str, task: str) -> tuple[Callable[..., Any], int | None]:
    """Returns the factory of a task's environment, and its time limit.

    Raises:
        HandoffError: the package, the task or its assets are missing.
    """
    driver = software_vulkan(os.environ)
    if driver is not None:
        # Otherwise the Vulkan loader opens all of Mesa's drivers, most of them for missing
        # hardware.
        os.environ["VK_ICD_FILENAMES"] = str(driver)
    try:
        with kept_search_path():
            import mani_skill.envs  # noqa: F401  (registers the tasks)
            from mani_skill.utils import assets
            from mani_skill.utils.registration import REGISTERED_ENVS
    except ImportError as error:
        raise HandoffError(
            f"{name}: ManiSkill cannot be imported ({error}). Install it: {pip_install('maniskill')}."
        ) from None
    spec = REGISTERED_ENVS.get(task)
    if spec is None:
        close = difflib.get_close_matches(task, REGISTERED_ENVS, n=3, cutoff=0.4)
        hint = (
            f"did you mean {' or '.join(map(repr, close))}?"
            if close
            else f"it has {sorted(REGISTERED_ENVS)}."
        )
        raise HandoffError(f"{name}: ManiSkill has no task '{task}', {hint}")
    needed = [
        source
        for asset in spec.asset_download_ids or []
        for source in (
            assets.expand_data_group_into_individual_data_source_ids(asset)
            if asset in assets.DATA_GROUPS
            else [asset]
        )
    ]
    missing = [source for source in needed if not assets.is_data_source_downloaded(source)]
    if missing:
        raise HandoffError(
            _assets_missing(name, f"{len(missing)} asset(s) such as '{missing[0]}'", task)
        )
    return spec.make, spec.max_episode_steps


def _assets_missing(name: str, what: str, uid: str) -> str:
    return (
        f"{name}: {what} are not on this machine, and Handoff never downloads them. Read their licence (most are "
        f"CC BY-NC), then: python -m mani_skill.utils.download_asset {uid}"
    )


def environment_arguments(config: ManiSkillConfig, width: int) -> dict[str, Any]:
    """Keyword arguments for a batch of `width` environments."""
    backend = config.render_backend
    arguments: dict[str, Any] = {
        "num_envs": width,
        "obs_mode": OBSERVATION_MODES[config.observation],
        "sim_backend": config.sim_backend,
        "render_backend": ("gpu" if _has_cuda() else "cpu") if backend == "auto" else backend,
    }
    if config.control_mode is not None:
        arguments["control_mode"] = config.control_mode
    if config.reward_mode is not None:
        arguments["reward_mode"] = config.reward_mode
    if config.image_size is not None:
        arguments["sensor_configs"] = {
            "height": config.image_size[0],
            "width": config.image_size[1],
        }
    return {**arguments, **config.options}


def make_environment(name: str, make: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Makes one ManiSkill environment.

    Raises:
        HandoffError: no Vulkan device, missing assets of a robot, or unsupported arguments.
    """
    try:
        with _no_downloads(name):
            return make(**arguments)
    except (RuntimeError, AttributeError) as error:
        if not any(part in str(error).lower() for part in NO_VULKAN):
            raise HandoffError(f"{name}: cannot be made with {arguments}: {error}") from error
        selected = {
            variable: os.environ[variable]
            for variable in DRIVER_VARIABLES
            if variable in os.environ
        }
        raise HandoffError(
            f"{name}: SAPIEN finds no Vulkan device ({error}), which it needs even without images. A GPU needs the "
            "Vulkan part of its driver; without a GPU, install Mesa 25 or later (mesa-vulkan-drivers; on Debian 12 "
            "from bookworm-backports, because its own Mesa 22 is too old) and set VK_ICD_FILENAMES to its "
            f"lvp_icd.json. Now: {selected or 'no driver selected'}."
        ) from error
    except (ImportError, OSError) as error:
        raise HandoffError(
            f"{_assets_missing(name, f'files ({error})', '<task>')}, or install the named package."
        ) from error
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise HandoffError(
            f"{name}: cannot be made with {arguments}: {type(error).__name__}: {error}. "
            "Does the task support this control mode, reward mode and robot?"
        ) from error


@contextmanager
def _no_downloads(name: str) -> Iterator[None]:
    """Replaces ManiSkill's interactive question about a download by an error with instructions."""
    from mani_skill.utils import download_asset

    def refuse(message: str) -> bool:
        raise HandoffError(
            _assets_missing(name, f"assets ({message.partition('.')[0]})", "<robot or task>")
        )

    ask = download_asset.prompt_yes_no
    download_asset.prompt_yes_no = refuse
    try:
        yield
    finally:
        download_asset.prompt_yes_no = ask


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Iterates over the paths and values of a nested mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", value


def observation_fields(observation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterates over the names and values of an observation, without camera parameters."""
    yield from leaves(
        {key: value for key, value in observation.items() if not key.startswith("sensor_")}
    )
    for camera, images in observation.get("sensor_data", {}).items():
        if "rgb" in images:
            yield f"image_{camera}", images["rgb"]


def field_specs(name: str, observation: Mapping[str, Any], width: int) -> dict[str, FieldSpec]:
    """Field specifications of an observation of `width` environments.

    Raises:
        HandoffError: a field does not have one row per environment.
    """
    specs = {}
    for key, value in observation_fields(observation):
        shape = tuple(value.shape)
        if shape[:1] != (width,):
            raise HandoffError(
                f"{name}: observation '{key}' has shape {shape}, expected one row per environment ({width})."
            )
        if key.startswith("image_"):
            specs[key] = FieldSpec(
                shape=shape[1:], dtype="uint8", unit="u8", about=f"RGB image of camera {key[6:]}"
            )
            continue
        endings = [
            ending
            for ending in UNITS
            if key.rpartition("/")[2] == ending or key.endswith(f"_{ending}")
        ]
        unit, frame, about = UNITS[endings[0]] if endings else ("1", "", "as the task defines it")
        specs[key] = FieldSpec(shape=shape[1:], unit=unit, frame=frame, about=about)
    return specs


def action_spec(name: str, env: Any) -> tuple[ActionSpec, dict[str, slice]]:
    """Action specification, and for several robots the entries of each."""
    space, controllers = env.single_action_space, env.agent.controller
    boxes = dict(space.spaces) if hasattr(space, "spaces") else {"": space}
    if not all(hasattr(box, "low") for box in boxes.values()):
        raise HandoffError(f"{name}: actions are a {space}, only one Box per robot is supported.")
    low = np.concatenate([box.low.ravel() for box in boxes.values()]).astype(float)
    high = np.concatenate([box.high.ravel() for box in boxes.values()]).astype(float)
    names: list[str] = []
    slices: dict[str, slice] = {}
    for key, box in boxes.items():
        entries = _entry_names(controllers[key] if key else controllers)
        slices[key] = slice(len(names), len(names) + box.shape[0])
        names += [f"{key}/{entry}" if key else entry for entry in entries]
    modes = env.control_mode if isinstance(env.control_mode, Mapping) else {"": env.control_mode}
    spec = ActionSpec(
        low=tuple(low),
        high=tuple(high),
        names=tuple(names) if len(names) == len(low) else (),
        unit="1" if (low == -1.0).all() and (high == 1.0).all() else "as in ManiSkill",
        interface=" ".join(dict.fromkeys(modes.values())),
    )
    return spec, {} if "" in boxes else slices


def finger_limits(env: Any) -> tuple[float, float] | None:
    """Positions of a finger [m] at the lowest and highest value of the entry `gripper`;
    None for robots without such an entry."""
    controllers = getattr(env.agent.controller, "controllers", {})
    limits = getattr(controllers.get("gripper"), "config", None)
    return None if limits is None else (float(limits.lower), float(limits.upper))


def _entry_names(controller: Any) -> list[str]:
    """One name per entry of the action: Cartesian axes, joints, or the robot's part with an
    index."""
    names: list[str] = []
    for part, sub in getattr(controller, "controllers", {"": controller}).items():
        size = sub.single_action_space.shape[0]
        if hasattr(sub, "ee_pose"):
            names += ["x", "y", "z", "rx", "ry", "rz"][:size]
        elif size == len(sub.joints):
            names += [joint.name for joint in sub.joints]
        else:
            names += (
                [part or "action"]
                if size == 1
                else [f"{part or 'action'}_{i}" for i in range(size)]
            )
    return names
