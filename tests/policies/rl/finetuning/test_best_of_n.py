"""Best-of-N fine-tuning: stored transitions, choices and targets, in environments whose every
number is known."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.rl.finetuning.best_of_n import BestOfNFinetuning
from policies.rl.finetuning.config import BestOfNFinetuneConfig
from policies.rl.networks.config import MlpSizes
from robots.errors import HandoffError
from tests.policies.rl.collection.test_collector import envs
from tests.policies.rl.counting import LIMIT

SMALL = BestOfNFinetuneConfig(
    samples=4,
    backup_samples=4,
    critic=MlpSizes(hidden=(32,), activation="relu"),
    updates=20,
    batch_size=16,
    warm_up=1,
)


def make_finetuning(config: BestOfNFinetuneConfig = SMALL, num_envs: int = 2) -> BestOfNFinetuning:
    found = envs(num_envs)
    return BestOfNFinetuning(config, found._policy, found, seed=0)  # type: ignore[arg-type]


def replay_table(made: BestOfNFinetuning):
    return made._replay.table


def test_every_decision_leads_to_the_next_visited_state():
    made = make_finetuning()
    made.rollout(5)
    table = replay_table(made)
    steps = table.obs[:, -1, 0]
    for row in made._replay.acted.tolist():
        ahead = int(table.next_R[row])
        if table.discount_R[row] > 0:
            executed = 1 if steps[ahead] == LIMIT else 2
            assert steps[ahead] == steps[row] + executed
            assert table.obs[ahead, -1, 1] == table.obs[row, -1, 1], "of the same episode"
            assert table.discount_R[row] == pytest.approx(0.9**executed)


def test_a_terminal_state_is_not_looked_behind_and_a_time_limit_is():
    made = make_finetuning()
    made.rollout(5)
    table, steps = replay_table(made), replay_table(made).obs[:, -1, 0]
    # Environment 0 is solved at step 3 of every episode, environment 1 runs into its limit at step
    # 7.
    solved = (table.obs[:, -1, 1] == 100.0) & (steps == 2.0)
    assert int(solved.sum()) == 1
    assert table.discount_R[solved].tolist() == [0.0]
    cut = (table.obs[:, -1, 1] == 101.0) & (steps == 6.0)
    assert int(cut.sum()) == 1
    (ahead,) = table.next_R[cut].tolist()
    assert steps[ahead] == LIMIT
    assert not table.acted_R[ahead], "nothing was done there"


def test_rollouts_stand_behind_one_another_and_are_given_back_as_they_came():
    made = make_finetuning()
    made.rollout(3)
    first = made._replay.rollout(0)
    made.rollout(4)
    again, second = made._replay.rollout(0), made._replay.rollout(1)
    for old, new in zip(first, again, strict=True):
        assert torch.equal(old, new)
    assert len(replay_table(made).reward_R) == len(first.reward_R) + len(second.reward_R)
    assert int(second.next_R.max()) < len(second.reward_R)
    begin = len(first.reward_R)
    assert torch.equal(replay_table(made).next_R[begin:], second.next_R + begin)


def test_the_chunk_with_the_greatest_mean_value_is_chosen_and_executed():
    made = make_finetuning()
    made.rollout(4)
    made.rollout(4)
    with torch.no_grad():
        for weight in made.critic.parameters():
            weight.mul_(3.0)
    before = {name: weight.clone() for name, weight in made.critic.state_dict().items()}
    made.config = replace(made.config, updates=0)
    made.rollout(4)
    assert all(
        torch.equal(weight, before[name]) for name, weight in made.critic.state_dict().items()
    )
    table = made._replay.rollout(2)
    acted = torch.nonzero(table.acted_R)[:, 0]
    obs, chunks = table.obs[acted], table.chunk_RNHA[acted].float()
    for row in range(len(acted)):
        values = [
            made.critic(torch.cat([obs[row].flatten(), chunks[row, n, 1:3].flatten()])[None])
            .mean()
            .item()
            for n in range(SMALL.samples)
        ]
        executed = table.executed_RHA[acted[row]]
        (picked,) = [
            n for n in range(SMALL.samples) if torch.equal(chunks[row, n].half(), executed)
        ]
        # Kept in half precision: of two that are as good the other may have been better.
        assert values[picked] >= max(values) - 0.02


def test_the_critics_learn_what_chunks_lead_to():
    """Environment 0 is paid 1 + .9 * 2, and then 3, whatever is done."""
    made = make_finetuning(replace(SMALL, updates=600, learning_rate=3e-3), num_envs=1)
    made.rollout(12)
    made.rollout(12)
    table = replay_table(made)
    rows = torch.nonzero(table.obs[:, -1, 0] == 0.0)[:, 0]
    found = made._values(
        made.critic, table.obs[rows], made.env.executed_part(table.chunk_RNHA[rows].float())
    )
    assert float(found.detach().mean()) == pytest.approx(1.0 + 0.9 * 2.0 + 0.81 * 3.0, abs=0.3)


def test_a_rollout_is_the_same_for_the_same_seed_and_others_follow_it(tmp_path: Path):
    whole = make_finetuning()
    for _ in range(2):
        whole.rollout(3)
    again = make_finetuning()
    again.rollout(3)
    again.save_rollouts(tmp_path)
    state = again.state_dict()
    resumed = make_finetuning()
    resumed.load_state_dict(state)
    resumed.load_rollouts(tmp_path)
    assert torch.equal(replay_table(resumed).chunk_RNHA, whole._replay.rollout(0).chunk_RNHA)
    assert torch.equal(resumed._replay.acted, torch.nonzero(whole._replay.rollout(0).acted_R)[:, 0])
    resumed.rollout(3)
    assert resumed.done == 2
    assert len(resumed._replay.acted) == len(whole._replay.acted) == 2 * 3 * 2


def test_a_rollout_that_is_gone_or_damaged_is_missed(tmp_path: Path):
    made = make_finetuning()
    made.rollout(2)
    made.save_rollouts(tmp_path)
    resumed = make_finetuning()
    resumed.load_state_dict(made.state_dict())
    file = tmp_path / "experience" / "rollout-00000.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(HandoffError, match=r"rollout-00000\.pt: damaged"):
        resumed.load_rollouts(tmp_path)
    file.unlink()
    with pytest.raises(HandoffError, match=r"rollout-00000\.pt: the file is missing"):
        resumed.load_rollouts(tmp_path)


def test_critics_that_diverge_stop_it():
    made = make_finetuning(replace(SMALL, learning_rate=1e6, updates=50))
    made.rollout(3)
    with pytest.raises(HandoffError, match="the critics' mean target value is"):
        made.rollout(3)


def test_the_target_cannot_look_at_more_chunks_than_there_are():
    with pytest.raises(HandoffError, match="backup_samples is 5, expected 1 to 4"):
        make_finetuning(replace(SMALL, backup_samples=5))
