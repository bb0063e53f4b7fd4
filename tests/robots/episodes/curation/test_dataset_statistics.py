from typing import cast

import numpy as np
import pytest

from robots.config import to_plain, validate
from robots.episodes.curation.dataset_statistics import (
    StatisticsConfig,
    StoreStatistics,
    statistics,
)
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.proportions import wilson
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import MemoryStore, record

FIELDS = {
    "state": FieldSpec(shape=(2,), unit="m", names=(("x", "y"),), role="observation"),
    "camera": FieldSpec(shape=(2, 2, 3), dtype="uint8", unit="u8", role="observation"),
    "action": FieldSpec(shape=(1,), role="action"),
    "reward": FieldSpec(shape=(), role="outcome"),
}


def store(metadata=({}, {})) -> EpisodeStore:
    """Two episodes of 2 and 3 steps whose figures are worked by hand."""
    camera = np.zeros((5, 2, 2, 3), np.uint8)
    camera[..., 0] = np.array([0, 10, 20, 30, 40])[:, None, None]
    camera[..., 1] = 7
    arrays = {
        "state": np.array([[0, 1], [2, 1], [4, 1], [6, 1], [8, 1]], np.float32),
        "camera": camera,
        "action": np.array([[-1], [1], [-1], [1], [1]], np.float32),
        "reward": np.array([0, 1, 0, 0, 3], np.float32),
    }
    episodes = [
        {"policy": {name: values[part] for name, values in arrays.items()}}
        for part in (slice(0, 2), slice(2, 5))
    ]
    layout = EpisodeSchema(name="hand", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)})
    return cast(EpisodeStore, MemoryStore(layout, episodes, list(metadata)))


def field(made: StoreStatistics, name: str):
    return next(one for one in made.fields if one.name == name)


def test_sizes_and_lengths_are_counted():
    made = statistics(store())
    assert (made.name, made.stream, made.rate_hz) == ("hand", "policy", 10.0)
    assert (made.episodes, made.steps, made.seconds) == (2, 5, 0.5)
    assert (made.shortest, made.median_steps, made.longest) == (2, 2.5, 3)


def test_values_of_a_field_are_exact():
    state = field(statistics(store(), StatisticsConfig(quantiles=(0.25, 0.5))), "state")
    assert state.entries == ("x", "y")
    assert (state.samples, state.exact_quantiles) == (5, True)
    assert (state.low, state.high, state.mean) == ((0.0, 1.0), (8.0, 1.0), (4.0, 1.0))
    # Deviations -4, -2, 0, 2, 4: mean square 8.
    assert state.std == pytest.approx((np.sqrt(8.0), 0.0))
    assert state.quantiles == ((2.0, 1.0), (4.0, 1.0))
    assert state.about == "float32 (2) [m], observation"


def test_values_of_pictures_are_those_of_their_colours():
    config = StatisticsConfig(picture_every=1, quantiles=(0.5, 0.9))
    camera = field(statistics(store(), config), "camera")
    assert camera.entries == ("red", "green", "blue")
    assert camera.samples == 5 * 4
    assert (camera.low, camera.high) == ((0.0, 7.0, 0.0), (40.0, 7.0, 0.0))
    assert camera.mean == (20.0, 7.0, 0.0)
    assert camera.std == pytest.approx((np.sqrt(200.0), 0.0, 0.0))
    red = np.repeat([0, 10, 20, 30, 40], 4)
    assert [row[0] for row in camera.quantiles] == np.quantile(red, (0.5, 0.9)).tolist()


def test_only_every_few_steps_are_read_of_pictures():
    camera = field(statistics(store(), StatisticsConfig(picture_every=2)), "camera")
    # Step 0 of the first episode, steps 0 and 2 of the second.
    assert camera.samples == 3 * 4
    assert camera.mean[0] == pytest.approx((0 + 20 + 40) / 3)


def test_returns_are_the_sums_of_the_rewards_of_episodes():
    (returns,) = statistics(store(), StatisticsConfig(quantiles=(0.5,))).returns
    assert (returns.field, returns.low, returns.high) == ("reward", 1.0, 3.0)
    assert (returns.mean, returns.std, returns.quantiles) == (2.0, 1.0, (2.0,))


def test_instructions_and_successes_are_counted():
    made = statistics(store([{"instruction": "lift", "success": True}, {"success": False}]))
    assert (made.instructions, made.without_instruction) == ((("lift", 1),), 1)
    assert (made.successes, made.labelled) == (1, 2)
    assert made.success_interval == wilson(1, 2)
    assert statistics(store()).success_interval is None


def test_the_figures_of_a_store_on_the_disk_equal_those_of_all_its_rows(tmp_path):
    recording = record(seed=1, episodes=4)
    calls = []
    made = statistics(
        recording.write(tmp_path / "store.zarr"),
        progress=lambda done, total, note="": calls.append((done, total)),
    )
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    joints = np.concatenate([arrays["joints"] for arrays in recording.episodes]).astype(float)
    given = field(made, "joints")
    assert given.mean == pytest.approx(joints.mean(axis=0))
    assert given.std == pytest.approx(joints.std(axis=0))
    expected = np.quantile(joints, StatisticsConfig().quantiles, axis=0)
    assert np.array(given.quantiles) == pytest.approx(expected)
    assert validate(StoreStatistics, to_plain(made)) == made


def test_a_store_without_episodes_is_refused():
    layout = EpisodeSchema(name="hand", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)})
    with pytest.raises(HandoffError, match="no episodes to describe"):
        statistics(cast(EpisodeStore, MemoryStore(layout, [], [])))
