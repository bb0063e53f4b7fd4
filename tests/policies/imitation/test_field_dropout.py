"""Observation fields that are hidden in some of the training windows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.data.frames import FrameStorage
from policies.imitation.config import PretrainConfig
from policies.imitation.field_dropout import FieldDropout
from policies.imitation.objective import imitation_objective, prepare
from policies.imitation.pretrain import pretrain
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY

ENTRIES = {"goal": (0, 2), "agent": (2, 4)}


def test_a_field_is_hidden_in_its_share_of_the_windows_and_in_all_their_steps():
    dropout = FieldDropout.of({"agent": 0.25, "goal": 0.0}, ENTRIES)
    hidden_BTO = dropout(torch.ones(4000, 3, 4), np.random.default_rng(0)) == 0.0
    assert not hidden_BTO[..., :2].any()
    assert (hidden_BTO[..., 2:] == hidden_BTO[:, :1, 2:3]).all()
    assert hidden_BTO[:, 0, 2].float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_fields_are_hidden_independently():
    dropout = FieldDropout.of({"goal": 0.5, "agent": 0.5}, ENTRIES)
    hidden_BO = dropout(torch.ones(4000, 1, 4), np.random.default_rng(0))[:, 0] == 0.0
    both = (hidden_BO[:, 0] & hidden_BO[:, 2]).float().mean().item()
    assert both == pytest.approx(0.25, abs=0.03)


def test_the_loss_of_an_update_with_hidden_fields_is_repeated(demos: Path):
    config = PretrainConfig(
        policy=TINY,
        training=TrainingConfig(steps=4, learning_rate=1e-2, precision="fp32"),
    )
    setup = prepare(config, demos, FrameStorage(), torch.device("cpu"))

    def losses(dropout: FieldDropout | None) -> list[float]:
        objective = imitation_objective(
            setup.module.eval(), setup.split.train, 16, 0, "fp32", setup.mixture, dropout=dropout
        )
        batch = objective.batch(0)
        return [objective.loss(batch, step).item() for step in (3, 3)]

    hidden = losses(FieldDropout.of({"agent": 0.9}, setup.card.shapes.entries))
    assert hidden[0] == hidden[1]
    assert hidden != losses(None)


def test_a_field_that_is_not_observed_is_refused(demos: Path, tmp_path: Path):
    config = PretrainConfig(
        policy=TINY,
        training=TrainingConfig(steps=4, learning_rate=1e-2, precision="fp32"),
        field_dropout={"agnet": 0.5},
    )
    with pytest.raises(HandoffError, match=r"field_dropout names 'agnet'.* did you mean 'agent'"):
        pretrain(config, demos, tmp_path, no_progress)


def test_hiding_changes_what_is_learned(demos: Path, tmp_path: Path):
    config = PretrainConfig(
        policy=TINY,
        training=TrainingConfig(steps=4, learning_rate=1e-2, batch_size=8, precision="fp32"),
    )
    for folder in ("plain", "hiding"):
        (tmp_path / folder).mkdir()
    plain = pretrain(config, demos, tmp_path / "plain", no_progress)
    hiding = replace(config, field_dropout={"agent": 0.9})
    assert plain["loss"] != pretrain(hiding, demos, tmp_path / "hiding", no_progress)["loss"]
