"""EXPO and Q-chunking as fine-tuning: data, targets, choices and the released policy, in
environments whose every number is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.policy import ObservationTensors
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.config import (
    ExpoFinetuneConfig,
    QChunkingFinetuneConfig,
)
from policies.rl.finetuning.expo import ExpoFinetuning
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.finetuning.q_chunking import QChunkingFinetuning
from policies.rl.generative.behaviour_model import BASE, NEXT_BASE
from policies.rl.networks.config import MlpSizes
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.rl.collection.test_collector import envs
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import LIMIT
from tests.policies.rl.test_rl100 import MODEL

TINY = MlpSizes(hidden=(16,), activation="relu")
IMITATION = TrainingConfig(
    steps=20, learning_rate=1e-3, batch_size=16, warmup_steps=0, log_every=10
)
Q_CHUNKING = QChunkingFinetuneConfig(
    samples=4,
    critic=TINY,
    discount=0.9,
    updates=10,
    batch_size=16,
    warm_up=1,
    imitate_every=2,
    imitation=IMITATION,
    demo_fraction=0.25,
)
EXPO = ExpoFinetuneConfig(
    samples=4,
    beta=0.2,
    critic=TINY,
    edit=TINY,
    critics=3,
    discount=0.9,
    updates=5,
    batch_size=16,
    warm_up=1,
    imitate_every=2,
    imitation=IMITATION,
)
ROWS = 8 * 5
"""Transitions of the demonstrations: eight episodes of five steps, each of which begins a chunk."""


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    return write_counted(tmp_path / "demos", episodes=8)


def setup(demos: Path | None) -> FinetuneSetup:
    env = envs(2)
    return FinetuneSetup(env._policy, MODEL, env, 0, RewardShaping(), demos)


def q_chunking(demos: Path, config: QChunkingFinetuneConfig = Q_CHUNKING) -> QChunkingFinetuning:
    return QChunkingFinetuning(config, setup(demos))


def expo(demos: Path, config: ExpoFinetuneConfig = EXPO) -> ExpoFinetuning:
    return ExpoFinetuning(config, setup(demos))


def constant(network: Any, value: float) -> None:
    """Makes every member of an ensemble return `value`."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
        network.biases[-1].fill_(value)


def test_a_demonstrated_step_leads_to_the_state_after_its_chunk(demos: Path) -> None:
    replay = q_chunking(demos)._demos
    batch = replay.transitions(replay.acted)
    assert len(replay.acted) == ROWS
    step, after = batch.obs[:, -1, 0], batch.next_obs[:, -1, 0]
    running = batch.discount_B > 0.0
    # Two actions are executed, so the last two of five steps end the episode.
    assert step[running].unique().tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(after[running], step[running] + 2.0)
    assert torch.equal(batch.next_obs[running, -1, 1], batch.obs[running, -1, 1])
    torch.testing.assert_close(batch.discount_B[running], torch.full((3 * 8,), 0.81))
    # Rewards count up from one: 1 + .9 * 2 at the first step, 5 at the last.
    torch.testing.assert_close(batch.reward_B[step == 0.0], torch.full((8,), 2.8))
    torch.testing.assert_close(batch.reward_B[step == 4.0], torch.full((8,), 5.0))


def test_every_demonstrated_state_has_samples_of_the_policy(demos: Path) -> None:
    method = q_chunking(demos)
    table = method._demos.table
    assert table.chunk_RNHA.shape[1:] == (4, 4, 1)
    assert torch.isfinite(table.chunk_RNHA).all()
    spread = table.chunk_RNHA.float().std(dim=1)
    assert float(spread.min()) > 0.0, "the samples differ"


@pytest.mark.parametrize(("fraction", "rows"), [(0.25, 4), (0.5, 8)])
def test_a_minibatch_begins_with_its_share_of_demonstrations(
    demos: Path, fraction: float, rows: int
) -> None:
    method = q_chunking(demos, replace(Q_CHUNKING, demo_fraction=fraction))
    method.rollout(4)
    batch = method.minibatch(torch.Generator().manual_seed(0))
    assert batch.rows == 16
    assert batch.demo_B.tolist() == [True] * rows + [False] * (16 - rows)
    # Seeds of demonstrations begin at 0, those of the environments at 100.
    seeds = batch.obs.vector_BO[:, -1]
    assert torch.equal(seeds < 50.0, batch.demo_B)
    assert batch.action_BA.shape == (16, 2)
    assert batch.extra[BASE].shape == batch.extra[NEXT_BASE].shape == (16, 4, 2)


