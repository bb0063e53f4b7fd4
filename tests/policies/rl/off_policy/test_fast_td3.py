"""Tests FastTD3 against values computed by hand, and its saved state."""

from __future__ import annotations

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.families.rl_actor import LearnedActor, weights_of
from policies.policy import ObservationTensors
from policies.policy_config import LearnedActorConfig
from policies.rl.actor_export import fast_td3_actor
from policies.rl.networks.config import MlpSizes
from policies.rl.networks.distributional import even_atoms, mean_value, project
from policies.rl.networks.running_normaliser import NORMALISER_FLOOR
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.fast_td3 import FastTd3, lower_mean
from policies.rl.off_policy.fast_td3_config import FastTd3Config, PerEnvNoiseConfig
from policies.rl.off_policy.online import MinibatchSampler, OnlineProgress, learn_online
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.learner import Parameters, check_parameters
from robots.wire.steps import Steps
from tests.toy_envs.point_maze import PointMaze

LAYERS = MlpSizes(hidden=(8,), activation="relu", layer_norm=False)
CONFIG = FastTd3Config(
    critic=LAYERS, actor=LAYERS, atoms=11, low=-5.0, high=5.0, learning_rate=1e-2, normalise=False
)
SIZES = Sizes(observation=2, action=2)


def batch_of(rows: int, seed: int = 0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    none = torch.zeros(rows, dtype=torch.bool)
    return Transitions(
        obs=Observations(torch.randn(rows, 2, generator=generator)),
        action_BA=2 * torch.rand(rows, 2, generator=generator) - 1,
        reward_B=torch.randn(rows, generator=generator),
        discount_B=torch.rand(rows, generator=generator),
        next_obs=Observations(torch.randn(rows, 2, generator=generator)),
        demo_B=none,
        intervention_B=none,
        toggles_B=torch.zeros(rows),
    )


def weights(learner: FastTd3, name: str) -> list[torch.Tensor]:
    return [one.detach().clone() for one in getattr(learner.networks, name).parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def shuffle(critic: torch.nn.Module) -> None:
    """Weights so far apart that neither critic is always the lower one."""
    generator = torch.Generator().manual_seed(3)
    for parameter in critic.parameters():
        parameter.normal_(generator=generator)


def test_the_lower_mean_selects_a_whole_distribution_per_row():
    atoms = torch.tensor([-1.0, 0.0, 1.0])
    # Means 0, .5 and -.2, .1: the first row is the first critic's although its worst case is the
    # worse one.
    first = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    second = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.3, 0.4]])
    result = lower_mean(torch.stack([first, second]), atoms)
    assert result.tolist() == [first[0].tolist(), second[1].tolist()]


def test_the_target_is_the_projection_of_the_lower_critic_and_not_a_mixture():
    learner, batch = FastTd3(replace(CONFIG, target_noise=0.0), SIZES, 1), batch_of(200)
    net = learner.networks
    with torch.no_grad():
        shuffle(net.critic_target)
        after = batch.next_obs.vector_BO
        inputs = torch.cat([after, net.action(after)], dim=1)
        next_EBK = torch.softmax(net.critic_target(inputs), dim=-1)
    both = [project(one, batch.reward_B, batch.discount_B, net.atoms_K) for one in next_EBK]
    means = torch.stack([mean_value(one, net.atoms_K) for one in both])
    result = learner.target(batch)
    lower = means.argmin(dim=0)
    assert {0, 1} == set(lower.tolist())
    for row, member in enumerate(lower.tolist()):
        torch.testing.assert_close(result[row], both[member][row])
    torch.testing.assert_close(result.sum(dim=1), torch.ones(200))
    torch.testing.assert_close(mean_value(result, net.atoms_K), means.amin(dim=0))


