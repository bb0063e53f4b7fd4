"""E1: GRPO with and without groups that all came to the same, from starts at which most groups are.

RLinf-VLA (arXiv 2510.06710) drops them: they teach nothing, and count among the rows by which the
loss is divided. WordLine, groups of eight in 256 environments, 12 rollouts of GRPO on an imitated
policy of action tokens that solves the task in .004 to .027 of the episodes of its first rollout,
or in .961 to .988. The score is the mean success of all rollouts but the first, so it tells how
fast a policy learns, too. Asked for, seeds 0 to 4: which of the two is ahead (AdaStop), and that
the negative control, which does not move, is behind both.

At five seeds neither is ahead. Hard start: dropped .399, .436, .465, .426, .4; kept .39, .436,
.444, .436, .416; still .014 to .026. Easy start: dropped 1, 1, .997, .999, .998; kept 1, .999,
.998, .999, .998; still .974 to .992. A reason may be that Adam forgets by what a loss is divided.
From the hard start both end at .4 to .6, the shares of the two sentences, with nearly all groups
alike: then one is obeyed always, the other never, and no group is left that tells.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.config import GroupConfig
from tests.policies.rl.on_policy.test_token_actor import LEARNING, envs, imitate, reading
from tests.toy_envs.comparison import better, runs

pytestmark = pytest.mark.slow

NUM_ENVS, DECISIONS, ROLLOUTS, SIZE = 256, 6, 12, 8
STARTS = {"hard": 0.25, "easy": 0.85}
"""Share of imitated chunks that go the right way; walking decides by several, which makes success
rarer, or surer."""


class Finetuned(NamedTuple):
    """Success of the first rollout, of those behind it, and of the last; share of decisions that
    first counted."""

    before: float
    score: float
    after: float
    kept: float


def finetuned(seed: int, start: str, drop_alike: bool, rate: float = 5e-4) -> Finetuned:
    policy = reading(seed=seed)
    imitate(policy, STARTS[start])
    learning = replace(LEARNING, epochs=2, batch_size=128, actor_learning_rate=rate)
    config = VlaFinetuneConfig(
        group=GroupConfig(size=SIZE, drop_alike=drop_alike), learning=learning
    )
    practice = VlaFinetuning(config, policy, envs(policy, NUM_ENVS), seed=seed)
    success, kept = [], []
    for _ in range(ROLLOUTS):
        before = len(practice.statistics.ended)
        kept.append(practice.rollout(DECISIONS)["kept"])
        practice.statistics.flush()
        ended = practice.statistics.ended[before:]
        success.append(float(np.mean([one.success for one in ended])))
    return Finetuned(
        *(
            round(part, 3)
            for part in (success[0], float(np.mean(success[1:])), success[-1], kept[0])
        )
    )


@pytest.fixture(scope="module", params=list(STARTS))
def found(request: pytest.FixtureRequest) -> dict[str, list[Finetuned]]:
    start = request.param
    return runs(
        {
            "dropped": partial(finetuned, start=start, drop_alike=True),
            "kept": partial(finetuned, start=start, drop_alike=False),
            # Without a rate it would be stopped as dead.
            "still": partial(finetuned, start=start, drop_alike=False, rate=1e-6),
        }
    )


def scores(found: dict[str, list[Finetuned]]) -> dict[str, list[float]]:
    return {name: [one.score for one in arm] for name, arm in found.items()}


def test_neither_is_ahead(found: dict[str, list[Finetuned]]) -> None:
    assert not better(scores(found), "dropped", "kept")
    assert not better(scores(found), "kept", "dropped")


def test_both_are_ahead_of_a_policy_that_does_not_move(found: dict[str, list[Finetuned]]) -> None:
    assert better(scores(found), "dropped", "still")
    assert better(scores(found), "kept", "still")


def test_most_decisions_stood_in_groups_that_were_alike_at_the_start(
    found: dict[str, list[Finetuned]],
) -> None:
    assert (
        np.mean(
            [
                one.kept / full.kept
                for one, full in zip(found["dropped"], found["kept"], strict=True)
            ]
        )
        < 0.5
    )
