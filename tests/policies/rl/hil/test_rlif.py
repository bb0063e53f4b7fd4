"""RLIF's reward from hand-made episodes, step by step as they would arrive."""

from pathlib import Path

import numpy as np
import pytest

from policies.rl.hil.config import RlifConfig
from policies.rl.hil.rlif import InterventionReward, RlifReplay
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import Steps, chosen, joined, plain_steps


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
    return joined([reward(chosen(steps, np.array([row]))) for row in range(steps.rows)])


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


def test_steps_that_arrive_together_get_the_same_rewards_as_one_by_one() -> None:
    steps = joined([episode(".P..P", number=3), episode("..P", number=4)])
    out = InterventionReward()(steps)
    assert out.reward.tolist() == [-1, 0, 0, -1, 0, 0, -1, 0]


def test_a_step_waits_for_its_successor_and_the_last_one_does_not() -> None:
    reward, steps = InterventionReward(), episode("..P.")
    counts = [reward(chosen(steps, np.array([row]))).rows for row in range(4)]
    assert counts == [0, 1, 1, 2]
    assert reward.held == 0


def test_interleaved_episodes_do_not_touch_one_another() -> None:
    first, second = episode("..P", number=0), episode("P..", number=1)
    reward = InterventionReward()
    out: dict[int, list[float]] = {0: [], 1: []}
    for row in range(3):
        both = joined([chosen(first, np.array([row])), chosen(second, np.array([row]))])
        ready = reward(both)
        for number, value in zip(ready.episode.tolist(), ready.reward.tolist(), strict=True):
            out[number].append(value)
    assert out == {0: [0, -1, 0], 1: [0, 0, 0]}


def test_an_intervention_at_the_start_of_an_episode_does_not_punish_the_one_before() -> None:
    steps = joined([episode("..", number=0), episode("P.", number=1)])
    assert streamed(InterventionReward(), steps).reward.tolist() == [0, 0, 0, 0]


def test_a_lost_step_is_not_taken_for_the_one_before_an_intervention() -> None:
    steps = chosen(episode("...P."), np.array([0, 1, 3, 4]))
    out = streamed(InterventionReward(), steps)
    assert out.reward.tolist() == [0, 0, 0, 0]


def test_as_in_the_code_only_the_last_step_of_every_intervention_is_kept() -> None:
    out = streamed(InterventionReward(RlifConfig(keep_expert_steps=False)), episode(".PPP.PP"))
    assert out.observation[:, 0].tolist() == [0, 3, 4, 6]
    assert out.reward.tolist() == [-1, 0, -1, 0]


def test_the_penalty_is_as_configured() -> None:
    assert streamed(InterventionReward(RlifConfig(reward=-0.5)), episode(".P")).reward.tolist() == [
        -0.5,
        0,
    ]


def test_what_is_held_back_survives_a_restart() -> None:
    steps = episode("..P")
    before = InterventionReward()
    before(chosen(steps, np.array([0, 1])))
    after = InterventionReward()
    after.load_state_dict(before.state_dict())
    assert after(chosen(steps, np.array([2]))).reward.tolist() == [-1, 0]


def test_what_is_held_back_can_be_asked_for() -> None:
    reward = InterventionReward()
    assert reward.flush() is None
    reward(chosen(episode(".."), np.array([0])))
    flushed = reward.flush()
    assert flushed is not None
    assert flushed.reward.tolist() == [0]
    assert reward.held == 0


def test_the_replay_holds_the_new_rewards_and_links_steps_that_follow() -> None:
    replay = RlifReplay(ReplayConfig(capacity=8, discount=0.5, n_step=2), 1, 1)
    for row in range(4):
        replay.append(chosen(episode(".P.P"), np.array([row])))
    batch = replay.transitions(np.arange(4))
    # r_0 + 0.5 r_1, and so on; the task's 7 is nowhere.
    assert batch.reward_B.tolist() == [-1, -0.5, -1, 0]
    assert batch.intervention_B.tolist() == [False, True, False, True]


def test_the_replay_remembers_the_step_it_holds_back() -> None:
    config = ReplayConfig(capacity=8)
    before = RlifReplay(config, 1, 1)
    before.append(chosen(episode("..P"), np.array([0, 1])))
    after = RlifReplay(config, 1, 1)
    after.load_state_dict(before.state_dict())
    after.append(chosen(episode("..P"), np.array([2])))
    assert after.transitions(np.arange(3)).reward_B.tolist() == [0, -1, 0]


def test_a_folder_without_room_for_what_is_held_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="RlifReplay cannot be saved"):
        RlifReplay(ReplayConfig(capacity=8), 1, 1).save(tmp_path)