def test_the_targets_noise_is_clipped():
    batch = batch_of(500)
    actions: list[torch.Tensor] = []
    learner = FastTd3(replace(CONFIG, target_noise=10.0, target_noise_clip=0.25), SIZES, 1)
    real = learner.networks.critic_target.forward

    def listening(inputs: torch.Tensor) -> torch.Tensor:
        actions.append(inputs[:, 2:])
        return real(inputs)

    learner.networks.critic_target.forward = listening  # type: ignore[method-assign, assignment]
    learner.target(batch)
    with torch.no_grad():
        off = actions[0] - learner.networks.action(batch.next_obs.vector_BO)
    # Actions begin near 0, so that nothing but the clip bounds them.
    assert float(off.abs().max()) == pytest.approx(0.25, abs=1e-6)
    assert float(off.min()) < 0.0


def test_a_critic_equal_to_the_target_has_its_entropy_as_loss():
    learner = FastTd3(CONFIG, SIZES, 1)
    with torch.no_grad():
        for one in (learner.networks.critic, learner.networks.critic_target):
            for parameter in one.parameters():
                parameter.zero_()
    # Uniform critics, and a reward on the middle atom behind which nothing comes: the target is
    # certain.
    batch = batch_of(4)._replace(reward_B=torch.zeros(4), discount_B=torch.zeros(4))
    loss, metrics = learner.critic_loss(batch)
    assert loss.item() == pytest.approx(2 * np.log(11))
    assert float(metrics["target"]) == pytest.approx(0.0, abs=1e-6)


def test_the_actor_maximises_the_lower_of_both_means():
    learner, batch = FastTd3(CONFIG, SIZES, 1), batch_of(50)
    net = learner.networks
    with torch.no_grad():
        shuffle(net.critic)
        obs = batch.obs.vector_BO
        logit = net.critic(torch.cat([obs, net.action(obs)], dim=1))
        means = mean_value(torch.softmax(logit, dim=-1), net.atoms_K)
        result, _ = learner.actor_loss(batch)
    assert float(result) == pytest.approx(
        -float(torch.minimum(means[0], means[1]).mean()), abs=1e-6
    )
    # Row by row: above what either critic alone would give.
    assert float(result) > -float(means.mean(dim=1).min()) + 0.01


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, [1, 2, 3, 4, 5, 6]), (2.0, [0, 1, 1, 2, 2, 3]), (1.5, [0, 1, 2, 2, 3, 4])],
)
def test_the_policy_is_updated_when_it_is_due(ratio, expected):
    learner = FastTd3(replace(CONFIG, critic_per_policy=ratio), SIZES, 1)
    counts, moved = [], []
    for number in range(6):
        before = weights(learner, "actor")
        learner.update([batch_of(16, number)])
        counts.append(learner.policy_updates)
        moved.append(not same(before, weights(learner, "actor")))
    assert counts == expected
    assert moved == [now > then for then, now in zip([0, *expected[:-1]], expected, strict=True)]


def test_targets_follow_after_every_critic_update():
    learner = FastTd3(replace(CONFIG, tau=0.25), SIZES, 1)
    before = weights(learner, "critic_target")
    learner.update([batch_of(16)])
    for then, now, critic in zip(
        before, weights(learner, "critic_target"), weights(learner, "critic"), strict=True
    ):
        torch.testing.assert_close(now, 0.75 * then + 0.25 * critic)
    assert not same(before, weights(learner, "critic_target"))


def test_an_actor_update_moves_no_critic():
    learner, batch = FastTd3(CONFIG, SIZES, 1), batch_of(16)
    before = weights(learner, "critic")
    learner._update_actor(batch)
    assert same(before, weights(learner, "critic"))
    assert all(parameter.requires_grad for parameter in learner.networks.critic.parameters())


def test_gradients_are_clipped_to_the_maximum_norm():
    learner = FastTd3(replace(CONFIG, max_grad_norm=1e-3), SIZES, 1)
    learner.update([batch_of(16)])
    norms = [
        float(one.grad.norm())
        for one in learner.networks.critic.parameters()
        if one.grad is not None
    ]
    assert np.sqrt(np.sum(np.square(norms))) == pytest.approx(1e-3, rel=1e-3)


