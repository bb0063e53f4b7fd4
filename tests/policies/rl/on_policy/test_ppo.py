"""PPO updates as a whole: their effect, several workers, and resumption."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.on_policy.config import CostConstraint, DppoConfig, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.diffusion_actor import DenoisingActor
from policies.rl.on_policy.gaussian_actor import GaussianActor
from policies.rl.on_policy.ppo import OnPolicyLearner, UpdateStatistics
from policies.rl.on_policy.rollout import RewardScale, Rollout
from robots.errors import HandoffError
from tests.toy_envs.bimodal_reach import BimodalReach
from tests.toy_envs.rollout_env import toy_collector

NUM_ENVS, DECISIONS = 8, 12
ALWAYS = OnPolicyConfig(
    ppo=PpoConfig(clip=0.2),
    clip_min=None,
    epochs=2,
    batch_size=40,
    critic_warmup_rollouts=0,
    target_kl=None,
)


def diffusion(seed: int = 0, objective: str = "diffusion") -> DiffusionPolicy:
    torch.manual_seed(seed)
    config = DiffusionPolicyConfig(
        objective=objective,  # type: ignore[arg-type]
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        train_timesteps=20,
        inference_steps=5,
        network=MlpConfig(width=32, blocks=1),
    )
    return DiffusionPolicy(config, Shapes.of_vector(2, 2, None))


def denoising(seed: int = 0, objective: str = "diffusion", **options) -> DenoisingActor:
    return DenoisingActor(diffusion(seed, objective), DppoConfig(**options))


def gaussian(seed: int = 0) -> GaussianActor:
    torch.manual_seed(seed)
    return GaussianActor(
        nn.Sequential(nn.Flatten(), nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)), 2
    )


def critic(outputs: int = 1) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, outputs))


def see(observation: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(observation)[:, None]


def collect_rollout(actor, value: nn.Module | None = None, **options) -> Rollout:
    toy_env = BimodalReach(NUM_ENVS, 0)
    return toy_collector(toy_env, actor, value or critic(), see, 0.99, **options).rollout(DECISIONS)


ACTORS = [
    pytest.param(gaussian, id="gaussian"),
    pytest.param(denoising, id="ddim"),
    pytest.param(lambda: denoising(frozen_steps=3), id="ddim, two steps learn"),
    pytest.param(lambda: denoising(frozen_steps=4), id="ddim, one step learns"),
    pytest.param(lambda: denoising(objective="flow"), id="flow-SDE"),
]


@pytest.mark.parametrize("make", ACTORS)
def test_what_was_said_of_a_decision_is_said_again(make):
    """Invariants 8 and 12: recomputed log-probabilities are those of acting, so all ratios are
    1."""
    actor = make()
    rollout = collect_rollout(actor)
    obs = rollout.obs.flatten(0, 1)
    for part in range(actor.denoising_steps):
        trace = {name: value.flatten(0, 1)[:, part] for name, value in rollout.trace.items()}
        with torch.no_grad():
            again = actor.log_prob(obs, torch.full((len(obs),), part), trace)
        torch.testing.assert_close(
            again, rollout.log_prob_TNK.flatten(0, 1)[:, part], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("make", ACTORS)
def test_the_first_step_clips_nothing_and_the_policy_moves(make):
    actor, value = make(), critic()
    rollout = collect_rollout(actor, value)
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    config = replace(ALWAYS, epochs=1, batch_size=10**6)
    statistics = OnPolicyLearner(config, actor, value).update(rollout)
    assert statistics.clipped == 0.0
    assert statistics.ratio == pytest.approx(1.0, abs=1e-4)
    assert statistics.kl == pytest.approx(0.0, abs=1e-6)
    assert any(
        not torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True)
    )


def test_the_policy_as_it_was_stays_as_it_was():
    actor, value = denoising(frozen_steps=2), critic()
    before = copy.deepcopy(actor.reference.state_dict())
    OnPolicyLearner(ALWAYS, actor, value).update(collect_rollout(actor, value))
    for name, weight in actor.reference.state_dict().items():
        assert torch.equal(weight, before[name]), name
    moved = [
        not torch.equal(weight, before[name]) for name, weight in actor.policy.state_dict().items()
    ]
    assert any(moved)


def test_the_critic_warms_up_alone():
    actor, value = gaussian(), critic()
    learner = OnPolicyLearner(replace(ALWAYS, critic_warmup_rollouts=1), actor, value)
    weights = [copy.deepcopy(actor.state_dict()), copy.deepcopy(value.state_dict())]
    learner.update(collect_rollout(actor, value))
    assert all(torch.equal(one, weights[0][name]) for name, one in actor.state_dict().items())
    assert any(not torch.equal(one, weights[1][name]) for name, one in value.state_dict().items())
    learner.update(collect_rollout(actor, value))
    assert any(not torch.equal(one, weights[0][name]) for name, one in actor.state_dict().items())


def test_epochs_end_when_the_policy_has_moved_far():
    actor, value = gaussian(), critic()
    config = replace(ALWAYS, epochs=20, actor_learning_rate=0.05, target_kl=0.02)
    statistics = OnPolicyLearner(config, actor, value).update(collect_rollout(actor, value))
    assert 1 <= statistics.epochs < 20
    assert statistics.kl > 0.0


class Sum:
    """Sums over workers that are threads, in the order of their numbers."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers, timeout=60.0)
        self._parts: dict[int, torch.Tensor] = {}

    def of(self, worker: int):
        def reduce(part: torch.Tensor) -> torch.Tensor:
            self._parts[worker] = part
            self._barrier.wait()
            total = torch.stack([self._parts[number] for number in sorted(self._parts)]).sum(dim=0)
            self._barrier.wait()
            return total

        return reduce

    def abort(self) -> None:
        """One worker failed: nobody waits for it."""
        self._barrier.abort()


