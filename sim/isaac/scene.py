"""Builds the scene of a task as a configuration of Isaac Lab.

All environments stand at the origin: on the Newton back end each is a world of its own, in which
only its own bodies collide and are drawn. So an environment's numbers do not depend on its place.
"""

# Isaac Lab is in another virtual environment; the compiled mujoco module has no type stubs.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import isaaclab.sim as sim_utils
import numpy as np
from isaaclab.actuators import IdealPDActuatorCfg, ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg, AssetBaseCfg, RigidObjectCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sensors import CameraCfg
from isaaclab.sim import SimulationCfg
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg
from isaaclab_newton.renderers import NewtonWarpRendererCfg

from robots.errors import HandoffError, suggest
from robots.franka.robot import Robot
from sim.isaac.usd import SceneFiles, prim_of
from sim.scene.scene import FINGER_JOINTS, GRIP_FORCE, GRIPPER_DAMPING, GRIPPER_STIFFNESS
from sim.tasks.task import Task

FOCAL_LENGTH = 24.0
"""Focal length of every camera [mm]; the aperture gives the field of view."""
PLACE = "{ENV_REGEX_NS}"
"""Place of an environment's prims."""


def scene_cfg(task: Task, files: SceneFiles, num_envs: int) -> InteractiveSceneCfg:
    """Configuration of the scene of `task`, without cameras.

    Args:
        task: the task.
        files: USD files of its scene.
        num_envs: number of environments.
    """
    cfg = InteractiveSceneCfg(num_envs=num_envs, env_spacing=0.0, replicate_physics=True)
    cfg.robot = _arm_cfg(task.robot, files, gripper=_has_gripper(task))
    cfg.table = AssetBaseCfg(
        prim_path=f"{PLACE}/table", spawn=sim_utils.UsdFileCfg(usd_path=str(files.table))
    )
    for name, path in files.objects.items():
        spawn = sim_utils.UsdFileCfg(usd_path=str(path))
        setattr(cfg, name, RigidObjectCfg(prim_path=f"{PLACE}/{name}", spawn=spawn))
    for name, path in files.fixtures.items():
        fixture = ArticulationCfg(
            prim_path=f"{PLACE}/{name}",
            spawn=sim_utils.UsdFileCfg(usd_path=str(path)),
            init_state=ArticulationCfg.InitialStateCfg(),
            actuators={},
        )
        setattr(cfg, name, fixture)
    return cfg


def simulation_cfg(task: Task) -> SimulationCfg:
    """Configuration of the physics: the options of the task's MuJoCo model."""
    solver = MJWarpSolverCfg(
        njmax=task.capacity.constraints,
        nconmax=task.capacity.contacts,
        integrator="implicitfast",
        cone="elliptic",
        impratio=10.0,
        tolerance=1e-8,
        disable_sensors=True,
    )
    return SimulationCfg(
        dt=task.timestep,
        render_interval=round(1.0 / (task.rate_hz * task.timestep)),
        physics=NewtonCfg(solver_cfg=solver, num_substeps=1),
    )


def add_cameras(
    cfg: InteractiveSceneCfg,
    task: Task,
    files: SceneFiles,
    names: Sequence[str],
    height: int,
    width: int,
) -> None:
    """Adds cameras of the task's MuJoCo scene to a configuration, as `image_<name>`, and the bodies
    that show the goal.

    Args:
        cfg: the scene.
        task: the task.
        files: USD files of the task's scene.
        names: names of the cameras.
        height: height of an image [px].
        width: width of an image [px].

    Raises:
        HandoffError: the task's scene has no such camera.
    """
    scene = task.scene()
    known = {camera.name: camera for camera in scene.cameras}
    for name in names:
        if name not in known:
            raise HandoffError(
                f"isaaclab {task.name}: camera '{name}', {suggest(name, list(known))}"
            )
        camera = known[name]
        parent = camera.parent.name
        place = "" if parent == "world" else f"robot/{prim_of(files.robot, parent)}/"
        vertical = 2.0 * FOCAL_LENGTH * float(np.tan(np.deg2rad(camera.fovy) / 2.0))
        w, x, y, z = (float(value) for value in camera.quat)
        sensor = CameraCfg(
            prim_path=f"{PLACE}/{place}camera_{name}",
            offset=CameraCfg.OffsetCfg(
                pos=tuple(map(float, camera.pos)), rot=(x, y, z, w), convention="opengl"
            ),
            spawn=sim_utils.PinholeCameraCfg(
                focal_length=FOCAL_LENGTH,
                vertical_aperture=vertical,
                horizontal_aperture=vertical * width / height,
                clipping_range=(0.01, 10.0),
            ),
            data_types=["rgb"],
            height=height,
            width=width,
            # That of the wrist moves.
            update_latest_camera_pose=True,
            renderer_cfg=NewtonWarpRendererCfg(use_cuda_graph=False),
        )
        setattr(cfg, f"image_{name}", sensor)
    for name, path in files.goals.items():
        spawn = sim_utils.UsdFileCfg(usd_path=str(path))
        setattr(cfg, name, RigidObjectCfg(prim_path=f"{PLACE}/{name}", spawn=spawn))


def _arm_cfg(robot: Robot, files: SceneFiles, *, gripper: bool) -> ArticulationCfg:
    # The impedance law computes torques, which the joints' limits bound.
    limits = dict(zip(robot.joint_names, map(float, robot.limits.tau_max), strict=True))
    actuators: dict[str, IdealPDActuatorCfg | ImplicitActuatorCfg] = {
        "arm": IdealPDActuatorCfg(
            joint_names_expr=list(robot.joint_names),
            stiffness=0.0,
            damping=0.0,
            effort_limit=limits,
        )
    }
    if gripper:
        actuators["gripper"] = ImplicitActuatorCfg(
            joint_names_expr=list(FINGER_JOINTS),
            stiffness=GRIPPER_STIFFNESS,
            damping=GRIPPER_DAMPING,
            effort_limit_sim=GRIP_FORCE,
        )
    posture = dict(zip(robot.joint_names, map(float, robot.q_home), strict=True))
    return ArticulationCfg(
        prim_path=f"{PLACE}/robot",
        # Links collide with the surroundings, never with one another.
        spawn=sim_utils.UsdFileCfg(
            usd_path=str(files.robot),
            articulation_props=sim_utils.ArticulationRootPropertiesCfg(
                enabled_self_collisions=False
            ),
        ),
        init_state=ArticulationCfg.InitialStateCfg(joint_pos=posture),
        actuators=actuators,
    )


def _has_gripper(task: Task) -> bool:
    scene = task.scene()
    return FINGER_JOINTS[0] in [joint.name for joint in scene.joints]
