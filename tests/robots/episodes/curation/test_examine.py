import copy
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from robots.config import validate
from robots.episodes.curation.examination import (
    ExamineConfig,
    Finding,
    StoreExamination,
    count_findings,
    faulty_episodes,
    worst,
)
from robots.episodes.curation.examine import CHECKS, examine
from robots.episodes.metadata.capture_times import capture_time_field
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.language.text import encode, text_field
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import (
    RATE_HZ,
    MemoryStore,
    Recording,
    memory_store,
    record,
    schema,
)

CLEAN = record(seed=0)


@pytest.fixture
def recording() -> Recording:
    return copy.deepcopy(CLEAN)


def examined(recording: Recording, **limits) -> StoreExamination:
    return examine(recording.in_memory(), ExamineConfig(**limits), no_progress)


def found(recording: Recording, check: str, **limits) -> Finding:
    """The only finding of a check."""
    findings = [one for one in examined(recording, **limits).findings if one.check == check]
    assert len(findings) == 1, findings
    return findings[0]


def test_an_examination_states_sizes_ranges_and_lags(recording):
    examination = examined(recording)
    lengths = [len(arrays["reward"]) for arrays in recording.episodes]
    assert examination.lengths == tuple(lengths)
    assert (examination.episodes, examination.steps) == (12, sum(lengths))
    assert (examination.name, examination.stream, examination.rate_hz) == ("lift", "policy", 20.0)
    ranges = {entry.entry: entry for entry in examination.ranges}
    joint2 = np.concatenate([arrays["joints"][:, 1] for arrays in recording.episodes])
    assert ranges["joints.joint2"].low == pytest.approx(joint2.min())
    assert ranges["joints.joint2"].high == pytest.approx(joint2.max())
    assert ranges["joints.joint2"].unit == "rad"
    assert {lag.steps for lag in examination.lags if lag.observation == "joints"} == {1}


def test_a_store_on_the_disk_is_examined_as_one_in_memory(recording, tmp_path):
    recording.episodes[4]["joints"][50:90] = recording.episodes[4]["joints"][50]
    calls = []
    stored = examine(
        recording.write(tmp_path / "store.zarr"),
        ExamineConfig(),
        lambda done, total, note="": calls.append((done, total)),
    )
    assert stored == examined(recording)
    assert calls == [(number, 12) for number in range(1, 13)]


def test_the_worst_severity_and_the_counts_decide_a_gate(recording):
    clean = examined(recording)
    assert (worst(clean), count_findings(clean)) == (None, {"error": 0, "warning": 0})
    warning = Finding(check="lag", severity="warning", episodes=(1,), fields=(), sentence="Late.")
    error = Finding(check="units", severity="error", episodes=(2, 5), fields=(), sentence="Far.")
    other = Finding(check="jumps", severity="error", episodes=(5,), fields=(), sentence="Jump.")
    assert worst(replace(clean, findings=(warning,))) == "warning"
    faulty = replace(clean, findings=(warning, error, other))
    assert worst(faulty) == "error"
    assert count_findings(faulty) == {"error": 2, "warning": 1}
    assert faulty_episodes(faulty) == {2: ("units",), 5: ("units", "jumps")}


def test_errors_come_before_warnings(recording):
    recording.metadata[3]["instruction"] = ""
    recording.episodes[1]["gripper"][:] = 0.08
    severities = [finding.severity for finding in examined(recording).findings]
    assert severities == sorted(severities, key=lambda severity: severity != "error")
    assert set(severities) == {"error", "warning"}


def test_a_skipped_check_reports_nothing(recording):
    recording.metadata[3]["instruction"] = ""
    assert found(recording, "labels").episodes == (3,)
    assert examined(recording, skip=("labels",)).findings == ()


def test_every_check_of_the_configuration_exists():
    validate(ExamineConfig, {"skip": list(CHECKS)})
    with pytest.raises(HandoffError, match="skip"):
        validate(ExamineConfig, {"skip": ["lags"]})
    with pytest.raises(HandoffError, match="idle_seconds"):
        validate(ExamineConfig, {"idle_seconds": -1.0})


def test_a_store_without_episodes_is_refused():
    with pytest.raises(HandoffError, match="no episodes to examine"):
        examine(memory_store({"action": FieldSpec(shape=(1,))}, []), ExamineConfig(), no_progress)


def test_an_episode_with_another_lag_than_the_others_is_named(recording):
    arrays = recording.episodes[7]
    for name, values in arrays.items():
        late = name in ("joints", "velocities", "gripper", "tool_rotation", "camera")
        arrays[name] = values[:-3] if late else values[3:]
    findings = [one for one in examined(recording).findings if one.check == "lag"]
    assert [(one.fields, one.episodes) for one in findings] == [
        (("action", "joints"), (7,)),
        (("action", "gripper"), (7,)),
    ]
    assert "action.joint1 to action.joint7 after 4 steps in episode 7" in findings[0].sentence


