"""Teachers of the stage `distill`: as many as the algorithm takes, one instruction for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flows.stages.learn.config import (
    DistilOnPolicyConfig,
    DistilPolicyConfig,
    FinetunePolicyConfig,
)
from flows.stages.learn.distill import check
from policies.rl.finetuning.config import DsrlFinetuneConfig, RlTokenFinetuneConfig
from robots.errors import HandoffError

ON_POLICY = DistilPolicyConfig(algorithm=DistilOnPolicyConfig())
SOURCES: dict[str, Any] = {"teacher": None, "student": None}


def with_instructions(*instructions: str) -> DistilPolicyConfig:
    return DistilPolicyConfig(algorithm=replace(DistilOnPolicyConfig(), instructions=instructions))


def test_on_policy_takes_several_teachers_with_one_instruction_each() -> None:
    check(ON_POLICY, {**SOURCES, "more_teachers": ()})
    check(ON_POLICY, {**SOURCES, "more_teachers": (None, None)})
    check(with_instructions("go left", "go right"), {**SOURCES, "more_teachers": (None,)})
    with pytest.raises(HandoffError, match="instructions has 2 entries for 3 teachers"):
        check(with_instructions("go left", "go right"), {**SOURCES, "more_teachers": (None, None)})


def test_one_step_takes_one_teacher() -> None:
    sources = {"teacher": None, "demos": None}
    check(DistilPolicyConfig(), {**sources, "more_teachers": ()})
    with pytest.raises(HandoffError, match="2 teachers with the algorithm 'one_step'"):
        check(DistilPolicyConfig(), {**sources, "more_teachers": (None,)})
    with pytest.raises(HandoffError, match="given are teacher, student"):
        check(DistilPolicyConfig(), {**SOURCES, "more_teachers": ()})


@pytest.mark.parametrize("algorithm", [DsrlFinetuneConfig(), RlTokenFinetuneConfig()])
def test_a_teacher_with_an_actor_beside_its_sampler_is_distilled_to_one_step_only(
    algorithm: DsrlFinetuneConfig | RlTokenFinetuneConfig,
) -> None:
    teacher = FinetunePolicyConfig(algorithm=algorithm)
    check(DistilPolicyConfig(), {"teacher": teacher, "demos": None})
    for sources in ({"teacher": teacher}, {"teacher": None, "more_teachers": (teacher,)}):
        with pytest.raises(HandoffError, match=f"a teacher is fine-tuned by '{algorithm.kind}'"):
            check(ON_POLICY, {**sources, "student": None})
