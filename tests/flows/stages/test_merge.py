"""Successes of several specialists become one store (RLDG)."""

from __future__ import annotations

import pytest

from flows.runner.artifact import Artifact
from robots.episodes.store import EpisodeStore
from robots.language.text import decode
from tests.flows.recipe_stages import declared, run_all

SHORT = (
    "demos.episodes=6",
    "shared.protocol.episodes=2",
    "demonstrations.episodes_each=5",
)
ONLY = ("demos@instruction=red", "demos@instruction=blue", "demonstrations")


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    root = tmp_path_factory.mktemp("runs")
    return run_all("smoke_rldg", SHORT, root, only=ONLY)["demonstrations"]


def test_each_instruction_gives_its_episodes_and_every_episode_names_its_stage(
    merged: Artifact,
) -> None:
    store = EpisodeStore.open(merged.path / "store.zarr")
    assert store.num_episodes == 10
    for number, name in ((0, "red"), (9, "blue")):
        metadata = store.metadata(number)
        assert metadata["source_store"] == f"demos@instruction={name}"
        assert metadata["success"] is True
        text = store.read(number, "policy", ["instruction"])["instruction"]
        assert set(decode(text)) == {f"reach the {name} marker"}
    digests = {store.metadata(number)["source_digest"] for number in range(10)}
    assert digests == set(merged.manifest["inputs"].values())


def test_specialists_are_trained_evaluated_and_recorded_with_their_instruction() -> None:
    stages = declared("smoke_rldg")
    for kind in ("specialist", "rollouts"):
        config = stages[f"{kind}@instruction=blue"].config
        assert config.protocol.options == {"instruction": "reach the blue marker"}
    assert [stage.name for stage in stages["successes"].inputs.values()] == [
        "rollouts@instruction=red",
        "rollouts@instruction=blue",
    ]
    assert stages["generalist"].config == stages["control"].config
