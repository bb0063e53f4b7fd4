"""Objects that trackers observe: at the twin, and what a session refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from websockets.sync.server import serve

from flows.deployment.config import DeployTaskConfig, DeployTaskSession
from flows.deployment.session import check_policy, session_of
from flows.deployment.session_tables.tracked_objects import tracker_overrides
from flows.deployment.task_table import TaskTable
from flows.deployment.twin import TwinSetup, run_start
from real.arm import ArmState
from real.deploy.field_trackers import FieldTrackers, field_trackers
from real.deploy.onnx_policy import OnnxPolicy
from real.deploy.tracked_field import FieldTrackerConfig, TrackedFieldConfig
from real.driver.driver import Driver
from real.motion.action_space import grasp_pose
from robots.episodes.corrections import open_corrections
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import no_progress
from robots.wire.policy import pack
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.flows.deployment.test_task_table import contract_for, towards
from tests.real.onnx_models import save_linear_policy
from tests.sim.twin.loopback import address


def pose_of(state: ArmState) -> np.ndarray:
    """(6,) pose of the FR3's gripper [m, rad]."""
    return grasp_pose(state.base_T_ee, find_robot("fr3").gripper.flange_R_grasp)


FIELDS = ("grasp_pose", "target_offset", "goal")
SEED = 100_000


class Tracked(TaskTable):
    """The table of a task whose objects are observed over the network, as at a real arm."""

    trackers: FieldTrackers

    def observe(self, state: Any) -> Any:
        """See `TaskTable`."""
        observed = {**super().observe(state)}
        del observed["goal"]
        return {**observed, **self.trackers.observe(pose_of(state))}


class AtTwin(NamedTuple):
    """A twin whose objects a tracker observes."""

    twin: Twin
    driver: Driver
    store: EpisodeStore
    uri: str
    """Address of the tracker."""


