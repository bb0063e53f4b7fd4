"""Fields that a policy estimates in place of observing them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.data.frames import FrameStorage
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import imitation_objective, prepare
from policies.imitation.pretrain import pretrain
from policies.load import load_module
from policies.networks.field_estimator import FieldEstimator
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY

CONFIG = PretrainConfig(
    policy=replace(TINY, observation_fields=("agent",)),
    training=TrainingConfig(steps=4, learning_rate=1e-2, batch_size=8, precision="fp32"),
    validation_fraction=0.0,
)
# The goal is a function of the way so far: every demonstration begins towards it.
ESTIMATING = replace(CONFIG, policy=replace(CONFIG.policy, estimated_fields=("goal",)))


def prepared(config: PretrainConfig, demos: Path):
    return prepare(config, demos, FrameStorage(), torch.device("cpu"))


def the_encoder(module: torch.nn.Module) -> ObservationEncoder:
    (encoder,) = (part for part in module.modules() if isinstance(part, ObservationEncoder))
    return encoder


def test_targets_are_the_recorded_values_at_the_observed_steps(demos: Path):
    setup = prepared(ESTIMATING, demos)
    windows = setup.split.train
    assert windows.estimated_MG is not None
    torch.testing.assert_close(windows.estimated_MG.amin(dim=0), -torch.ones(2))
    torch.testing.assert_close(windows.estimated_MG.amax(dim=0), torch.ones(2))
    chosen = torch.tensor([3, 0])
    batch = windows.batch(chosen)
    assert batch.estimated_BTG is not None
    assert torch.equal(batch.estimated_BTG, windows.estimated_MG[windows.observation_NT[chosen]])
    # Back to metres: the goal of the first episode, which is its last action.
    encoder = the_encoder(setup.module)
    assert encoder.estimator is not None
    first = encoder.estimator.normalize.inverse(batch.estimated_BTG[1, 0])
    recorded = prepared(replace(CONFIG, policy=TINY), demos)
    begin, end = recorded.card.shapes.entries["goal"]
    goal = recorded.module.normalize_observation.inverse(recorded.split.train.observation_MO)
    torch.testing.assert_close(first, goal[0, begin:end])


def test_the_estimate_is_a_feature_and_the_error_a_part_of_the_loss(demos: Path):
    setup = prepared(ESTIMATING, demos)
    encoder = the_encoder(setup.module)
    assert encoder.features == 2
    batch = setup.split.train.batch(torch.arange(8))
    encoded = encoder(batch.obs)
    assert encoder.estimator is not None
    assert torch.equal(encoded[..., 2:], encoder.estimator(batch.obs.vector_BTO))

    def loss(weight: float) -> torch.Tensor:
        parts = prepared(replace(ESTIMATING, estimate_weight=weight), demos)
        objective = imitation_objective(
            parts.module, parts.split.train, 8, 0, "fp32", auxiliary=parts.auxiliary
        )
        return objective.loss(objective.batch(0), 0)

    without, once, twice = loss(0.0), loss(1.0), loss(2.0)
    assert once.item() > without.item()
    torch.testing.assert_close(twice - without, 2.0 * (once - without))


def test_estimates_are_learned_saved_and_made_of_the_observation_alone(demos: Path, tmp_path: Path):
    def error(weight: float) -> float:
        folder = tmp_path / str(weight)
        folder.mkdir()
        training = replace(CONFIG.training, steps=300)
        pretrain(
            replace(ESTIMATING, training=training, estimate_weight=weight),
            demos,
            folder,
            no_progress,
        )
        policy, card = load_module(folder)
        assert list(card.estimated) == ["goal"]
        assert list(card.observation) == ["agent"]
        windows = prepared(ESTIMATING, demos).split.train
        batch = windows.batch(torch.arange(len(windows)))
        observed = ObservationTensors(batch.obs.vector_BTO, {}, (), None)
        with torch.no_grad():
            estimated_BTG = the_encoder(policy)(observed)[..., 2:]
        assert batch.estimated_BTG is not None
        return float((estimated_BTG - batch.estimated_BTG)[:, -1].abs().mean())

    assert error(1.0) < 0.7 * error(0.0)


def test_a_field_that_is_observed_or_unknown_is_refused(demos: Path):
    with pytest.raises(HandoffError, match=r"\['agent'\] are observed and estimated"):
        replace(ESTIMATING.policy, estimated_fields=("agent",))
    unknown = replace(CONFIG, policy=replace(CONFIG.policy, estimated_fields=("gaol",)))
    with pytest.raises(HandoffError, match="has no field 'gaol'"):
        prepared(unknown, demos)


def test_a_policy_without_estimates_has_no_estimator(demos: Path):
    setup = prepared(CONFIG, demos)
    assert not any(isinstance(part, FieldEstimator) for part in setup.module.modules())
    assert setup.split.train.estimated_MG is None
    assert setup.auxiliary == ()
