"""The learner of stream AC(lambda): one update against autograd, ends of episodes, and its export."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.nn.functional import softplus

from policies.rl.actor_export import stream_actor
from policies.rl.replay.transitions import Sizes
from policies.rl.streaming.config import StreamAcOptions
from policies.rl.streaming.stream_ac import Decision, Learned, StreamAc, actor_gradient
from real.hil.actor_policy import ActorPolicy
from robots.wire.learner import Parameters, decode, encode

SIZES = Sizes(observation=4, action=2)
OPTIONS = StreamAcOptions(hidden=(16, 12), sparsity=0.5)


def stepped(
    learner: StreamAc, seed: int, terminated: bool = False, truncated: bool = False
) -> Learned:
    """One step with random numbers from a seed."""
    rng = np.random.default_rng(seed)
    decision = learner.decide(rng)
    return learner.learn(
        decision, rng.normal(), rng.normal(size=4), terminated=terminated, truncated=truncated
    )


def trained(options: StreamAcOptions = OPTIONS, steps: int = 50, seed: int = 0) -> StreamAc:
    """A learner after a few steps, within an episode."""
    learner = StreamAc(options, SIZES, seed)
    learner.begin(np.full(4, 0.1))
    for step in range(steps):
        stepped(learner, step)
    return learner


@pytest.mark.parametrize("entropy", [0.0, 0.3, -0.3])
def test_the_actors_gradient_is_that_of_log_probability_and_entropy(entropy: float) -> None:
    decision = trained().decide(np.random.default_rng(7))
    output = decision.output_U.clone().requires_grad_()
    mean, before = output.chunk(2)
    gaussian = Normal(mean, softplus(before))
    objective = gaussian.log_prob(decision.action_A) + entropy * gaussian.entropy()
    (expected,) = torch.autograd.grad(objective.sum(), output)
    torch.testing.assert_close(actor_gradient(decision, entropy), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("reward", "sign"), [(50.0, 1.0), (-50.0, -1.0)])
def test_the_entropy_has_the_sign_of_the_td_error(
    reward: float, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[float] = []

    def watched(decision: Decision, entropy: float) -> torch.Tensor:
        weights.append(entropy)
        return actor_gradient(decision, entropy)

    monkeypatch.setattr("policies.rl.streaming.stream_ac.actor_gradient", watched)
    learner = trained()
    weights.clear()
    learned = learner.learn(
        learner.decide(np.random.default_rng(0)),
        reward,
        np.zeros(4),
        terminated=False,
        truncated=False,
    )
    assert np.sign(learned.td_error) == sign
    assert weights == [pytest.approx(sign * 0.01)]


@pytest.mark.parametrize(("reward", "sign"), [(50.0, 1.0), (-50.0, -1.0)])
def test_an_action_becomes_likelier_by_a_positive_td_error_alone(
    reward: float, sign: float
) -> None:
    learner = trained(replace(OPTIONS, entropy=0.0, trace_lambda=0.0))
    vector = learner.state_dict()["vector"].clone()
    decision = learner.decide(np.random.default_rng(3))

    def log_prob() -> float:
        mean, before = learner.actor(vector)[0].chunk(2)
        return float(Normal(mean, softplus(before)).log_prob(decision.action_A).sum())

    earlier = log_prob()
    learner.learn(decision, reward, np.zeros(4), terminated=False, truncated=False)
    assert np.sign(log_prob() - earlier) == sign


def test_traces_live_within_an_episode() -> None:
    for end in ({"terminated": True}, {"truncated": True}):
        learner = trained()
        assert learner.actor.traces_P.any()
        assert learner.critic.traces_P.any()
        stepped(learner, 99, **end)
        assert not learner.actor.traces_P.any()
        assert not learner.critic.traces_P.any()
    # Where an episode was left unfinished, the next one begins without its traces.
    learner = trained()
    learner.begin(np.zeros(4))
    assert not learner.actor.traces_P.any()


def test_traces_hold_the_earlier_observations_of_the_episode() -> None:
    """The gradient of the critic's output bias is 1 at every step, so its trace is a geometric
    series."""
    decay = 0.99 * 0.8
    learner = trained(steps=6)
    assert float(learner.critic.traces_P[-1]) == pytest.approx(sum(decay**k for k in range(6)))
    newest = trained(replace(OPTIONS, trace_lambda=0.0), steps=6)
    assert float(newest.critic.traces_P[-1]) == 1.0


@pytest.mark.parametrize(
    ("bootstrap", "terminated", "truncated", "counts"),
    [
        (False, False, False, True),
        (False, False, True, False),
        (True, False, True, True),
        (False, True, False, False),
        (True, True, False, False),
        (True, True, True, False),
    ],
)
def test_the_target_contains_the_next_value_unless_the_return_ends(
    bootstrap: bool, terminated: bool, truncated: bool, counts: bool
) -> None:
    learner = trained(replace(OPTIONS, bootstrap_time_limits=bootstrap))
    state = learner.state_dict()
    value = float(learner.critic(state["vector"])[0])
    weights = {"values": state["critic"]["values"].clone(), "traces": state["critic"]["traces"]}
    # A reward of 0 is 0 whatever its scale.
    learned = learner.learn(
        learner.decide(np.random.default_rng(0)),
        0.0,
        np.ones(4),
        terminated=terminated,
        truncated=truncated,
    )
    learner.critic.load_state_dict(weights)
    next_value = float(learner.critic(learner.state_dict()["vector"])[0])
    assert abs(next_value) > 1e-3
    expected = 0.99 * next_value * counts - value
    assert learned.td_error == pytest.approx(expected, abs=1e-5)


def test_a_restored_learner_continues_bit_for_bit() -> None:
    whole, saved = trained(steps=60), trained(steps=40)
    resumed = StreamAc(OPTIONS, SIZES, seed=5)
    resumed.load_state_dict(saved.state_dict())
    for step in range(40, 60):
        stepped(resumed, step)
    expected, got = whole.state_dict(), resumed.state_dict()
    for network in ("actor", "critic"):
        for name in ("values", "traces"):
            assert torch.equal(expected[network][name], got[network][name])
    assert torch.equal(expected["vector"], got["vector"])
    assert got["updates"] == 60


@pytest.mark.parametrize("hidden", [(16, 12), (8,), ()])
def test_the_exported_actor_in_numpy_is_the_learners_clipped_mean(hidden: tuple[int, ...]) -> None:
    learner = trained(replace(OPTIONS, hidden=hidden), steps=200)
    # Biases of the mean beyond the bounds, so that some actions are clipped.
    learner.actor.biases[-1][0] += 0.9
    message: Any = decode(encode(Parameters(1, *stream_actor(learner))))
    policy = ActorPolicy(message)
    vectors = 2.0 * np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    expected = learner.act(vectors)
    np.testing.assert_allclose(policy.act(vectors), expected, atol=1e-5)
    assert (expected == 1.0).any()
    assert (np.abs(expected) < 1.0).any()
    # Sampling adds almost no noise, and stays within the bounds.
    drawn = policy.act(vectors, np.random.default_rng(0))
    np.testing.assert_allclose(drawn, expected, atol=1e-4)
    assert np.abs(drawn).max() <= 1.0
