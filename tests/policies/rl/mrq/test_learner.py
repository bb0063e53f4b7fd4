"""Tests MR.Q against values computed by hand, and its saved state."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.families.rl_actor import LearnedActor, weights_of
from policies.policy import ObservationTensors
from policies.policy_config import LearnedActorConfig
from policies.rl.actor_export import mrq_actor
from policies.rl.mrq.config import MrqConfig, MrqEncoderConfig
from policies.rl.mrq.learner import Mrq
from policies.rl.mrq.updates import MrqUpdates, mean_absolute_reward
from policies.rl.networks.distributional import two_hot
from policies.rl.off_policy.fast_td3_config import PerEnvNoiseConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import LapConfig, ReplayConfig
from policies.rl.replay.transitions import Observations, Sizes, Transitions, without_person
from policies.rl.replay.unrolls import Unrolls
from real.hil.actor_policy import ActorPolicy
from robots.errors import HandoffError
from robots.wire.learner import Parameters, check_parameters
from robots.wire.steps import Steps, plain_steps
from tests.policies.rl.replays import episode, replay_of

ENCODER = MrqEncoderConfig(state_size=6, action_size=3, pair_size=5, units=8, learning_rate=1e-2)
CONFIG = MrqConfig(
    encoder=ENCODER,
    value_units=8,
    policy_units=8,
    value_learning_rate=1e-2,
    policy_learning_rate=1e-2,
    target_every=3,
    normalise=False,
)
SIZES = Sizes(observation=2, action=2)


def batch_of(rows: int, seed: int = 0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    return without_person(
        obs=Observations(torch.randn(rows, 2, generator=generator)),
        action_BA=2 * torch.rand(rows, 2, generator=generator) - 1,
        reward_B=torch.randn(rows, generator=generator),
        discount_B=torch.rand(rows, generator=generator),
        next_obs=Observations(torch.randn(rows, 2, generator=generator)),
    )


def unrolls_of(rows: int, steps: int = 3, seed: int = 0) -> Unrolls:
    generator = torch.Generator().manual_seed(seed)
    return Unrolls(
        vector_BO=torch.randn(rows, 2, generator=generator),
        action_BHA=2 * torch.rand(rows, steps, 2, generator=generator) - 1,
        reward_BH=torch.randn(rows, steps, generator=generator),
        next_BHO=torch.randn(rows, steps, 2, generator=generator),
        terminated_BH=torch.zeros(rows, steps),
        valid_BH=torch.ones(rows, steps),
    )


def weights(learner: Mrq, name: str) -> list[torch.Tensor]:
    return [one.detach().clone() for one in getattr(learner.networks, name).parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_encoders_loss_is_that_of_every_step_predicted_from_the_one_before():
    learner, batch = Mrq(CONFIG, SIZES, 1), unrolls_of(4, steps=2)
    net = learner.networks
    with torch.no_grad():
        for parameter in net.encoder.parameters():
            parameter += 0.1
        state = net.encoder.state(batch.vector_BO)
        dynamics = reward = terminal = 0.0
        for step in range(2):
            out = net.encoder.model(net.encoder.pair(state, batch.action_BHA[:, step]))
            state = out[:, 1:7]
            target = net.encoder_target.state(batch.next_BHO[:, step])
            dynamics += float(((state - target) ** 2).mean())
            hot = two_hot(batch.reward_BH[:, step], net.atoms_K)
            reward -= float((hot * torch.log_softmax(out[:, 7:], dim=1)).sum(dim=1).mean())
            terminal += float((out[:, 0] ** 2).mean())
    loss, metrics = learner.encoder_loss(batch, terminates=True)
    assert float(metrics["dynamics_loss"]) == pytest.approx(dynamics, rel=1e-5)
    assert float(metrics["reward_loss"]) == pytest.approx(reward, rel=1e-5)
    assert float(metrics["terminal_loss"]) == pytest.approx(terminal, rel=1e-5)
    assert loss.item() == pytest.approx(dynamics + 0.1 * reward + 0.1 * terminal, rel=1e-5)
    without, _ = learner.encoder_loss(batch, terminates=False)
    assert without.item() == pytest.approx(dynamics + 0.1 * reward, rel=1e-5)


def test_steps_behind_the_end_of_an_unroll_have_no_loss():
    learner, batch = Mrq(CONFIG, SIZES, 1), unrolls_of(3)
    valid_BH = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    masked = batch._replace(valid_BH=valid_BH)
    other = unrolls_of(3, seed=1)
    ended_BH = valid_BH == 0.0

    def mixed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.where(ended_BH.reshape(3, 3, *[1] * (first.ndim - 2)), second, first)

    elsewhere = masked._replace(
        action_BHA=mixed(batch.action_BHA, other.action_BHA),
        reward_BH=mixed(batch.reward_BH, other.reward_BH),
        next_BHO=mixed(batch.next_BHO, other.next_BHO),
        terminated_BH=mixed(batch.terminated_BH, torch.ones(3, 3)),
    )
    losses = [
        float(learner.encoder_loss(one, terminates=True)[0].detach())
        for one in (batch, masked, elsewhere)
    ]
    assert losses[1] == losses[2]
    assert losses[0] > losses[1] + 0.1


def test_the_target_encoder_gets_no_gradient_and_moves_only_when_synchronised():
    learner = Mrq(CONFIG, SIZES, 1)
    net, before = learner.networks, weights(learner, "encoder_target")
    loss, _ = learner.encoder_loss(unrolls_of(4), terminates=True)
    loss.backward()
    assert all(parameter.grad is None for parameter in net.encoder_target.parameters())
    assert all(parameter.grad is not None for parameter in net.encoder.parameters())
    learner.update_encoder(unrolls_of(4), terminates=True)
    learner.update(batch_of(4))
    assert same(before, weights(learner, "encoder_target"))
    assert not same(before, weights(learner, "encoder"))
    learner.synchronise(1.0)
    for name in ("encoder", "value", "policy"):
        assert same(weights(learner, f"{name}_target"), weights(learner, name))


def test_values_and_policy_do_not_train_the_encoders():
    learner = Mrq(CONFIG, SIZES, 1)
    before = {name: weights(learner, name) for name in ("encoder", "value", "policy")}
    learner.update(batch_of(16))
    assert same(before["encoder"], weights(learner, "encoder"))
    assert not same(before["value"], weights(learner, "value"))
    assert not same(before["policy"], weights(learner, "policy"))
    # And are not trained by them.
    between = {name: weights(learner, name) for name in ("value", "policy")}
    learner.update_encoder(unrolls_of(4), terminates=False)
    assert all(same(between[name], weights(learner, name)) for name in between)


def test_the_target_is_the_lower_value_in_units_of_the_reward_scale():
    learner, batch = Mrq(replace(CONFIG, target_noise=0.0), SIZES, 1), batch_of(200)
    learner.synchronise(4.0)
    learner.synchronise(2.0)
    net = learner.networks
    with torch.no_grad():
        for number, member in enumerate(net.value_target.members):
            for parameter in member.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(number))
        state = net.encoder_target.state(batch.next_obs.vector_BO)
        pair = net.encoder_target.pair(state, torch.tanh(net.policy_target(state)))
        both = net.value_target(pair)
    assert {0, 1} == set(both.argmin(dim=0).tolist())
    lower = torch.minimum(both[0], both[1])
    expected = (batch.reward_B + batch.discount_B * 4.0 * lower) / 2.0
    torch.testing.assert_close(learner.target(batch), expected)


def test_the_targets_noise_is_clipped():
    actions: list[torch.Tensor] = []
    learner = Mrq(replace(CONFIG, target_noise=10.0, target_noise_clip=0.25), SIZES, 1)
    target, batch = learner.networks.encoder_target, batch_of(500)
    real = target.pair

    def listening(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        actions.append(action)
        return real(state, action)

    target.pair = listening  # type: ignore[method-assign, assignment]
    learner.target(batch)
    with torch.no_grad():
        state = target.state(batch.next_obs.vector_BO)
        off = actions[0] - torch.tanh(learner.networks.policy_target(state))
    assert 0.2 < float(off.abs().max()) <= 0.25 + 1e-6
    assert float(actions[0].abs().max()) <= 1.0


def test_the_policy_maximises_the_mean_value_and_its_outputs_stay_small():
    learner = Mrq(CONFIG, SIZES, 1)
    net = learner.networks
    with torch.no_grad():
        state = net.encoder.state(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
        output = net.policy(state)
        value = net.value(net.encoder.pair(state, torch.tanh(output))).mean()
        loss = learner.policy_loss(state)
        heavy = Mrq(replace(CONFIG, pre_activation_weight=1.0), SIZES, 1).policy_loss(state)
    penalty = float(output.square().mean())
    assert float(loss) == pytest.approx(-float(value) + 1e-5 * penalty, abs=1e-6)
    assert float(heavy) == pytest.approx(-float(value) + penalty, rel=1e-5)


def test_the_error_of_a_row_is_the_larger_one_of_both_values():
    learner, batch = Mrq(CONFIG, SIZES, 1), batch_of(40)
    net = learner.networks
    with torch.no_grad():
        state = net.encoder.state(batch.obs.vector_BO)
        value = net.value(net.encoder.pair(state, batch.action_BA))
    # After the termination in every row the target is the reward, whatever the noise.
    batch = batch._replace(discount_B=torch.zeros(40))
    _, error_B = learner.update(batch)
    expected = (value - batch.reward_B).abs().amax(dim=0)
    np.testing.assert_allclose(error_B, expected.numpy(), rtol=1e-5, atol=1e-6)


def walk(number: int, rng: np.random.Generator) -> Steps:
    """An episode of six random steps in a plane, of which every second one terminates."""
    n = 6
    last = np.arange(n) == n - 1
    place = rng.normal(size=(n + 1, 2))
    return plain_steps(
        np.full(n, number),
        np.arange(n),
        place[:-1],
        rng.uniform(-1, 1, (n, 2)),
        rng.normal(size=n),
        place[1:],
        last & (number % 2 == 0),
        last & (number % 2 == 1),
    )


def small_updates(seed: int = 0, config: MrqConfig = CONFIG) -> MrqUpdates:
    replay = Replay(ReplayConfig(capacity=40, discount=0.9, n_step=3), 2, 2)
    return MrqUpdates(Mrq(config, SIZES, 2, seed), replay, 8, seed)


def run(updates: MrqUpdates, numbers: range) -> None:
    """Two updates after every episode."""
    for number in numbers:
        updates.append(walk(number, np.random.default_rng(number)))
        vector = np.random.default_rng(100 + number).normal(size=(2, 2)).astype(np.float32)
        updates.learner.observe(vector, np.ones(2, bool), np.random.default_rng(200 + number))
        for _ in range(2):
            updates(updates.learner.updates)


def test_the_encoders_get_as_many_updates_as_the_others_before_them():
    updates = small_updates()
    counts = []
    for number in range(4):
        run(updates, range(number, number + 1))
        counts.append((updates.learner.updates, updates.learner.encoder_updates))
    # Synchronised at updates 0, 3 and 6.
    assert counts == [(2, 3), (4, 6), (6, 6), (8, 9)]


def test_sampled_steps_move_their_priorities_and_others_keep_theirs():
    config = replace(CONFIG, priorities=LapConfig(exponent=1.0, floor=0.01))
    updates = small_updates(config=config)
    run(updates, range(1))
    values = updates.priorities.values
    assert len(set(values[:6].tolist())) > 3
    assert updates.priorities.largest == pytest.approx(float(values.max()), abs=1.0)
    before = values.copy()
    updates(updates.learner.updates)
    assert (before != values).any()
    # The next episode is sampled with the largest priority.
    updates.append(walk(1, np.random.default_rng(1)))
    assert values[6:12].tolist() == pytest.approx([updates.priorities.largest] * 6)


def test_the_reward_scale_is_the_mean_absolute_reward_at_a_synchronisation():
    assert mean_absolute_reward(replay_of(episode([-1, 2, 6]))) == 3.0
    assert mean_absolute_reward(replay_of(episode([0, 0]))) == 1.0
    updates = small_updates()
    run(updates, range(1))
    reward = updates.replay.columns["reward"][:6]
    first = float(np.abs(reward).mean())
    assert updates.learner.reward_scale == pytest.approx(first)
    run(updates, range(1, 2))
    assert updates.learner.reward_scale != pytest.approx(first)
    assert updates.learner.target_reward_scale == pytest.approx(first)


def halfway() -> MrqUpdates:
    """Updates that stopped in the middle between two synchronisations."""
    config = replace(CONFIG, normalise=True, noise=PerEnvNoiseConfig(low=0.1, high=0.4))
    updates = small_updates(config=config)
    run(updates, range(4))
    return updates


def resumed(state: dict, replay_state: dict) -> MrqUpdates:
    config = replace(CONFIG, normalise=True, noise=PerEnvNoiseConfig(low=0.1, high=0.4))
    updates = small_updates(seed=0, config=config)
    updates.load_state_dict(state)
    updates.replay.load_state_dict(replay_state)
    run(updates, range(4, 10))
    return updates


def test_a_resumed_learner_is_bit_identical():
    updates = halfway()
    state, replay_state = copy.deepcopy(updates.state_dict()), updates.replay.state_dict()
    again = resumed(state, replay_state)
    run(updates, range(4, 10))
    assert (again.learner.updates, again.learner.encoder_updates) == (20, 21)
    for name in ("encoder", "encoder_target", "value", "value_target", "policy", "policy_target"):
        assert same(weights(updates.learner, name), weights(again.learner, name))
    np.testing.assert_array_equal(updates.priorities.values, again.priorities.values)
    np.testing.assert_array_equal(
        updates.learner.noise.deviation_N, again.learner.noise.deviation_N
    )
    vector = np.array([[0.3, -2.0], [1.0, 0.5]], np.float32)
    np.testing.assert_array_equal(updates.learner.act(vector), again.learner.act(vector))


@pytest.mark.parametrize(
    "forgotten",
    [
        "optimizers",
        "updates",
        "encoder_updates",
        "reward_scale",
        "target_reward_scale",
        "normaliser",
        "priorities",
    ],
)
def test_every_saved_part_is_needed_to_resume(forgotten: str):
    """Each part of the state changes what comes next; so the test above would notice its loss."""
    updates = halfway()
    config = updates.learner.config
    replay_state = updates.replay.state_dict()
    ends = []
    for lost in (False, True):
        state = copy.deepcopy(updates.state_dict())
        if lost and forgotten == "priorities":
            state["priorities"]["values"] = torch.ones_like(state["priorities"]["values"])
            state["priorities"]["values"][0] = 7.0
        elif lost:
            state["mrq"][forgotten] = small_updates(config=config).state_dict()["mrq"][forgotten]
        ends.append(weights(resumed(state, replay_state).learner, "value"))
    assert not same(*ends)


def test_a_state_of_other_environments_is_refused():
    state = Mrq(CONFIG, SIZES, 3).state_dict()
    with pytest.raises(HandoffError, match="state has 3 environments, expected 4"):
        Mrq(CONFIG, SIZES, 4).load_state_dict(state)


def test_cameras_and_reversed_atoms_are_refused():
    with pytest.raises(HandoffError, match=r"cameras \['front'\]"):
        Mrq(CONFIG, replace(SIZES, pictures=(("front", 8, 8),)), 1)
    with pytest.raises(HandoffError, match=r"from 3\.0 to -3\.0 \(low, high\)"):
        MrqEncoderConfig(low=3.0, high=-3.0)


def test_the_published_actor_gives_the_actions_of_the_learner_in_torch_and_in_numpy():
    learner = Mrq(
        replace(CONFIG, normalise=True), replace(SIZES, relative_features=((0, 1, 1, 0.5),)), 3
    )
    vector = np.random.default_rng(0).normal(2.0, 3.0, (3, 2)).astype(np.float32)
    learner.observe(vector, np.zeros(3, bool), np.random.default_rng(0))
    with torch.no_grad():
        # Biases are zero at first, where a wrong one would not be noticed.
        for parameter in learner.networks.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
            )
    card, arrays = mrq_actor(learner)
    assert card.actor.layers == (3, 8, 8, 6, 8, 8, 2)
    assert card.actor.activations() == ("elu", "elu", "elu", "relu", "relu")
    parameters = Parameters(0, card, arrays)
    actor = LearnedActor(
        LearnedActorConfig(observation_fields=("x",), card=card), Shapes.of_vector(2, 2, None)
    )
    actor.load_state_dict(actor.state_dict() | weights_of(parameters))
    obs = ObservationTensors(torch.from_numpy(vector)[:, None])
    expected = learner.act(vector)
    answered = actor.sample(obs, torch.zeros(3, 1, 2))[:, 0].detach().numpy()
    np.testing.assert_allclose(answered, expected, atol=1e-6)
    assert np.abs(np.diff(answered, axis=0)).max() > 0.05
    # In NumPy, too, which is what a robot's process runs.
    check_parameters(parameters)
    np.testing.assert_allclose(ActorPolicy(parameters).act(vector), expected, atol=1e-5)
    with pytest.raises(HandoffError, match=r"object is not MR\.Q"):
        mrq_actor(object())


def test_released_options():
    config = MrqConfig()
    encoder = config.encoder
    assert (encoder.state_size, encoder.action_size, encoder.pair_size) == (512, 256, 512)
    assert (encoder.horizon, encoder.bins, encoder.low, encoder.high) == (5, 65, -10.0, 10.0)
    assert (config.target_every, config.target_noise, config.target_noise_clip) == (250, 0.2, 0.3)
    assert (config.priorities.exponent, config.priorities.floor) == (0.4, 1.0)
