from pathlib import Path

import numpy as np
import pytest

from real.deploy.episode_recorder import (
    LoopRecord,
    RecordWriter,
    add_row,
    deploy_schema,
    num_rows,
    tracking_figures,
    whole_rows,
)
from real.franka.state_recorder import StateRecorder, robot_fields
from real.motion.stream import StreamConfig
from robots.episodes.running_episode import RunningEpisode
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


class Arrived(StateRecorder):
    """States that have arrived: at first none, all of them by `arrive`."""

    def __init__(self, states: dict[str, np.ndarray]) -> None:
        super().__init__(1.0, FR3.num_joints)
        self._states = states

    def arrive(self, number: int) -> None:
        for name, rows in self._states.items():
            self._arrays[name][:number] = rows[:number]
        self._head[0] = number


def created(path: Path, extra=EXTRA) -> EpisodeStore:
    return EpisodeStore.create(path, deploy_schema(contract(), extra, StreamConfig(), FR3))


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "record.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_episode_written_bit_by_bit_is_the_one_that_is_stored_at_once(tmp_path):
    record, states = episode()
    # States from before the episode, and values that differ.
    states["time"] -= 0.02
    states["q"] = np.random.default_rng(0).normal(size=states["q"].shape)
    recorder = Arrived(states)
    whole, parts = created(tmp_path / "whole.zarr"), created(tmp_path / "parts.zarr")
    inside = {name: rows[20:] for name, rows in states.items()}
    streams = {
        "policy": whole_rows(record.policy),
        "reference": whole_rows(record.reference),
        "robot": {**inside, "time": np.round(inside["time"] - record.begin, 3)},
    }
    whole.append(streams, {"seed": 100000, "stopped": True})
    running, end = LoopRecord(begin=record.begin, stopped=True), record.end
    writer = RecordWriter(running, RunningEpisode(parts))
    for tick in range(50):
        if tick % 25 == 0:
            add_row(
                running.policy, {name: rows[tick // 25] for name, rows in record.policy.items()}
            )
        add_row(running.reference, {name: rows[tick] for name, rows in record.reference.items()})
        # States arrive late, in bursts.
        running.end = 100.0 + 0.004 * (tick + 1)
        recorder.arrive(max(0, 4 * (tick - tick % 7)))
        writer.write(recorder)
    running.end = end
    recorder.arrive(200)
    assert writer.commit(recorder, {"seed": 100000}) == 0
    assert parts.metadata(0) == whole.metadata(0)
    assert parts.read(0, "robot")["base_T_ee"].shape == (180, 4, 4)
    assert files(parts.path / "segments" / "000000") == files(whole.path / "segments" / "000000")


def test_schema_states_rates_units_and_frames():
    schema = deploy_schema(contract(), EXTRA, StreamConfig(), FR3)
    assert {name: stream.rate_hz for name, stream in schema.streams.items()} == {
        "policy": 10.0,
        "reference": 250.0,
        "robot": 1000.0,
    }
    assert schema.streams["policy"].fields["action"].frame == "board"
    assert schema.streams["robot"].fields["tau_J_d"].unit == "Nm"
    assert schema.streams["robot"].fields["base_T_ee"].frame == "base"


def test_who_watches_leaves_what_they_did_at_every_step():
    fields = (
        deploy_schema(contract(), EXTRA, StreamConfig(), FR3, supervised=True)
        .streams["policy"]
        .fields
    )
    added = (
        fields.keys()
        - deploy_schema(contract(), EXTRA, StreamConfig(), FR3).streams["policy"].fields.keys()
    )
    assert added == {"intervention", "segment", "reason", "step_time"}


def test_field_that_the_schema_does_not_have_is_refused(tmp_path):
    record, robot = episode()
    recorder = Arrived(robot)
    writer = RecordWriter(record, RunningEpisode(created(tmp_path / "store.zarr", {})))
    with pytest.raises(HandoffError, match="block_pose"):
        writer.write(recorder)


def test_a_row_that_an_interrupt_left_without_some_fields_is_left_out(tmp_path):
    record, robot = episode()
    record.policy["keypoints"].append(np.zeros((9, 2)))
    record.reference["position"].append(np.zeros(2))
    recorder, store = Arrived(robot), created(tmp_path / "store.zarr")
    recorder.arrive(200)
    RecordWriter(record, RunningEpisode(store)).commit(
        recorder, tracking_figures(record, robot, 0.004)
    )
    assert len(store.read(0, "policy", ["keypoints"])["keypoints"]) == 2
    assert len(store.read(0, "reference", ["position"])["position"]) == 50


def test_a_first_row_without_some_fields_is_no_row():
    class Interrupts:
        def __array__(self, *arguments, **options):
            raise KeyboardInterrupt

    rows = {}
    with pytest.raises(KeyboardInterrupt):
        add_row(rows, {"position": np.zeros(2), "velocity": Interrupts()})
    assert num_rows(rows) == 0


def test_without_a_state_since_the_beginning_the_newest_before_is_stored(tmp_path):
    record, robot = episode()
    robot["time"] -= 0.5
    recorder, store = Arrived(robot), created(tmp_path / "store.zarr")
    recorder.arrive(200)
    RecordWriter(record, RunningEpisode(store)).commit(recorder, {})
    np.testing.assert_allclose(store.read(0, "robot", ["time"])["time"], [-0.3])


def test_an_episode_of_one_robot_state_has_figures():
    record, robot = episode()
    figures = tracking_figures(record, {name: rows[:1] for name, rows in robot.items()}, 0.004)
    assert figures["peak_speed_m_s"] == 0.0


def test_tracking_figures_are_those_of_the_arrays():
    figures = tracking_figures(*episode(), period=0.004)
    assert figures["tracking_rms_m"] == pytest.approx(0.002)
    assert figures["tracking_max_m"] == pytest.approx(0.002)
    assert figures["governor_max_m"] == 0.0
    assert figures["peak_speed_m_s"] == pytest.approx(0.3)
    assert figures["min_success_rate"] == 1.0


def test_the_jerk_is_the_third_difference_of_the_streamed_position():
    record, robot = episode()
    time = 0.004 * np.arange(50)
    record.reference["position"] = list(np.stack([5.0 * time**3, 0.0 * time], axis=1))
    figures = tracking_figures(record, robot, 0.004)
    assert figures["jerk_rms_m_s3"] == pytest.approx(30.0, rel=1e-3)


def test_a_row_keeps_a_read_only_picture_and_copies_any_other():
    shown, own = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)
    shown.flags.writeable = False
    rows = {}
    add_row(rows, {"shown": shown, "own": own})
    own[:] = 1
    assert rows["shown"][0] is shown
    assert not rows["own"][0].any()
    assert np.shares_memory(whole_rows(rows, 0, 1)["shown"], shown)
