"""Builds the scene that all tasks share: arm, gripper, table, lights, two cameras, and the
impedance law as actuators.

The law of `robots.control.impedance` is built from the engine's own actuators: a site transmission
relative to a fixed reference site is a Cartesian spring and damper, computed in C at every physics
step, so N environments run at the full speed of the engine. Frame "grasp" (see
`robots.franka.robot.Gripper`) is the controlled frame; its axes equal the base's when the gripper
points down.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.control.impedance import ImpedanceGains
from robots.franka.robot import Gripper, Robot

if TYPE_CHECKING:
    import mujoco

GRASP_SITE = "grasp"
FINGER_JOINTS = ("finger_left", "finger_right")
FINGER_HALF = np.array([0.010, 0.004, 0.020])
"""(3,) half sizes of a finger's pad [m]: 20 mm wide along the gripper's x, 8 mm thick, 40 mm
long."""
FINGER_FRICTION = 1.0
"""Sliding friction of rubber-coated fingertips on wood or plastic, handbooks: 0.7 to 1.2."""
GRIP_FORCE = 15.0
"""Maximum force of one finger [N]; the data sheet allows 70, and 10 to 40 are common for light
parts."""
GRIPPER_STIFFNESS = 2000.0
"""Stiffness of each finger's servo [N/m]; above 7.5 mm of error it presses with `GRIP_FORCE`."""
GRIPPER_DAMPING = 60.0
"""Damping of each finger's servo [Ns/m]."""

FRONT_CAMERA = (np.array([1.15, 0.0, 0.55]), np.array([0.42, 0.0, 0.08]))
"""Position and look-at point [m] of the camera opposite the arm."""


def arm_scene(name: str, robot: Robot, *, timestep: float) -> mujoco.MjSpec:
    """Builds the arm with its gripper at a table, without objects and without a controller.

    Args:
        name: name of the model.
        robot: the arm.
        timestep: physics step [s].
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(robot.model_xml))
    spec.modelname = name
    spec.option.timestep = timestep
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    add_table(spec)
    draw_fast(spec)
    _mount_gripper(spec, robot)
    add_front_camera(spec)
    return spec


def add_table(spec: mujoco.MjSpec) -> None:
    """Adds a table with its top at z = 0, two lights and a plain backdrop."""
    import mujoco

    env, box = spec.worldbody, mujoco.mjtGeom.mjGEOM_BOX
    env.add_geom(
        name="table",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[1.0, 1.0, 0.1],
        contype=0,
        conaffinity=1,
        group=3,
    )
    visual = {"type": box, "contype": 0, "conaffinity": 0}
    env.add_geom(
        name="table_top",
        pos=[0.38, 0, -0.021],
        size=[0.56, 0.46, 0.02],
        rgba=[0.72, 0.60, 0.47, 1],
        **visual,
    )
    for x in (-0.12, 0.88):
        for y in (-0.40, 0.40):
            env.add_geom(
                pos=[x, y, -0.4], size=[0.025, 0.025, 0.36], rgba=[0.3, 0.31, 0.33, 1], **visual
            )
    env.add_light(
        name="key", pos=[0.2, 0.9, 2.0], dir=[0.1, -0.4, -1], diffuse=[0.55] * 3, castshadow=False
    )
    env.add_light(
        name="fill", pos=[1.6, -0.8, 1.8], dir=[-0.6, 0.4, -1], diffuse=[0.3] * 3, castshadow=False
    )
    spec.visual.headlight.ambient = [0.38] * 3
    spec.visual.headlight.diffuse = [0.25] * 3
    spec.visual.headlight.specular = [0.0] * 3
    spec.add_texture(
        name="backdrop",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.95, 0.96, 0.97],
        rgb2=[0.74, 0.78, 0.82],
        width=64,
        height=384,
    )
    position = np.array([1.42, -0.70, 1.02])
    env.add_camera(
        name="overview",
        pos=position,
        quat=looking_at(position, np.array([0.33, 0.0, 0.20])),
        fovy=36,
    )
    spec.visual.global_.offwidth = 1280
    spec.visual.global_.offheight = 960


def draw_fast(spec: mujoco.MjSpec) -> None:
    """Disables multisampling and finely tessellated shapes, which makes software OpenGL more than
    three times as fast."""
    spec.visual.quality.offsamples = 0
    spec.visual.quality.numslices = 20
    spec.visual.quality.numstacks = 10


def looking_at(position: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(4,) quaternion (wxyz) of an upright camera at `position` (3,) [m] that looks at `target`
    along its own -z."""
    import mujoco

    back = (position - target) / np.linalg.norm(position - target)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, np.column_stack([right, np.cross(back, right), back]).ravel())
    return quaternion


def add_front_camera(spec: mujoco.MjSpec) -> None:
    """Adds the camera `front` opposite the arm."""
    position, target = FRONT_CAMERA
    spec.worldbody.add_camera(
        name="front", pos=position, quat=looking_at(position, target), fovy=45
    )


