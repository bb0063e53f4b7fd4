from typing import cast

import numpy as np

from robots.episodes.curation.checks.layout import stream_layout
from robots.episodes.curation.checks.pictures import longest_runs, summarise_pictures
from robots.episodes.curation.checks.usual_values import stream_profile
from robots.episodes.curation.examination import ExamineConfig
from robots.episodes.curation.examine import examine
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import RATE_HZ, MemoryStore, memory_store, record


def test_pictures_are_read_in_blocks_of_bounded_size():
    class Counting(MemoryStore):
        def read(self, episode, stream, fields=None, steps=slice(None)):
            sizes.append(steps.stop - steps.start)
            return super().read(episode, stream, fields, steps)

    sizes: list[int] = []
    spec = FieldSpec(shape=(512, 1024, 3), dtype="uint8", unit="u8", role="observation")
    pictures = np.zeros((50, *spec.shape), np.uint8)
    layout = EpisodeSchema(
        name="large", streams={"policy": StreamSpec(rate_hz=10.0, fields={"camera": spec})}
    )
    store = cast(EpisodeStore, Counting(layout, [{"policy": {"camera": pictures}}], [{}]))
    summary, same = summarise_pictures(store, 0, "policy", "camera", 50, ExamineConfig())
    assert sizes == [16, 16, 16, 2]
    assert (summary.black, summary.longest, same.all()) == (50, 50, True)


def test_longest_runs_are_counted_with_their_first_row():
    values = np.array([[1, 5], [1, 6], [2, 7], [2, 8], [2, 9], [3, 9]])
    rows, last = longest_runs(values[1:] == values[:-1])
    assert rows.tolist() == [3, 2]
    assert last.tolist() == [4, 5]


def test_an_action_is_paired_with_the_observation_that_follows_it():
    store = record(seed=0, episodes=4).in_memory()
    layout = stream_layout(store.schema, 64)
    rows = [layout.rows(store.read(episode, "policy")) for episode in range(4)]
    profile = stream_profile(layout, rows)
    labels = layout.labels
    pairs = {
        labels[action]: labels[observation]
        for pairing in profile.pairings
        for action, observation in zip(pairing.action, pairing.observation, strict=True)
    }
    assert pairs == {
        **{f"action.joint{i}": f"joints.joint{i}" for i in range(1, 8)},
        "action.gripper": "gripper",
    }


def test_actions_that_are_differences_are_paired_with_the_motion_of_the_observation():
    rng = np.random.default_rng(0)
    fields = {
        "tool": FieldSpec(shape=(3,), role="observation"),
        "action": FieldSpec(shape=(3,), role="action"),
    }
    episodes = []
    for _ in range(6):
        action = rng.normal(0.0, 0.02, (80, 3))
        tool = np.vstack([np.zeros((1, 3)), np.cumsum(action, axis=0)[:-1]])
        episodes.append({"tool": tool.astype(np.float32), "action": action.astype(np.float32)})
    examination = examine(memory_store(fields, episodes), ExamineConfig(), no_progress)
    assert {lag.steps for lag in examination.lags} == {0}
    assert examination.findings == ()


def test_kinds_of_fields_are_told_by_name_type_and_role():
    fields = {
        "observation/state": FieldSpec(shape=(2,), role="observation"),
        "observation/orientation": FieldSpec(
            shape=(7,), role="observation", names=(("x", "y", "z", "qx", "qy", "qz", "qw"),)
        ),
        "observation/depth": FieldSpec(shape=(64, 64), dtype="uint16", unit="mm"),
        "is_last": FieldSpec(shape=(), dtype="bool", role="outcome"),
        "discount": FieldSpec(shape=(), role="outcome"),
        "stamp": FieldSpec(shape=(), dtype="int64", unit="ns", role="other"),
        "step": FieldSpec(shape=(), dtype="int64", role="other"),
        "next_reward": FieldSpec(shape=(), role="outcome"),
        "embedding": FieldSpec(shape=(512,), role="other"),
    }
    layout = stream_layout(
        EpisodeSchema(name="kinds", streams={"s": StreamSpec(rate_hz=RATE_HZ, fields=fields)}), 64
    )
    assert [field.name for field in layout.states] == [
        "observation/state",
        "observation/orientation",
    ]
    assert layout.quaternions == (5,)
    assert layout.pictures == ("observation/depth",)
    assert layout.times == {"stamp": 1e-9}
    assert (layout.counters, layout.rewards) == (("step",), ("next_reward",))
