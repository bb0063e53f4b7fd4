"""Finds and makes one ManiSkill environment, and states what it observes and how it is
commanded."""

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

from robots.config import config
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec

OBSERVATION_MODES = {"state": "state_dict", "rgb": "rgb", "state+rgb": "state_dict+rgb"}
DRIVERS = Path("/usr/share/vulkan/icd.d")
DRIVER_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
NO_VULKAN = ("rendering device", "vk::", "vulkan")
"""Parts of the messages with which SAPIEN says that no Vulkan device is there."""
UNITS = {
    "qpos": ("rad", "", "joint positions, m for prismatic joints such as fingers"),
    "qvel": ("rad/s", "", "joint velocities, m/s for prismatic joints such as fingers"),
    "pose": ("m", "world", "position x y z [m], orientation quaternion w x y z"),
    "pos": ("m", "world", "position or difference of positions, x y z"),
    "half_size": ("m", "", "half edges"),
    "radius": ("m", "", "radius"),
}
"""Unit, frame and meaning by the ending of a field's name, as ManiSkill's own tasks use them."""


@config
class ManiSkillConfig:
    """How a ManiSkill environment becomes worlds."""

    observation: Literal["state", "rgb", "state+rgb"] = "state"
    """State with the poses of objects; pictures with the robot's own state; or both."""
    image_size: tuple[int, int] | None = None
    """Height and width of every camera [px]; None takes the environment's own."""
    control_mode: str | None = None
    """Such as `pd_ee_delta_pose` or `pd_joint_delta_pos`; None takes the robot's first."""
    reward_mode: str | None = None
    """`normalized_dense`, `dense`, `sparse` or `none`; None takes the environment's first."""
    sim_backend: Literal["physx_cpu", "physx_cuda"] = "physx_cpu"
    """CUDA makes SAPIEN fetch NVIDIA's GPU library of PhysX at its first use."""
    render_backend: str = "auto"
    """`gpu`, `cpu` or a device of SAPIEN's; `auto` takes an NVIDIA GPU if there is one."""
    saving: Literal["replay", "state"] | None = None
    """How `restore` works. `replay` repeats the actions since the start: bit for bit on the CPU, at
    the price of as many steps. `state` copies poses, velocities, controller targets and elapsed
    steps: quick, and the only way on CUDA, but PhysX's contact forces and friction anchors cannot
    be copied, so trajectories part at the next contact. None: replay on the CPU, state on CUDA."""
    rebuild: bool | None = None
    """Whether each reset on the CPU builds the scene anew (about 0.3 s). None: where a trial at the
    start shows that the task's own reset carries something over, as those of Empty-v1 and
    RotateSingleObjectInHandLevel0-v1 do."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the environment, such as `robot_uids`."""


def software_vulkan(
    environment: Mapping[str, str], drivers: Path = DRIVERS, devices: Path = Path("/dev")
) -> Path | None:
    """Mesa's software driver (lavapipe), where nothing else was chosen and the machine has no GPU;
    else None.

    Args:
        environment: of the process.
        drivers: folder of the installed drivers' descriptions.
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
    """What makes the environment, and its time limit.

    Raises:
        HandoffError: the package is missing, or the id or assets are.
    """
    driver = software_vulkan(os.environ)
    if driver is not None:
        # The Vulkan loader otherwise opens all of Mesa's drivers, most of them for hardware that is
        # not here.
        os.environ["VK_ICD_FILENAMES"] = str(driver)
    try:
        import mani_skill.envs  # noqa: F401  (registers the tasks)
        from mani_skill.utils import assets
        from mani_skill.utils.registration import REGISTERED_ENVS
    except ImportError as error:
        raise HandoffError(
            f"{name}: ManiSkill cannot be imported ({error}). Install it: pip install 'handoff[maniskill]'."
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
    """Keyword arguments for one environment of `width` worlds."""
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
    """One environment.

    Raises:
        HandoffError: no Vulkan device, a robot's assets missing, or arguments it does not take.
    """
    try:
        with _no_downloads(name):
            return make(**arguments)
    except (RuntimeError, AttributeError) as error:
        if not any(part in str(error).lower() for part in NO_VULKAN):
            raise HandoffError(f"{name}: cannot be made with {arguments}: {error}") from error
        chosen = {
            variable: os.environ[variable]
            for variable in DRIVER_VARIABLES
            if variable in os.environ
        }
        raise HandoffError(
            f"{name}: SAPIEN finds no Vulkan device ({error}), and needs one even without pictures. A GPU needs the "
            "Vulkan part of its driver; without a GPU, install Mesa 25 or later (mesa-vulkan-drivers; on Debian 12 "
            "from bookworm-backports, its own Mesa 22 does not do) and let VK_ICD_FILENAMES name its lvp_icd.json. "
            f"Now: {chosen or 'no driver chosen'}."
        ) from error
    except (ImportError, OSError) as error:
        raise HandoffError(
            f"{_assets_missing(name, f'files ({error})', '<task>')}, or install what is named."
        ) from error
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise HandoffError(
            f"{name}: cannot be made with {arguments}: {type(error).__name__}: {error}. "
            "Does the task know this control mode, reward mode or robot?"
        ) from error


@contextmanager
def _no_downloads(name: str) -> Iterator[None]:
    """Turns ManiSkill's question on standard input, whether to download, into an error that says
    how to."""
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
    """Paths and values of a nested mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", value


def observed(observation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of what an observation holds; camera parameters are left out."""
    yield from leaves(
        {key: value for key, value in observation.items() if not key.startswith("sensor_")}
    )
    for camera, pictures in observation.get("sensor_data", {}).items():
        if "rgb" in pictures:
            yield f"image_{camera}", pictures["rgb"]


def field_specs(name: str, observation: Mapping[str, Any], width: int) -> dict[str, FieldSpec]:
    """What the fields of an observation of `width` worlds are.

    Raises:
        HandoffError: a field has not one row per world.
    """
    specs = {}
    for key, value in observed(observation):
        shape = tuple(value.shape)
        if shape[:1] != (width,):
            raise HandoffError(
                f"{name}: observation '{key}' has shape {shape}, expected one row per world ({width})."
            )
        if key.startswith("image_"):
            specs[key] = FieldSpec(
                shape=shape[1:], dtype="uint8", unit="u8", about=f"RGB picture of camera {key[6:]}"
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
    """What an action is, and for several robots the entries of each."""
    space, controllers = env.single_action_space, env.agent.controller
    boxes = dict(space.spaces) if hasattr(space, "spaces") else {"": space}
    if not all(hasattr(box, "low") for box in boxes.values()):
        raise HandoffError(f"{name}: actions are a {space}, only Box, one per robot, is known.")
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


def _entry_names(controller: Any) -> list[str]:
    """One name per entry of the action: Cartesian axes, joints, or the part of the robot with a
    number."""
    names: list[str] = []
    for part, one in getattr(controller, "controllers", {"": controller}).items():
        size = one.single_action_space.shape[0]
        if hasattr(one, "ee_pose"):
            names += ["x", "y", "z", "rx", "ry", "rz"][:size]
        elif size == len(one.joints):
            names += [joint.name for joint in one.joints]
        else:
            names += (
                [part or "action"]
                if size == 1
                else [f"{part or 'action'}_{i}" for i in range(size)]
            )
    return names