@contextmanager
def tracked_twin(
    table: TaskTable,
    config: TwinConfig,
    folder: Path,
    told: dict[str, Any],
    moves: Callable[[], bool],
) -> Iterator[AtTwin]:
    """A twin at the start `SEED`, and a tracker that sends `told` a hundred times a second, with the
    next number of a picture where `moves`."""

    def send(connection: Any) -> None:
        while True:
            told["frame"] += moves()
            connection.send(pack(dict(told)))
            time.sleep(0.01)

    with (
        start_twin(config, table.make_world) as twin,
        Driver() as driver,
        serve(send, "127.0.0.1", 0, compression=None) as server,
        open_corrections(folder / "store.zarr", table.schema(twin)) as store,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        twin.reset(SEED)
        yield AtTwin(twin, driver, store, f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        server.shutdown()


@pytest.mark.parametrize("stands_after", [None, 4])
def test_a_policy_of_a_tracked_goal_at_the_twin(tmp_path: Path, stands_after: int | None) -> None:
    """It reaches what the tracker says; one that stands still ends the episode."""
    stated = contract_for("reach", FIELDS)
    save_linear_policy(tmp_path / "policy.onnx", stated, towards(stated, "goal"))
    twin_config = TwinConfig(host=address(161 if stands_after is None else 162))
    config = DeployTaskConfig(twin=twin_config, videos=0)
    table = Tracked(config, stated)
    told: dict[str, Any] = {"frame": 0, "goal": [0.4, 0.0, 0.3]}
    observations: list[int] = []

    def moves() -> bool:
        return stands_after is None or len(observations) < stands_after

    with tracked_twin(table, twin_config, tmp_path, told, moves) as at:
        told["goal"] = at.twin.call("object_observations")["goal"].tolist()
        tracker = FieldTrackerConfig(
            uri=at.uri,
            fields={"goal": TrackedFieldConfig(max_age=10.0 if stands_after is None else 0.3)},
        )
        with field_trackers({"goal": tracker}, {}, stated) as trackers:
            table.trackers = trackers
            observe = table.observe

            def counted(state: Any) -> Any:
                observations.append(0)
                if stands_after is not None and len(observations) >= stands_after:
                    time.sleep(0.1)
                return observe(state)

            table.observe = counted  # type: ignore[method-assign]
            setup = TwinSetup(
                config, OnnxPolicy(tmp_path / "policy.onnx"), table, at.twin, at.store, at.driver
            )
            result = run_start(setup, SEED, no_progress)
    about = EpisodeStore.open(tmp_path / "store.zarr", "r").metadata(0)
    if stands_after is None:
        assert result.success
        assert about["fault"] is None
    else:
        assert "newest goal is" in about["fault"]
        assert "it repeats an old picture" in about["fault"]


def test_what_is_relative_to_the_gripper_follows_from_a_tracker(tmp_path: Path) -> None:
    """At the twin, where the simulator measures the same on its own: a tracker sends the cube, the
    goal is a constant, and the policy observes neither, only where they are for the gripper."""
    related = ("cube_offset", "cube_turn", "goal_offset")
    stated = contract_for("pick_cube", ("grasp_pose", "target_offset", *related))
    # It goes to where the cube seems to be.
    weights = towards(stated, "cube_offset")
    first = list(stated.observation).index("grasp_pose")
    assert first == 0
    weights[:6] = 0.0
    save_linear_policy(tmp_path / "policy.onnx", stated, weights)
    twin_config = TwinConfig(host=address(163))
    config = DeployTaskConfig(twin=twin_config, videos=0)
    table = TaskTable(config, stated)
    differences: list[float] = []
    told: dict[str, Any] = {"frame": 0}

    with tracked_twin(table, twin_config, tmp_path, told, lambda: True) as at:
        objects = at.twin.call("object_observations")
        told |= {name: objects[name].tolist() for name in ("cube_position", "cube_quaternion")}
        tracker = FieldTrackerConfig(
            uri=at.uri,
            fields={
                name: TrackedFieldConfig(max_age=10.0)
                for name in ("cube_position", "cube_quaternion")
            },
        )
        goal = tuple(float(value) for value in objects["goal"])
        with field_trackers({"cube": tracker}, {"goal": goal}, stated) as trackers:
            simulated = table.observe

            def observe(state: Any) -> Any:
                found, known = trackers.observe(pose_of(state)), simulated(state)
                # Until the gripper comes to the cube, which stands still.
                if len(differences) < 15:
                    differences.append(
                        max(float(np.abs(found[name] - known[name]).max()) for name in related)
                    )
                return {**known, **found}

            table.observe = observe  # type: ignore[method-assign]
            setup = TwinSetup(
                config, OnnxPolicy(tmp_path / "policy.onnx"), table, at.twin, at.store, at.driver
            )
            run_start(setup, SEED, no_progress)
    offsets = EpisodeStore.open(tmp_path / "store.zarr", "r").read(0, "policy")["cube_offset"]
    assert len(differences) == 15
    assert max(differences) < 2e-3
    assert np.linalg.norm(offsets[:, :2], axis=1).min() < 0.02


def tracker(**fields: TrackedFieldConfig) -> dict[str, FieldTrackerConfig]:
    return {"one": FieldTrackerConfig(uri="ws://10.0.0.5:9000", fields=fields)}


def test_an_arm_needs_a_tracker_of_every_field_that_it_does_not_measure() -> None:
    stated = contract_for("pick_cube", ("grasp_pose", "width", "cube_position", "goal"))
    at_arm = DeployTaskSession(host="172.16.0.2")
    with pytest.raises(
        HandoffError, match=r"observes cube_position, goal, which the arm does not measure"
    ):
        check_policy(at_arm, stated)
    given = replace(at_arm, trackers=tracker(cube_position=TrackedFieldConfig()))
    with pytest.raises(HandoffError, match=r"observes goal, .*constants\.goal=\[\.\.\]"):
        check_policy(given, stated)
    check_policy(replace(given, constants={"goal": (0.5, 0.0, 0.3)}), stated)
    check_policy(DeployTaskSession(), stated)
    slow = replace(
        at_arm,
        trackers=tracker(cube_position=TrackedFieldConfig(max_age=0.5)),
        constants={"goal": (0.5, 0.0, 0.3)},
    )
    with pytest.raises(HandoffError, match=r"max_age of cube_position is 0\.5 s, at most 0\.25"):
        check_policy(slow, stated)


def test_what_a_relative_field_needs_is_asked_for() -> None:
    stated = contract_for("pick_cube", ("grasp_pose", "width", "cube_offset", "goal_offset"))
    at_arm = DeployTaskSession(host="172.16.0.2")
    with pytest.raises(
        HandoffError,
        match=r"observes cube_offset, goal_offset, .*trackers of cube_position, goal, such as "
        r"--tracker cube_position=ws://host:port",
    ):
        check_policy(at_arm, stated)
    given = replace(at_arm, trackers=tracker(cube_position=TrackedFieldConfig()))
    with pytest.raises(HandoffError, match=r"observes goal_offset, .*constants\.goal=\[\.\.\]"):
        check_policy(given, stated)
    check_policy(replace(given, constants={"goal": (0.5, 0.0, 0.3)}), stated)
    with pytest.raises(HandoffError, match=r"no field 'cube_positoin' .*cube_position"):
        check_policy(replace(given, trackers=tracker(cube_positoin=TrackedFieldConfig())), stated)


def test_trackers_of_the_command_line() -> None:
    assert tracker_overrides(["ws://10.0.0.5:1"], "push_t") == ["tracker.uri='ws://10.0.0.5:1'"]
    given = ["cube_position,cube_quaternion=ws://10.0.0.5:1", "opening=ws://10.0.0.6:2"]
    session = session_of("pick_cube", tracker_overrides(given, "pick_cube"))
    assert isinstance(session, DeployTaskSession)
    found = {name: (one.uri, [*one.fields]) for name, one in session.trackers.items()}
    assert found == {
        "cube_position": ("ws://10.0.0.5:1", ["cube_position", "cube_quaternion"]),
        "opening": ("ws://10.0.0.6:2", ["opening"]),
    }
    with pytest.raises(HandoffError, match="push-T has one tracker, of the T"):
        tracker_overrides(["pose=ws://10.0.0.5:1"], "push_t")
    for wrong in (["ws://10.0.0.5:1"], ["goal=ws://a:1", "goal=ws://b:1"]):
        with pytest.raises(HandoffError, match="expected the observed fields that it sends"):
            tracker_overrides(wrong, "pick_cube")


def test_a_constant_has_the_size_of_its_field() -> None:
    stated = contract_for("reach", FIELDS)
    with pytest.raises(HandoffError, match=r"constants\.goal: 2 values, the field has 3 entries"):
        check_policy(DeployTaskSession(constants={"goal": (0.1, 0.2)}), stated)
    assert np.isfinite(
        DeployTaskSession(constants={"goal": (0.1, 0.2, 0.3)}).constants["goal"]
    ).all()
