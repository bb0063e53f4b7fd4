"""The offline loop: what is drawn, how it goes on, what it refuses."""

from typing import Any

import numpy as np
import pytest

from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import IqlConfig
from policies.rl.offline.iql import Iql
from policies.rl.offline.train import OfflineConfig, fit_features, learn_offline
from policies.rl.replay.buffer import Replay, sizes_of
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Transitions
from robots.errors import HandoffError
from robots.wire.steps import plain_steps

TINY = MlpSizes(hidden=(16,), activation="relu", layer_norm=False)
CONFIG = IqlConfig(critic=TINY, value_network=TINY, actor=TINY)


class Listener:
    """A learner that only notes the observations it is given."""

    def __init__(self) -> None:
        self.heard: list[np.ndarray] = []

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        return vector_NO

    def update(self, minibatches: Any) -> dict[str, Any]:
        self.heard += [part.obs.vector_BO.numpy()[:, 0] for part in minibatches]
        return {"heard": len(self.heard)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert not state


def stored(rows: int, horizon: int = 1, ended: bool = True) -> Replay:
    """One episode whose observations are (0, 10), (1, 11) and so on."""
    number = np.arange(rows)
    obs = np.stack([number, number + 10.0], axis=1)
    last = (number == rows - 1) & ended
    replay = Replay(ReplayConfig(capacity=rows, horizon=horizon), 2, 1)
    replay.append(
        plain_steps(
            np.zeros(rows),
            number,
            obs,
            np.zeros((rows, 1)),
            number,
            obs + 1.0,
            last,
            np.zeros(rows),
        )
    )
    return replay


def test_the_number_of_minibatches_is_as_configured():
    listener = Listener()
    counts: list[int] = []
    metrics = learn_offline(
        listener,
        stored(5),
        OfflineConfig(updates=3, batch_size=7, minibatches=2),
        watch=lambda updates, _: counts.append(updates),
    )
    assert [len(part) for part in listener.heard] == [7] * 6
    assert counts == [1, 2, 3]
    assert metrics == {"heard": 6}


def test_progress_counts_to_the_end():
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        calls.append((done, total))

    learn_offline(Listener(), stored(5), OfflineConfig(updates=4), start=2, progress=progress)
    assert calls == [(3, 4), (4, 4)]


def test_steps_are_drawn_by_their_probability():
    listener = Listener()
    probability = np.array([0.0, 0.25, 0.0, 0.75])
    learn_offline(
        listener, stored(4), OfflineConfig(updates=40, batch_size=250), probability=probability
    )
    counts = np.bincount(np.concatenate(listener.heard).astype(int), minlength=4) / 10_000
    assert counts[[0, 2]].tolist() == [0.0, 0.0]
    assert counts[3] == pytest.approx(0.75, abs=0.02)


def test_without_probabilities_sampling_is_uniform():
    listener = Listener()
    learn_offline(listener, stored(4), OfflineConfig(updates=40, batch_size=250))
    counts = np.bincount(np.concatenate(listener.heard).astype(int), minlength=4) / 10_000
    assert counts == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize("probability", [None, np.full(6, 1 / 6)])
def test_incomplete_chunks_are_not_sampled(probability: np.ndarray | None):
    listener = Listener()
    replay = stored(6, horizon=3, ended=False)
    learn_offline(
        listener, replay, OfflineConfig(updates=40, batch_size=50), probability=probability
    )
    assert set(np.concatenate(listener.heard)) == {0.0, 1.0, 2.0, 3.0}


def test_a_replay_without_a_complete_chunk_is_refused():
    with pytest.raises(HandoffError, match="no complete chunk"):
        learn_offline(Listener(), stored(2, horizon=3, ended=False), OfflineConfig(updates=1))
    last_two = np.array([0.0, 0.5, 0.5])
    with pytest.raises(HandoffError, match="without a complete chunk"):
        learn_offline(
            Listener(), stored(3, 3, ended=False), OfflineConfig(updates=1), probability=last_two
        )


@pytest.mark.parametrize("probability", [None, np.array([0.1, 0.2, 0.3, 0.4])])
def test_a_resumed_run_ends_like_an_uninterrupted_one(probability: np.ndarray | None):
    replay = stored(4)
    whole, cut = Iql(CONFIG, sizes_of(replay)), Iql(CONFIG, sizes_of(replay))
    learn_offline(whole, replay, OfflineConfig(updates=6, batch_size=8), probability=probability)
    learn_offline(cut, replay, OfflineConfig(updates=2, batch_size=8), probability=probability)
    again = Iql(CONFIG, sizes_of(replay))
    again.load_state_dict(cut.state_dict())
    learn_offline(
        again, replay, OfflineConfig(updates=6, batch_size=8), probability=probability, start=2
    )
    for one, other in zip(whole.networks.parameters(), again.networks.parameters(), strict=True):
        assert one.equal(other)


def test_features_are_fitted_to_the_range_of_the_stored_observations():
    replay = stored(5)
    learner = Iql(CONFIG, sizes_of(replay))
    fit_features(learner.networks.features, replay)
    batch: Transitions = replay.transitions(np.array([0, 2, 4]))
    assert learner.networks.encode(batch.obs).tolist() == [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "probability",
    [np.array([0.5, 0.5]), np.array([0.5, 0.5, 0.5, 0.5]), np.array([1.5, -0.5, 0.0, 0.0])],
)
def test_invalid_probabilities_are_refused(probability: np.ndarray):
    with pytest.raises(HandoffError, match="expected 4 non-negative numbers with sum 1"):
        learn_offline(Listener(), stored(4), OfflineConfig(updates=1), probability=probability)


def test_an_empty_replay_is_refused():
    empty = Replay(ReplayConfig(capacity=4), 2, 1)
    with pytest.raises(HandoffError, match="nothing to train on"):
        learn_offline(Listener(), empty, OfflineConfig(updates=1))
    with pytest.raises(HandoffError, match="features cannot be fitted"):
        fit_features(Iql(CONFIG, sizes_of(empty)).networks.features, empty)
