import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.evaluation.agent import ChunkAgent, Chunking, RandomAgent
from sim.evaluation.comparison import read_result
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env, training_env
from sim.evaluation.intervals import clopper_pearson, wilson
from sim.evaluation.protocol import (
    Protocol,
    ScoreRule,
    check_specifications,
    digest,
    protocol_statement,
)
from sim.evaluation.report import summary_table
from tests.sim.line import make_line

PUSH_T = Protocol(
    name="small",
    engine="gym",
    task="gym_pusht/PushT-v0",
    packages=("gym-pusht", "pymunk"),
    episodes=5,
    max_steps=24,
    score=ScoreRule(of="reward", over="max"),
)
LINE = Protocol(name="line", engine="gym", task="line", first_seed=0, episodes=6, max_steps=8)
LINE_CHUNKS = Chunking(fields=("place",), action_size=1, n_obs_steps=1, horizon=4, n_action_steps=2)
QUIET = EvaluateConfig(batch=2, videos=0)


def wander(observation, noise):
    """Elementwise, so that no row depends on its neighbours: targets scattered about the block's
    first keypoint."""
    return observation[:, -1:, :2] + np.float32(0.05) * noise


def diverge(observation, noise):
    return noise * np.nan


def stand(observation, noise):
    return np.zeros_like(noise)


def load(policy, chunking=None):
    return lambda env: ChunkAgent(policy, chunking or Chunking())


def load_dying():
    os._exit(7)


def run_push_t(out, config=QUIET, policy=wander, progress=no_progress, **changes):
    out.mkdir(exist_ok=True)
    protocol = replace(PUSH_T, **changes)
    return evaluate(
        protocol, config, partial(load, policy), partial(make_env, protocol), out, progress, {}
    )


def run_line(out, config, protocol=LINE):
    return evaluate(
        protocol, config, partial(load, stand, LINE_CHUNKS), make_line, out, no_progress, {}
    )


def test_result_is_the_same_for_any_workers_and_batch(tmp_path):
    tables = []
    for workers, batch in ((1, 5), (1, 2), (2, 2)):
        out = tmp_path / f"{workers}-{batch}"
        run_push_t(out, EvaluateConfig(batch=batch, workers=workers, videos=0))
        tables.append((out / "episodes.json").read_text())
    assert tables[0] == tables[1] == tables[2]


def test_push_t_score_is_the_mean_of_the_largest_rewards(tmp_path):
    metrics = run_push_t(tmp_path)
    episodes = json.loads((tmp_path / "episodes.json").read_text())["episodes"]
    assert [e["seed"] for e in episodes] == [100_000, 100_001, 100_002, 100_003, 100_004]
    assert [e["score"] for e in episodes] == pytest.approx(
        [min(e["coverage"] / 0.95, 1.0) for e in episodes]
    )
    assert metrics["score"] == pytest.approx(sum(e["score"] for e in episodes) / 5)
    assert metrics["score_low"] <= metrics["score"] <= metrics["score_high"]
    assert len({e["coverage"] for e in episodes}) > 1


def test_success_has_both_intervals(tmp_path):
    # Of seeds 0..5 the even ones are solved, after three steps; the others run into the limit of
    # eight.
    metrics = run_line(tmp_path, QUIET)
    (low, high), (exact_low, exact_high) = wilson(3, 6), clopper_pearson(3, 6)
    assert metrics["success"] == {
        "k": 3,
        "n": 6,
        "low": low,
        "high": high,
        "exact_low": exact_low,
        "exact_high": exact_high,
    }
    assert metrics["score"] == 0.5
    assert metrics["mean_steps"] == 5.5


def test_result_carries_its_protocol_with_digest_and_execution(tmp_path):
    run = partial(
        evaluate,
        PUSH_T,
        QUIET,
        partial(load, wander),
        partial(make_env, PUSH_T),
        tmp_path,
        no_progress,
    )
    metrics = run({"denoising_steps": 3})
    written = json.loads((tmp_path / "episodes.json").read_text())
    assert metrics["protocol"] == written["protocol"] == protocol_statement(PUSH_T)
    assert metrics["protocol_digest"] == digest(protocol_statement(PUSH_T))
    assert metrics["execution"] == {"denoising_steps": 3}
    assert json.loads(json.dumps(metrics)) == metrics


