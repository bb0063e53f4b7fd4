"""A prediction of the episode's end that is trained beside the actions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from policies.checkpoint import WEIGHTS
from policies.data.frames import FrameStorage
from policies.imitation.config import PretrainConfig
from policies.imitation.end_prediction import NAME
from policies.imitation.objective import imitation_objective, prepare
from policies.imitation.pretrain import pretrain
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY

CONFIG = PretrainConfig(
    policy=TINY,
    training=TrainingConfig(steps=4, learning_rate=1e-2, batch_size=8, precision="fp32"),
    validation_fraction=0.0,
)
PREDICTING = replace(CONFIG, predict_end={"agent": 1.0})


def prepared(config: PretrainConfig, demos: Path):
    return prepare(config, demos, FrameStorage(), torch.device("cpu"))


def test_the_targets_are_changes_until_the_last_step_in_units_of_their_deviation(demos: Path):
    setup = prepared(PREDICTING, demos)
    train = setup.split.train
    begin, end = setup.card.shapes.entries["agent"]
    assert train.ending_NG is not None
    assert train.ending_NG.shape == (len(train), end - begin)
    torch.testing.assert_close(train.ending_NG.std(dim=0, unbiased=False), torch.ones(end - begin))
    # The newest step of the last window is within a chunk of the end, that of the first is not.
    newest_N = train.observation_NT[:, -1]
    change = train.observation_MO[-1, begin:end] - train.observation_MO[newest_N[-1], begin:end]
    scale = (change / train.ending_NG[-1])[change.abs() > 1e-6]
    assert (scale > 0.0).all()


def test_an_error_of_the_prediction_is_part_of_the_loss_and_reaches_the_encoder(demos: Path):
    setup, plain = prepared(PREDICTING, demos), prepared(CONFIG, demos)

    def loss(setup):
        objective = imitation_objective(
            setup.module, setup.split.train, 16, 0, "fp32", setup.mixture, auxiliary=setup.auxiliary
        )
        return objective.loss(objective.batch(0), 0)

    assert loss(setup).item() > loss(plain).item()
    loss(setup).backward()
    assert setup.ending is not None
    assert all(part.grad is not None for part in setup.ending.parameters())


def test_the_prediction_is_learned_and_is_not_part_of_the_policy(demos: Path, tmp_path: Path):
    for folder in ("plain", "predicting"):
        (tmp_path / folder).mkdir()
    plain = pretrain(CONFIG, demos, tmp_path / "plain", no_progress)
    longer = replace(PREDICTING, training=replace(CONFIG.training, steps=60))
    predicting = pretrain(longer, demos, tmp_path / "predicting", no_progress)
    assert plain["parameters"] == predicting["parameters"]
    assert not any(NAME in name for name in load_file(tmp_path / "predicting" / WEIGHTS))


def test_a_field_that_is_not_observed_is_refused(demos: Path):
    with pytest.raises(HandoffError, match=r"predict_end names 'agnet'.* did you mean 'agent'"):
        prepared(replace(CONFIG, predict_end={"agnet": 1.0}), demos)
