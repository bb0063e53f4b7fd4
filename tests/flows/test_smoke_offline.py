"""The recipe `smoke_offline`, whole: every offline algorithm, relabelled data, and EDP up to the
gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.checkpoint import read_card
from policies.rl.offline.saved_learner import load_learner
from robots.episodes.store import EpisodeStore
from tests.flows.recipe_stages import run_all


@pytest.mark.timeout(1200)
def test_the_offline_recipe_runs_whole(tmp_path: Path) -> None:
    artifacts = run_all("smoke_offline", (), tmp_path)
    metrics = {name: artifact.manifest["metrics"] for name, artifact in artifacts.items()}
    # The task's own reward agrees with what was recorded.
    assert metrics["demos"]["changed_episodes"] == 0
    assert EpisodeStore.open(artifacts["demos"].path / "store.zarr").num_episodes == 24
    assert metrics["iql"]["episodes"] == 24
    # Learners on state leave their critics, diffusion policies a chunk and a sampler.
    assert load_learner(artifacts["iql"].path).config.kind == "iql"
    assert load_learner(artifacts["cal_ql"].path).config.kind == "cal_ql"
    assert read_card(artifacts["edp"].path).model.kind == "diffusion"
    assert read_card(artifacts["offline_ppo"].path).model.sampler_steps == 5
    assert metrics["gate"]["passed"] is True
