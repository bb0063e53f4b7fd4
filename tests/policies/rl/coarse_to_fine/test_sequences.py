"""Minibatches of sequences, episodes that are kept until they end, and actions that are
averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policies.rl.coarse_to_fine.sequence_actor import EnsembledSequences
from policies.rl.coarse_to_fine.sequences import SequenceSampler
from policies.rl.replay.whole_episodes import WholeEpisodes
from robots.control.temporal_ensemble import temporal_ensemble
from robots.wire.steps import Steps, concatenate_steps, select_steps
from tests.policies.rl.replays import episode, replay_of


def marked(steps: Steps) -> Steps:
    return steps._replace(demo=np.ones(steps.rows, bool))


def sampler(
    own: list[Steps], *, self_imitation: bool = True, share: float = 0.5
) -> SequenceSampler:
    demos = replay_of(marked(episode([0.0, 0.0, 1.0], number=50)))
    return SequenceSampler(
        replay_of(*own), demos, 64, share, horizon=4, self_imitation=self_imitation
    )


def test_sequences_end_with_their_episode() -> None:
    batch = sampler([episode([0.0] * 6)])(np.random.default_rng(0))
    assert batch.action_BKA.shape == (64, 4, 1)
    for row in range(64):
        first = round(float(batch.transitions.obs.vector_BO[row, 0]))
        length = 3 if bool(batch.transitions.demo_B[row]) else 6
        count = min(4, length - first)
        assert batch.valid_BK[row].tolist() == [1.0] * count + [0.0] * (4 - count)
        expected = 0.1 * (first + torch.arange(count))
        torch.testing.assert_close(batch.action_BKA[row, :count, 0], expected)


def test_half_of_the_rows_are_demonstrations_and_all_until_an_episode_has_ended() -> None:
    mixed = sampler([episode([0.0] * 6)])(np.random.default_rng(0)).transitions.demo_B
    assert int(mixed.sum()) == 32
    alone = sampler([])(np.random.default_rng(0)).transitions.demo_B
    assert int(alone.sum()) == 64


def test_demonstrations_that_failed_are_not_imitated() -> None:
    demos = replay_of(marked(episode([0.0] * 3, number=1)), episode([0.0] * 9, number=2))
    drawn = SequenceSampler(replay_of(), demos, 64, 0.5, horizon=2, self_imitation=True)(
        np.random.default_rng(0)
    )
    beyond = drawn.transitions.obs.vector_BO[:, 0] > 2
    assert bool(beyond.any())
    assert not bool(drawn.transitions.demo_B[beyond].any())
    assert bool(drawn.transitions.demo_B.any())


@pytest.mark.parametrize("imitates", [True, False])
def test_own_successes_count_as_demonstrations_where_asked(imitates: bool) -> None:
    own = [marked(episode([0.0] * 30, number=1)), episode([0.0] * 30, number=2)]
    batch = sampler(own, self_imitation=imitates, share=0.75)(np.random.default_rng(0))
    demo = batch.transitions.demo_B
    # Steps beyond the third are of the policy's own episodes.
    own_demo = demo & (batch.transitions.obs.vector_BO[:, 0] > 2)
    assert bool(own_demo.any()) == imitates
    # Of the quarter from all own steps, those of the successful episode count too.
    assert (int(demo.sum()) > 48) == imitates


def test_episodes_are_kept_until_they_end() -> None:
    first, second = episode([0.0, 1.0], number=3), episode([0.0, 0.0, 0.0], number=4)
    running = WholeEpisodes(2)

    def step(index: int, success: list[bool]) -> list[Steps]:
        rows = [select_steps(each, np.array([index])) for each in (first, second)]
        both = concatenate_steps(rows)
        return running.add(both, np.array(success))

    assert step(0, [False, False]) == []
    restored = WholeEpisodes(2)
    restored.load_state_dict(running.state_dict())
    (ended,) = step(1, [True, False])
    assert ended.episode.tolist() == [3, 3]
    assert ended.reward.tolist() == [0.0, 1.0]
    assert ended.demo.all()
    running = restored
    (again,) = step(1, [False, False])
    assert again.reward.tolist() == [0.0, 1.0]
    assert not again.demo.any()
    running.abandon(np.array([False, True]))
    assert [len(columns) > 0 for columns in running.state_dict()] == [False, False]


def test_actions_are_those_of_the_temporal_ensemble_of_each_episode() -> None:
    rng = np.random.default_rng(0)
    made = EnsembledSequences(2, 3, 1, 0.5)
    sequences = rng.normal(size=(6, 2, 3, 1)).astype(np.float32)
    # The second environment's episode begins anew at step 2.
    began = np.zeros((6, 2), bool)
    began[0] = True
    began[2, 1] = True
    for step in range(6):
        if step == 4:
            state, made = made.state_dict(), EnsembledSequences(2, 3, 1, 0.5)
            made.load_state_dict(state)
        action = made(sequences[step], began[step])
        for env, start in ((0, 0), (1, 0 if step < 2 else 2)):
            kept = sequences[max(start, step - 2) : step + 1, env : env + 1]
            np.testing.assert_allclose(action[env], temporal_ensemble(kept, 0.5)[0], rtol=1e-6)