def test_the_target_of_q_chunking_is_the_reward_plus_the_discounted_value(demos: Path) -> None:
    method = q_chunking(demos)
    method.rollout(4)
    constant(method.learner.networks.critic, 0.0)
    constant(method.learner.networks.critic_target, 10.0)
    batch = method.minibatch(torch.Generator().manual_seed(3))
    losses, metrics = method.learner.losses(batch)
    target_B = batch.reward_B + 10.0 * batch.discount_B
    assert float(metrics["target"]) == pytest.approx(float(target_B.mean()), rel=1e-5)
    assert float(losses["critic"].detach()) == pytest.approx(
        float(target_B.square().mean()), rel=1e-5
    )


def test_the_target_of_expo_is_the_reward_plus_the_discounted_value(demos: Path) -> None:
    method = expo(demos, replace(EXPO, minibatches=1))
    method.rollout(4)
    constant(method.learner.networks.critic_target, 10.0)
    batch = method.minibatch(torch.Generator().manual_seed(3))
    metrics = method.update(torch.Generator().manual_seed(3))
    expected = (batch.reward_B + 10.0 * batch.discount_B).mean()
    assert float(metrics["value"]) == pytest.approx(float(expected), rel=1e-5)


def test_q_chunking_selects_the_chunk_with_the_greatest_mean_value(demos: Path) -> None:
    method = q_chunking(demos)
    obs, chunk_RNHA = torch.randn(5, 2, 2), torch.randn(5, 4, 4, 1)
    chosen_RHA = method.select(obs, chunk_RNHA, None)
    for row in range(5):
        # The second and third action of a chunk are executed.
        inputs = torch.cat([obs[row].flatten().expand(4, 4), chunk_RNHA[row, :, 1:3, 0]], dim=1)
        best = int(method.learner.networks.critic(inputs).mean(dim=0).argmax())
        assert torch.equal(chosen_RHA[row], chunk_RNHA[row, best])


def test_an_edit_changes_executed_actions_by_at_most_beta(demos: Path) -> None:
    method = expo(demos)
    obs, chunk_RNHA = torch.randn(20, 2, 2), torch.randn(20, 1, 4, 1)
    chosen_RHA = method.select(obs, chunk_RNHA, torch.Generator().manual_seed(0))
    distance_RH = (chosen_RHA - chunk_RNHA[:, 0]).abs()[..., 0]
    assert float(distance_RH[:, [0, 3]].max()) == 0.0, "these two are not executed"
    assert 0.0 < float(distance_RH[:, 1:3].max()) <= 0.2 + 1e-6
    again_RHA = method.select(obs, chunk_RNHA, torch.Generator().manual_seed(1))
    assert not torch.equal(chosen_RHA, again_RHA), "edits are sampled"
    assert torch.equal(method.select(obs, chunk_RNHA, None), method.select(obs, chunk_RNHA, None))


def test_edited_actions_stay_within_the_clip_of_the_policy(demos: Path) -> None:
    method = expo(demos)
    # Critics that rate the edited chunks above those at the clip.
    with torch.no_grad():
        method.learner.networks.critic.weights[-1].neg_()
    clip = method.policy.config.clip
    chunk_RNHA = torch.full((50, 1, 4, 1), clip)
    chosen_RHA = method.select(torch.randn(50, 2, 2), chunk_RNHA, torch.Generator().manual_seed(0))
    assert float(chosen_RHA.max()) == clip
    assert float(chosen_RHA.min()) < clip


def test_the_first_rollouts_act_by_the_policy_alone(demos: Path) -> None:
    method = expo(demos)
    method.rollout(4)
    table, acted = method._replay.table, method._replay.acted
    for row in acted.tolist():
        assert any(torch.equal(chunk, table.executed_RHA[row]) for chunk in table.chunk_RNHA[row])
    method.rollout(4)
    rows = method._replay.rows_since(1)
    table = method._replay.table
    edited = [
        not any(torch.equal(chunk, table.executed_RHA[row]) for chunk in table.chunk_RNHA[row])
        for row in rows.tolist()
    ]
    assert any(edited)


