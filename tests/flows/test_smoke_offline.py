"""The recipe `smoke_offline`, whole: every offline algorithm, relabelled data, and EDP up to the
gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.checkpoint import read_card
from policies.rl.offline.saved_learner import load_learner
from robots.episodes.store import EpisodeStore
from tests.flows.test_smoke import handoff


@pytest.mark.timeout(1200)
def test_the_offline_recipe_runs_whole_and_is_cached_afterwards(tmp_path: Path) -> None:
    handoff("run", "smoke_offline", f"runs={tmp_path / 'runs'}", home=tmp_path)
    run = tmp_path / "runs" / "smoke_offline"
    summary = json.loads((run / "summary.json").read_text())
    stages = summary["stages"]
    assert {row["status"] for row in stages.values()} == {"done"}
    folders = {name: run / name for name in stages}
    # The task's own reward agrees with what was recorded.
    assert stages["demos"]["metrics"]["changed_episodes"] == 0
    assert EpisodeStore.open(folders["demos"] / "store.zarr").num_episodes == 24
    assert stages["iql"]["metrics"]["episodes"] == 24
    # Learners on state leave their critics, diffusion policies a chunk and a sampler.
    assert load_learner(folders["iql"]).config.kind == "iql"
    assert load_learner(folders["cal_ql"]).config.kind == "cal_ql"
    assert read_card(folders["edp"]).model.kind == "diffusion"
    assert read_card(folders["offline_ppo"]).model.sampler_steps == 5
    assert stages["gate"]["metrics"]["passed"] is True

    handoff("run", "smoke_offline", f"runs={tmp_path / 'runs'}", home=tmp_path)
    again = json.loads((run / "summary.json").read_text())
    assert all(row["cached"] for row in again["stages"].values())
