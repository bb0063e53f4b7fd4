"""Converts the arm and the bodies of a task to USD files, which Isaac Lab spawns.

The source is the MuJoCo scene of the task (`sim.tasks`), and the converter mujoco-usd-converter. A
file is made once and kept in the user's cache, under the digest of its source, of this module and
of the converter's version.

What the converter leaves out is added here: gravity compensation under the name that Newton reads,
colours of materials as the colour of every shape, and a visual twin of every collision shape,
because renderers draw no collision shapes of bodies that have visual ones.
"""

# Isaac Lab's virtual environment has the converter; the compiled mujoco module has no type stubs.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.storage.parsed_sources import cache_folder
from sim.scene.scene import arm_scene
from sim.tasks.task import Task

if TYPE_CHECKING:
    import mujoco

CONVERTER = "mujoco-usd-converter"
"""Package of the converter."""
TABLE = "table"
"""Name of the table's geom and file."""
UNCOLOURED = (0.5, 0.5, 0.5, 1.0)
"""Colour (rgba) of a shape without one of its own."""
VISUAL = "_visual"
"""Ending of the name of a visual twin."""
WRITTEN_GRAVITY = "mjc:body:gravcomp"
"""Attribute under which the converter writes gravity compensation."""
READ_GRAVITY = "mjc:gravcomp"
"""Attribute under which Newton reads it."""
CLAMPS = ("_x", "_y", "_yaw")
"""Endings of the joints of a fixture (`sim.tasks.fixture`); in Isaac Lab its root has the pose."""


class SceneFiles(NamedTuple):
    """USD files of a scene."""

    robot: Path
    table: Path
    objects: Mapping[str, Path]
    """Bodies with a free joint, by its name."""
    fixtures: Mapping[str, Path]
    """Bodies clamped to the table, by name."""
    goals: Mapping[str, Path]
    """Bodies without contact that show the goal, by name."""


def robot_usd(robot: Robot, folder: Path | None = None) -> Path:
    """Path of the USD file of an arm with its gripper.

    Args:
        robot: the arm.
        folder: folder in which it is kept; None takes the user's cache.

    Raises:
        HandoffError: the converter is not installed.
    """
    scene = arm_scene(robot.name, robot, timestep=0.005)
    return _file(scene, robot.link_names[0], robot.name, folder)


def scene_files(task: Task) -> SceneFiles:
    """Paths of the USD files of a task's scene.

    Raises:
        HandoffError: the converter is not installed.
    """
    import mujoco

    root = task.robot.link_names[0]
    files: dict[str, dict[str, Path]] = {"objects": {}, "fixtures": {}, "goals": {}}
    # Bodies live as long as their scene.
    scene = task.scene()
    for body in scene.worldbody.bodies:
        if body.name == root:
            continue
        free = any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in body.joints)
        kind = "goals" if body.mocap else "objects" if free else "fixtures"
        files[kind][body.name] = _file(task.scene(), body.name, body.name)
    return SceneFiles(
        robot=_file(task.scene(), root, task.robot.name),
        table=_file(task.scene(), TABLE, TABLE),
        **files,
    )


def _file(spec: mujoco.MjSpec, kept: str, name: str, folder: Path | None = None) -> Path:
    """Path of the USD file of one body of the world, or of the table, which is made if needed."""
    try:
        converter = version(CONVERTER)
    except PackageNotFoundError:
        raise HandoffError(
            f"isaaclab: {CONVERTER} is not installed, which converts the arm to USD. Make the virtual environment "
            "again: handoff envs create isaaclab --again"
        ) from None
    for body in list(spec.worldbody.bodies):
        if body.name != kept:
            spec.delete(body)
    geoms = [] if kept == TABLE else spec.worldbody.geoms
    for element in (*geoms, *spec.worldbody.cameras, *spec.worldbody.lights):
        spec.delete(element)
    for texture in list(spec.textures):
        spec.delete(texture)
    for body in spec.worldbody.bodies:
        _prepare(spec, body)
    spec.modelname = name
    spec.compile()
    text = spec.to_xml()
    digest = hashlib.sha256(text.encode() + converter.encode() + Path(__file__).read_bytes())
    place = folder or cache_folder() / "usd" / digest.hexdigest()[:16]
    path = place / f"{name}.usdc"
    if folder is not None or not path.exists():
        _convert(text, path)
    return path


def _prepare(spec: mujoco.MjSpec, root: Any) -> None:
    """Changes a body of the world to what Isaac Lab expects: its root has the pose, and every
    shape its own colour and a visual twin."""
    for joint in list(root.joints):
        if joint.name.endswith(CLAMPS):
            spec.delete(joint)
    if root.mocap:
        root.mocap = False
        root.add_freejoint(name=root.name)
        # Floats at the goal, where it is put.
        root.gravcomp = 1.0
        root.mass = 0.1
        root.inertia = [1e-4] * 3
        root.explicitinertial = True
    for body in [root, *root.find_all("body")]:
        for geom in list(body.geoms):
            if geom.material:
                # A colour of its own takes precedence, as in MuJoCo.
                if np.array_equal(geom.rgba, UNCOLOURED):
                    geom.rgba = spec.material(geom.material).rgba
                geom.classname.geom.material = ""
                geom.material = ""
            if geom.contype or geom.conaffinity:
                body.add_geom(
                    name=f"{geom.name}{VISUAL}",
                    type=geom.type,
                    pos=geom.pos,
                    quat=geom.quat,
                    size=geom.size,
                    fromto=geom.fromto,
                    rgba=geom.rgba,
                    mass=0.0,
                    contype=0,
                    conaffinity=0,
                )


def _convert(xml: str, path: Path) -> None:
    """Writes the USD file of a MuJoCo model at `path`; a file that is there is replaced at once."""
    from mujoco_usd_converter import Converter
    from pxr import Sdf, Usd

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        source = Path(work) / f"{path.stem}.xml"
        source.write_text(xml)
        made = Path(Converter(layer_structure=False, scene=False).convert(str(source), work).path)
        stage = Usd.Stage.Open(str(made))
        for prim in stage.Traverse():
            written = prim.GetAttribute(WRITTEN_GRAVITY)
            if written:
                read = prim.CreateAttribute(READ_GRAVITY, Sdf.ValueTypeNames.Float, custom=True)
                read.Set(written.Get())
                prim.RemoveProperty(WRITTEN_GRAVITY)
        stage.GetRootLayer().Save()
        made.replace(path)


def prim_of(path: Path, name: str) -> str:
    """Path of the prim called `name` in a USD file, relative to its default prim.

    Raises:
        HandoffError: there is no such prim.
    """
    from pxr import Usd

    stage = Usd.Stage.Open(str(path))
    root = stage.GetDefaultPrim().GetPath()
    for prim in stage.Traverse():
        if prim.GetName() == name:
            return str(prim.GetPath().MakeRelativePath(root))
    raise HandoffError(f"isaaclab: {path.name} has no prim '{name}'.")
