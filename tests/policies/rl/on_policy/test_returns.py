import numpy as np
import pytest
import torch

from policies.rl.on_policy.returns import Advantages, chunk_reward, gae, n_step, next_values


def rollout(seed: int, steps: int = 23, num_envs: int = 5) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, num_envs)) < 0.15
    return {
        "reward": torch.from_numpy(rng.normal(size=(steps, num_envs))),
        "value": torch.from_numpy(rng.normal(size=(steps, num_envs))),
        "after": torch.from_numpy(rng.normal(size=(steps, num_envs))),
        "terminated": torch.from_numpy(terminated),
        "truncated": torch.from_numpy(~terminated & (rng.random((steps, num_envs)) < 0.15)),
    }


def estimated(
    data: dict[str, torch.Tensor], discount: float | torch.Tensor, gae_lambda: float
) -> Advantages:
    names = ("reward", "value", "after", "terminated", "truncated")
    reward, value, after, terminated, truncated = (data[name] for name in names)
    return gae(reward, value, after, terminated, truncated, discount, gae_lambda)


def brute_force(
    data: dict[str, torch.Tensor], discount: np.ndarray, gae_lambda: float
) -> np.ndarray:
    """A_t = sum over l of (product over i < l of g_i lambda) delta_(t+l), up to the episode's
    end."""
    reward, value, after = (data[name].numpy() for name in ("reward", "value", "after"))
    terminated, truncated = data["terminated"].numpy(), data["truncated"].numpy()
    advantage = np.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in range(len(reward)):
            weight = 1.0
            for k in range(t, len(reward)):
                tail = 0.0 if terminated[k, n] else discount[k, n] * after[k, n]
                advantage[t, n] += weight * (reward[k, n] + tail - value[k, n])
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= discount[k, n] * gae_lambda
    return advantage


# Invariant (g) 1.
@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_gae_equals_the_double_sum(gae_lambda):
    for seed in range(5):
        data = rollout(seed)
        found = estimated(data, 0.9, gae_lambda)
        expected = brute_force(data, np.full(data["reward"].shape, 0.9), gae_lambda)
        np.testing.assert_allclose(found.advantage_TN.numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(
            found.return_TN.numpy(), expected + data["value"].numpy(), atol=1e-6
        )


def test_gae_of_chunks_of_unequal_length_equals_the_double_sum():
    for seed in range(5):
        data, rng = rollout(seed), np.random.default_rng([seed, 1])
        length = torch.from_numpy(rng.integers(1, 5, size=data["reward"].shape))
        rewards = torch.from_numpy(rng.normal(size=(*data["reward"].shape, 4)))
        data["reward"] = chunk_reward(rewards, length, 0.9)
        summed = np.zeros(length.shape)
        for index in np.ndindex(*length.shape):
            summed[index] = sum(
                0.9**i * float(rewards[index][i]) for i in range(int(length[index]))
            )
        np.testing.assert_allclose(data["reward"].numpy(), summed, atol=1e-6)
        discount = 0.9**length
        found = estimated(data, discount, 0.8)
        np.testing.assert_allclose(
            found.advantage_TN.numpy(), brute_force(data, discount.numpy(), 0.8), atol=1e-6
        )


def test_chunks_of_one_step_are_plain_steps():
    data = rollout(0)
    ones = torch.ones(data["reward"].shape, dtype=torch.int64)
    rewards = torch.stack([data["reward"], torch.full_like(data["reward"], 7.0)], dim=-1)
    plain = estimated(data, 0.9, 0.8).advantage_TN
    data["reward"] = chunk_reward(rewards, ones, 0.9)
    assert torch.allclose(estimated(data, 0.9**ones, 0.8).advantage_TN, plain)


def test_what_was_not_executed_does_not_count_even_if_it_is_not_finite():
    reward = torch.tensor([[[1.0, 2.0, float("nan")]]])
    assert chunk_reward(reward, torch.tensor([[2]]), 0.5).tolist() == [[2.0]]


def test_by_hand_a_terminal_cuts_and_a_time_limit_bootstraps():
    # g = 0.5, lambda = 0.5; values 1, values after 2.
    column = torch.ones(2, 1)
    off = torch.zeros(2, 1, dtype=torch.bool)
    first = torch.tensor([[True], [False]])
    # Running on: delta = 1 + 0.5 * 2 - 1 = 1 at both; A_0 = 1 + 0.25 * 1.
    assert gae(column, column, 2 * column, off, off, 0.5, 0.5).advantage_TN[:, 0].tolist() == [
        1.25,
        1.0,
    ]
    # Terminated after the first: delta_0 = 1 - 1 = 0, and nothing flows back.
    assert gae(column, column, 2 * column, first, off, 0.5, 0.5).advantage_TN[:, 0].tolist() == [
        0.0,
        1.0,
    ]
    # Truncated after the first: delta_0 = 1, and nothing flows back.
    assert gae(column, column, 2 * column, off, first, 0.5, 0.5).advantage_TN[:, 0].tolist() == [
        1.0,
        1.0,
    ]


def test_the_value_after_an_end_is_that_of_the_true_final_observation():
    value = torch.tensor([[1.0], [2.0], [3.0]])
    final = torch.tensor([[10.0], [20.0], [30.0]])
    ended = torch.tensor([[False], [True], [False]])
    assert next_values(value, torch.tensor([4.0]), final, ended)[:, 0].tolist() == [2.0, 20.0, 4.0]


# Invariant (g) 2.
@pytest.mark.parametrize("n", [1, 3, 30])
def test_n_step_sums_equal_those_of_a_walk(n):
    for seed in range(5):
        data = rollout(seed)
        found = n_step(data["reward"], data["terminated"], data["truncated"], 0.9, n)
        steps, envs = data["reward"].shape
        for t in range(steps):
            for w in range(envs):
                total, weight, at = 0.0, 1.0, t
                for at in range(t, min(t + n, steps)):
                    total, weight = total + weight * float(data["reward"][at, w]), weight * 0.9
                    if data["terminated"][at, w] or data["truncated"][at, w]:
                        break
                assert float(found.reward_TN[t, w]) == pytest.approx(total, abs=1e-9)
                expected = 0.0 if data["terminated"][at, w] else weight
                assert float(found.discount_TN[t, w]) == pytest.approx(expected, abs=1e-9)
                assert int(found.last_TN[t, w]) == at


def test_n_steps_by_hand():
    reward = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    off = torch.zeros(4, 1, dtype=torch.bool)
    limit = torch.tensor([[False], [True], [False], [False]])
    found = n_step(reward, off, limit, 0.5, 3)
    assert found.reward_TN[:, 0].tolist() == [2.0, 2.0, 8.0, 8.0]
    assert found.discount_TN[:, 0].tolist() == [0.25, 0.5, 0.25, 0.5]
    assert found.last_TN[:, 0].tolist() == [1, 1, 3, 3]
