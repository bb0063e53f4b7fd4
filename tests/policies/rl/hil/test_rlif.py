"""Tests the rewards of RLIF on constructed episodes, step by step in order of arrival."""

from pathlib import Path

import numpy as np
import pytest

from policies.rl.hil.config import RlifConfig
from policies.rl.hil.rlif import InterventionReward, RlifReplay
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import Steps, concatenate_steps, plain_steps, select_steps


def episode(
    interventions: str, *, number: int = 0, end: str = "terminated", reward: float = 7.0
) -> Steps:
    """An episode with a person (P) or the learner (.) at every step; observations count the
    steps."""
    n = len(interventions)
    last = np.arange(n) == n - 1
    count = np.arange(n, dtype=np.float32)[:, None]
    never = np.zeros(n, bool)
    return plain_steps(
        np.full(n, number),
        np.arange(n),
        count,
        np.zeros((n, 1)),
        np.full(n, reward),
        count + 1,
        last if end == "terminated" else never,
        last if end == "truncated" else never,
        intervention=np.array([who == "P" for who in interventions]),
    )


def streamed(reward: InterventionReward, steps: Steps) -> Steps:
    """What comes out when the steps arrive one by one."""
    return concatenate_steps(
        [reward(select_steps(steps, np.array([row]))) for row in range(steps.rows)]
    )


@pytest.mark.parametrize(
    ("interventions", "rewards"),
    [
        ("..PP..", [0, -1, 0, 0, 0, 0]),
        ("PP..", [0, 0, 0, 0]),
        (".P.PP.", [-1, 0, -1, 0, 0, 0]),
        ("...P", [0, 0, -1, 0]),
        ("....", [0, 0, 0, 0]),
        ("PPPP", [0, 0, 0, 0]),
        (".P", [-1, 0]),
    ],
)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_step_before_an_intervention_and_no_other_is_punished(
    interventions: str, rewards: list[int], end: str
) -> None:
    out = streamed(InterventionReward(), episode(interventions, end=end))
    assert out.reward.tolist() == rewards
    assert out.observation[:, 0].tolist() == list(range(len(interventions)))
    assert out.reward.dtype == np.float32


def test_rewards_do_not_depend_on_the_batches_in_which_steps_arrive() -> None:
    steps = concatenate_steps([episode(".P..P", number=3), episode("..P", number=4)])
    out = InterventionReward()(steps)
    assert out.reward.tolist() == [-1, 0, 0, -1, 0, 0, -1, 0]


def test_a_step_waits_for_its_successor_except_at_the_end_of_an_episode() -> None:
    reward, steps = InterventionReward(), episode("..P.")
    counts = [reward(select_steps(steps, np.array([row]))).rows for row in range(4)]
    assert counts == [0, 1, 1, 2]
    assert reward.num_pending == 0


def test_interleaved_episodes_are_independent() -> None:
    first, second = episode("..P", number=0), episode("P..", number=1)
    reward = InterventionReward()
    out: dict[int, list[float]] = {0: [], 1: []}
    for row in range(3):
        both = concatenate_steps(
            [select_steps(first, np.array([row])), select_steps(second, np.array([row]))]
        )
        ready = reward(both)
        for number, value in zip(ready.episode.tolist(), ready.reward.tolist(), strict=True):
            out[number].append(value)
    assert out == {0: [0, -1, 0], 1: [0, 0, 0]}


def test_an_intervention_at_the_start_of_an_episode_does_not_punish_the_one_before() -> None:
    steps = concatenate_steps([episode("..", number=0), episode("P.", number=1)])
    assert streamed(InterventionReward(), steps).reward.tolist() == [0, 0, 0, 0]


def test_after_a_lost_step_no_step_counts_as_the_one_before_an_intervention() -> None:
    steps = select_steps(episode("...P."), np.array([0, 1, 3, 4]))
    out = streamed(InterventionReward(), steps)
    assert out.reward.tolist() == [0, 0, 0, 0]


def test_as_in_the_code_only_the_last_step_of_every_intervention_is_kept() -> None:
    out = streamed(InterventionReward(RlifConfig(keep_expert_steps=False)), episode(".PPP.PP"))
    assert out.observation[:, 0].tolist() == [0, 3, 4, 6]
    assert out.reward.tolist() == [-1, 0, -1, 0]


def test_the_penalty_is_as_configured() -> None:
    assert streamed(
        InterventionReward(RlifConfig(penalty=-0.5)), episode(".P")
    ).reward.tolist() == [
        -0.5,
        0,
    ]


def test_pending_steps_survive_a_restart() -> None:
    steps = episode("..P")
    before = InterventionReward()
    before(select_steps(steps, np.array([0, 1])))
    after = InterventionReward()
    after.load_state_dict(before.state_dict())
    assert after(select_steps(steps, np.array([2]))).reward.tolist() == [-1, 0]


def test_pending_steps_can_be_flushed() -> None:
    reward = InterventionReward()
    assert reward.flush() is None
    reward(select_steps(episode(".."), np.array([0])))
    flushed = reward.flush()
    assert flushed is not None
    assert flushed.reward.tolist() == [0]
    assert reward.num_pending == 0


def test_the_replay_holds_the_new_rewards_and_links_steps_that_follow() -> None:
    replay = RlifReplay(ReplayConfig(capacity=8, discount=0.5, n_step=2), 1, 1)
    for row in range(4):
        replay.append(select_steps(episode(".P.P"), np.array([row])))
    batch = replay.transitions(np.arange(4))
    # r_0 + 0.5 r_1, and so on; the task's 7 is nowhere.
    assert batch.reward_B.tolist() == [-1, -0.5, -1, 0]
    assert batch.intervention_B.tolist() == [False, True, False, True]


def test_the_state_of_the_replay_includes_the_pending_step() -> None:
    config = ReplayConfig(capacity=8)
    before = RlifReplay(config, 1, 1)
    before.append(select_steps(episode("..P"), np.array([0, 1])))
    after = RlifReplay(config, 1, 1)
    after.load_state_dict(before.state_dict())
    after.append(select_steps(episode("..P"), np.array([2])))
    assert after.transitions(np.arange(3)).reward_B.tolist() == [0, -1, 0]


def test_saving_pending_steps_to_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="RlifReplay cannot be saved"):
        RlifReplay(ReplayConfig(capacity=8), 1, 1).save(tmp_path)
