"""Stages `offline` and `relabel`: wiring of their inputs, and a store of a simulated task."""

from pathlib import Path

import numpy as np
import pytest

from flows.config.options import build
from flows.runner.signature import find_kind
from flows.stages.data import relabel
from flows.stages.data.relabel import RelabelConfig
from flows.stages.learn import offline
from flows.stages.learn.config import OfflinePolicyConfig
from policies.rewards.config import ClassifierRewardConfig
from policies.rl.offline.config import OfflinePpoAlgorithmConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.make import find_task
from sim.recording.config import ExpertDemonstrationsConfig, TaskRewardConfig
from sim.recording.demonstrations import demonstrate


def test_the_doors_take_and_make_the_kinds_of_their_signatures():
    kind = find_kind("offline")
    assert [(one.name, one.kind, one.optional) for one in kind.inputs] == [
        ("demos", "episodes", False),
        ("classifier", "classifier", True),
        ("policy", "policy", True),
    ]
    assert (kind.makes, find_kind("relabel").makes) == ("policy", "episodes")


@pytest.mark.parametrize("takes", [True, False])
def test_inputs_that_do_not_belong_to_the_options_are_refused_before_anything_runs(takes: bool):
    by_classifier = {"classifier": None} if not takes else {}
    plain, ppo = OfflinePolicyConfig(), OfflinePolicyConfig(algorithm=OfflinePpoAlgorithmConfig())
    judged = OfflinePolicyConfig(reward=ClassifierRewardConfig())
    with pytest.raises(HandoffError, match="input classifier"):
        offline.check(judged if takes else plain, {"demos": None, **by_classifier})
    with pytest.raises(HandoffError, match="input policy"):
        offline.check(ppo if takes else plain, {"demos": None, **({} if takes else {"policy": 1})})
    options = RelabelConfig(reward=ClassifierRewardConfig()) if takes else RelabelConfig()
    with pytest.raises(HandoffError, match="input classifier"):
        relabel.check(options, {"demos": None, **by_classifier})


def test_what_an_algorithm_does_not_read_is_refused_by_its_path():
    values = {"algorithm": {"kind": "iql", "expectil": 0.7}}
    with pytest.raises(HandoffError, match=r"iql\.algorithm\.expectil.*expectile"):
        build(OfflinePolicyConfig, values, "iql")
    for kind, key in (("xql", "expectile"), ("iql", "gumbel_clip"), ("edp", "n_step")):
        with pytest.raises(HandoffError, match=f"'a.algorithm.{key}' is not read by the kind"):
            build(OfflinePolicyConfig, {"algorithm": {"kind": kind, key: 0.7}}, "a")


def test_nonsense_is_refused_before_anything_runs():
    for key, value in (("expectile", 1.0), ("updates", 0), ("discount", 1.0), ("tau", 0.0)):
        with pytest.raises(HandoffError, match=key):
            build(OfflinePolicyConfig, {"algorithm": {"kind": "iql", key: value}}, "a")


def test_the_task_labels_what_its_expert_recorded(tmp_path: Path):
    demos, out = tmp_path / "demos", tmp_path / "out"
    demos.mkdir()
    out.mkdir()
    config = ExpertDemonstrationsConfig(noise_high=0.1, keep="all")
    demonstrate(find_task("reach"), range(4), demos / "store.zarr", config)
    result = relabel.run(
        RelabelConfig(reward=TaskRewardConfig()),
        out,
        no_progress,
        demos=demos,  # type: ignore[arg-type]
    )
    source, copy = EpisodeStore.open(demos / "store.zarr"), EpisodeStore.open(out / "store.zarr")
    for number in range(4):
        rows = [store.read(number, "policy", ["reward", "success"]) for store in (source, copy)]
        assert rows[1]["reward"] == pytest.approx(rows[0]["reward"], abs=1e-5)
        assert np.array_equal(rows[1]["success"], rows[0]["success"])
    assert result.metrics["changed_episodes"] == 0
    assert result.metrics["source_line"] == "4 episodes of reach with the reward 'task'"