def shared(rollout: Rollout, worker: int, workers: int) -> Rollout:
    """The environments of one of several workers."""
    size = NUM_ENVS // workers
    mine = slice(worker * size, (worker + 1) * size)
    trace = {name: value[:, mine] for name, value in rollout.trace.items()}
    tables = {
        name: getattr(rollout, name)[:, mine]
        for name in rollout._fields
        if name == "obs" or name.endswith(("_TN", "_TNK"))
    }
    return rollout._replace(**tables, trace=trace, first_row=worker * size, num_envs=NUM_ENVS)


@pytest.mark.parametrize(("workers", "batch"), [(2, 40), (4, 40), (4, 12)])
@pytest.mark.parametrize("make", [gaussian, denoising])
def test_one_two_and_four_workers_make_the_same_update(make, workers, batch):
    """Of some minibatches of twelve rows one of four workers has none."""
    whole_actor, whole_critic = make(), critic()
    rollout = collect_rollout(whole_actor, whole_critic)
    actors = [copy.deepcopy(whole_actor) for _ in range(workers)]
    critics = [copy.deepcopy(whole_critic) for _ in range(workers)]
    config = replace(
        ALWAYS, max_grad_norm=0.5, batch_size=batch, bc_weight=0.0 if make is denoising else 0.1
    )
    expected = OnPolicyLearner(config, whole_actor, whole_critic).update(rollout)
    sums = Sum(workers)

    def work(number: int) -> UpdateStatistics:
        learner = OnPolicyLearner(config, actors[number], critics[number], reduce=sums.of(number))
        try:
            return learner.update(shared(rollout, number, workers))
        except BaseException:
            sums.abort()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, number) for number in range(workers)]
    # What went wrong with one is told before that the others waited for it in vain.
    failed = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(failed, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    figures = [future.result() for future in futures]
    for number in range(workers):
        for mine, alone in zip(actors[number].parameters(), whole_actor.parameters(), strict=True):
            torch.testing.assert_close(mine, alone, rtol=1e-4, atol=1e-6)
        assert figures[number].kl == pytest.approx(expected.kl, rel=1e-3, abs=1e-7)


def test_a_killed_run_continues_like_an_uninterrupted_one():
    actor, value = denoising(), critic()
    rollouts = [collect_rollout(actor, value, seed=seed) for seed in range(2)]
    saved = copy.deepcopy((actor, value))
    learner = OnPolicyLearner(ALWAYS, actor, value)
    learner.update(rollouts[0])
    state = copy.deepcopy(learner.state_dict())
    saved[0].policy.load_state_dict(actor.policy.state_dict())
    saved[1].load_state_dict(value.state_dict())
    learner.update(rollouts[1])
    again = OnPolicyLearner(ALWAYS, *saved)
    again.load_state_dict(state)
    again.update(rollouts[1])
    for one, other in zip(actor.parameters(), saved[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_costs_without_a_limit_are_ppo_bit_for_bit():
    """G3: a constraint that never binds changes no bit of actor or first value."""
    plain, bound = gaussian(), gaussian()
    cost_critic = critic(2)
    rollout = collect_rollout(bound, cost_critic, cost=lambda: np.ones(NUM_ENVS))
    assert rollout.costs is not None
    config = replace(ALWAYS, value_weight=0.0)
    OnPolicyLearner(config, plain, copy.deepcopy(cost_critic)).update(rollout._replace(costs=None))
    OnPolicyLearner(config, bound, cost_critic).update(rollout, episode_cost=1e6)
    for one, other in zip(plain.parameters(), bound.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_cost_above_its_limit_raises_the_multiplier_and_turns_the_update():
    free, bound, value = gaussian(), gaussian(), critic(2)
    rollout = collect_rollout(bound, value, cost=lambda: np.arange(NUM_ENVS) * 1.0)
    OnPolicyLearner(ALWAYS, free, copy.deepcopy(value)).update(rollout, episode_cost=50.0)
    limited = OnPolicyLearner(ALWAYS, bound, value, constraint=CostConstraint(limit=10.0))
    statistics = limited.update(rollout, episode_cost=50.0)
    assert statistics.multiplier == pytest.approx(0.001 + 0.035 * 40.0)
    assert any(
        not torch.equal(a, b) for a, b in zip(free.parameters(), bound.parameters(), strict=True)
    )


def test_staying_near_what_it_was_holds_the_policy_back():
    moved = []
    for weight in (0.0, 100.0):
        actor, value = denoising(), critic()
        config = replace(ALWAYS, bc_weight=weight, actor_learning_rate=1e-3, epochs=3)
        OnPolicyLearner(config, actor, value).update(collect_rollout(actor, value))
        obs = torch.randn(64, 1, 2, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(64, 1, 2, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            moved.append(
                float((actor.policy(obs, noise) - actor.reference(obs, noise)).abs().mean())
            )
    assert moved[1] < 0.5 * moved[0]


def test_a_loss_that_is_not_finite_stops_before_it_does_harm():
    actor, value = gaussian(), critic()
    rollout = collect_rollout(actor, value)
    rollout.reward_TN[3, 2] = float("nan")
    before = copy.deepcopy(actor.state_dict())
    with pytest.raises(HandoffError, match="the loss of rollout 0 is nan"):
        OnPolicyLearner(ALWAYS, actor, value).update(rollout)
    assert all(torch.equal(weight, before[name]) for name, weight in actor.state_dict().items())


def test_rewards_are_scaled_by_the_deviation_of_what_they_add_up_to():
    scale, draw = RewardScale(0.9), np.random.default_rng(0)
    sums, obs = np.zeros(4), []
    for _ in range(50):
        reward, ended = draw.normal(size=4), draw.random(4) < 0.1
        sums = 0.9 * sums + reward
        obs += sums.tolist()
        scaled = scale(torch.from_numpy(reward), torch.from_numpy(ended))
        np.testing.assert_allclose(scaled, reward / np.std(obs), rtol=1e-6)
        sums[ended] = 0.0


def test_rewards_that_are_all_alike_stay_as_they_are():
    scale = RewardScale(0.9)
    for _ in range(3):
        assert scale(torch.full((4,), 2.0), torch.ones(4, dtype=torch.bool)).tolist() == [2.0] * 4
    assert not scale(torch.zeros(4), torch.ones(4, dtype=torch.bool)).any()


def test_more_frozen_steps_than_there_are_is_refused():
    with pytest.raises(HandoffError, match="frozen_steps is 5 of 5 steps"):
        denoising(frozen_steps=5)
