import json
import os
from functools import partial

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.types import no_progress
from sim.evaluate import EvaluateConfig, compare, evaluate
from sim.rollout import Chunking
from sim.statistics import wilson

SMALL = EvaluateConfig(episodes=5, max_steps=24, batch=2, videos=0)


def wander(scale, observation, noise):
    """Elementwise, so that no row depends on its neighbours: targets scattered about the block's first keypoint."""
    return observation[:, -1:, :2] + np.float32(scale) * noise


def make_wanderer(scale=0.05):
    return partial(wander, scale)


def diverge(observation, noise):
    return noise * np.nan


def make_diverging():
    return diverge


def make_dying():
    os._exit(7)


def go_home(observation, noise):
    return np.full_like(noise, 0.25)


def make_homing():
    return go_home


def test_result_is_the_same_for_any_workers_and_batch(tmp_path):
    tables = []
    for workers, batch in ((1, 5), (1, 2), (2, 2)):
        out = tmp_path / f"{workers}-{batch}"
        out.mkdir()
        config = EvaluateConfig(episodes=5, max_steps=24, batch=batch, workers=workers, videos=0)
        evaluate(config, make_wanderer, Chunking(), out, no_progress)
        tables.append((out / "episodes.json").read_text())
    assert tables[0] == tables[1] == tables[2]


def test_score_is_the_mean_of_the_largest_rewards(tmp_path):
    metrics = evaluate(SMALL, make_wanderer, Chunking(), tmp_path, no_progress)
    episodes = json.loads((tmp_path / "episodes.json").read_text())["episodes"]
    assert [e["seed"] for e in episodes] == [100_000, 100_001, 100_002, 100_003, 100_004]
    assert [e["reward"] for e in episodes] == pytest.approx([min(e["coverage"] / 0.95, 1.0) for e in episodes])
    assert metrics["score"] == pytest.approx(sum(e["reward"] for e in episodes) / 5)
    assert metrics["score_low"] <= metrics["score"] <= metrics["score_high"]
    low, high = wilson(0, 5)
    assert metrics["success"] == {"k": 0, "n": 5, "low": low, "high": high}
    assert len({e["coverage"] for e in episodes}) > 1


def test_metrics_are_json(tmp_path):
    metrics = evaluate(SMALL, make_wanderer, Chunking(), tmp_path, no_progress)
    assert json.loads(json.dumps(metrics)) == metrics


def test_pictures_show_the_first_episodes_side_by_side(tmp_path):
    av = pytest.importorskip("av")
    config = EvaluateConfig(episodes=3, max_steps=4, batch=3, videos=2)
    evaluate(config, make_wanderer, Chunking(), tmp_path, no_progress)
    assert (tmp_path / "coverage.png").read_bytes().startswith(b"\x89PNG")
    with av.open(str(tmp_path / "rollouts.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 5
    assert frames[0].shape == (160, 320, 3)
    assert np.abs(frames[0][:, :160].astype(int) - frames[0][:, 160:]).max() > 50


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_ends_at_its_total(tmp_path, workers):
    seen = []
    config = EvaluateConfig(episodes=5, max_steps=8, batch=2, videos=0, workers=workers)
    evaluate(config, make_wanderer, Chunking(), tmp_path, lambda done, total, note="": seen.append((done, total)))
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_nan_policy_fails_by_name_from_any_process(tmp_path, workers):
    config = EvaluateConfig(episodes=2, max_steps=8, batch=1, videos=0, workers=workers)
    with pytest.raises(HandoffError, match="policy output: value at index"):
        evaluate(config, make_diverging, Chunking(), tmp_path, no_progress)


def test_dead_worker_is_named_with_its_exit_code(tmp_path):
    config = EvaluateConfig(episodes=2, max_steps=8, batch=1, videos=0, workers=2)
    with pytest.raises(HandoffError, match="exit code 7"):
        evaluate(config, make_dying, Chunking(), tmp_path, no_progress)


def test_no_episodes_are_refused(tmp_path):
    with pytest.raises(HandoffError, match="0 of 300 steps"):
        evaluate(EvaluateConfig(episodes=0), make_wanderer, Chunking(), tmp_path, no_progress)


def test_comparison_pairs_equal_seeds(tmp_path):
    for name, make_policy in (("first", make_wanderer), ("second", make_homing)):
        (tmp_path / name).mkdir()
        evaluate(SMALL, make_policy, Chunking(), tmp_path / name, no_progress)
    result = compare(tmp_path / "first", tmp_path / "second")
    rewards = [
        [e["reward"] for e in json.loads((tmp_path / name / "episodes.json").read_text())["episodes"]]
        for name in ("first", "second")
    ]
    assert result["score"]["mean"] == pytest.approx(np.mean(rewards[1]) - np.mean(rewards[0]))
    assert result["success"] == {"only_first": 0, "only_second": 0, "p_value": 1.0}
    assert compare(tmp_path / "first", tmp_path / "first")["score"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_comparison_refuses_another_protocol(tmp_path):
    for name, steps in (("first", 8), ("second", 9)):
        (tmp_path / name).mkdir()
        config = EvaluateConfig(episodes=2, max_steps=steps, videos=0)
        evaluate(config, make_wanderer, Chunking(), tmp_path / name, no_progress)
    with pytest.raises(HandoffError, match=r"differ in \['max_steps'\]"):
        compare(tmp_path / "first", tmp_path / "second")


def test_comparison_names_a_missing_table(tmp_path):
    with pytest.raises(HandoffError, match=r"episodes\.json"):
        compare(tmp_path, tmp_path)
