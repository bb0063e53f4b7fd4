"""The correction session `hil/smoke`: with a simulated operator, through its real processes, and
the stages after it from a policy that solves its task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.__main__ import main
from flows.runner.artifact import Artifact, seal
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.recording.hard_negatives import LEAVES, ROUNDS
from tests.flows.correction.straight import straight_to_the_goal
from tests.flows.deployment.releases import MADE
from tests.flows.recipe_stages import options, run_all

UNTIL = ["--until", "scores"]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished session."""
    out = tmp_path_factory.mktemp("hil")
    assert main(["hil", "smoke", "--operator", "simulated", "--out", str(out), *UNTIL]) == 0
    return out


@pytest.fixture(scope="module")
def summary(session: Path) -> dict[str, Any]:
    return json.loads((session / "summary.json").read_text())


def test_every_stage_of_an_unattended_session_ran(summary: dict[str, Any]) -> None:
    assert list(summary["stages"]) == ["demos", "clone", "classifier", "corrected", "scores"]
    assert summary["metrics"]["demos.episodes"] == 8
    assert summary["stages"]["classifier"]["metrics"]["positives"] >= 60
    assert summary["metrics"]["corrected.steps"] >= 600
    assert summary["metrics"]["corrected.updates"] >= 750, "1.5 a step after the first hundred"
    assert summary["metrics"]["scores.success"]["n"] == 4


def test_the_classifier_is_evaluated_on_held_out_states_of_a_policy(
    summary: dict[str, Any],
) -> None:
    metrics = summary["stages"]["classifier"]["metrics"]
    assert metrics["false_positives_n"] > 0
    assert metrics["false_episodes_n"] == 4, "30 % of 12 policy episodes are held out"
    assert "recall_n" in metrics


def test_an_expert_has_time_to_leave_success_repeatedly(session: Path) -> None:
    store = EpisodeStore.open(session / "classifier" / "policy.zarr")
    left = [e for e in range(store.num_episodes) if store.metadata(e)["source"] == "leaving"]
    assert len(left) == 3
    for episode in left:
        solved = store.read(episode, "policy", ["reward"])["reward"].ravel() > 0.5
        assert len(solved) >= np.argmax(solved) + 3 * LEAVES * ROUNDS


def test_every_episode_records_both_actions_and_who_acted(session: Path) -> None:
    store = EpisodeStore.open(session / "corrected" / "store.zarr")
    acted = np.concatenate(
        [
            store.read(e, "policy", ["intervention"])["intervention"]
            for e in range(store.num_episodes)
        ]
    )
    assert 0 < acted.sum() < len(acted), (
        "a person who watches a new policy corrects it now and then"
    )
    apart = np.abs(store.column("policy", "action") - store.column("policy", "action_policy")).max(
        axis=1
    )
    assert (apart[acted == 0] == 0.0).all()
    assert (apart[acted == 1] > 0.0).any()
    assert (store.column("policy", "policy_version") >= 0).all()
    assert {store.metadata(e)["operator"] for e in range(store.num_episodes)} == {"simulated"}


def test_the_page_shows_the_learning_curve_and_only_files_that_exist(session: Path) -> None:
    import re

    sources = re.findall(r"src='([^']+)'", (session / "report.html").read_text())
    assert "corrected/learning.png" in sources
    assert [source for source in sources if not (session / source).is_file()] == []


def test_the_same_session_again_is_all_cached(session: Path, summary: dict[str, Any]) -> None:
    assert main(["hil", "smoke", "--operator", "simulated", "--out", str(session), *UNTIL]) == 0
    again = json.loads((session / "summary.json").read_text())
    assert all(row["cached"] for row in again["stages"].values())
    assert again["stages"]["corrected"]["digest"] == summary["stages"]["corrected"]["digest"]


def hand_written(root: Path) -> Artifact:
    """The artifact of a hand-written actor that solves `reach`."""
    partial = root / "artifacts" / "corrected-byhand.partial"
    straight_to_the_goal(partial)
    record = {
        "stage": "corrected",
        "config": {},
        "metrics": {},
        "inputs": {},
        "input_paths": {},
        **MADE,
    }
    return seal(partial, root / "artifacts" / "corrected-byhand", "policy", record)


@pytest.mark.nightly
def test_a_trained_policy_goes_from_its_rollouts_to_the_twin(tmp_path: Path) -> None:
    finished = {"corrected": hand_written(tmp_path)}
    after = [
        "scores",
        "rollouts",
        "teacher",
        "student",
        "bundle",
        "reference",
        "student_scores@teacher",
        "student_scores@student",
        "control",
        "twin",
        "gate",
    ]
    artifacts = run_all("hil/smoke", (), tmp_path, after, finished)
    assert artifacts["scores"].manifest["metrics"]["success"]["k"] == 4
    assert artifacts["rollouts"].manifest["metrics"]["episodes"] == 16
    assert artifacts["gate"].manifest["metrics"]["parity"] <= 1e-5
    assert artifacts["gate"].manifest["metrics"]["sampler"] == "one-step"
    assert artifacts["twin"].manifest["metrics"]["starts"] == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corrected.stepz=3"], "stepz"),
        (["corrected.env.tsk=reach"], "corrected.env.tsk"),
        (["corrected.steps=many"], "corrected.steps"),
        (["corrected.steps=0"], "corrected.steps"),
    ],
)
def test_a_misspelt_key_or_nonsense_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        options("hil/reach", overrides)


def test_sessions_of_two_seeds_share_no_start_and_no_randomness() -> None:
    first, second = (options("hil/reach", [f"seed={seed}"]) for seed in (0, 1))
    settings = {name: (first[name], second[name]) for name in first}
    for name in ("demos", "classifier", "rollouts"):
        assert settings[name][1].first_seed == settings[name][0].first_seed + 1_000_000
    for name in ("clone", "teacher"):
        assert settings[name][1].training.seed == settings[name][0].training.seed + 1
    assert settings["student"][1].algorithm.training.seed == 1
    assert settings["corrected"][1].seed == 1
    assert settings["corrected"][1].actor.seed == 1
    assert settings["scores"][1] == settings["scores"][0], "both are evaluated on the same starts"
    with pytest.raises(HandoffError, match="seed is -1"):
        options("hil/reach", ["seed=-1"])


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(HandoffError, match="did you mean 'hil/pick_cube'"):
        options("hil/pick_cubes")
