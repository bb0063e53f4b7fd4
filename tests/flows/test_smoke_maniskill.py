"""The recipe `smoke_maniskill`, whole: from demonstrations in ManiSkill's scene over PPO to the twin."""

from __future__ import annotations

import pytest

from flows.runner.artifact import Artifact
from policies.checkpoint import read_card
from robots.episodes.store import EpisodeStore
from tests.flows.recipe_stages import options, run_all

pytestmark = [pytest.mark.needs("maniskill"), pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("smoke_maniskill", (), tmp_path_factory.mktemp("runs"))


def test_policies_of_maniskill_have_the_panda_and_reach_the_twin(
    artifacts: dict[str, Artifact],
) -> None:
    store = EpisodeStore.open(artifacts["demos"].path / "store.zarr")
    assert (store.schema.name, store.schema.robot) == ("pick_cube", "panda")
    assert store.metadata(0)["robot"] == "panda maniskill"
    for name in ("pretrained", "teacher", "student"):
        assert read_card(artifacts[name].path).robot == "panda"
    assert artifacts["twin"].manifest["metrics"]["robot"] == "panda"
    assert artifacts["gate"].manifest["metrics"]


def test_every_policy_is_evaluated_in_maniskill_and_in_mujoco(
    artifacts: dict[str, Artifact],
) -> None:
    for stage, engine in (("scores", "maniskill"), ("mujoco_scores", "mujoco")):
        for policy in ("pretrained", "teacher", "student"):
            metrics = artifacts[f"{stage}@{policy}"].manifest["metrics"]
            assert metrics["protocol"]["engine"] == engine
            assert metrics["success"]["n"] == 2


def test_ppo_steps_maniskill_in_several_processes() -> None:
    teacher = options("maniskill_pick_cube")["teacher"]
    assert (teacher.protocol.engine, teacher.placement.simulators) == ("maniskill", 2)
    assert teacher.algorithm.kind == "dppo"
