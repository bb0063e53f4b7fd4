"""Files of deviations: what is read, what is written into a model, and what is refused."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robots.config import validate
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.make import find_task
from sim.scene.deviations import (
    Deviations,
    ObjectDeviation,
    apply_deviations,
    deviations_of,
    read_deviations,
)
from sim.scene.dynamics import ArmDynamics, DynamicsValue

FR3 = find_robot("fr3")
TEXT = """
arm:
  - {what: friction, value: 0.6}
  - {what: viscous, joints: [1, 2], value: 1.5}
  - {what: payload, value: 0.8}
  - {what: delay, value: 0.04}
objects:
  - {what: mass, names: [cube], factor: 8.0}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "deviations.yaml"
    path.write_text(text)
    return path


def test_a_file_names_the_values_of_arm_and_objects(tmp_path: Path) -> None:
    deviations = read_deviations(written(tmp_path, TEXT))
    assert [item.name for item in deviations.arm] == [
        "friction of all joints",
        "viscous of joints 1, 2",
        "payload",
        "delay",
    ]
    assert deviations.payload == 0.8
    assert deviations.delay == 0.04
    assert deviations.objects == (ObjectDeviation(what="mass", names=("cube",), factor=8.0),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- payload", "expected the keys `arm` and `objects`"),
        ("arm: [", r"not YAML \(line 1, column 7: "),
        ("arms: []", r"unknown key '.*\.yaml: arms', did you mean 'arm'"),
        ("arm: [{what: weight, value: 1.0}]", "weight"),
        ("arm: [{what: stiffness, value: 0.8}]", "stiffness of all joints is the controller's"),
        ("arm: [{what: friction, value: -0.1}]", r"friction of all joints is -0\.1 Nm, expected"),
        (
            "arm: [{what: payload, value: 9.0}]",
            r"payload is 9\.0 kg, expected a number from 0 to 5",
        ),
        ("arm: [{what: delay, value: 2.0}]", r"delay is 2\.0 s, expected a number from 0 to 0\.5"),
        ("arm: [{what: delay, joints: [1], value: 0.1}]", r"delay has the joints \[1\]"),
        (
            "arm: [{what: payload, value: 0.1}, {what: payload, value: 0.2}]",
            "payload given more than once",
        ),
        ("objects: [{what: mass, names: [], factor: 2.0}]", "names"),
        ("objects: [{what: mass, names: [cube], factor: 0.0}]", "factor"),
    ],
)
def test_what_a_twin_cannot_have_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        read_deviations(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"none\.yaml: No such file"):
        read_deviations(tmp_path / "none.yaml")


def applied(values: dict[str, Any]) -> tuple[Any, Any]:
    """The model of `pick_cube` before and after."""
    task = find_task("pick_cube")
    before = task.scene().compile()
    after = task.scene().compile()
    apply_deviations(validate(Deviations, values, ""), after, FR3)
    return before, after


def test_values_are_those_of_the_named_joints_and_factors_those_of_the_named_objects() -> None:
    before, after = applied(
        {
            "arm": [
                {"what": "friction", "value": 0.6},
                {"what": "viscous", "joints": [2], "value": 1.5},
                {"what": "armature", "joints": [1], "value": 0.3},
            ],
            "objects": [
                {"what": "mass", "names": ["cube"], "factor": 8.0},
                {"what": "friction", "names": ["cube"], "factor": 0.5},
            ],
        }
    )
    dofs = [after.joint(name).dofadr[0] for name in FR3.joint_names]
    assert after.dof_frictionloss[dofs].tolist() == [0.6] * 7
    assert after.dof_damping[dofs].tolist() == [0.1, 1.5, *[0.1] * 5]
    assert after.dof_armature[dofs].tolist() == [0.3, *[0.1] * 6]
    assert after.body("cube").mass[0] == pytest.approx(8.0 * before.body("cube").mass[0])
    assert after.geom("cube").friction[0] == pytest.approx(0.5 * before.geom("cube").friction[0])


def test_the_damping_of_a_drawer_is_that_of_its_joint() -> None:
    task = find_task("open_drawer")
    model = task.scene().compile()
    nominal = float(model.joint("drawer").damping[0])
    item = ObjectDeviation(what="damping", names=("drawer",), factor=3.0)
    apply_deviations(Deviations(objects=(item,)), model, FR3)
    assert model.joint("drawer").damping[0] == pytest.approx(3.0 * nominal)


def test_an_object_or_a_joint_that_the_scene_lacks_is_named() -> None:
    with pytest.raises(
        HandoffError, match="mass of ball: the scene of this task has no such body; it has"
    ):
        applied({"objects": [{"what": "mass", "names": ["ball"], "factor": 2.0}]})
    with pytest.raises(HandoffError, match="numbers of joints from 1 to 7"):
        applied({"arm": [{"what": "friction", "joints": [8], "value": 0.1}]})


def test_tuned_values_become_those_of_a_twin_without_their_intervals() -> None:
    tuned = ArmDynamics(
        values=(
            DynamicsValue(what="payload", value=0.5, low=0.4, high=0.7),
            DynamicsValue(what="delay", value=0.01),
        )
    )
    deviations = deviations_of(tuned)
    assert deviations.arm == (
        DynamicsValue(what="payload", value=0.5),
        DynamicsValue(what="delay", value=0.01),
    )
    with pytest.raises(HandoffError, match="controller's"):
        deviations_of(ArmDynamics(values=(DynamicsValue(what="damping", value=1.1),)))
    with pytest.raises(HandoffError, match="compensated payload"):
        deviations_of(ArmDynamics(payload_compensated=True))