def _mount_gripper(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Adds the palm, two coupled fingers, the frame "grasp" and the wrist camera."""
    import mujoco

    gripper = robot.gripper
    half_turn = gripper.yaw / 2
    body = spec.body(robot.link_names[-1]).add_body(
        name="hand",
        pos=spec.site(robot.flange_name).pos,
        quat=[np.cos(half_turn), 0, 0, np.sin(half_turn)],
        gravcomp=1.0,
        mass=gripper.mass - 2 * gripper.finger_mass,
        ipos=gripper.com,
        inertia=gripper.inertia,
        explicitinertial=True,
    )
    body.add_geom(
        name="palm",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=[0, 0, 0.033],
        size=[0.025, 0.100, 0.033],
        rgba=[0.90, 0.91, 0.92, 1],
        mass=0,
        contype=1,
        conaffinity=0,
    )
    # Half a turn about x: see robots.franka.robot.Gripper.flange_R_grasp.
    body.add_site(
        name=GRASP_SITE,
        pos=[0, 0, gripper.tcp_offset],
        quat=[0, 1, 0, 0],
        size=[0.002] * 3,
        rgba=[0] * 4,
    )
    body.add_camera(name="wrist", pos=[0.07, 0, 0.05], quat=wrist_view(), fovy=75)
    for joint, side in zip(FINGER_JOINTS, (1.0, -1.0), strict=True):
        _add_finger(spec, body, gripper, joint, side)
    coupling = spec.add_equality(
        name="fingers_move_together",
        type=mujoco.mjtEq.mjEQ_JOINT,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
        name1=FINGER_JOINTS[0],
        name2=FINGER_JOINTS[1],
    )
    # The number of coefficients depends on the version of MuJoCo.
    coupling.data[:] = 0.0
    coupling.data[1] = 1.0


def _add_finger(
    spec: mujoco.MjSpec, palm: mujoco.MjsBody, gripper: Gripper, joint: str, side: float
) -> None:
    import mujoco

    tip = gripper.tcp_offset + 0.005
    finger = palm.add_body(name=joint, pos=[0, 0, tip - FINGER_HALF[2]], gravcomp=1.0)
    finger.add_joint(
        name=joint,
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=[0, side, 0],
        range=[0, gripper.width_max / 2],
        limited=mujoco.mjtLimited.mjLIMITED_TRUE,
        armature=0.1,
    )
    finger.add_geom(
        name=f"{joint}_pad",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=[0, side * FINGER_HALF[1], 0],
        size=FINGER_HALF,
        mass=gripper.finger_mass,
        friction=[FINGER_FRICTION, 0.005, 0.0001],
        condim=4,
        solref=[2.0 * spec.option.timestep, 1.0],
        rgba=[0.25, 0.26, 0.28, 1],
        contype=1,
        conaffinity=0,
    )


def wrist_view() -> np.ndarray:
    """(4,) quaternion (wxyz) of the wrist camera: it looks along the gripper's z, tilted by 25
    degrees inwards, with the side away from the base at the top of the image."""
    import mujoco

    tilt = np.deg2rad(25.0)
    # A camera looks along -z with y up; columns are the camera's axes in the gripper's frame.
    forward = np.array([-np.sin(tilt), 0.0, np.cos(tilt)])
    up = np.array([np.cos(tilt), 0.0, np.sin(tilt)])
    right = np.cross(forward, up)
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, np.column_stack([right, up, -forward]).ravel())
    return quaternion


def add_cartesian_impedance(spec: mujoco.MjSpec, gains: ImpedanceGains, robot: Robot) -> None:
    """Adds six actuators on the frame "grasp", whose targets are position [m] and rotation vector
    [rad] in base axes.

    Another actuator on each joint holds the posture; its target is computed in each control period
    (`robots.control.impedance`).
    """
    import mujoco

    spec.worldbody.add_site(name="base_frame", size=[0.001] * 3, rgba=[0] * 4)
    for i, axis in enumerate(("x", "y", "z", "roll", "pitch", "yaw")):
        actuator = spec.add_actuator(
            name=f"impedance_{axis}",
            trntype=mujoco.mjtTrn.mjTRN_SITE,
            target=GRASP_SITE,
            refsite="base_frame",
            gear=np.eye(6)[i],
        )
        _spring(actuator, gains.stiffness[i], gains.damping[i])
        limit = gains.force_limit if i < 3 else gains.torque_limit
        actuator.forcerange = [-limit, limit]
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
    for joint in robot.joint_names:
        actuator = spec.add_actuator(
            name=f"posture_{joint}", trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint
        )
        _spring(actuator, gains.posture_stiffness, gains.posture_damping)


def add_joint_impedance(spec: mujoco.MjSpec, gains: ImpedanceGains, robot: Robot) -> None:
    """Adds one actuator per joint, whose target is the joint's position [rad].

    Raises:
        HandoffError: the number of gains differs from the number of joints.
    """
    import mujoco

    robot.check_per_joint("gains.joint_stiffness", gains.joint_stiffness)
    robot.check_per_joint("gains.joint_damping", gains.joint_damping)
    for i, joint in enumerate(robot.joint_names):
        actuator = spec.add_actuator(
            name=f"impedance_{joint}", trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint
        )
        _spring(actuator, gains.joint_stiffness[i], gains.joint_damping[i])


def add_gripper(spec: mujoco.MjSpec) -> None:
    """Adds one actuator per finger; both have the same target, half the opening [m]."""
    import mujoco

    for joint in FINGER_JOINTS:
        actuator = spec.add_actuator(
            name=f"gripper_{joint}",
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            target=joint,
            forcerange=[-GRIP_FORCE, GRIP_FORCE],
            forcelimited=mujoco.mjtLimited.mjLIMITED_TRUE,
        )
        _spring(actuator, GRIPPER_STIFFNESS, GRIPPER_DAMPING)


def _spring(actuator: mujoco.MjsActuator, stiffness: float, damping: float) -> None:
    import mujoco

    actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    actuator.gainprm[0] = stiffness
    actuator.biasprm[:3] = [0.0, -stiffness, -damping]
