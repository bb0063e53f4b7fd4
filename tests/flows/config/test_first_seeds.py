"""Every stage and every protocol takes its starts from its own range of seeds."""

from __future__ import annotations

from typing import Any

import pytest

from flows.config.files import available
from flows.config.protocols import read_protocol
from flows.deployment.config import DeployConfig, DeploySession, DeployTaskConfig
from flows.evaluation.config import WorstCasePolicyConfig
from flows.stages.data.config import (
    DemonstrateConfig,
    RecordPlayConfig,
    RolloutConfig,
    ScriptedConfig,
)
from flows.stages.learn.config import ClassifyConfig
from policies.distillation.config import OnPolicyDistilConfig
from policies.rl.finetuning.config import FinetuneConfig
from policies.rl.from_scratch.config import FromScratchConfig
from robots.seed_ranges import (
    CLASSIFIER,
    DEMONSTRATIONS,
    EVALUATION,
    PLAY,
    RECORDING,
    ROLLOUTS,
    TRAINING,
    WORST_CASE,
)
from sim.environment_families.worst_case import WorstCaseConfig
from sim.recording.rollouts import RecordConfig


@pytest.mark.parametrize(
    ("stage", "seeds"),
    [
        (ScriptedConfig, DEMONSTRATIONS),
        (DemonstrateConfig, DEMONSTRATIONS),
        (DeploySession, DEMONSTRATIONS),
        (ClassifyConfig, CLASSIFIER),
        (RolloutConfig, ROLLOUTS),
        (DeployConfig, EVALUATION),
        (DeployTaskConfig, EVALUATION),
        (RecordPlayConfig, PLAY),
        (RecordConfig, RECORDING),
        (FinetuneConfig, TRAINING),
        (OnPolicyDistilConfig, TRAINING),
        (FromScratchConfig, TRAINING),
        (WorstCaseConfig, WORST_CASE),
        (WorstCasePolicyConfig, WORST_CASE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_stage_begins_where_its_range_does(stage: Any, seeds: range) -> None:
    assert stage.first_seed == seeds.start


@pytest.mark.parametrize("name", available("protocol"))
def test_a_protocol_stays_within_the_range_of_evaluations(name: str) -> None:
    seeds = read_protocol(name).seeds
    assert seeds[0] in EVALUATION
    assert seeds[-1] in EVALUATION
