"""RL-100: recorded transitions, phases, resumption, and a student trained alongside."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.policy_config import DiffusionPolicyConfig
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.config import RL100FinetuneConfig
from policies.rl.finetuning.rl100 import RL100Finetuning, _rollout_datasets
from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import (
    RL100_CHAIN,
    DynamicsConfig,
    ExpectileCriticsConfig,
    OfflinePpoConfig,
)
from policies.rl.offline.dynamics_ensemble import ChunkTransitions
from policies.rl.offline.offline_dataset import OfflineDataset, demonstration_dataset
from policies.rl.offline.offline_ppo import fit_critics
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig
from policies.training.config import TrainingConfig
from policies.training.loop import torch_threads
from robots.errors import HandoffError
from tests.policies.rl.collection.test_collector import envs, policy
from tests.policies.rl.counted_demos import write_counted

TINY = MlpSizes(hidden=(16,), activation="relu", layer_norm=True)
CONFIG = RL100FinetuneConfig(
    iterations=2,
    offline_every=2,
    critics=ExpectileCriticsConfig(critic=TINY, value_network=TINY),
    critic_updates=10,
    critic_batch=16,
    dynamics=DynamicsConfig(members=2, elites=1, network=TINY, updates=10, batch_size=16),
    offline=OfflinePpoConfig(
        denoising=DppoConfig(steps=5, chain=RL100_CHAIN),
        updates=4,
        gate_every=2,
        batch_size=16,
        chains=32,
        judged_rows=16,
        gate=False,
        learning_rate=1e-3,
    ),
    imitation=TrainingConfig(
        steps=10, learning_rate=1e-3, batch_size=16, warmup_steps=0, log_every=5
    ),
    online=OnPolicyConfig(batch_size=60, epochs=2, critic_warmup_rollouts=0),
    critic=(16,),
)
FREE = RewardShaping()
MODEL = DiffusionPolicyConfig(
    anchor_field=None,
    observation_fields=("step", "seed"),
    n_obs_steps=2,
    horizon=4,
    n_action_steps=2,
)


def quiet(done: int, total: int, note: str = "") -> None:
    """Nobody looks."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Of small products two threads are slower than one."""
    with torch_threads(1):
        yield


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    return write_counted(tmp_path / "demos", episodes=8)


def shown(demos: Path, reward_shaping: RewardShaping = FREE) -> OfflineDataset:
    return demonstration_dataset(demos, policy(), MODEL, reward_shaping, 0.9)


def make_finetuning(demos: Path, config: RL100FinetuneConfig = CONFIG) -> RL100Finetuning:
    found = envs()
    return RL100Finetuning(config, found._policy, found, 0, shown(demos))  # type: ignore[arg-type]


def weights(made: RL100Finetuning) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in made.policy.denoiser.state_dict().values()])


def test_every_step_of_a_demonstration_is_a_transition_with_reward_and_next_observation(
    demos: Path,
):
    found = shown(demos)
    assert len(found.reward_R) == 8 * 5
    newest, after = found.obs[:5, -1, 0].tolist(), found.next_obs[:5, -1, 0].tolist()
    assert newest == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert after[:3] == [2.0, 3.0, 4.0]
    np.testing.assert_allclose(
        found.reward_R[:5], [1 + 0.9 * 2, 2 + 0.9 * 3, 3 + 0.9 * 4, 4 + 0.9 * 5, 5], rtol=1e-6
    )
    np.testing.assert_allclose(found.discount_R[:5], [0.81, 0.81, 0.81, 0.0, 0.0], rtol=1e-6)
    assert found.next_obs_recorded_R[:5].tolist() == [True, True, True, False, False]
    assert found.obs[0, :, 0].tolist() == [0.0, 0.0], "the first step repeats"


def test_the_progress_of_a_demonstration_begins_with_it(demos: Path):
    found = shown(demos, RewardShaping(task=0.0, progress=1.0))
    # Rewards count 1, 2, ...: each action rises by 1 but the first of an episode.
    np.testing.assert_allclose(found.reward_R[:7], [0.9, 1.9, 1.9, 1.9, 1.0, 0.9, 1.9], rtol=1e-6)


def test_the_chunk_of_a_demonstration_begins_at_its_oldest_observed_step_in_the_policys_units(
    demos: Path,
):
    found = shown(demos)
    # Centre .5, scale 2: an action of .1 is -.2.
    np.testing.assert_allclose(
        found.chunk_RHA[1, :, 0], (np.array([0.0, 0.1, 0.2, 0.3]) - 0.5) / 2.0, rtol=1e-5
    )
    assert found.padded_RH[0].tolist() == [True, False, False, False]
    assert found.padded_RH[4].tolist() == [False, False, True, True]


def test_only_a_solved_demonstration_has_the_success_reward_and_a_terminal(
    tmp_path: Path,
):
    folder = write_counted(tmp_path / "demos", episodes=2, reward=False, unsolved=1)
    found = shown(folder, RewardShaping(success=1.0))
    assert len(found.reward_R) == 5 + 3
    np.testing.assert_allclose(found.reward_R, [0, 0, 0, 0.9, 1.0, 0, 0, 0], rtol=1e-6)
    assert found.solved_R.tolist() == [True] * 5 + [False] * 3
    assert (found.discount_R[5:] > 0).all()


def test_the_first_iteration_is_due_before_any_rollout_and_the_next_behind_so_many(
    demos: Path, tmp_path: Path
):
    made, phase_due = make_finetuning(demos), []
    for _ in range(6):
        phase_due.append(made.phase_due)
        if made.phase_due:
            made.run_phase("job", tmp_path, quiet)
        assert not made.phase_due
        made.rollout(4)
    assert phase_due == [True, False, True, False, True, False]