def test_an_observation_that_precedes_its_action_is_named(recording):
    for arrays in recording.episodes:
        for name, values in arrays.items():
            arrays[name] = values[:-4] if name in ("action", "reward", "timestamp") else values[4:]
    lags = [one for one in examined(recording).findings if one.check == "lag"]
    assert ("action", "joints") in [finding.fields for finding in lags]
    assert all("3 steps before action." in finding.sentence for finding in lags)


def test_joints_that_are_swapped_in_observation_and_action_are_named_by_their_ranges(recording):
    for name in ("joints", "action"):
        values = recording.episodes[2][name]
        values[:, [3, 5]] = values[:, [5, 3]]
    findings = [one for one in examined(recording).findings if one.check == "swapped_entries"]
    assert {(finding.episodes, finding.fields) for finding in findings} == {
        ((2,), ("joints",)),
        ((2,), ("action",)),
    }


def test_nearly_equal_episodes_are_a_warning_and_copies_an_error(recording):
    copied = copy.deepcopy(recording.episodes[3])
    copied["joints"] = copied["joints"] + np.float32(1e-5)
    recording.episodes[9] = copied
    finding = found(recording, "duplicates")
    assert (finding.severity, finding.episodes) == ("warning", (3, 9))
    recording.episodes[5] = recording.episodes[3]
    severities = [
        (one.severity, one.episodes)
        for one in examined(recording).findings
        if one.check == "duplicates"
    ]
    assert severities == [("error", (3, 5)), ("warning", (3, 5, 9))]


def test_a_joint_that_is_dead_in_one_episode_is_named(recording):
    recording.episodes[6]["joints"][:, 4] = 0.25
    finding = found(recording, "dead_entries")
    assert (finding.severity, finding.episodes) == ("error", (6,))
    assert "joints.joint5: no change in episode 6 (0.25 throughout)" in finding.sentence


def test_an_entry_that_is_unused_in_the_whole_set_is_a_warning(recording):
    for arrays in recording.episodes:
        arrays["velocities"][:, 6] = 0.0
    finding = found(recording, "dead_entries")
    assert (finding.severity, finding.episodes) == ("warning", ())


def test_an_action_that_stands_still_while_the_arm_moves_is_named(recording):
    recording.episodes[8]["action"][30:75] = recording.episodes[8]["action"][30]
    assert found(recording, "frozen_action").episodes == (8,)


def test_a_gripper_that_moves_in_no_step_of_an_episode_is_a_warning(recording):
    recording.episodes[5]["gripper"][:] = 0.08
    finding = found(recording, "gripper")
    assert (finding.severity, finding.episodes, finding.fields) == ("warning", (5,), ("gripper",))
    for arrays in recording.episodes:
        arrays["gripper"][:] = 0.08
    assert "Was the gripper connected?" in found(recording, "gripper").sentence


def test_the_action_of_a_gripper_in_millimetres_is_named(recording):
    for arrays in recording.episodes:
        arrays["action"][:, 7] *= 1000.0
    findings = [one for one in examined(recording).findings if one.check == "units"]
    assert any("millimetres" in finding.sentence for finding in findings)


def test_a_spike_of_one_step_is_a_jump(recording):
    recording.episodes[1]["joints"][60, 2] += 0.5
    finding = found(recording, "jumps")
    assert finding.episodes == (1,)
    assert "joints.joint3 jumps by 0.5" in finding.sentence


def test_an_angle_that_leaps_by_a_whole_turn_is_a_warning_and_no_jump(recording):
    for arrays in recording.episodes:
        arrays["joints"][:, 6] = np.mod(arrays["joints"][:, 6] + np.pi - 0.785, 2.0 * np.pi)
        arrays["joints"][:, 6] -= np.pi
    recording.episodes[0]["joints"][80:, 6] += 2.0 * np.pi
    examination = examined(recording, skip=("joint_limits", "lag", "swapped_entries"))
    checks = {finding.check for finding in examination.findings}
    assert "angle_wraps" in checks
    assert "jumps" not in checks


def test_values_far_outside_of_the_usual_ones_are_a_warning(recording):
    recording.episodes[10]["velocities"][40:43, 1] = (20.0, 40.0, 20.0)
    assert "outliers" in {one.check for one in examined(recording).findings}


