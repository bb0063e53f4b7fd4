"""What a robot consists of stands in its definition and nowhere else: read from the syntax
trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from robots.franka import find_robot
from robots.franka.catalog import ROBOTS

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("flows", "robots", "policies", "sim", "real")
DEFINITIONS = ROOT / "robots" / "franka"
JOINTS = 7
"""Joints of every robot here, which only their definitions may know."""
OTHER_SEVENS = {
    "flows/commands/machine.py": "columns of a calibration board",
    "flows/doctor/franka.py": "versions of the robot's server and of libfranka",
    "flows/reports/open_loop.py": "the width of a figure and the size of a font",
    "flows/reports/plots.py": "pictures of a strip",
    "policies/networks/images/image_encoder.py": "a kernel of 7 by 7 pixels, as in ResNet",
    "policies/random_streams.py": "the number of a random stream",
    "policies/rl/offline/config.py": "members of an ensemble, as in RL-100",
    "policies/training/plots.py": "the size of a marker",
    "real/cameras/calibration/board.py": "columns of a calibration board",
    "robots/episodes/formats/aloha.py": "joints and gripper of an arm of ALOHA",
    "robots/episodes/formats/containers/hdf5_bytes.py": "rounding up to 8 bytes",
    "robots/episodes/formats/containers/tfrecords.py": "bits of a varint",
    "robots/episodes/formats/ros/ros1_bag.py": "numbers of the kinds of records",
    "robots/episodes/formats/replay_buffer.py": "position, rotation and width of a gripper of UMI",
    "robots/episodes/formats/rlds.py": "the letters of a prefix",
    "robots/episodes/formats/robomimic.py": "entries of a pose with a quaternion",
    "robots/signing/certificates.py": "bits of a DER length",
    "robots/storage/onnx_file.py": "bits of a varint",
    "sim/episode_streams.py": "the number of a random stream",
    "sim/evaluation/robustness_report.py": "the size of a font",
    "sim/evaluation/charts.py": "the width of a figure",
    "sim/identification/report.py": "the size of a font",
    "sim/scene/view.py": "generalised positions of a free joint",
    "sim/twin/protocol.py": "the layout of the robot's network protocol",
}
"""Modules with the number 7 for another reason than the number of joints."""


OWN_ROBOT = "tests/flows/recipes/lab.py"
"""A package outside Handoff, whose robot is a changed FR3."""


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Every module outside the robots' definitions: its path and its syntax tree."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return tuple(
        (str(file.relative_to(ROOT)), ast.parse(file.read_text()))
        for file in files
        if not file.is_relative_to(DEFINITIONS)
    )


def lines_that_count_joints(tree: ast.Module) -> list[int]:
    """Lines with the integer 7, or with a `range` up to and including it."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value == JOINTS:
            lines.append(node.lineno)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "range"
        ):
            ends = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            lines += [node.lineno] if ends[-1:] == [JOINTS + 1] else []
    return lines


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names of what a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "line",
    [
        "q = np.zeros(7)",
        "q = qpos[:, :7]",
        "spec = FieldSpec(shape=(7,))",
        "flange = positions[:, 7]",
        "names = [f'joint{i}' for i in range(1, 8)]",
    ],
)
def test_number_of_joints_is_seen_however_it_is_written(line: str) -> None:
    assert lines_that_count_joints(ast.parse(line)) == [1]


def test_other_numbers_are_not_taken_for_the_number_of_joints() -> None:
    assert lines_that_count_joints(ast.parse("a, b, c = 7.0, 17, range(8, 12)")) == []


def test_robots_have_the_number_of_joints_that_is_looked_for() -> None:
    assert {find_robot(name).num_joints for name in ROBOTS} == {JOINTS}


def test_only_the_definitions_of_robots_know_how_many_joints_they_have() -> None:
    counting = {
        f"{path}:{line}"
        for path, tree in modules()
        if path not in OTHER_SEVENS
        for line in lines_that_count_joints(tree)
    }
    assert counting == set(), "use robot.num_joints, or name the reason in OTHER_SEVENS"


def test_every_exception_is_still_one() -> None:
    found = {path for path, tree in modules() if lines_that_count_joints(tree)}
    assert OTHER_SEVENS.keys() - found == set()


def test_no_module_spells_the_names_of_one_robots_model() -> None:
    names = [f"{robot}_{part}" for robot in ROBOTS for part in ("link", "joint", "flange")]
    spelt = {
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(name in node.value for name in names)
    }
    assert spelt == set(), "use robot.link_names, .joint_names or .flange_name"


def test_only_the_catalogue_imports_the_definition_of_a_robot() -> None:
    definitions = {f"robots.franka.{name}" for name in ROBOTS}
    everywhere = [
        file for package in (*PACKAGES, "tests") for file in (ROOT / package).rglob("*.py")
    ]
    importers = {
        str(file.relative_to(ROOT))
        for file in everywhere
        if "robots.franka" in (text := file.read_text())
        if definitions & set(imported(ast.parse(text)))
    }
    assert importers - {OWN_ROBOT} == {"robots/franka/catalog.py"}