def test_a_rollout_before_the_iteration_that_is_due_is_refused(demos: Path):
    with pytest.raises(HandoffError, match="a training phase is due after 0 rollouts"):
        make_finetuning(demos).rollout(2)


def test_the_first_iteration_improves_the_policy_and_the_second_retrains_it(
    demos: Path, tmp_path: Path
):
    made = make_finetuning(demos)
    begun = weights(made)
    made.run_phase("job", tmp_path, quiet)
    improved = weights(made)
    assert 0.0 < float((improved - begun).norm()) < 0.1 * float(begun.norm()), "as PPO moves it"
    for _ in range(2):
        made.rollout(4)
    made.run_phase("job", tmp_path, quiet)
    assert float((weights(made) - improved).norm()) > 0.5 * float(begun.norm()), (
        "other first weights"
    )


def test_behind_the_last_iteration_it_learns_online_with_every_rollout(demos: Path, tmp_path: Path):
    made = make_finetuning(demos)
    for _ in range(4):
        if made.phase_due:
            made.run_phase("job", tmp_path, quiet)
        assert set(made.rollout(4)) == {"iteration"}
    made.run_phase("job", tmp_path, quiet)
    before = weights(made)
    assert "kl" in made.rollout(4)
    assert not torch.equal(weights(made), before)
    assert made.finish("job", tmp_path, quiet).sampler_steps == CONFIG.offline.denoising.steps


def test_decisions_are_marked_solved_by_the_end_of_their_episode_in_a_later_rollout(
    demos: Path, tmp_path: Path
):
    """Environment 0 is solved at its third step, so by its second chunk of two; environment 1
    never."""
    made = make_finetuning(demos, replace(CONFIG, offline_every=3))
    made.run_phase("job", tmp_path, quiet)
    for _ in range(3):
        made.rollout(1)
    first, second, third = _rollout_datasets(made._rollouts)
    assert [part.solved_R.tolist() for part in (first, second)] == [[True, False], [True, False]]
    assert third.solved_R.tolist() == [False, False], "left before its end"
    assert first.next_obs_recorded_R.all()
    assert second.discount_R[0] == 0.0


def test_an_abandoned_episode_is_not_marked_by_the_next_one(demos: Path, tmp_path: Path):
    made = make_finetuning(demos, replace(CONFIG, offline_every=3))
    made.run_phase("job", tmp_path, quiet)
    made.rollout(1)
    made.load_state_dict(made.state_dict())
    made.rollout(2)
    first, second = _rollout_datasets(made._rollouts)
    assert first.solved_R.tolist() == [False, False]
    assert second.solved_R.tolist() == [True, False, True, False]


def test_a_killed_run_improves_like_an_uninterrupted_one(demos: Path, tmp_path: Path):
    """Killed within its second iteration, and taken up from what was saved before it."""

    class KilledError(Exception):
        pass

    def killing(done: int, total: int, note: str = "") -> None:
        if note == "dynamics":
            raise KilledError

    whole = make_finetuning(demos)
    whole.run_phase("job", tmp_path, quiet)
    for _ in range(2):
        whole.rollout(4)
    whole.save_rollouts(tmp_path)
    state = {name: value for name, value in whole.state_dict().items() if name != "policy"}
    state["policy"] = {name: value.clone() for name, value in whole.policy.state_dict().items()}
    killed, resumed = make_finetuning(demos), make_finetuning(demos)
    killed.load_state_dict(state)
    killed.load_rollouts(tmp_path)
    with pytest.raises(KilledError):
        killed.run_phase("job", tmp_path, killing)
    resumed.load_state_dict(state)
    resumed.load_rollouts(tmp_path)
    (tmp_path / "whole").mkdir()
    whole.run_phase("job", tmp_path / "whole", quiet)
    resumed.run_phase("job", tmp_path, quiet)
    assert torch.equal(weights(resumed), weights(whole))


def test_a_rollout_that_is_gone_is_missed(demos: Path, tmp_path: Path):
    made = make_finetuning(demos)
    made.run_phase("job", tmp_path, quiet)
    made.rollout(2)
    made.save_rollouts(tmp_path)
    resumed = make_finetuning(demos)
    resumed.load_state_dict(made.state_dict())
    (tmp_path / "recorded" / "rollout-00000.pt").unlink()
    with pytest.raises(HandoffError, match=r"rollout-00000\.pt: the file is missing"):
        resumed.load_rollouts(tmp_path)


def test_no_iteration_at_all_is_refused():
    with pytest.raises(HandoffError, match="iterations is 0, offline_every 2"):
        replace(CONFIG, iterations=0)


def test_critics_of_few_updates_stay_within_what_can_be_earned():
    """A reward of 1 at the end alone: no value is beyond it, however the critics' first weights
    were drawn."""
    draw = torch.Generator().manual_seed(0)
    obs, done = torch.rand(500, 2, generator=draw), torch.rand(500, 1, generator=draw)
    ends = torch.rand(500, generator=draw) < 0.05
    data = ChunkTransitions(
        obs, done, ends.float(), 0.99 * ~ends, torch.rand(500, 2, generator=draw)
    )
    small = MlpSizes(hidden=(32, 32), activation="relu", layer_norm=True)
    for seed in range(3):
        critics = fit_critics(
            ExpectileCriticsConfig(critic=small, value_network=small), data, 30, 32, seed
        )
        value = critics.state_value(obs)
        assert float(value.min()) > -0.2
        assert float(value.max()) < 1.0