def test_an_episode_in_which_nothing_moves_is_an_error(recording):
    arrays = recording.episodes[11]
    rng = np.random.default_rng(0)
    for name, noise in (("joints", 5e-4), ("velocities", 5e-3), ("action", 3e-4)):
        rest = np.repeat(arrays[name][:1], len(arrays[name]), axis=0)
        arrays[name] = (rest + rng.normal(0.0, noise, rest.shape)).astype(np.float32)
    arrays["tool_rotation"][:] = arrays["tool_rotation"][0]
    arrays["gripper"][:] = arrays["gripper"][0]
    arrays["velocities"] = np.repeat(arrays["velocities"][:1], len(arrays["joints"]), axis=0)
    finding = next(one for one in examined(recording).findings if one.check == "idle")
    assert (finding.severity, finding.episodes) == ("error", (11,))


def test_times_that_fall_or_have_gaps_are_named(recording):
    recording.episodes[2]["timestamp"][50:] -= 1.0
    recording.episodes[4]["timestamp"][70:] += 0.5
    findings = {
        (one.severity, one.episodes) for one in examined(recording).findings if one.check == "times"
    }
    assert findings == {("error", (2,)), ("warning", (4,))}


def test_times_of_another_rate_are_named(recording):
    for arrays in recording.episodes:
        arrays["timestamp"] *= 2.0
    assert "steps per second, the store says 20" in found(recording, "times").sentence


def test_a_counter_that_skips_is_named():
    fields = {
        "action": FieldSpec(shape=(1,), role="action"),
        "frame_index": FieldSpec(shape=(), dtype="int64", role="other"),
    }
    rng = np.random.default_rng(0)
    episodes = [
        {"action": rng.normal(size=(30, 1)).astype(np.float32), "frame_index": np.arange(30)}
        for _ in range(4)
    ]
    episodes[2]["frame_index"] = np.delete(np.arange(31), 12)
    examination = examine(memory_store(fields, episodes), ExamineConfig(), no_progress)
    finding = next(one for one in examination.findings if one.check == "times")
    assert finding.episodes == (2,)
    assert "first at step 12 of episode 2" in finding.sentence


def captured(recording: Recording, period: float) -> None:
    """Gives the camera a clock: the newest of its pictures at each step, one per `period` [s]."""
    recording.extra["camera_time"] = capture_time_field("camera")
    for arrays in recording.episodes:
        steps = np.arange(len(arrays["reward"])) / RATE_HZ
        arrays["camera_time"] = np.floor(steps / period + 1e-9) * period


@pytest.mark.parametrize("period", [1 / 60, 1 / 30, 1 / 20, 1 / 7])
def test_a_camera_of_any_rate_has_regular_capture_times(recording, period):
    captured(recording, period)
    assert examined(recording).findings == ()


def test_a_lost_camera_is_found_by_its_capture_times_while_the_arm_stands_still(recording):
    captured(recording, 1 / 30)
    times = recording.episodes[3]["camera_time"]
    times[10:40] = times[10]
    times[40:] = np.maximum(times[40:], times[10])
    finding = found(recording, "stuck_camera")
    assert (finding.episodes, finding.fields, finding.severity) == ((3,), ("camera",), "error")
    assert finding.sentence.startswith("camera: a picture is used for up to 1.")
    assert "from step 10" in finding.sentence


def test_capture_times_that_fall_are_an_error(recording):
    captured(recording, 1 / 30)
    recording.episodes[5]["camera_time"][20] -= 0.5
    finding = found(recording, "times")
    assert (finding.episodes, finding.severity) == ((5,), "error")
    assert "capture times of camera fall" in finding.sentence


def test_irregular_capture_times_are_a_warning(recording):
    captured(recording, 1 / 20)
    times = recording.episodes[2]["camera_time"]
    late = np.arange(len(times)) % 8
    times[:] = np.round(times - np.where(late < 4, late, 0) / 20, 6)
    finding = found(recording, "times")
    assert (finding.episodes, finding.severity) == ((2,), "warning")
    assert "irregular" in finding.sentence


def test_a_camera_that_was_opened_twice_is_named(recording):
    recording.extra["wrist_camera"] = schema().streams["policy"].fields["camera"]
    for arrays in recording.episodes:
        arrays["wrist_camera"] = arrays["camera"].copy()
    finding = found(recording, "equal_fields")
    assert finding.fields == ("camera", "wrist_camera")
    assert finding.severity == "error"


def test_a_few_black_pictures_are_a_warning(recording):
    recording.episodes[3]["camera"][[20, 40]] = 0
    finding = found(recording, "blank_pictures")
    assert (finding.severity, finding.episodes) == ("warning", (3,))
    assert finding.sentence.startswith(
        "camera: pictures that are black (mean below 4 of 255), 2 in"
    )


