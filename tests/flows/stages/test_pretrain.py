"""Files that the stage reads from outside the pipeline are part of its cache key."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.recipes.compose import compose
from flows.recipes.pipeline import stages
from flows.stages.pretrain import external_digests
from policies.imitation.config import MixedStore, PretrainConfig
from policies.networks.config import BackboneConfig
from policies.policy_config import VlaConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.policies.conftest import write_demonstrations


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the cache of digests into the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_there_are_no_external_files_by_default() -> None:
    assert external_digests(PretrainConfig()) == {}


def test_a_mixed_store_that_grew_has_another_digest(tmp_path: Path) -> None:
    action = np.zeros((5, 2))
    demos = write_demonstrations(tmp_path / "further", [action])
    config = PretrainConfig(mixture=(MixedStore(path=str(demos)),))
    before = external_digests(config)
    assert external_digests(config) == before
    with EpisodeStore.open(demos / "store.zarr", "a") as store:
        store.append({"policy": {"goal": action, "agent": action, "action": action}}, {})
    after = external_digests(config)
    assert before.keys() == after.keys() == {f"mixture {demos}"}
    assert before != after


def test_weights_and_backbone_to_start_from_have_digests(tmp_path: Path) -> None:
    for name in ("policy", "backbone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    vla = VlaConfig(backbone=BackboneConfig(folder=str(tmp_path / "backbone")))
    digests = external_digests(PretrainConfig(policy=vla, initial=str(tmp_path / "policy")))
    assert digests.keys() == {"initial", "backbone"}
    assert digests["initial"] != digests["backbone"]


def test_an_absent_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="nowhere: cannot be read"):
        external_digests(PretrainConfig(mixture=(MixedStore(path=str(tmp_path / "nowhere")),)))


def test_the_pipeline_hands_the_digests_to_its_stage(tmp_path: Path) -> None:
    demos = write_demonstrations(tmp_path / "further", [np.zeros((5, 2))])
    config = compose("smoke")
    mixed = replace(config.pretrain, mixture=(MixedStore(path=str(demos)),))
    stage = next(
        s for s in stages(replace(config, pretrain=mixed), fetch=False) if s.name == "pretrain"
    )
    assert stage.external == external_digests(mixed)
    assert list(stage.external) == [f"mixture {demos}"]


def test_mixtures_can_be_composed_from_the_command_line() -> None:
    composed = compose(
        "demo", ["pretrain.mixture=[{path: further, weight: 0.5}]", "pretrain.demos_weight=2"]
    )
    assert composed.pretrain.mixture == (MixedStore(path="further", weight=0.5),)
    assert composed.pretrain.demos_weight == 2.0


def test_the_digests_need_no_torch() -> None:
    config = "from policies.imitation.config import PretrainConfig"
    stage = "from flows.stages.pretrain import external_digests"
    check = f"import sys; {config}; {stage}; external_digests(PretrainConfig()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
