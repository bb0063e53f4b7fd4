"""Files that the stage reads from outside the pipeline are part of its cache key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.stages.learn.pretrain import external
from policies.imitation.config import MixedStore, PretrainConfig
from policies.networks.config import BackboneConfig, FolderEncoderConfig
from policies.policy_config import DiffusionPolicyConfig, VlaConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.flows.recipe_stages import declared, options
from tests.policies.conftest import write_demonstrations


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the cache of digests into the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_there_are_no_external_files_by_default() -> None:
    assert external(PretrainConfig(), False) == {}


def test_a_mixed_store_that_grew_has_another_digest(tmp_path: Path) -> None:
    action = np.zeros((5, 2))
    demos = write_demonstrations(tmp_path / "further", [action])
    config = PretrainConfig(mixture=(MixedStore(path=str(demos)),))
    before = external(config, False)
    assert external(config, False) == before
    with EpisodeStore.open(demos / "store.zarr", "a") as store:
        store.append({"policy": {"goal": action, "agent": action, "action": action}}, {})
    after = external(config, False)
    assert before.keys() == after.keys() == {f"mixture {demos}"}
    assert before != after


def test_weights_and_backbone_to_start_from_have_digests(tmp_path: Path) -> None:
    for name in ("policy", "backbone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    vla = VlaConfig(backbone=BackboneConfig(folder=str(tmp_path / "backbone")))
    digests = external(PretrainConfig(policy=vla, initial=str(tmp_path / "policy")), False)
    assert digests.keys() == {"initial", "backbone"}
    assert digests["initial"] != digests["backbone"]


def test_an_image_models_folder_has_a_digest_of_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    encoder = FolderEncoderConfig(folder=str(folder))
    policy = DiffusionPolicyConfig(image_fields=("front",), image_encoder=encoder)
    before = external(PretrainConfig(policy=policy), False)
    (folder / "model.safetensors").write_bytes(b"other weights")
    after = external(PretrainConfig(policy=policy), False)
    assert before.keys() == after.keys() == {"image encoder"}
    assert before != after


def test_an_absent_store_is_named(tmp_path: Path) -> None:
    config = PretrainConfig(mixture=(MixedStore(path=str(tmp_path / "nowhere")),))
    with pytest.raises(HandoffError, match="nowhere: cannot be read"):
        external(config, False)


def test_the_pipeline_hands_the_digests_to_its_stage(tmp_path: Path) -> None:
    demos = write_demonstrations(tmp_path / "further", [np.zeros((5, 2))])
    stage = declared("smoke", [f"pretrained.mixture=[{{path: '{demos}'}}]"])["pretrained"]
    assert stage.external == external(stage.config, False)
    assert list(stage.external) == [f"mixture {demos}"]


def test_mixtures_can_be_chosen_on_the_command_line(tmp_path: Path) -> None:
    demos = write_demonstrations(tmp_path / "further", [np.zeros((5, 2))])
    mixture = f"teacher.mixture=[{{path: '{demos}', weight: 0.5}}]"
    config = options("demo", [mixture, "teacher.demos_weight=2"])["teacher"]
    assert config.mixture == (MixedStore(path=str(demos), weight=0.5),)
    assert config.demos_weight == 2.0


def test_the_digests_need_no_torch() -> None:
    config = "from policies.imitation.config import PretrainConfig"
    stage = "from flows.stages.learn.pretrain import external"
    check = f"import sys; {config}; {stage}; external(PretrainConfig(), False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