def test_failures_are_filmed_first_and_one_success_beside_them(tmp_path):
    av = pytest.importorskip("av")
    metrics = run_line(tmp_path, EvaluateConfig(batch=4, videos=3))
    assert metrics["videos"] == [
        {"seed": 1, "success": False, "file": "failure-1.mp4", "exact": True},
        {"seed": 3, "success": False, "file": "failure-3.mp4", "exact": True},
        {"seed": 0, "success": True, "file": "success-0.mp4", "exact": True},
    ]
    assert json.loads((tmp_path / "episodes.json").read_text())["videos"] == metrics["videos"]
    for name, frames in (("failure-3.mp4", 9), ("success-0.mp4", 4)):
        with av.open(str(tmp_path / name)) as container:
            shown = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(video=0)]
        assert len(shown) == frames
        assert shown == pytest.approx([10 * step for step in range(frames)], abs=4)


def test_push_t_is_filmed_as_it_was(tmp_path):
    metrics = run_push_t(tmp_path, EvaluateConfig(batch=5, videos=2), episodes=3)
    assert [(video["file"], video["exact"]) for video in metrics["videos"]] == [
        ("failure-100000.mp4", True),
        ("failure-100001.mp4", True),
    ]


def test_videos_of_an_earlier_attempt_are_removed(tmp_path):
    run_line(tmp_path, EvaluateConfig(videos=3))
    run_line(tmp_path, EvaluateConfig(videos=1))
    assert [file.name for file in tmp_path.glob("*.mp4")] == ["failure-1.mp4"]


def make_blind(num_envs, pictures=False):
    if pictures:
        raise HandoffError("no OpenGL on this machine")
    return make_line(num_envs)


def test_figures_are_kept_where_nothing_can_be_drawn(tmp_path):
    config = EvaluateConfig(videos=2)
    metrics = evaluate(
        LINE, config, partial(load, stand, LINE_CHUNKS), make_blind, tmp_path, no_progress, {}
    )
    assert (metrics["score"], metrics["videos"]) == (0.5, [])
    assert metrics["no_videos"] == "no OpenGL on this machine"


def test_chart_is_the_same_file_for_the_same_scores(tmp_path):
    charts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run_line(tmp_path / name, QUIET)
        charts.append((tmp_path / name / "scores.svg").read_text())
    assert charts[0] == charts[1]
    assert charts[0].startswith("<svg")


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_ends_at_its_total(tmp_path, workers):
    reports = []
    config = EvaluateConfig(batch=2, videos=0, workers=workers)
    run_push_t(
        tmp_path,
        config,
        max_steps=8,
        progress=lambda done, total, note="": reports.append((done, total, note)),
    )
    assert reports[-1] == (40, 40, "0/5 solved"), "of all batches"
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports)


@pytest.mark.parametrize("workers", [1, 2])
def test_nan_policy_fails_by_name_from_any_process(tmp_path, workers):
    config = EvaluateConfig(batch=1, videos=0, workers=workers)
    with pytest.raises(HandoffError, match="policy output: value at index"):
        run_push_t(tmp_path, config, diverge, episodes=2, max_steps=8)


def test_dead_worker_is_named_with_its_exit_code(tmp_path):
    config = EvaluateConfig(batch=1, videos=0, workers=2)
    with pytest.raises(HandoffError, match="exit code 7"):
        evaluate(LINE, config, load_dying, make_line, tmp_path, no_progress, {})


def test_no_episodes_are_refused(tmp_path):
    with pytest.raises(HandoffError, match="0 episodes of 8 steps"):
        run_line(tmp_path, QUIET, replace(LINE, episodes=0))


def test_no_batch_is_refused(tmp_path):
    with pytest.raises(HandoffError, match="0 at a time"):
        run_line(tmp_path, EvaluateConfig(batch=0, videos=0))


REACH = Protocol(
    name="r", engine="mujoco", task="reach", packages=("mujoco",), episodes=2, max_steps=3
)


def load_random():
    return lambda env: RandomAgent(env.action_spec)


def test_fr3_task_is_evaluated_in_environments_that_freeze_at_the_protocols_limit(tmp_path):
    vec_env = partial(make_env, REACH)
    metrics = evaluate(REACH, QUIET, load_random, vec_env, tmp_path, no_progress, {})
    assert metrics["mean_steps"] == 3.0
    env = make_env(REACH, 1)
    env.reset([0])
    ended = [env.step(np.zeros((1, env.action_spec.size))) for _ in range(4)]
    assert [bool(step.truncated[0]) for step in ended] == [False, False, True, True]
    assert ended[3].executed.tolist() == [0]
    env.close()


