"""Rewards by the newest version of the success classifier: exact rows of a buffer and of steps that
arrive later."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from policies.rl.hil.judged_success import JudgedSuccess, Judgement
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.wire.steps import Steps, plain_steps

FIRST = 2**24
"""Number of a first episode."""


def episode(number: int, steps: int, solved: bool, demo: bool = False) -> Steps:
    last = np.arange(steps) == steps - 1
    return plain_steps(
        episode=np.full(steps, number),
        number=np.arange(steps),
        observation=np.full((steps, 1), number),
        action=np.zeros((steps, 1)),
        reward=last & solved,
        next_observation=np.full((steps, 1), number),
        terminated=last & solved,
        truncated=last & (not solved),
        demo=demo,
    )


def judgement(version: int, *rows: tuple[int, int, bool]) -> Judgement:
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return Judgement(version, columns[:, 0], columns[:, 1], columns[:, 2].astype(bool))


class Published:
    """Judgements that are published one after the other."""

    def __init__(self) -> None:
        self.newest = judgement(0)

    def __call__(self, version: int) -> Judgement | None:
        return self.newest if self.newest.version > version else None


def filled() -> Replay:
    """Two solved episodes of 3 and 2 steps, and one of 2 that a time limit ended."""
    replay = Replay(ReplayConfig(capacity=16, discount=0.9, timeouts_end=True), 1, 1)
    for number, steps, solved in ((FIRST, 3, True), (FIRST + 1, 2, True), (FIRST + 2, 2, False)):
        replay.append(episode(number, steps, solved))
    return replay


def ends(replay: Replay) -> list[tuple[int, float, bool, bool]]:
    """Slot, reward, terminated and truncated of all last steps."""
    columns, n = replay.columns, len(replay)
    return [
        (
            slot,
            float(columns["reward"][slot]),
            bool(columns["terminated"][slot]),
            bool(columns["truncated"][slot]),
        )
        for slot in range(n)
        if columns["terminated"][slot] or columns["truncated"][slot]
    ]


def test_a_withdrawn_success_is_a_time_limit_and_a_confirmed_one_stays() -> None:
    replay, published = filled(), Published()
    published.newest = judgement(1, (FIRST, 2, False), (FIRST + 1, 1, True))
    JudgedSuccess(published).revise([replay])
    assert ends(replay) == [
        (2, 0.0, False, True),
        (4, 1.0, True, False),
        (6, 0.0, False, True),
    ]
    assert replay.columns["reward"].sum() == 1.0, "no other step is changed"


def test_a_success_that_a_later_version_confirms_is_one_again() -> None:
    replay, published = filled(), Published()
    before = ends(replay)
    judged = JudgedSuccess(published)
    published.newest = judgement(1, (FIRST, 2, False))
    judged.revise([replay])
    published.newest = judgement(2, (FIRST, 2, True))
    judged.revise([replay])
    assert ends(replay) == before


def test_steps_that_arrive_after_the_judgement_get_its_rewards() -> None:
    published = Published()
    judged = JudgedSuccess(published)
    published.newest = judgement(1, (FIRST, 2, False))
    judged.revise([])
    steps = judged(episode(FIRST, 3, True))
    assert (steps.reward.tolist(), steps.terminated.tolist()) == ([0.0] * 3, [False] * 3)
    assert steps.truncated.tolist() == [False, False, True]
    untouched = episode(FIRST + 5, 3, True)
    assert judged(untouched) is untouched


def test_a_demonstration_with_the_number_of_an_episode_is_not_judged() -> None:
    published = Published()
    published.newest = judgement(1, (0, 1, False))
    judged = JudgedSuccess(published)
    replay = Replay(ReplayConfig(capacity=8), 1, 1)
    replay.append(episode(0, 2, True, demo=True))
    judged.revise([replay])
    assert ends(replay) == [(1, 1.0, True, False)]


def test_a_resumed_learner_has_the_rewards_of_the_newest_version(tmp_path: Path) -> None:
    replay, published = filled(), Published()
    replay.save(tmp_path / "replay")
    published.newest = judgement(3, (FIRST, 2, False))
    judged = JudgedSuccess(published)
    judged.revise([replay])
    replay.save(tmp_path / "replay")
    resumed = Replay(replay.config, 1, 1)
    resumed.load(tmp_path / "replay")
    again = JudgedSuccess(published)
    again.load_state_dict(judged.state_dict())
    again.revise([resumed])
    assert ends(resumed) == ends(replay)


def test_withdrawn_success_changes_the_sampled_reward_and_not_the_links() -> None:
    replay, published = filled(), Published()
    published.newest = judgement(1, (FIRST, 2, False))
    JudgedSuccess(published).revise([replay])
    transitions = replay.transitions(np.array([1, 2]))
    assert transitions.reward_B.tolist() == [0.0, 0.0]
    assert np.allclose(transitions.discount_B.numpy(), [0.9, 0.0]), "a time limit ends here"
