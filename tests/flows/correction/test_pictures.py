"""A session from pictures, through its real processes: what it records, and the policy it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.artifacts import Episodes
from flows.correction.config import CorrectConfig
from flows.session.config import HilEnvConfig
from flows.stages.data import demonstrate
from flows.stages.data.config import DemonstrateConfig
from flows.stages.learn import correct
from policies.load import load_module
from policies.networks.config import TrunkConfig
from policies.policy_config import LearnedActorConfig
from robots.config import to_plain, validate
from robots.episodes.corrections import STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.scene.cameras import CamerasConfig

PICTURES = ("image_front", "image_wrist")
FIELDS = ("grasp_pose", "target_offset", "width", "width_target")
ENV = HilEnvConfig(
    task="lift_cube",
    rate_hz=10.0,
    observation_fields=FIELDS,
    cameras=CamerasConfig(height=32, width=32),
)
STEPS = 120
SMALL = {"hidden": [16], "activation": "relu"}


def config(**options: Any) -> CorrectConfig:
    sac = {
        "critic": SMALL,
        "actor": SMALL,
        "guidance": {},
        "encoder": {"picture_width": 8, "vector_width": 8, "dropout": 0.1},
    }
    online = {"batch_size": 16, "updates_per_step": 0.5, "minibatches": 1, "training_starts": 40}
    return validate(
        CorrectConfig,
        {
            "env": to_plain(ENV),
            "algorithm": {"kind": "hil_serl", "reward": "task", "sac": sac, "online": online},
            "relative_features": [],
            "steps": STEPS,
            "speed": 0.0,
            "backlog": 20,
            "learner": {"port": 0, "publish_every": 10},
            "actor": {"pictures": list(PICTURES)},
            **options,
        },
    )


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    out = tmp_path_factory.mktemp("demos")
    demonstrate.run(DemonstrateConfig(env=ENV, episodes=3), out, no_progress)
    return Episodes(out)


def test_a_session_learns_from_pictures_and_saves_a_policy_that_reads_them(
    demos: Episodes, tmp_path: Path
) -> None:
    metrics = correct.run(config(), tmp_path, no_progress, demos=demos).metrics
    assert metrics["steps"] >= STEPS
    assert metrics["updates"] == 40
    # The trunk is a part of the policy, not a file beside it.
    assert not (tmp_path / "trunk.onnx").exists()
    module, card = load_module(tmp_path)
    assert isinstance(card.model, LearnedActorConfig)
    assert (card.model.image_fields, card.model.trunk) == (PICTURES, TrunkConfig())
    assert set(card.sensors) == set(PICTURES)
    assert tuple(card.observation) == FIELDS
    # The episodes have the pictures that the policy saw, and it acts on them.
    store = EpisodeStore.open(tmp_path / "store.zarr")
    rows = store.read(0, STREAM)
    assert rows["image_wrist"].shape[1:] == (32, 32, 3)
    vector = np.concatenate([rows[name].reshape(len(rows["width"]), -1) for name in FIELDS], axis=1)
    pictures = {name: torch.from_numpy(rows[name][:, None]) for name in PICTURES}
    observation = torch.from_numpy(vector[:, None].astype(np.float32))
    with torch.no_grad():
        noise = torch.zeros(len(vector), 1, 5)
        action = module(observation, noise, pictures)
        black = {name: torch.zeros_like(picture) for name, picture in pictures.items()}
        unseen = module(observation, noise, black)
    assert action.shape == (len(vector), 1, 5)
    assert not torch.equal(action, unseen)


def test_demonstrations_without_pictures_are_refused(tmp_path: Path) -> None:
    plain = HilEnvConfig(task="lift_cube", rate_hz=10.0, observation_fields=FIELDS)
    (tmp_path / "demos").mkdir()
    (tmp_path / "out").mkdir()
    demonstrate.run(DemonstrateConfig(env=plain, episodes=1), tmp_path / "demos", no_progress)
    with pytest.raises(HandoffError, match=r"have no pictures \['image_front', 'image_wrist'\]"):
        correct.run(config(), tmp_path / "out", no_progress, demos=Episodes(tmp_path / "demos"))
