import json

import numpy as np
import pytest

import sim.recording.rollouts
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.evaluation.rollout import EpisodeResult
from sim.recording.rollouts import FIELDS, RecordConfig, record_rollouts


def _episode(seed: int, success: bool, steps: int) -> EpisodeResult:
    random = np.random.default_rng(seed)
    trajectory = {
        name: random.uniform(0.0, 0.5, (steps, *spec.shape)) for name, spec in FIELDS.items()
    }
    coverage, score = (0.96, 1.0) if success else (0.475, 0.5)
    return EpisodeResult(
        seed=seed,
        score=score,
        success=success,
        steps=steps,
        largest={"coverage": coverage},
        actions=trajectory["action"],
        trajectory=trajectory,
    )


def make_nothing():
    raise AssertionError("no policy is needed")


@pytest.fixture
def ran(monkeypatch):
    """Attempts whose outcome is known: two failures among three successes."""
    episodes = [
        _episode(500_000 + i, success, 10 + i)
        for i, success in enumerate([False, True, True, False, True])
    ]
    monkeypatch.setattr(sim.recording.rollouts, "run_episodes", lambda *args, **kwargs: episodes)
    return episodes


def _config(keep: int) -> RecordConfig:
    return RecordConfig(attempts=5, keep=keep, policy="p", code_version="c", date="2026-11-21")


def test_first_successes_by_seed_are_kept(tmp_path, ran):
    provenance = record_rollouts(_config(2), make_nothing, tmp_path, no_progress, {})
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert [store.metadata(i)["seed"] for i in range(store.num_episodes)] == [500_001, 500_002]
    assert (store.metadata(0)["policy_digest"], store.metadata(0)["host"]) == ("p", "simulated")
    assert store.ends("policy").tolist() == [11, 23]
    assert provenance["seeds"] == [500_001, 500_002]
    counts = {name: provenance[name] for name in ("attempts", "successes", "episodes", "frames")}
    assert counts == {"attempts": 5, "successes": 3, "episodes": 2, "frames": 23}
    assert provenance["score_of_attempts"] == pytest.approx(0.8)


def test_provenance_file_says_what_was_returned(tmp_path, ran):
    provenance = record_rollouts(_config(2), make_nothing, tmp_path, no_progress, {})
    assert json.loads((tmp_path / "provenance.json").read_text()) == provenance


def test_numbers_are_rounded_to_a_tenth_of_a_millimetre(tmp_path, ran):
    record_rollouts(_config(1), make_nothing, tmp_path, no_progress, {})
    stored = EpisodeStore.open(tmp_path / "store.zarr").column("policy", "keypoints")
    exact = ran[1].trajectory["keypoints"]
    np.testing.assert_allclose(stored, exact, atol=0.5001e-4)
    np.testing.assert_allclose(1e4 * stored, np.round(1e4 * exact), atol=1e-3)


def test_second_attempt_replaces_the_first(tmp_path, ran):
    record_rollouts(_config(3), make_nothing, tmp_path, no_progress, {})
    record_rollouts(_config(1), make_nothing, tmp_path, no_progress, {})
    assert EpisodeStore.open(tmp_path / "store.zarr").num_episodes == 1


def test_more_than_succeeded_cannot_be_kept(tmp_path, ran):
    with pytest.raises(HandoffError, match="3 of 5 attempts succeeded, keep requires 4"):
        record_rollouts(_config(4), make_nothing, tmp_path, no_progress, {})


def test_test_seeds_are_refused(tmp_path):
    config = RecordConfig(
        first_seed=99_990, attempts=20, policy="p", code_version="c", date="2026-11-21"
    )
    with pytest.raises(HandoffError, match=r"99990\.\.100009 overlap the evaluation seeds"):
        record_rollouts(config, make_nothing, tmp_path, no_progress, {})
