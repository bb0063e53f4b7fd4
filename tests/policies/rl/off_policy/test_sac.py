"""Tests the targets, losses, gradients and saved state of SAC on values computed by hand."""

import io
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from policies.rl.networks.config import MlpSizes
from policies.rl.networks.critics import (
    bellman_target,
    double_dqn_value,
    random_subset,
    squared_error,
)
from policies.rl.networks.ensemble import EnsembleMlp, batched_forward
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.sac import Sac, fused_steps
from policies.rl.replay.transitions import Observations, Sizes, Transitions

SMALL = MlpSizes(hidden=(8, 8))
SIZES = Sizes(observation=4, action=3)


def config(**options: Any) -> SacConfig:
    return SacConfig(**{"critic": SMALL, "actor": SMALL, **options})


def with_gripper(**options: Any) -> SacConfig:
    return config(gripper=GripperConfig(network=SMALL), **options)


def batch(rows: int = 6, seed: int = 0, toggles: float = 0.0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    nothing = torch.zeros(rows, dtype=torch.bool)
    action = torch.tanh(normal(rows, 3))
    action[:, -1] = action[:, -1].sign()
    return Transitions(
        obs=Observations(normal(rows, 4)),
        action_BA=action,
        reward_B=normal(rows),
        discount_B=torch.full((rows,), 0.9),
        next_obs=Observations(normal(rows, 4)),
        demo_B=nothing,
        intervention_B=nothing,
        toggles_B=torch.full((rows,), toggles),
    )


def constant_values(network: EnsembleMlp, values: list[float]) -> None:
    """Makes every member answer one number whatever it sees."""
    with torch.no_grad():
        network.weights[-1].zero_()
        for member, value in enumerate(values):
            network.biases[-1][member] = value


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_every_pair_of_critics_is_as_likely_as_any_other() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for _ in range(5000):
        counts[tuple(sorted(random_subset(5, 2, generator).tolist()))] += 1  # type: ignore[index]
    distance = sum((count - 500.0) ** 2 / 500.0 for count in counts.values())
    # 27.88 is the quantile .999 of chi-square with 9 degrees of freedom.
    assert distance < 27.88


def test_the_target_is_reward_plus_discounted_value() -> None:
    target = bellman_target(
        torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), torch.tensor([4.0, 9.0])
    )
    assert target.tolist() == [3.0, 2.0]


def test_the_squared_error_is_a_mean_over_members_and_rows() -> None:
    value, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 1.0])
    assert squared_error(value, target).item() == (1.0 + 1.0 + 9.0 + 9.0) / 4.0
    assert squared_error(value, target, torch.tensor([1.0, 0.0])).item() == (1.0 + 9.0) / 4.0


def test_the_value_of_the_next_state_is_the_least_of_the_target_critics() -> None:
    sac = Sac(config(critics=3), SIZES)
    constant_values(sac.networks.critic_target, [3.0, -1.0, 2.0])
    assert sac.next_value(torch.randn(5, 4)).tolist() == [-1.0] * 5


def test_a_subset_of_the_critics_is_sampled_for_every_minibatch() -> None:
    sac = Sac(config(critics=5, subset=1), SIZES)
    constant_values(sac.networks.critic_target, [0.0, 1.0, 2.0, 3.0, 4.0])
    obs = [sac.next_value(torch.randn(2, 4)).unique().tolist() for _ in range(60)]
    assert all(len(values) == 1 for values in obs)
    assert {values[0] for values in obs} == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_entropy_is_in_the_target_only_with_backup_entropy() -> None:
    vector, values = torch.randn(5, 4), {}
    for entropy in (False, True):
        sac = Sac(config(backup_entropy=entropy, init_temperature=0.5), SIZES, seed=3)
        values[entropy] = sac.next_value(vector)
        sac._generator = torch.Generator()
    noise = torch.randn(5, 3, generator=torch.Generator())
    log_prob = sac.networks.actor.sample(vector, noise).log_prob_B
    torch.testing.assert_close(values[False] - values[True], 0.5 * log_prob)


