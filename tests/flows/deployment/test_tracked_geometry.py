"""Fields that follow from the geometry of a task: computed from tracked poses as the simulator has
them, along episodes of the scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import pytest

from flows.deployment.config import DeployTaskSession
from flows.deployment.session import check_policy
from real.deploy.field_trackers import FieldTrackers
from real.deploy.object_tracker import RemoteTracker
from real.deploy.tracked_field import FieldTrackerConfig, TrackedFieldConfig
from robots.contract import Contract
from robots.control.relations import GRASP_POSE
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import FieldSpec, Place, Relation
from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.flows.deployment.test_task_table import contract_for

SEEDS = range(40, 46)


class Case(NamedTuple):
    """A policy that observes nothing of the objects but what follows from their poses."""

    computed: tuple[str, ...]
    tracked: tuple[str, ...]
    """What a tracker sends."""
    fixture: str
    """What stands still: a constant."""


CASES = {
    "open_drawer": Case(("slot_offset", "opening"), ("handle_position",), "cabinet_pose"),
    "peg_insert": Case(
        ("tip_offset", "turn", "lean"), ("peg_position", "peg_quaternion"), "socket_pose"
    ),
}


class Measured:
    """A tracker whose newest values are those of a row of the simulator's observation."""

    def __init__(self) -> None:
        self.row: Observation = {}

    def read(self, name: str) -> np.ndarray:
        return self.row[name].astype(np.float64)


def stated(task: str) -> Contract:
    """The contract of a policy, as it comes out of its ONNX file."""
    contract = contract_for(task, (GRASP_POSE, *CASES[task].computed))
    return Contract.from_json(contract.to_json())


def largest_errors(task: str, contract: Contract) -> tuple[dict[str, float], np.ndarray]:
    """Largest difference of every computed field from the simulator's own over the episodes of the
    expert from SEEDS, and which of them succeed."""
    case, n = CASES[task], len(SEEDS)
    engine = MujocoEngine(find_task(task), n)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    observation = env.reset(list(SEEDS))
    measured = [Measured() for _ in SEEDS]
    trackers = [
        FieldTrackers(
            dict.fromkeys(case.tracked, cast(RemoteTracker, one)),
            contract,
            {case.fixture: observation[case.fixture][row]},
        )
        for row, one in enumerate(measured)
    ]
    errors = dict.fromkeys(case.computed, 0.0)
    solved = np.zeros(n, dtype=bool)
    for _ in range(engine.task.max_steps):
        for row, (one, tracker) in enumerate(zip(measured, trackers, strict=True)):
            one.row = {name: value[row] for name, value in observation.items()}
            found = tracker.observe(one.row[GRASP_POSE])
            assert found.keys() >= {*case.computed}
            for name in case.computed:
                apart = np.abs(found[name] - one.row[name]).max()
                errors[name] = max(errors[name], float(apart))
        step = env.step(engine.expert_action())
        observation, solved = step.observation, solved | step.info["success"]
    return errors, solved


def moved(relation: Relation, by: Sequence[float]) -> Relation:
    """The relation with another geometry: the point of its target is moved [m]."""
    target = relation.target
    assert isinstance(target, Place)
    x, y, z = np.add(target.point, by).tolist()
    return replace(relation, target=replace(target, point=(x, y, z)))


@pytest.mark.parametrize("task", CASES)
def test_the_fields_are_those_of_the_simulator_along_an_experts_episodes(task: str) -> None:
    """The fixture is a constant, and clamps give way by less than a tenth of a millimetre."""
    errors, solved = largest_errors(task, stated(task))
    assert solved.all()
    assert max(errors.values()) < 2e-4, errors


@pytest.mark.parametrize(
    ("task", "name"),
    [("open_drawer", "slot_offset"), ("open_drawer", "opening"), ("peg_insert", "tip_offset")],
)
def test_another_geometry_makes_another_field(task: str, name: str) -> None:
    """Three millimetres more along x: the part of a drawer, of a peg that is made otherwise."""
    contract = stated(task)
    spec = contract.observation[name]
    wrong = replace(spec, relations=tuple(moved(one, (0.003, 0, 0)) for one in spec.relations))
    observation = {**contract.observation, name: wrong}
    errors, _ = largest_errors(task, replace(contract, observation=observation))
    assert errors.pop(name) == pytest.approx(0.003, abs=2e-4)
    assert max(errors.values()) < 2e-4


def test_the_other_body_makes_another_turn_and_another_lean() -> None:
    """The rotation and the lean of another body are other numbers."""
    contract = stated("peg_insert")
    peg, socket = Place(quaternion="peg_quaternion"), Place(fixture="socket_pose")
    wrong = {
        "turn": Relation(kind="square_turn", origin=socket, target=peg),
        "lean": Relation(kind="lean", target=socket),
    }
    observation = {
        name: replace(spec, relations=(wrong[name],)) if name in wrong else spec
        for name, spec in contract.observation.items()
    }
    errors, _ = largest_errors("peg_insert", replace(contract, observation=observation))
    assert errors["turn"] > 0.1
    assert errors["lean"] > 0.01
    assert errors["tip_offset"] < 2e-4


@pytest.mark.parametrize("task", CASES)
def test_an_arm_asks_for_the_poses_and_is_content_with_them(task: str) -> None:
    case = CASES[task]
    contract = contract_for(task, (GRASP_POSE, *case.computed))
    at_arm = DeployTaskSession(host="172.16.0.2")
    with pytest.raises(HandoffError, match="which the arm does not measure") as refused:
        check_policy(at_arm, contract)
    wanted = str(refused.value).partition("Add trackers of ")[2].partition(", such as")[0]
    assert {*wanted.split(", ")} == {*case.tracked, case.fixture}
    fields = dict.fromkeys(case.tracked, TrackedFieldConfig())
    trackers = {"one": FieldTrackerConfig(uri="ws://10.0.0.5:9000", fields=fields)}
    constants = {case.fixture: (0.5, 0.0, 0.1)}
    check_policy(replace(at_arm, trackers=trackers, constants=constants), contract)
    # A contract from before geometry was stated has no relations: its fields must be sent.
    before = {
        name: FieldSpec(shape=spec.shape, unit=spec.unit)
        for name, spec in contract.observation.items()
    }
    older = replace(contract, observation=before)
    with pytest.raises(HandoffError, match=f"observes {', '.join(case.computed)}, which"):
        check_policy(at_arm, older)
