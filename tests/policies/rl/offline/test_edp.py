"""Efficient diffusion policies: the one-step guess, the objectives, and what is kept."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy import ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import (
    CriticRegressionConfig,
    EdpConfig,
    EdpObjective,
    ImplicitWeightConfig,
    QGradientConfig,
)
from policies.rl.offline.edp import CHUNK, Edp
from policies.rl.replay.transitions import Observations, Transitions
from robots.errors import HandoffError

TINY = MlpSizes(hidden=(32,), activation="relu", layer_norm=False)
Q_GRADIENT = QGradientConfig()
OBJECTIVES: list[EdpObjective] = [
    Q_GRADIENT,
    CriticRegressionConfig(inverse_temperature=5.0),
    ImplicitWeightConfig(inverse_temperature=5.0),
]


def config(objective: EdpObjective = Q_GRADIENT, **options: Any) -> EdpConfig:
    model = DiffusionPolicyConfig(
        n_obs_steps=1,
        horizon=2,
        n_action_steps=1,
        train_timesteps=10,
        inference_steps=5,
        clip=1.0,
        network=MlpConfig(width=32, blocks=1),
    )
    fast: dict[str, Any] = {"critic": TINY, "learning_rate": 3e-3}
    return EdpConfig(policy=model, objective=objective, **(fast | options))


def new_edp(options: EdpConfig | None = None, seed: int = 0) -> Edp:
    options = options or config()
    torch.manual_seed(seed)
    return Edp(options, DiffusionPolicy(options.policy, Shapes.of_vector(1, 1, None)), seed)


def bandit(rows: int, number: int = 0) -> Transitions:
    """One state; half of the chunks begin with -.6 and half with .6, and what is paid is that
    action; their second action, which is not executed, is always 0.2."""
    rng = np.random.default_rng(number)
    action = torch.from_numpy(rng.choice(np.array([-0.6, 0.6], np.float32), size=rows))
    none, zero = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows)
    chunk = torch.stack([action, torch.full((rows,), 0.2)], dim=1)[:, :, None]
    obs = Observations(torch.zeros(rows, 1))
    extra = {CHUNK: chunk}
    return Transitions(obs, action[:, None], action, zero, obs, none, none, zero, extra)


def sampled(learner: Edp, rows: int = 200) -> Tensor:
    """(rows, 2) chunks of the policy that is kept."""
    noise = torch.randn(rows, 2, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        policy = learner.networks.actor_target
        return policy.sample(ObservationTensors(torch.zeros(rows, 1, 1)), noise)[..., 0]


class Oracle(DiffusionPolicy):
    """Believes that every clean chunk is .3, so what is more than that in a noisy one is noise."""

    def velocity(self, obs: ObservationTensors):
        def denoise(noisy_BHA: Tensor, timestep_B: Tensor) -> Tensor:
            alpha, sigma = (k[timestep_B, None, None] for k in (self.alpha_K, self.sigma_K))
            return (alpha * noisy_BHA - 0.3) / sigma

        return denoise


def test_a_perfect_prediction_gives_the_clean_chunk_in_one_step_from_any_level():
    learner = new_edp()
    learner.networks.actor = Oracle(config().policy, Shapes.of_vector(1, 1, None))
    prediction = learner.predict_clean(torch.zeros(64, 1), torch.full((64, 2, 1), 0.3))
    assert torch.allclose(prediction.clean_BHA, torch.full((64, 2, 1), 0.3), atol=1e-4)
    assert prediction.loss.item() == pytest.approx(0.0, abs=1e-8)


def test_one_step_predictions_stay_within_the_clip_of_the_policy():
    clean = new_edp().predict_clean(torch.zeros(256, 1), torch.ones(256, 2, 1)).clean_BHA
    assert clean.abs().max() <= 1.0


def test_critics_evaluate_the_executed_part_of_a_chunk():
    assert new_edp().executed_part(torch.tensor([[[1.0], [2.0]]])).tolist() == [[1.0]]
    model = DiffusionPolicyConfig(n_obs_steps=2, horizon=4, n_action_steps=2, network=MlpConfig())
    learner = new_edp(EdpConfig(policy=model, critic=TINY))
    assert learner.executed_part(torch.arange(4.0)[None, :, None]).tolist() == [[1.0, 2.0]]


def test_the_weighted_loss_is_that_worked_by_hand(monkeypatch: pytest.MonkeyPatch):
    # Q - V = .2 and b = 5 give the weight e. The prediction is .3 and the chunks are (-.6, .2) and
    # (.6, .2), with squared distances .82 and .1: .5 e (.82 + .1) / 2.
    learner = new_edp(config(ImplicitWeightConfig(inverse_temperature=5.0)))
    net = learner.networks
    net.actor = Oracle(config().policy, Shapes.of_vector(1, 1, None))
    monkeypatch.setattr(net, "action_value", lambda features, action: torch.full((2,), 0.3))
    monkeypatch.setattr(net, "state_value", lambda features: torch.full((2,), 0.1))
    chunk = torch.tensor([[-0.6, 0.2], [0.6, 0.2]])[..., None]
    loss, metrics = learner.actor_loss(bandit(2)._replace(extra={CHUNK: chunk}))
    assert float(metrics["weight"]) == pytest.approx(np.e, rel=1e-5)
    assert float(loss - metrics["denoising_loss"]) == pytest.approx(0.23 * np.e, rel=1e-4)


def test_the_q_loss_does_not_depend_on_the_scale_of_the_rewards():
    one, many = new_edp(), new_edp()
    with torch.no_grad():
        many.networks.critic.weights[-1].mul_(50.0)
        many.networks.critic.biases[-1].mul_(50.0)
    features, slopes = torch.zeros(8, 1), []
    for learner in (one, many):
        learner._generator.manual_seed(0)
        action = torch.linspace(-0.9, 0.9, 8)[:, None].requires_grad_()
        slopes.append(torch.autograd.grad(learner.q_loss(features, action), action)[0])
    assert torch.allclose(slopes[0], slopes[1], rtol=1e-4)
    assert slopes[0].abs().max() > 0.0


def test_the_actors_loss_leaves_no_gradient_in_the_critics():
    learner = new_edp()
    learner.actor_loss(bandit(16))[0].backward()
    assert all(weight.grad is None for weight in learner.networks.critic.parameters())
    assert all(weight.requires_grad for weight in learner.networks.critic.parameters())
    assert any(weight.grad is not None for weight in learner.networks.actor.parameters())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: one.kind)
def test_q_moves_the_policy_to_actions_with_high_rewards(objective: EdpObjective):
    learner = new_edp(config(objective, tau=0.05))
    for number in range(300):
        learner.update([bandit(32, number)])
    chunk = sampled(learner)
    assert chunk[:, 0].mean() > 0.15
    assert chunk[:, 1].mean().item() == pytest.approx(0.2, abs=0.15)


def test_without_q_both_kinds_of_action_are_cloned():
    learner = new_edp(config(QGradientConfig(q_weight=0.0)))
    for number in range(300):
        learner.update([bandit(32, number)])
    first = sampled(learner)[:, 0]
    assert abs(float(first.mean())) < 0.2
    assert 0.3 < float((first > 0.0).float().mean()) < 0.7


def test_the_target_policy_is_a_copy_of_the_policy_before_polyak_averaging():
    learner = new_edp(config(target_policy_after=2, target_policy_every=2, tau=0.5))
    gaps = []
    for number in range(4):
        learner.update([bandit(16, number)])
        net = learner.networks
        pairs = zip(net.actor.parameters(), net.actor_target.parameters(), strict=True)
        gaps.append(max(float((one - other).detach().abs().max()) for one, other in pairs))
    assert gaps[:2] == [0.0, 0.0]
    assert 0.0 < gaps[2] < gaps[3]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: one.kind)
def test_a_restored_learner_continues_bit_for_bit(objective: EdpObjective):
    whole, first, second = (new_edp(config(objective), 3) for _ in range(3))
    for number in range(4):
        whole.update([bandit(16, number)])
    for number in range(2):
        first.update([bandit(16, number)])
    second.load_state_dict(first.state_dict())
    for number in range(2, 4):
        second.update([bandit(16, number)])
    for one, other in zip(whole.networks.parameters(), second.networks.parameters(), strict=True):
        assert torch.equal(one, other)


def test_minibatches_without_chunks_are_refused():
    with pytest.raises(HandoffError, match="'chunk_BHA' among them"):
        new_edp().actor_loss(bandit(4)._replace(extra={}))


def test_a_flow_and_cameras_are_refused():
    with pytest.raises(HandoffError, match="expected a diffusion on state vectors"):
        EdpConfig(policy=DiffusionPolicyConfig(objective="flow"))
    with pytest.raises(HandoffError, match="image_front"):
        EdpConfig(policy=DiffusionPolicyConfig(image_fields=("image_front",)))
