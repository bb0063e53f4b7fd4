"""Q-chunking: targets of chunks, the choice among chunks, the one-step actor, and chunks carried
out in environments."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.rl.generative.config import BehaviourConfig, QChunkingConfig
from policies.rl.generative.q_chunking import QChunking
from policies.rl.networks.config import MlpSizes
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.steps import plain_steps
from tests.policies.rl.generative.open_loop import OpenLoop

SMALL = MlpSizes(hidden=(16, 16), activation="relu")
CONFIG = QChunkingConfig(
    horizon=2, samples=4, critic=SMALL, behaviour=BehaviourConfig(network=SMALL, steps=3), critics=2
)
ONE_STEP = replace(CONFIG, actor="one_step")


def learner(config: QChunkingConfig = CONFIG, seed: int = 0) -> QChunking:
    return QChunking(config, Sizes(observation=1, action=config.horizon), seed)


def batch(seed: int = 0, rows: int = 6, horizon: int = 2) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    first, after, action = (
        torch.randn(rows, size, generator=generator) for size in (1, 1, horizon)
    )
    none, valid_BH = torch.zeros(rows, dtype=torch.bool), torch.ones(rows, horizon)
    valid_BH[0, 1:] = 0.0
    one = torch.ones(rows)
    return Transitions(
        Observations(first),
        action.tanh(),
        one,
        0.81 * one,
        Observations(after),
        none,
        none,
        none,
        {"valid_BH": valid_BH},
    )


def three_steps(horizon: int) -> Transitions:
    """Chunks from all steps of an episode of three, rewards 1, 2, 4, that ends the task."""
    replay = Replay(ReplayConfig(capacity=10, discount=0.5, horizon=horizon), 1, 1)
    replay.append(
        plain_steps(
            np.zeros(3),
            np.arange(3),
            np.array([[0.0], [0.1], [0.2]]),
            np.array([[0.3], [0.4], [0.5]]),
            np.array([1.0, 2.0, 4.0]),
            np.array([[0.1], [0.2], [0.3]]),
            np.array([False, False, True]),
            np.zeros(3, bool),
        )
    )
    return replay.transitions(np.arange(3))


def test_the_critics_loss_of_chunks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    qc = learner()
    for parameter in qc.networks.critic.parameters():
        parameter.data.zero_()
    monkeypatch.setattr(
        qc, "value", lambda critic, features_BF, chunk_BD: torch.full((len(chunk_BD),), 8.0)
    )
    losses, _ = qc.losses(three_steps(2))
    # 1 + 2 / 2 + 8 / 4 = 4, then 2 + 4 / 2 and the end of the task = 4; the last chunk has no
    # second action.
    assert losses["critic"].item() == pytest.approx((4.0**2 + 4.0**2 + 0.0) / 3)


def test_a_chunk_over_the_end_trains_no_critic() -> None:
    qc, data = learner(), batch()
    last = data._replace(
        action_BA=data.action_BA.index_fill(0, torch.tensor([0]), 0.9),
        reward_B=data.reward_B.index_fill(0, torch.tensor([0]), 9.0),
    )
    qc._generator.manual_seed(0)
    first, _ = qc.losses(data)
    qc._generator.manual_seed(0)
    second, _ = qc.losses(last)
    assert float(first["critic"]) == pytest.approx(float(second["critic"]), rel=1e-6)


def test_the_target_values_the_policys_chunk_by_the_mean_of_the_target_critics() -> None:
    qc, data = learner(), batch()
    torch.nn.init.normal_(
        qc.networks.critic_target.biases[-1], generator=torch.Generator().manual_seed(1)
    )
    qc._generator.manual_seed(0)
    _, metrics = qc.losses(data)
    qc._generator.manual_seed(0)
    chunk_BD = qc.chunk(data.next_obs.vector_BO, qc._generator)
    with torch.no_grad():
        value_B = qc.networks.critic_target(torch.cat([data.next_obs.vector_BO, chunk_BD], dim=1))[
            ..., 0
        ].mean(dim=0)
    assert float(metrics["target"]) == pytest.approx(float((1.0 + 0.81 * value_B).mean()), rel=1e-5)


def test_the_best_chunk_of_the_behaviour_model_is_selected() -> None:
    qc, features = learner(), torch.randn(5, 1)
    chunk_BD = qc.chunk(features, torch.Generator().manual_seed(0))
    behaviour = qc.networks.behaviour
    assert behaviour is not None
    noise = behaviour.noise(20, torch.Generator().manual_seed(0))
    sample_BND = behaviour.sample(features.repeat_interleave(4, dim=0), noise).view(5, 4, 2)
    for row in range(5):
        values = [
            float(qc.networks.critic(torch.cat([features[row], sample])[None]).mean())
            for sample in sample_BND[row]
        ]
        torch.testing.assert_close(chunk_BD[row], sample_BND[row, int(np.argmax(values))])


def test_one_sample_of_single_actions_is_the_behaviour_model_itself() -> None:
    qc = learner(replace(CONFIG, horizon=1, samples=1))
    vector_NO = np.random.default_rng(0).standard_normal((6, 1)).astype(np.float32)
    action_NA = qc.act(vector_NO, np.random.default_rng(1))
    seed = int(np.random.default_rng(1).integers(2**63 - 1))
    behaviour = qc.networks.behaviour
    assert behaviour is not None
    expected = behaviour.sample(
        torch.from_numpy(vector_NO), behaviour.noise(6, torch.Generator().manual_seed(seed))
    ).numpy()
    np.testing.assert_array_equal(action_NA, expected)


def test_acting_is_deterministic_without_an_rng() -> None:
    vector_NO = np.zeros((3, 1), np.float32)
    for config in (CONFIG, ONE_STEP):
        qc = learner(config)
        np.testing.assert_array_equal(qc.act(vector_NO), qc.act(vector_NO))
        np.testing.assert_allclose(qc.act(vector_NO)[0], qc.act(vector_NO)[2], atol=1e-6)
        assert len(np.unique(qc.act(vector_NO, np.random.default_rng(0))[:, 0])) > 1


def test_the_one_step_loss_is_the_weighted_distance_minus_the_value() -> None:
    qc, features = learner(replace(ONE_STEP, distillation=10.0)), torch.randn(6, 1)
    net = qc.networks
    assert net.one_step is not None
    assert net.behaviour is not None
    qc._generator.manual_seed(0)
    loss, _ = qc._one_step_loss(net.one_step, features)
    noise = net.behaviour.noise(6, torch.Generator().manual_seed(0))
    chunk_BD = net.one_step(torch.cat([features, noise[0].flatten(1)], dim=1))[0]
    distance = (chunk_BD - net.behaviour.sample(features, noise)).square().mean()
    value = net.critic(torch.cat([features, chunk_BD.clamp(-1.0, 1.0)], dim=1)).mean()
    assert float(loss.detach()) == pytest.approx(
        float((10.0 * distance - value).detach()), rel=1e-5
    )
    loss.backward()
    assert all(parameter.grad is None for parameter in net.critic.parameters())
    assert all(parameter.grad is None for parameter in net.behaviour.parameters())
    assert any(
        bool(parameter.grad.abs().sum() > 0)
        for parameter in net.one_step.parameters()
        if parameter.grad is not None
    )


@pytest.mark.parametrize("config", [CONFIG, ONE_STEP])
def test_a_resumed_run_continues_bit_for_bit(config: QChunkingConfig) -> None:
    straight, first, resumed = learner(config), learner(config), learner(config)
    for number in range(4):
        straight.update([batch(number)])
    for number in range(2):
        first.update([batch(number)])
    resumed.load_state_dict(first.state_dict())
    for number in range(2, 4):
        resumed.update([batch(number)])
    for one, other in zip(
        straight.networks.parameters(), resumed.networks.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_imitation_updates_only_the_behaviour_model() -> None:
    qc = learner(ONE_STEP)
    before = {
        name: parameter.detach().clone() for name, parameter in qc.networks.named_parameters()
    }
    qc.imitate(batch())
    moved = {
        name
        for name, parameter in qc.networks.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert moved
    assert all(name.startswith("behaviour.") for name in moved)


def test_chunks_of_another_size_and_stochastic_samplers_are_refused() -> None:
    with pytest.raises(HandoffError, match="do not divide"):
        QChunking(CONFIG, Sizes(observation=1, action=3))
    with pytest.raises(HandoffError, match="eta"):
        learner(replace(ONE_STEP, behaviour=BehaviourConfig(kind="diffusion", network=SMALL)))
    with pytest.raises(HandoffError, match="horizon 2"):
        learner().update([batch(horizon=3)])


class Counting:
    """Chunks of three actions: environment * 100 + 10 * (how many chunks it had) + place."""

    def __init__(self) -> None:
        self.requested: list[list[int]] = []
        self.given = [0, 0]

    def __call__(self, vector_MO: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        env = [int(env_id) for env_id in vector_MO[:, 0]]
        self.requested.append(env)
        for env_id in env:
            self.given[env_id] += 1
        return np.array(
            [
                [100 * env_id + 10 * self.given[env_id] + place for place in range(3)]
                for env_id in env
            ]
        )


NUM_ENVS = np.array([[0.0], [1.0]])


def test_an_environment_that_ends_within_a_chunk_gets_a_new_one_and_others_continue() -> None:
    chunks = Counting()
    loop, obs = OpenLoop(chunks, 2, 3), []
    for step in range(5):
        obs.append(loop.act(NUM_ENVS)[:, 0].tolist())
        loop.reset(np.array([False, step == 1]))
    assert obs == [[10, 110], [11, 111], [12, 120], [20, 121], [21, 122]]
    assert chunks.requested == [[0, 1], [1], [0]]


def test_chunks_of_one_action_call_the_policy_at_every_step() -> None:
    requested = []
    loop = OpenLoop(
        lambda vector, rng: requested.append(len(vector)) or np.zeros((len(vector), 2)), 2, 1
    )
    for _ in range(3):
        assert loop.act(NUM_ENVS).shape == (2, 2)
    assert requested == [2, 2, 2]


def test_a_restored_loop_continues_within_its_chunk() -> None:
    loop = OpenLoop(Counting(), 2, 3)
    loop.act(NUM_ENVS)
    resumed = OpenLoop(Counting(), 2, 3)
    resumed.load_state_dict(loop.state_dict())
    np.testing.assert_array_equal(resumed.act(NUM_ENVS), loop.act(NUM_ENVS))


def test_a_loop_refuses_other_environments_and_other_chunks() -> None:
    with pytest.raises(HandoffError, match="1 observations for 2 environments"):
        OpenLoop(Counting(), 2, 3).act(NUM_ENVS[:1])
    with pytest.raises(HandoffError, match="do not divide"):
        OpenLoop(Counting(), 2, 2).act(NUM_ENVS)


def test_the_target_selects_among_given_samples_by_the_trained_critics() -> None:
    qc = learner(replace(CONFIG, behaviour=None))
    made = batch()
    given_BND = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(4))
    expected = []
    for row in range(6):
        next_obs = made.next_obs.vector_BO[row].expand(3, 1)
        inputs = torch.cat([next_obs, given_BND[row]], dim=1)
        best = int(qc.networks.critic(inputs)[..., 0].mean(dim=0).argmax())
        value = qc.networks.critic_target(inputs)[..., 0].mean(dim=0)[best]
        expected.append(1.0 + 0.81 * float(value.detach()))
    extra = {**made.extra, "next_base_BND": given_BND}
    losses, metrics = qc.losses(made._replace(extra=extra))
    assert float(metrics["target"]) == pytest.approx(np.mean(expected), rel=1e-5)
    assert set(losses) == {"critic"}, "the behaviour model is trained elsewhere"


def test_without_a_behaviour_model_samples_must_be_given() -> None:
    qc = learner(replace(CONFIG, behaviour=None))
    with pytest.raises(HandoffError, match="the minibatch has no extra"):
        qc.update([batch()])
    with pytest.raises(HandoffError, match="its samples must be given"):
        qc.act(np.zeros((1, 1), np.float32))
    with pytest.raises(HandoffError, match="needs a behaviour model of its own"):
        learner(replace(CONFIG, behaviour=None, actor="one_step"))
