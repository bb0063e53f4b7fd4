import numpy as np
import pytest

from robots.episodes.formats.source import SourceEpisode
from robots.episodes.resample import resampled
from robots.errors import HandoffError
from robots.spec import WXYZ, FieldSpec

FIELDS = {
    "q": FieldSpec(shape=(1,), role="observation"),
    "quat": FieldSpec(shape=(4,), names=WXYZ, role="observation"),
    "cam": FieldSpec(shape=(1, 1, 3), dtype="uint8", unit="u8", role="observation"),
    "action": FieldSpec(shape=(1,), role="action"),
    "reward": FieldSpec(shape=(), role="outcome"),
    "done": FieldSpec(shape=(), dtype="bool", role="outcome"),
}


def episode(steps: int) -> SourceEpisode:
    count = np.arange(steps, dtype=np.float32)
    done = np.zeros(steps, bool)
    done[-1] = True
    return SourceEpisode(
        {
            "q": count[:, None],
            "quat": np.tile(count[:, None], (1, 4)),
            "cam": np.tile(count.astype(np.uint8)[:, None, None, None], (1, 1, 1, 3)),
            "action": count[:, None],
            "reward": np.ones(steps, np.float32),
            "done": done,
        },
        {"instruction": "go"},
    )


def test_a_slower_rate_keeps_the_newest_samples_and_adds_rewards_up() -> None:
    slow = resampled(episode(11), FIELDS, 10.0, 4.0)
    np.testing.assert_allclose(slow.arrays["q"][:, 0], [0.0, 2.5, 5.0, 7.5, 10.0])
    for name in ("action", "cam", "quat"):
        assert slow.arrays[name].reshape(5, -1)[:, 0].tolist() == [0, 2, 5, 7, 10]
    assert slow.arrays["reward"].tolist() == [2, 3, 2, 3, 1]
    assert slow.arrays["done"].tolist() == [False] * 4 + [True]
    assert slow.metadata == {"instruction": "go"}


def test_a_faster_rate_interpolates_observations_and_counts_every_reward_once() -> None:
    fast = resampled(episode(3), FIELDS, 10.0, 20.0)
    np.testing.assert_allclose(fast.arrays["q"][:, 0], [0.0, 0.5, 1.0, 1.5, 2.0])
    assert fast.arrays["action"][:, 0].tolist() == [0, 0, 1, 1, 2]
    assert fast.arrays["reward"].tolist() == [0, 1, 0, 1, 1]


def test_streams_of_their_own_rates_are_joined_where_all_have_samples() -> None:
    times = {"q": np.array([0.0, 0.1, 0.2, 0.3]), "cam": np.array([0.05, 0.16, 0.35])}
    given = SourceEpisode(
        {
            "q": np.array([[0.0], [1.0], [2.0], [3.0]]),
            "cam": np.array([10, 20, 30], np.uint8)[:, None, None, None] * np.ones(3, np.uint8),
        },
        {},
        times,
    )
    joined = resampled(given, {name: FIELDS[name] for name in ("q", "cam")}, None, 10.0)
    np.testing.assert_allclose(joined.arrays["q"][:, 0], [0.5, 1.5, 2.5])
    assert joined.arrays["cam"][:, 0, 0, 0].tolist() == [10, 10, 20]
    # The steps are at 0.05, 0.15 and 0.25 s.
    np.testing.assert_allclose(joined.times["cam"], [0.0, 0.0, 0.11])


def test_streams_that_never_overlap_and_times_that_fall_are_refused() -> None:
    arrays = {"q": np.zeros((2, 1)), "action": np.zeros((2, 1))}
    fields = {name: FIELDS[name] for name in arrays}
    apart = {"q": np.array([0.0, 1.0]), "action": np.array([2.0, 3.0])}
    with pytest.raises(HandoffError, match=r"'action' begins 1.000 s after 'q' has ended"):
        resampled(SourceEpisode(arrays, {}, apart), fields, None, 10.0)
    falling = {"q": np.array([1.0, 0.0]), "action": np.array([0.0, 1.0])}
    with pytest.raises(HandoffError, match="'q' has capture times that fall, at sample 1"):
        resampled(SourceEpisode(arrays, {}, falling), fields, None, 10.0)
    with pytest.raises(HandoffError, match="does not state its rate"):
        resampled(SourceEpisode(arrays, {}), fields, None, 10.0)