def test_pictures_of_one_colour_and_overexposed_ones_are_named(recording):
    recording.episodes[3]["camera"][:] = 120
    recording.episodes[4]["camera"][:] = 255
    findings = [one for one in examined(recording).findings if one.check == "blank_pictures"]
    assert [finding.episodes for finding in findings] == [(3,), (4,)]
    assert "of one colour" in findings[0].sentence
    assert "overexposed" in findings[1].sentence


def test_rewards_that_never_vary_are_a_warning(recording):
    for arrays in recording.episodes:
        arrays["reward"][:] = 0.0
    assert found(recording, "rewards").fields == ("reward",)


def test_labels_that_are_missing_rare_or_spelt_twice_are_named(recording):
    for metadata in recording.metadata:
        metadata["instruction"] = "lift the cube"
        metadata["success"] = False
    recording.metadata[0]["instruction"] = "Lift the cube."
    del recording.metadata[1]["success"]
    sentences = [one.sentence for one in examined(recording).findings if one.check == "labels"]
    assert len(sentences) == 4
    assert "No success is stated for episode 1" in sentences[0]
    assert "0 of 11 episodes are successful" in sentences[1]
    assert "'lift the cube' has 11 episodes" in sentences[2]
    assert "differ only in capitals" in sentences[3]


def test_an_instruction_that_is_a_field_counts_as_one():
    fields = {
        "action": FieldSpec(shape=(2,), role="action"),
        "instruction": text_field(32),
    }
    rng = np.random.default_rng(0)
    words = ["lift", "lift", "", "lift"]
    episodes = [
        {
            "action": rng.normal(size=(20, 2)).astype(np.float32),
            "instruction": np.repeat(encode([text], 32), 20, axis=0),
        }
        for text in words
    ]
    episodes[1]["instruction"] = np.full((20, 32), 0xFF, np.uint8)
    examination = examine(memory_store(fields, episodes), ExamineConfig(), no_progress)
    assert [one.episodes for one in examination.findings if one.check == "labels"] == [(1, 2)]


def test_the_limits_of_a_robot_from_elsewhere_are_not_imported_from_the_store(recording):
    store = memory_store(
        {"action": FieldSpec(shape=(1,), role="action")},
        [{"action": np.arange(20, dtype=np.float32)[:, None]}],
        robot="os.path.join",
    )
    examination = examine(store, ExamineConfig(), no_progress)
    assert "'os.path.join' are not checked" in examination.notes[0]


def test_a_named_robot_is_checked_where_the_store_names_none(recording):
    recording.episodes[4]["joints"][:, 3] += np.float32(2.5)
    store = cast(MemoryStore, recording.in_memory())
    unnamed = MemoryStore(replace(store.schema, robot=""), store.stored, store.about)
    for config, expected in ((ExamineConfig(), False), (ExamineConfig(robot="panda"), True)):
        findings = examine(cast(EpisodeStore, unnamed), config, no_progress).findings
        assert ("joint_limits" in {finding.check for finding in findings}) == expected


def test_an_object_that_rests_until_it_is_touched_is_no_frozen_observation():
    rng = np.random.default_rng(0)
    fields = {
        "arm": FieldSpec(shape=(3,), role="observation"),
        "object": FieldSpec(shape=(2,), role="observation"),
        "action": FieldSpec(shape=(3,), role="action"),
    }
    episodes = []
    for _ in range(10):
        course = np.cumsum(rng.normal(0.0, 0.05, (60, 3)), axis=0)
        pose = np.repeat(rng.uniform(-0.3, 0.3, (1, 2)), 60, axis=0)
        pose[35:] += course[35:, :2] - course[35, :2]
        episodes.append(
            {
                "arm": course.astype(np.float32),
                "object": pose.astype(np.float32),
                "action": np.vstack([course[1:], course[-1:]]).astype(np.float32),
            }
        )
    examination = examine(memory_store(fields, episodes), ExamineConfig(), no_progress)
    assert examination.findings == ()


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_very_short_episodes_are_examined(recording, steps):
    for arrays in recording.episodes:
        for name, values in arrays.items():
            arrays[name] = values[:steps]
    assert found(recording, "lengths").episodes == tuple(range(12))


def test_a_single_episode_is_examined(recording):
    single = Recording(recording.episodes[:1], recording.metadata[:1])
    assert examined(single).episodes == 1


def test_a_stream_of_pictures_alone_is_examined():
    fields = {"camera": FieldSpec(shape=(8, 8, 3), dtype="uint8", unit="u8", role="observation")}
    rng = np.random.default_rng(0)
    episodes = [{"camera": rng.integers(0, 255, (20, 8, 8, 3)).astype(np.uint8)} for _ in range(3)]
    episodes[2] = episodes[0]
    examination = examine(memory_store(fields, episodes), ExamineConfig(), no_progress)
    assert [(one.check, one.episodes) for one in examination.findings] == [("duplicates", (0, 2))]