def test_a_phase_imitates_all_that_was_executed(demos: Path) -> None:
    method = expo(demos)
    method.rollout(4)
    method.rollout(4)
    obs, chunk_RHA = method.phase_data()
    assert len(obs) == len(chunk_RHA) == ROWS + 2 * 4 * 2
    assert method.phase_due
    seeds = obs[:, -1, 1]
    assert int((seeds < 50.0).sum()) == ROWS


def test_the_released_policy_imitates_choices_at_the_states_visited_last(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = q_chunking(demos)
    for _ in range(3):
        method.rollout(4)
    # Critics that rate every chunk as the opposite of what was executed last.
    with torch.no_grad():
        method.learner.networks.critic.weights[-1].neg_()
    calls: list[tuple[int, torch.Tensor]] = []
    monkeypatch.setattr(
        method, "imitate", lambda data, *rest: calls.append((len(data.obs), data.chunk_RHA))
    )
    method.finish("run", tmp_path, no_progress)
    # `imitate_every` is 2: two rollouts of 4 decisions in 2 environments.
    ((rows, chunk_RHA),) = calls
    assert rows == 2 * 4 * 2
    recent = method._replay.rows_since(1)
    expected = method.choices(recent).chunk_RHA
    assert torch.equal(chunk_RHA, expected)
    assert not torch.equal(chunk_RHA.half(), method._replay.table.executed_RHA[recent])


@pytest.mark.parametrize("make", [q_chunking, expo], ids=["q_chunking", "expo"])
def test_a_restored_method_continues_with_the_same_updates(
    make: Any, demos: Path, tmp_path: Path
) -> None:
    whole = make(demos)
    for _ in range(2):
        whole.rollout(3)
    whole.save_rollouts(tmp_path)
    restored = make(demos)
    restored.load_state_dict(whole.state_dict())
    restored.load_rollouts(tmp_path)
    updates = [method.update(torch.Generator().manual_seed(5)) for method in (whole, restored)]
    for name, value in updates[0].items():
        assert torch.equal(value, updates[1][name]), name


def test_both_refuse_to_start_without_demonstrations() -> None:
    for method, config in ((ExpoFinetuning, EXPO), (QChunkingFinetuning, Q_CHUNKING)):
        with pytest.raises(HandoffError, match="learns from demonstrations, but demos is None"):
            method(config, setup(None))  # type: ignore[arg-type]


def test_an_edit_beyond_the_range_of_a_chunk_is_refused(demos: Path) -> None:
    with pytest.raises(HandoffError, match="expected at least 1 sample"):
        expo(demos, replace(EXPO, beta=7.0))


def sampled_mean(method: Any) -> float:
    """Mean executed entry of chunks that the policy samples in the first state."""
    obs = torch.tensor([[[0.0, 100.0], [0.0, 100.0]]]).expand(256, 2, 2)
    noise = torch.randn(
        (256, *method.policy.chunk_shape), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        chunk = method.policy.sample(ObservationTensors(obs), noise)
    return float(method.env.executed_part(chunk).mean())


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (q_chunking, replace(Q_CHUNKING, updates=60, learning_rate=3e-3)),
        (expo, replace(EXPO, updates=60, learning_rate=3e-3, beta=0.5)),
    ],
    ids=["q_chunking", "expo"],
)
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["up", "down"])
def test_the_released_policy_moves_to_where_the_reward_is(
    make: Any, config: Any, sign: float, tmp_path: Path
) -> None:
    """Each of the two signs is the negative control of the other."""
    demos = write_counted(tmp_path / "demos", episodes=8, reward=False)
    imitation = replace(IMITATION, steps=200, learning_rate=3e-3)
    method = make(demos, replace(config, imitation=imitation, demo_fraction=0.1))
    counted = method.env.env.step

    def step(action: np.ndarray) -> Any:
        result = counted(action)
        return result._replace(reward=sign * action[:, :, 0] * (result.reward > 0.0))

    method.env.env.step = step
    before = sampled_mean(method)
    for _ in range(6):
        method.rollout(LIMIT)
        if method.phase_due:
            method.run_phase("run", tmp_path, no_progress)
    method.finish("run", tmp_path, no_progress)
    assert sign * (sampled_mean(method) - before) > 0.1