@pytest.mark.parametrize(("kind", "value"), [("mean", 2.0), ("min", 1.0)])
def test_the_actor_maximises_the_mean_or_the_minimum_of_the_critics(
    kind: str, value: float
) -> None:
    sac = Sac(config(actor_value=kind, init_temperature=0.5), SIZES)
    constant_values(sac.networks.critic, [1.0, 3.0])
    loss, metrics = sac.actor_loss(batch())
    torch.testing.assert_close(loss, -0.5 * metrics["entropy"] - value)


def test_the_gradient_of_the_temperature_is_itself_times_the_entropys_surplus() -> None:
    sac = Sac(config(init_temperature=0.2, target_entropy=-1.0), SIZES)
    metrics = sac.update([batch()])
    gradient = sac.networks.log_temperature.grad
    assert gradient is not None
    torch.testing.assert_close(gradient, 0.2 * (metrics["entropy"] + 1.0))


@pytest.mark.parametrize(("target", "direction"), [(-50.0, -1.0), (50.0, 1.0)])
def test_the_temperature_falls_while_the_entropy_is_above_its_target(
    target: float, direction: float
) -> None:
    sac = Sac(config(target_entropy=target), SIZES)
    before = sac.networks.log_temperature.item()
    sac.update([batch()])
    # Adam's first step is as long as its learning rate.
    assert sac.networks.log_temperature.item() - before == pytest.approx(direction * 3e-4, rel=1e-2)


def test_without_a_target_entropy_it_is_minus_half_of_the_continuous_entries() -> None:
    assert Sac(config(), SIZES).target_entropy == -1.5
    assert Sac(with_gripper(), SIZES).target_entropy == -1.0


def test_double_dqn_takes_the_targets_value_of_what_the_online_network_prefers() -> None:
    online, target = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[7.0, 3.0, 9.0]])
    assert double_dqn_value(online, target).tolist() == [3.0]


def test_the_gripper_critic_learns_reward_penalty_and_double_dqn_value() -> None:
    sac = Sac(with_gripper(), SIZES)
    net = sac.networks
    assert net.gripper is not None
    assert net.gripper_target is not None
    with torch.no_grad():
        for network, answer in (
            (net.gripper, [1.0, 5.0, 2.0]),
            (net.gripper_target, [7.0, 3.0, 9.0]),
        ):
            network.weights[-1].zero_()
            network.biases[-1][0, 0] = torch.tensor(answer)
    data = batch(2, toggles=1.0)._replace(reward_B=torch.tensor([0.0, 1.0]))
    data.action_BA[:, -1] = torch.tensor([-1.0, 1.0])
    # Targets: r - .02 + .9 * 3; values of close and open: 1 and 2.
    expected = ((1.0 - 2.68) ** 2 + (2.0 - 3.68) ** 2) / 2.0
    assert sac.update([data])["gripper_loss"].item() == pytest.approx(expected, rel=1e-5)


def test_the_toggle_penalty_affects_only_the_gripper_critic() -> None:
    plain, punished = (Sac(with_gripper(), SIZES) for _ in range(2))
    plain.update([batch(toggles=0.0)])
    punished.update([batch(toggles=1.0)])
    for name, module in plain.networks.named_children():
        other = getattr(punished.networks, name)
        assert same(weights(module), weights(other)) == (name not in ("gripper", "gripper_target"))


def test_actions_end_in_the_command_that_the_gripper_critic_prefers() -> None:
    sac = Sac(with_gripper(), SIZES)
    assert sac.networks.gripper is not None
    with torch.no_grad():
        sac.networks.gripper.weights[-1].zero_()
        sac.networks.gripper.biases[-1][0, 0] = torch.tensor([0.0, 0.0, 1.0])
    action = sac.act(np.zeros((4, 4), np.float32), np.random.default_rng(0))
    assert action.shape == (4, 3)
    assert (action[:, -1] == 1.0).all()


def test_targets_follow_by_tau_after_every_minibatch() -> None:
    sac = Sac(config(tau=0.25), SIZES)
    before = weights(sac.networks.critic_target)
    sac.update([batch()])
    for old, now, goal in zip(
        before, weights(sac.networks.critic_target), weights(sac.networks.critic), strict=True
    ):
        torch.testing.assert_close(now, 0.75 * old + 0.25 * goal)