def test_misspelt_option_of_the_environments_is_refused_by_its_path():
    with pytest.raises(
        HandoffError, match=r"protocol r: options\.randomised', did you mean 'randomized'"
    ):
        make_env(replace(REACH, options={"randomised": True}), 1)


@pytest.mark.parametrize(
    "protocol",
    [
        replace(PUSH_T, max_steps=6),
        Protocol(name="fr3", engine="mujoco", task="push_t", packages=("mujoco",), max_steps=6),
    ],
    ids=["gym-pusht", "mujoco"],
)
def test_environments_for_fine_tuning_freeze_and_end_at_the_protocols_time_limit(protocol):
    env = training_env(protocol, 2)
    try:
        start = env.reset([0, 1])
        still = np.repeat(np.asarray(start["agent"], np.float64)[:, None], 4, axis=1)
        first, second, third = (env.step(still) for _ in range(3))
    finally:
        env.close()
    assert first.executed.tolist() == [4, 4]
    assert not first.truncated.any()
    assert second.executed.tolist() == [2, 2]
    assert second.truncated.all()
    assert third.executed.tolist() == [0, 0], "frozen"


def test_a_cost_is_reported_per_episode_and_with_its_interval_where_there_is_one(tmp_path):
    protocol = Protocol(
        name="pressing",
        engine="mujoco",
        task="reach",
        options={"contact_threshold": 2.0},
        first_seed=0,
        episodes=3,
        max_steps=40,
    )

    def load_down():
        return lambda env: RandomAgent(env.action_spec)

    metrics = evaluate(
        protocol, QUIET, load_down, partial(make_env, protocol), tmp_path, no_progress, {}
    )
    episodes = json.loads((tmp_path / "episodes.json").read_text())["episodes"]
    assert metrics["cost"] == pytest.approx(np.mean([one["cost"] for one in episodes]))
    assert metrics["cost_low"] <= metrics["cost"] <= metrics["cost_high"]
    headings, rows = summary_table([read_result(tmp_path)])
    assert headings[-2:] == ("cost", "bootstrap 95 %")
    assert rows[0][-2] == f"{metrics['cost']:.2f}"
    other = tmp_path / "free"
    other.mkdir()
    free = run_line(other, QUIET)
    assert "cost" not in free
    assert summary_table([read_result(other)])[0][-1] == "steps"


SPECIFIED = replace(
    QUIET, specifications={"small": "always place < 500", "late": "always[9, 9] place < 0"}
)


def test_the_share_of_episodes_that_satisfy_a_specification_has_its_interval(tmp_path):
    # Seed 5 alone is at 500 and beyond. No episode is 9 s long, so nothing decides about its end.
    metrics = run_line(tmp_path, SPECIFIED)
    low, high = wilson(5, 6)
    share = metrics["specifications"]["small"]
    assert [share[key] for key in ("k", "n", "low", "high")] == [5, 6, low, high]
    assert share["smallest"] == -8.0
    episodes = json.loads((tmp_path / "episodes.json").read_text())["episodes"]
    assert episodes[5]["specifications"] == {
        "small": {"robustness": -8.0, "satisfied": False},
        "late": {"robustness": None, "satisfied": True},
    }


def test_an_evaluation_without_specifications_has_none(tmp_path):
    assert "specifications" not in run_line(tmp_path, QUIET)


def test_a_text_that_is_no_formula_is_refused_by_the_options():
    with pytest.raises(HandoffError, match="'near', character 7: expected a field"):
        EvaluateConfig(specifications={"near": "always"})


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("always keypoint.norm < 1", "unknown field 'keypoint', did you mean 'keypoints'"),
        ("always[0.01, 0.02] agent.x < 1", "contains no step at 10 Hz"),
    ],
)
def test_a_formula_that_does_not_fit_the_protocol_is_refused_before_anything_runs(formula, message):
    with pytest.raises(HandoffError, match=message):
        check_specifications({"near": formula}, PUSH_T)


def test_a_formula_for_the_fields_of_a_task_of_an_arm_is_taken():
    protocol = Protocol(name="reach", engine="mujoco", task="reach", max_steps=3)
    check_specifications(
        {"near": "eventually[0, 0.05] distance(grasp_pose[0:3], goal) < 1"}, protocol
    )