def test_observations_are_normalised_by_their_mean_and_deviation():
    learner = FastTd3(replace(CONFIG, normalise=True), SIZES, 3)
    rng = np.random.default_rng(0)
    obs = [
        np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0]]),
        np.array([[6.0, 10.0], [8.0, 10.0], [10.0, 10.0]]),
    ]
    for vectors in obs:
        learner.observe(vectors, np.zeros(3, bool), rng)
    vector = learner.networks.features(torch.tensor([[5.0, 10.0], [10.0, 10.5]])).numpy()
    deviation = np.std([0.0, 2, 4, 6, 8, 10]) + NORMALISER_FLOOR
    np.testing.assert_allclose(
        vector, [[0.0, 0.0], [5.0 / deviation, 0.5 / NORMALISER_FLOOR]], rtol=1e-5
    )


def test_without_an_rng_it_acts_without_noise_in_any_number_of_environments():
    learner = FastTd3(replace(CONFIG, noise=PerEnvNoiseConfig(low=0.5, high=0.5)), SIZES, 4)
    vector = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    plain, noisy = learner.act(vector), learner.act(vector, np.random.default_rng(1))
    np.testing.assert_array_equal(plain, learner.act(vector))
    assert np.abs(noisy - plain).max() > 0.1
    assert learner.act(np.zeros((7, 2))).shape == (7, 2)


def test_a_repeated_update_is_identical_and_the_next_one_differs():
    first, second = (FastTd3(replace(CONFIG, target_noise=0.5), SIZES, 1, seed=3) for _ in range(2))
    batch = batch_of(16)
    first.update([batch])
    second.update([batch])
    assert same(weights(first, "critic"), weights(second, "critic"))
    again, other = (
        FastTd3(replace(CONFIG, target_noise=0.5), SIZES, 1, seed=seed) for seed in (3, 4)
    )
    other.networks.load_state_dict(again.networks.state_dict())
    again.update([batch])
    other.update([batch])
    assert not same(weights(again, "critic"), weights(other, "critic"))


def test_images_and_invalid_atoms_are_refused():
    with pytest.raises(HandoffError, match="supports only observation vectors"):
        FastTd3(CONFIG, replace(SIZES, pictures=(("front", 8, 8),)), 1)
    with pytest.raises(HandoffError, match="11 atoms from 5"):
        FastTd3(replace(CONFIG, low=5.0), SIZES, 1)
    with pytest.raises(HandoffError, match="critic updates per policy update"):
        replace(CONFIG, critic_per_policy=0.5)


NUM_ENVS = 4


def small_run(seed: int = 3) -> tuple[FastTd3, MinibatchSampler, PointMaze, OnlineConfig]:
    """A run of a few units, whose maze ends episodes every 5 steps."""
    config = replace(
        CONFIG, normalise=True, noise=PerEnvNoiseConfig(low=0.1, high=0.9), critic_per_policy=1.5
    )
    maze = PointMaze(NUM_ENVS, seed=5)
    maze.max_steps = 5
    online = OnlineConfig(
        batch_size=8, demo_share=0.0, updates_per_step=1.5 / NUM_ENVS, training_starts=8
    )
    replay = Replay(ReplayConfig(capacity=60, n_step=3), 2, 2)
    return FastTd3(config, SIZES, NUM_ENVS, seed), MinibatchSampler(online, replay), maze, online


def collecting(learner: FastTd3, maze: PointMaze):
    def collect(one: object, rng: np.random.Generator) -> Steps:
        vector = maze.observe()
        learner.observe(vector, maze.steps == 0, rng)
        return maze.transition(learner.act(vector, rng))[0]

    return collect