def test_an_update_has_as_many_critic_steps_as_minibatches_and_one_of_the_actor() -> None:
    sac = Sac(config(), SIZES)
    sac.update([batch(seed=i) for i in range(4)])
    steps = {
        name: int(optimizer.state_dict()["steps"]) for name, optimizer in sac.optimizers.items()
    }
    assert steps == {"critic": 4, "actor": 1, "temperature": 1}


def test_the_actors_step_leaves_no_gradient_in_the_critics() -> None:
    sac = Sac(config(), SIZES)
    sac.update([batch()])
    before = [parameter.grad for parameter in sac.networks.critic.parameters()]
    sac._update_actor(batch(seed=1))
    assert all(
        a is parameter.grad
        for a, parameter in zip(before, sac.networks.critic.parameters(), strict=True)
    )


def batched(self: EnsembleMlp, inputs: Tensor, members: Tensor | None, head: bool) -> Tensor:
    return batched_forward(self.sizes, self.layers(), head, inputs, members)


FORMS = itertools.product(
    ("tanh", "relu"), (False, True), (None, 2), ("mean", "min"), (False, True), (False, True)
)


@pytest.mark.parametrize(
    ("activation", "layer_norm", "subset", "value", "entropy", "has_gripper"), FORMS
)
def test_updates_are_those_of_autograd(
    activation: Any,
    layer_norm: bool,
    subset: int | None,
    value: str,
    entropy: bool,
    has_gripper: bool,
    monkeypatch: Any,
) -> None:
    sizes = MlpSizes(hidden=(8, 8), activation=activation, layer_norm=layer_norm)
    gripper = GripperConfig(network=sizes) if has_gripper else None
    options = config(
        critic=sizes,
        actor=sizes,
        critics=3,
        subset=subset,
        actor_value=value,
        backup_entropy=entropy,
        gripper=gripper,
        init_temperature=0.3,
    )
    results = []
    for form in ("fused steps", "fused passes", "autograd"):
        if form == "autograd":
            monkeypatch.setattr(EnsembleMlp, "_evaluate", batched)
        sac = Sac(options, SIZES)
        sac.fused = form == "fused steps"
        metrics = sac.update([batch(toggles=1.0)])
        assert (sac._steps is not None) == sac.fused
        gradients = [
            parameter.grad for parameter in sac.networks.parameters() if parameter.requires_grad
        ]
        results.append([*gradients, *(metrics[name] for name in sorted(metrics))])
    for fused in results[:2]:
        for value, expected in zip(fused, results[2], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_a_learner_with_overridden_or_replaced_parts_uses_autograd() -> None:
    class Other(Sac):
        def critic_loss(self, batch: Transitions) -> Any:
            loss, metrics = super().critic_loss(batch)
            return 2.0 * loss, metrics | {"mine": loss}

    assert "mine" in Other(config(), SIZES).update([batch()])
    sac = Sac(config(), SIZES)
    sac.update([batch()])
    assert sac._steps is not None
    sac.networks.critic = nn.ModuleDict()  # type: ignore[assignment]
    assert fused_steps(sac) is None
    assert fused_steps(Sac(config(fixed_std=0.5), SIZES)) is None


def test_moved_parameters_are_found_again() -> None:
    moved, other = (Sac(config(), SIZES) for _ in range(2))
    moved.update([batch()])
    for parameter in moved.networks.parameters():
        parameter.data = parameter.data.clone()
    other.update([batch()])
    for sac in (moved, other):
        sac.update([batch(seed=1)])
    assert same(weights(moved.networks), weights(other.networks))


def test_a_saved_learner_continues_bit_for_bit() -> None:
    for options in (config(critics=4, subset=2), with_gripper(backup_entropy=True)):
        straight = Sac(options, SIZES, seed=5)
        for number in range(3):
            straight.update([batch(seed=number)])
        file = io.BytesIO()
        torch.save(straight.state_dict(), file)
        file.seek(0)
        resumed = Sac(options, SIZES, seed=5)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for number in range(3, 5):
            for sac in (straight, resumed):
                sac.update([batch(seed=number), batch(seed=number + 10)])
        assert straight.updates == resumed.updates == 5
        assert same(weights(straight.networks), weights(resumed.networks))


def test_random_numbers_depend_only_on_the_seed_and_the_update_number() -> None:
    first, second, other = (
        Sac(config(), SIZES, seed=1),
        Sac(config(), SIZES, seed=1),
        Sac(config(), SIZES, seed=2),
    )
    torch.manual_seed(7)
    one = first.update([batch()])["entropy"]
    torch.manual_seed(8)
    second.actor_loss(batch())
    assert torch.equal(one, second.update([batch()])["entropy"])
    assert not torch.equal(one, other.update([batch()])["entropy"])
    still = Sac(
        config(learning_rate=0.0, actor_learning_rate=0.0, temperature_learning_rate=0.0), SIZES
    )
    entropies = []
    for still.updates in (0, 1, 0):
        entropies.append(still.update([batch()])["entropy"])
    assert torch.equal(entropies[0], entropies[2])
    assert not torch.equal(entropies[0], entropies[1])


def test_all_that_is_saved_is_float32_or_a_plain_number() -> None:
    sac = Sac(with_gripper(), SIZES)
    sac.update([batch()])

    def leaves(value: Any) -> list[Any]:
        parts = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else None
        )
        return [value] if parts is None else [leaf for part in parts for leaf in leaves(part)]

    kept = leaves(dict(sac.state_dict()) | {"networks": dict(sac.networks.state_dict())})
    assert all(
        leaf.dtype == torch.float32 if isinstance(leaf, Tensor) else type(leaf) in (int, float)
        for leaf in kept
    )


