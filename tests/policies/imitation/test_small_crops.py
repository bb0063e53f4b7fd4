"""A training says which crops see less than half of a picture, and refuses those that do not fit
before it reads any picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.reports.results import describe
from policies.data.demonstrations import open_store
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.networks.config import ResnetEncoderConfig
from policies.policy_config import BehaviourCloningConfig
from policies.training.config import TrainingConfig
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes with pictures of 40 x 60 px."""
    folder, draw = tmp_path_factory.mktemp("demos"), np.random.default_rng(0)
    episodes = [
        {
            "q": draw.normal(size=(12, 3)).astype(np.float32),
            "front": draw.integers(256, size=(12, 40, 60, 3), dtype=np.uint8),
            "action": draw.normal(size=(12, 3)).astype(np.float32),
        }
        for _ in range(2)
    ]
    write_episodes(folder / "store.zarr", episodes, task="fold", rate_hz=10.0)
    return folder


def policy(**encoder) -> BehaviourCloningConfig:
    return BehaviourCloningConfig(
        observation_fields=("q",),
        image_fields=("front",),
        anchor_field=None,
        horizon=4,
        n_action_steps=2,
        hidden=(16,),
        image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=2, features=4, **encoder),
    )


def training(demos: Path, out: Path, **encoder) -> tuple[dict, list[str]]:
    """Metrics of two updates, and the notes shown during them."""
    notes: list[str] = []
    options = TrainingConfig(
        steps=2,
        learning_rate=1e-3,
        warmup_steps=0,
        batch_size=4,
        precision="fp32",
        preflight_seconds=0.0,
    )
    config = PretrainConfig(policy=policy(**encoder), training=options, validation_fraction=0.0)
    metrics = pretrain(config, demos, out, lambda done, total, note="": notes.append(note))
    return metrics, notes


def test_a_crop_of_less_than_half_is_noted_during_the_training_and_after_it(
    demos: Path, tmp_path: Path
) -> None:
    # 20 * 30 of 40 * 60 pixels.
    metrics, notes = training(demos, tmp_path, crop=(20, 30))
    note = "a crop of image_encoder covers only 25% of the pictures of 'front'"
    assert metrics["small_crops"] == {"front": 0.25}
    assert notes
    assert all(shown.endswith(note) for shown in notes)
    assert describe("pretrain", metrics).endswith(f"; {note}")


def test_the_default_crop_is_not_noted(demos: Path, tmp_path: Path) -> None:
    metrics, notes = training(demos, tmp_path)
    assert metrics["small_crops"] == {}
    assert not [note for note in notes if "image_encoder" in note]
    assert "image_encoder" not in describe("pretrain", metrics)


def test_a_crop_that_does_not_fit_is_refused_when_the_store_is_opened(demos: Path) -> None:
    with pytest.raises(
        HandoffError, match=r"image_encoder\.crop: 41 x 60 px .* 'front', which have 40 x 60 px"
    ):
        open_store("demos", demos / "store.zarr", policy(crop=(41, 60)))