def test_a_resumed_run_continues_bit_for_bit():
    learner, batches, maze, online = small_run()
    whole = learn_online(learner, batches, collecting(learner, maze), online, 120, seed=1)

    first, halves, place, _ = small_run()
    halfway = learn_online(first, halves, collecting(first, place), online, 68, seed=1)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second, fresh, _, _ = small_run()
    second.load_state_dict(torch.load(file, weights_only=True))
    fresh.replay.load_state_dict(halves.replay.state_dict())
    again = learn_online(
        second, fresh, collecting(second, copy.deepcopy(place)), online, 120, seed=1, begin=halfway
    )

    # 1.5 critic updates per collection of 4 steps, from the 8th step on; a policy update for every
    # 1.5 of them.
    assert (halfway, whole, again) == (
        OnlineProgress(68, 22),
        OnlineProgress(120, 42),
        OnlineProgress(120, 42),
    )
    assert learner.policy_updates == second.policy_updates == 28
    for name in ("critic", "critic_target", "actor"):
        assert same(weights(learner, name), weights(second, name))
    assert not same(weights(first, "actor"), weights(second, "actor"))
    np.testing.assert_array_equal(learner.noise.deviation_N, second.noise.deviation_N)
    np.testing.assert_array_equal(learner.statistics.mean, second.statistics.mean)
    np.testing.assert_array_equal(batches.replay.columns["action"], fresh.replay.columns["action"])


@pytest.mark.parametrize("forgotten", ["deviation", "statistics", "optimizers", "updates"])
def test_every_saved_part_is_needed_to_resume(forgotten):
    """Each part of the state changes what comes next; so the test above would notice if it were
    lost."""
    first, halves, place, online = small_run()
    halfway = learn_online(first, halves, collecting(first, place), online, 68, seed=1)
    ends = []
    for left_out in (None, forgotten):
        second, fresh, _, _ = small_run()
        state = copy.deepcopy(first.state_dict())
        if left_out is not None:
            state[left_out] = small_run()[0].state_dict()[left_out]
        second.load_state_dict(state)
        fresh.replay.load_state_dict(halves.replay.state_dict())
        learn_online(
            second,
            fresh,
            collecting(second, copy.deepcopy(place)),
            online,
            120,
            seed=1,
            begin=halfway,
        )
        ends.append(weights(second, "critic"))
    assert not same(*ends)


def test_a_state_of_other_environments_is_refused():
    state = FastTd3(CONFIG, SIZES, 3).state_dict()
    with pytest.raises(HandoffError, match="state has 3 environments, expected 4"):
        FastTd3(CONFIG, SIZES, 4).load_state_dict(state)


def test_the_published_actor_gives_the_actions_of_the_learner():
    learner = FastTd3(
        replace(CONFIG, normalise=True, init_scale=1.0),
        replace(SIZES, relative_features=((0, 1, 1, 0.5),)),
        3,
    )
    vector = np.random.default_rng(0).normal(2.0, 3.0, (3, 2)).astype(np.float32)
    learner.observe(vector, np.zeros(3, bool), np.random.default_rng(0))
    card, arrays = fast_td3_actor(learner)
    state = weights_of(Parameters(0, card, arrays))
    actor = LearnedActor(
        LearnedActorConfig(observation_fields=("x",), card=card), Shapes.of_vector(2, 2, None)
    )
    actor.load_state_dict(actor.state_dict() | state)
    answered = (
        actor.sample(ObservationTensors(torch.from_numpy(vector)[:, None]), torch.zeros(3, 1, 2))[
            :, 0
        ]
        .detach()
        .numpy()
    )
    np.testing.assert_allclose(answered, learner.act(vector), atol=1e-6)
    assert np.abs(answered).max() > 0.1
    # In NumPy, too, which is what a robot's process runs.
    check_parameters(Parameters(0, card, arrays))
    with pytest.raises(HandoffError, match="object is not FastTD3"):
        fast_td3_actor(object())


def test_atoms_are_as_configured():
    assert torch.equal(FastTd3(CONFIG, SIZES, 1).networks.atoms_K, even_atoms(-5.0, 5.0, 11))