def test_acting_is_deterministic_without_an_rng_and_reproducible_with_one() -> None:
    sac, vector = Sac(config(), SIZES), np.ones((2, 4), np.float32)
    assert np.array_equal(sac.act(vector), sac.act(vector))
    drawn = [sac.act(vector, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert np.abs(drawn[0]).max() < 1.0


def test_the_policy_acts_with_averaged_weights_and_training_uses_the_current_ones() -> None:
    plain, mean = Sac(with_gripper(), SIZES), Sac(with_gripper(actor_ema=0.6), SIZES)
    assert plain.networks.gripper is not None
    # The first update keeps nothing of the old; of the n-th, 1 - (1 + n)^-.75 until that is .6.
    followed: list[Tensor] = []
    for kept in (0.0, 1.0 - 2.0**-0.75, 1.0 - 3.0**-0.75, 0.6):
        plain.update([batch()])
        mean.update([batch()])
        newest = [plain.networks.actor.network.weights[0], plain.networks.gripper.weights[0]]
        followed = [
            kept * old + (1.0 - kept) * new.detach()
            for old, new in zip(followed or newest, newest, strict=True)
        ]
    actor, gripper = mean.networks.acting()
    assert gripper is not None
    torch.testing.assert_close(actor.network.weights[0].detach(), followed[0])
    torch.testing.assert_close(gripper.weights[0].detach(), followed[1])
    for learned, other in zip(
        weights(plain.networks.actor), weights(mean.networks.actor), strict=True
    ):
        assert torch.equal(learned, other)
    vector = np.ones((2, 4), np.float32)
    assert not np.array_equal(plain.act(vector), mean.act(vector))
    plain.networks.actor.load_state_dict(actor.state_dict())
    plain.networks.gripper.load_state_dict(gripper.state_dict())
    assert np.array_equal(plain.act(vector), mean.act(vector))


def test_critics_learn_a_constant_reward() -> None:
    sac = Sac(config(learning_rate=1e-2), SIZES)
    data = batch(32)._replace(reward_B=torch.full((32,), 2.0), discount_B=torch.zeros(32))
    losses = [sac.update([data])["critic_loss"].item() for _ in range(150)]
    assert losses[0] > 1.0
    assert losses[-1] < 0.02
