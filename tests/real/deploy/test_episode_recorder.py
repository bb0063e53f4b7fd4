import numpy as np
import pytest

from real.deploy.episode_recorder import LoopRecord, append_episode, deploy_schema, tracking_figures
from real.franka.state_recorder import robot_fields
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.spec import FieldSpec
from tests.real.fakes import contract

FR3 = find_robot("fr3")

OFFSET = np.array([0.0, 0.002])
EXTRA = {"block_pose": FieldSpec(shape=(3,), unit="m", frame="board")}


def episode():
    record = LoopRecord(begin=100.0, end=100.2, stopped=True)
    policy = {
        "keypoints": (9, 2),
        "agent": (2,),
        "block_pose": (3,),
        "action": (2,),
        "action_proposed": (2,),
    }
    record.policy = {
        name: [np.full(shape, float(i)) for i in range(2)] for name, shape in policy.items()
    }
    for i in range(50):
        position = np.array([0.001 * i, 0.0])
        row = {
            "position": position,
            "velocity": np.zeros(2),
            "asked": position,
            "measured": position + OFFSET,
        }
        for name, value in row.items():
            record.reference.setdefault(name, []).append(value)
    robot: dict[str, np.ndarray] = {
        name: np.zeros((200, *shape)) for name, shape in robot_fields(FR3.num_joints).items()
    }
    robot["time"] = 100.0 + 0.001 * np.arange(1, 201)
    robot["base_T_ee"][:, 0, 3] = 0.0003 * np.arange(200)
    robot["success_rate"][:] = 1.0
    return record, robot


def test_three_streams_are_stored_and_read_back(tmp_path):
    record, robot = episode()
    store = EpisodeStore.create(
        tmp_path / "store.zarr", deploy_schema(contract(), EXTRA, 250.0, FR3)
    )
    index = append_episode(store, record, robot, {"seed": 100000})
    policy, reference, arm = (
        store.read(index, stream) for stream in ("policy", "reference", "robot")
    )
    assert policy["action"].shape == (2, 2)
    assert reference["position"].shape == (50, 2)
    assert arm["base_T_ee"].shape == (200, 4, 4)
    np.testing.assert_allclose(arm["time"][[0, -1]], [0.001, 0.2], atol=1e-9)
    assert store.metadata(index) == {"seed": 100000, "stopped": True}


def test_schema_states_rates_units_and_frames():
    schema = deploy_schema(contract(), EXTRA, 250.0, FR3)
    assert {name: stream.rate_hz for name, stream in schema.streams.items()} == {
        "policy": 10.0,
        "reference": 250.0,
        "robot": 1000.0,
    }
    assert schema.streams["policy"].fields["action"].frame == "board"
    assert schema.streams["robot"].fields["tau_J_d"].unit == "Nm"
    assert schema.streams["robot"].fields["base_T_ee"].frame == "base"


def test_who_watches_leaves_what_they_did_at_every_step():
    fields = deploy_schema(contract(), EXTRA, 250.0, FR3, supervised=True).streams["policy"].fields
    added = (
        fields.keys() - deploy_schema(contract(), EXTRA, 250.0, FR3).streams["policy"].fields.keys()
    )
    assert added == {"intervention", "segment", "reason", "step_time"}


def test_field_that_the_schema_does_not_have_is_refused(tmp_path):
    record, robot = episode()
    store = EpisodeStore.create(tmp_path / "store.zarr", deploy_schema(contract(), {}, 250.0, FR3))
    with pytest.raises(HandoffError, match="block_pose"):
        append_episode(store, record, robot, {})


def test_a_row_that_an_interrupt_left_without_some_fields_is_left_out(tmp_path):
    record, robot = episode()
    record.policy["keypoints"].append(np.zeros((9, 2)))
    record.reference["position"].append(np.zeros(2))
    store = EpisodeStore.create(
        tmp_path / "store.zarr", deploy_schema(contract(), EXTRA, 250.0, FR3)
    )
    append_episode(store, record, robot, tracking_figures(record, robot))
    assert len(store.read(0, "policy", ["keypoints"])["keypoints"]) == 2
    assert len(store.read(0, "reference", ["position"])["position"]) == 50


def test_an_episode_of_one_robot_state_has_figures():
    record, robot = episode()
    figures = tracking_figures(record, {name: rows[:1] for name, rows in robot.items()})
    assert figures["peak_speed_m_s"] == 0.0


def test_tracking_figures_are_those_of_the_arrays():
    figures = tracking_figures(*episode())
    assert figures["tracking_rms_m"] == pytest.approx(0.002)
    assert figures["tracking_max_m"] == pytest.approx(0.002)
    assert figures["governor_max_m"] == 0.0
    assert figures["peak_speed_m_s"] == pytest.approx(0.3)
    assert figures["min_success_rate"] == 1.0
