"""The recipe `smoke_rldg`, whole: the successes of several specialists become one store, and one
policy that reads the instruction imitates them."""

from __future__ import annotations

import pytest

from flows.runner.artifact import Artifact
from policies.checkpoint import read_card
from robots.episodes.store import EpisodeStore
from robots.language.text import decode
from tests.flows.recipe_stages import declared, run_all

LABELS = ("red", "blue")
SPECIALIST = "specialist@instruction=red"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("smoke_rldg", (), tmp_path_factory.mktemp("runs"))


def test_both_policies_are_trained_alike_and_compared(artifacts: dict[str, Artifact]) -> None:
    metrics = {name: artifact.manifest["metrics"] for name, artifact in artifacts.items()}
    groups = [group["name"] for group in metrics["comparison"]["groups"]]
    assert groups == ["scores@control", "scores@generalist"]
    assert metrics["scores@generalist"]["success"]["n"] == 16
    assert metrics["generalist"]["steps"] == metrics["control"]["steps"]
    assert metrics["specialist_scores@specialist,instruction=red"]["success"]["k"] > 0


@pytest.mark.parametrize(("merged", "of"), [("successes", "rollouts"), ("demonstrations", "demos")])
def test_each_instruction_gives_its_episodes_and_every_episode_names_its_stage(
    artifacts: dict[str, Artifact], merged: str, of: str
) -> None:
    store = EpisodeStore.open(artifacts[merged].path / "store.zarr")
    assert store.num_episodes == 16
    for number, name in ((0, "red"), (15, "blue")):
        metadata = store.metadata(number)
        assert metadata["source_store"] == f"{of}@instruction={name}"
        assert metadata["success"] is True
        text = store.read(number, "policy", ["instruction"])["instruction"]
        assert set(decode(text)) == {f"reach the {name} marker"}
    digests = {store.metadata(number)["source_digest"] for number in range(16)}
    assert digests == set(artifacts[merged].manifest["inputs"].values())


def test_the_generalist_reads_the_instruction(artifacts: dict[str, Artifact]) -> None:
    kinds = {
        name: read_card(artifacts[name].path).model.kind for name in ("generalist", SPECIALIST)
    }
    assert kinds == {"generalist": "vla", SPECIALIST: "diffusion"}


def test_specialists_are_trained_evaluated_and_recorded_with_their_instruction() -> None:
    stages = declared("smoke_rldg")
    for kind in ("specialist", "rollouts"):
        config = stages[f"{kind}@instruction=blue"].config
        assert config.protocol.options == {"instruction": "reach the blue marker"}
    assert [stage.name for stage in stages["successes"].inputs.values()] == [
        f"rollouts@instruction={label}" for label in LABELS
    ]
    assert stages["generalist"].config == stages["control"].config
