"""RL tokens: what begins as the frozen policy, what is stored, what learns and what stays, and the
policy that they leave, in environments whose every number is known."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from policies.checkpoint import save_policy
from policies.distillation.config import DistilConfig, OnPolicyDistilConfig
from policies.distillation.one_step import distil
from policies.distillation.teachers import check_compatible
from policies.export.graph import to_onnx
from policies.families.diffusion import DiffusionPolicy
from policies.families.vla import VlaPolicy
from policies.load import load_module, load_policy
from policies.networks.config import ResnetEncoderConfig
from policies.policy import ChunkPolicy, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.config import FinetuneConfig
from policies.rl.finetuning.finetune import CURVE, finetune
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.finetuning.rl_token.config import RlTokenFinetuneConfig, TokenTrainingConfig
from policies.rl.finetuning.rl_token.finetuning import RlTokenFinetuning
from policies.rl.finetuning.rl_token.learner import RefinementBatch, RefinementLearner
from policies.rl.finetuning.rl_token.token_training import train_token
from policies.rl.networks.config import MlpSizes
from policies.samplers.chunk_actor import ChunkEditor
from policies.training.config import TrainingConfig
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.rl.collection.test_collector import envs
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import LIMIT, Counting
from tests.policies.rl.finetuning.test_dsrl import sample, spied
from tests.policies.rl.finetuning.test_finetune import KilledError, killing, policy
from tests.policies.rl.finetuning.test_with_instructions import Asked, small_policy
from tests.policies.rl.on_policy.test_flow_actor import flowing
from tests.policies.rl.on_policy.test_token_actor import card_of
from tests.policies.sentence_fixture import write_encoder
from tests.toy_envs.word_line import WORDS, WordLine

__all__ = ["policy"]

TINY = MlpSizes(hidden=(16,), activation="relu")
TOKEN = TokenTrainingConfig(
    width=8,
    heads=2,
    decisions=3,
    training=TrainingConfig(steps=30, learning_rate=1e-3, batch_size=16, warmup_steps=1),
)
RL_TOKEN = RlTokenFinetuneConfig(
    token=TOKEN, critic=TINY, actor=TINY, limit=1.0, batch_size=16, updates=10, warm_up=1
)
SMALL = FinetuneConfig(algorithm=RL_TOKEN, rollouts=4, decisions=6, save_every=1, first_seed=0)


def make(config: RlTokenFinetuneConfig = RL_TOKEN, num_envs: int = 2) -> RlTokenFinetuning:
    chunk_env = envs(num_envs)
    base = chunk_env._policy
    assert isinstance(base, DiffusionPolicy)
    return RlTokenFinetuning(config, base, chunk_env, seed=0)


def saved(policy: Path, out: Path, config: FinetuneConfig = SMALL) -> DiffusionPolicy:
    out.mkdir()
    finetune(config, policy, lambda: Counting(3), out, no_progress)
    module, _ = load_module(out)
    assert isinstance(module, DiffusionPolicy)
    return module


def learner(config: RlTokenFinetuneConfig = RL_TOKEN, seed: int = 0) -> RefinementLearner:
    """States of three entries, chunks of two actions of two entries."""
    return RefinementLearner(config, 3, (2, 2), seed)


def last_layer(actor: ChunkEditor) -> torch.nn.Linear:
    layer = actor.network[-1]
    assert isinstance(layer, torch.nn.Linear)
    return layer


def batch(rows: int = 64) -> RefinementBatch:
    draw = torch.Generator().manual_seed(4)
    state, next_state = torch.rand(2, rows, 3, generator=draw)
    reference, executed, next_reference = torch.randn(3, rows, 4, generator=draw)
    reward, discount = torch.rand(2, rows, generator=draw)
    return RefinementBatch(state, reference, executed, reward, discount, next_state, next_reference)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("objective", ["diffusion", "flow"])
def test_an_actor_without_updates_leaves_every_chunk_to_the_last_bit(
    objective: str, tmp_path: Path
) -> None:
    made = make()
    made.policy.config = replace(made.policy.config, objective=objective)  # type: ignore[arg-type]
    obs = ObservationTensors(torch.rand(9, *made.policy.observation_shape, generator=draws()))
    noise = torch.randn(9, *made.policy.chunk_shape, generator=draws(1))
    with torch.no_grad():
        expected = made.policy.sample(obs, noise)
        made.finish("", tmp_path, no_progress)
        assert made.policy.chunk_actor is not None
        assert torch.equal(made.policy.sample(obs, noise), expected)
        # An actor that edits is seen.
        last_layer(made.policy.chunk_actor.editor).bias.fill_(0.1)
        found = made.policy.sample(obs, noise)
    # Two of four actions are executed, from that of the newer of two observed steps on.
    assert (made.first, made.action) == (1, (2, 1))
    assert torch.equal(found[:, ::3], expected[:, ::3]), "actions that are not executed stay"
    edit = RL_TOKEN.limit * np.tanh(0.1)
    torch.testing.assert_close(found[:, 1:3], (expected[:, 1:3] + edit).clamp(-3.0, 3.0))


def test_the_imitation_term_pulls_the_refined_chunk_to_the_reference() -> None:
    """With critics that value everything alike, its gradient is all there is."""
    made = learner(replace(RL_TOKEN, bc_weight=0.7, dropout=0.0))
    for parameter in made.networks.critic.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(last_layer(made.networks.actor).bias, 0.2)
    loss, squared = made.actor_loss(batch(), draws())
    edit = np.tanh(0.2)
    assert float(squared) == pytest.approx(edit**2, rel=1e-5)
    assert loss.item() == pytest.approx(0.7 * edit**2, rel=1e-5)
    loss.backward()
    # d/db of 0.7 / 4 tanh(b)^2, for each of four entries.
    expected = 0.7 / 4 * 2.0 * edit * (1.0 - edit**2)
    gradient = last_layer(made.networks.actor).bias.grad
    torch.testing.assert_close(gradient, torch.full((4,), expected), rtol=1e-4, atol=0.0)


def test_the_reference_is_hidden_in_that_share_of_the_rows() -> None:
    reference = torch.randn(20_000, 4, generator=draws())
    shown = learner(replace(RL_TOKEN, dropout=0.3)).shown(reference, draws(1))
    hidden = (shown == 0.0).all(dim=1)
    assert torch.equal(shown[~hidden], reference[~hidden]), "whole rows are hidden or shown"
    assert float(hidden.float().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(learner(replace(RL_TOKEN, dropout=0.0)).shown(reference, draws()), reference)


def test_the_reference_is_never_hidden_in_acting() -> None:
    made = learner(replace(RL_TOKEN, dropout=1.0, noise=1e-9))
    torch.nn.init.normal_(last_layer(made.networks.actor).weight, generator=draws(2))
    rows = batch()
    with torch.no_grad():
        found = made.explored(rows.state_BS, rows.reference_BD, draws())
        edit = made.networks.actor(rows.state_BS, rows.reference_BD)
        hidden = made.networks.actor(rows.state_BS, torch.zeros_like(rows.reference_BD))
    torch.testing.assert_close(found, rows.reference_BD + edit)
    assert not torch.allclose(edit, hidden, atol=1e-3)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_exploration_noise_is_shared_by_the_actions_of_a_chunk(shared: float) -> None:
    noise = learner(replace(RL_TOKEN, noise=0.3, shared_noise=shared)).noise(40_000, draws())
    first, second = noise.unflatten(1, (2, 2)).unbind(dim=1)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    covariance = float((first * second).mean())
    assert covariance == pytest.approx(shared * 0.09, abs=0.002)
    assert float((first[:, 0] * first[:, 1]).mean()) == pytest.approx(0.0, abs=0.002)


def test_the_target_is_the_least_of_the_critics_at_the_next_refined_chunk() -> None:
    made = learner(replace(RL_TOKEN, critics=3))
    rows = batch()
    target = made.target(rows, draws(5))
    chunk = made.explored(rows.next_state_BS, rows.next_reference_BD, draws(5))
    values = made.networks.critic_target(torch.cat([rows.next_state_BS, chunk], dim=1))[..., 0]
    expected = rows.reward_B + rows.discount_B * values.min(dim=0).values
    torch.testing.assert_close(target, expected)


def test_rewards_and_values_are_discounted_per_executed_action() -> None:
    made = make()
    made.rollout(6)
    table = made._replay.table
    # The token, then the encoded observation of two steps.
    obs = table.obs[:, TOKEN.width :].unflatten(1, made.policy.encoded_shape)
    step, seed = obs[:, -1, 0], obs[:, -1, 1]
    for row in made._replay.acted.tolist():
        # A step pays its number; environment 0 is solved at step 3, the others end at the limit.
        first = float(step[row]) + 1.0
        solved = seed[row] == 100.0 and first == 3.0
        executed = 1 if solved or first == LIMIT else 2
        paid = sum(0.9**number * (first + number) for number in range(executed))
        if seed[row] in (100.0, 101.0):
            assert table.reward_R[row] == pytest.approx(paid)
            expected = 0.0 if solved else 0.9**executed
            assert table.discount_R[row] == pytest.approx(expected)


def test_the_reference_and_the_executed_chunk_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(replace(RL_TOKEN, noise=0.2))
    torch.nn.init.constant_(last_layer(made.learner.networks.actor).bias, 0.3)
    given = spied(made, monkeypatch)  # type: ignore[arg-type]
    made.rollout(40)
    table = made._replay.rollout(0)
    rows = torch.nonzero(table.acted_R)[:, 0]
    executed, reference = table.executed_RHA[rows].float(), table.chunk_RNHA[rows, 0].float()
    torch.testing.assert_close(executed, torch.cat(given), atol=5e-3, rtol=0.0)
    inside = executed.abs().amax(dim=(1, 2)) < 3.0
    change = (executed - reference)[inside]
    assert change[:, ::3].abs().max() == 0.0
    assert float(change[:, 1:3].mean()) == pytest.approx(np.tanh(0.3), abs=0.1)
    assert 0.1 < float(change[:, 1:3].std()) < 0.3
    # The reference is the policy's own chunk: it differs between decisions, as its noise does.
    assert len(reference[:, 0, 0].unique()) > 20


def test_only_actor_and_critics_learn_and_the_token_stays() -> None:
    made = make()
    base = {name: weight.clone() for name, weight in made.policy.state_dict().items()}
    token = {name: weight.clone() for name, weight in made.bottleneck.state_dict().items()}
    parts = made.learner.networks
    before = {name: weight.clone() for name, weight in parts.state_dict().items()}
    made.rollout(5)
    made.rollout(5)
    for module, old in ((made.policy, base), (made.bottleneck, token)):
        after = module.state_dict()
        assert all(torch.equal(weight, after[name]) for name, weight in old.items())
        assert all(parameter.grad is None for parameter in module.parameters())
    moved = {
        name.split(".")[0]
        for name, weight in parts.state_dict().items()
        if not torch.equal(weight, before[name])
    }
    assert moved == {"actor", "critic", "critic_target"}
    assert made.learner.updates == 2 * RL_TOKEN.updates


def test_no_update_is_made_before_the_last_rollout_of_the_policy_itself() -> None:
    made = make(replace(RL_TOKEN, warm_up=2))
    assert made.rollout(3) == {"critic_loss": 0.0, "value": 0.0}
    assert made.learner.updates == 0
    assert made.rollout(3)["critic_loss"] > 0.0


def test_the_learner_finds_the_chunk_that_is_rewarded() -> None:
    """A chunk earns the more the nearer it is to 0.4 above the reference, which is the state."""
    wide = MlpSizes(hidden=(64, 64), activation="relu")
    options = replace(RL_TOKEN, bc_weight=0.0, learning_rate=3e-3, critic=wide, actor=wide)
    made = RefinementLearner(options, 4, (2, 2), seed=0)
    generator = draws(3)
    for _ in range(400):
        reference = torch.randn(256, 4, generator=generator)
        executed = reference + 0.6 * torch.randn(256, 4, generator=generator)
        rows = batch(256)._replace(
            state_BS=reference,
            reference_BD=reference,
            executed_BD=executed,
            reward_B=-(executed - reference - 0.4).square().mean(dim=1),
            discount_B=torch.zeros(256),
            next_state_BS=reference,
        )
        made.update([rows], generator)
    reference = torch.randn(500, 4, generator=generator)
    edit = made.networks.actor(reference, reference)
    assert edit.mean().item() == pytest.approx(0.4, abs=0.1)


def test_the_token_keeps_what_the_features_are(tmp_path: Path) -> None:
    """A token that says nothing has an error of about 1, the variance of the features."""
    config = replace(TOKEN, training=replace(TOKEN.training, steps=400, batch_size=64))
    made = make(replace(RL_TOKEN, token=config))
    states = made.visited_tokens(10)
    features, mask = states.token_NLW.float(), states.mask_NL
    before = made.bottleneck.loss(features, mask).item()
    train_token(config, made.bottleneck, states, 0, "", tmp_path, no_progress)
    after = made.bottleneck.loss(features, mask).item()
    # Another state's token is none of this one's.
    token = made.bottleneck.encoder(features, mask)
    other = made.bottleneck.reconstruct(token.flip(0), mask)
    error = (other - made.bottleneck.encoder.normalised(features)).square().mean().item()
    assert before > 0.5
    assert after < 0.1
    assert error > 0.5


def test_the_token_is_learned_before_the_first_rollout_and_stays(tmp_path: Path) -> None:
    made = make()
    before = made.env.take_executed()
    weights = {name: weight.clone() for name, weight in made.bottleneck.state_dict().items()}
    assert made.phase_due
    made.run_phase("", tmp_path, no_progress)
    assert not made.phase_due
    # Its decisions are counted among the steps: two environments, three chunks, two actions each.
    assert (before, made.env.take_executed()) == (0, 11)
    after = made.bottleneck.state_dict()
    assert not all(torch.equal(weight, after[name]) for name, weight in weights.items())
    assert not any(parameter.requires_grad for parameter in made.bottleneck.parameters())
    assert not made.bottleneck.training


def test_padding_does_not_change_the_token() -> None:
    made = make()
    encoder = made.bottleneck.encoder
    tokens = torch.randn(3, 4, encoder.config.features, generator=draws())
    mask = torch.ones(3, 4, dtype=torch.bool)
    longer = torch.cat([tokens, torch.full_like(tokens[:, :2], 7.0)], dim=1)
    padded = torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        token = encoder(tokens, mask)
        torch.testing.assert_close(encoder(longer, padded), token)
        # Their order matters.
        assert not torch.allclose(encoder(tokens.flip(1), mask), token, atol=1e-3)


def test_a_rollout_is_the_same_for_the_same_seed_and_after_a_resumption(tmp_path: Path) -> None:
    whole, again = make(), make()
    assert whole.rollout(4) == again.rollout(4)
    again.save_rollouts(tmp_path)
    resumed = make()
    torch.nn.init.zeros_(resumed.bottleneck.encoder.embed.weight)
    resumed.load_state_dict(again.state_dict())
    resumed.load_rollouts(tmp_path)
    for old, new in zip(whole._replay.rollout(0), resumed._replay.rollout(0), strict=True):
        assert torch.equal(old, new)
    for name, weight in whole.bottleneck.state_dict().items():
        assert torch.equal(weight, resumed.bottleneck.state_dict()[name])
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    metrics = [made.update(one) for made, one in zip((whole, resumed), generators, strict=True)]
    assert metrics[0] == metrics[1]


def test_the_saved_policy_has_the_weights_of_the_pretrained_one_and_an_actor(
    policy: Path, tmp_path: Path
) -> None:
    base, _ = load_module(policy)
    module = saved(policy, tmp_path / "out")
    weights = module.state_dict()
    for name, weight in base.state_dict().items():
        assert torch.equal(weight, weights[name])
    assert module.chunk_actor is not None
    assert isinstance(base, DiffusionPolicy)
    chunk, noise = sample(module, 5, 0)
    obs = torch.rand(5, *module.observation_shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        reference = base.sample(ObservationTensors(obs), noise)
        features = base.encoded_sampler(ObservationTensors(obs)).tokens()
        refined = module.clip_chunk(module.chunk_actor(features, reference))
    assert torch.equal(chunk, refined)
    assert not torch.equal(chunk, reference)
    assert (chunk - reference).abs().max() <= RL_TOKEN.limit


@pytest.mark.parametrize("objective", ["diffusion", "flow"])
def test_the_exported_graph_contains_the_actor(objective: str, tmp_path: Path) -> None:
    made = make()
    made.policy.config = replace(made.policy.config, objective=objective)  # type: ignore[arg-type]
    for _ in range(4):
        made.rollout(3)
    made.finish("", tmp_path, no_progress)
    session = onnxruntime.InferenceSession(to_onnx(made.policy, 20).SerializeToString())
    obs = torch.rand(3, *made.policy.observation_shape, generator=draws())
    noise = torch.randn(3, *made.policy.chunk_shape, generator=draws(1))
    with torch.no_grad():
        expected = made.policy(obs, noise).numpy()
        made.policy.chunk_actor = None
        reference = made.policy(obs, noise).numpy()
    inputs = {"observation": obs.numpy(), "noise": noise.numpy()}
    found = np.asarray(session.run(["action"], inputs)[0])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - reference).max() > 1e-3


def test_a_killed_run_goes_on(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KilledError):
        finetune(SMALL, policy, lambda: Counting(3), out, killing(2))
    finetune(SMALL, policy, lambda: Counting(3), out, no_progress)
    lines = (out / CURVE).read_text().splitlines()
    assert len(lines) == 4
    assert not (out / "experience").exists()
    load_policy(out)


def test_a_student_of_one_step_has_no_actor(policy: Path, tmp_path: Path) -> None:
    saved(policy, tmp_path / "teacher")
    training = TrainingConfig(steps=20, learning_rate=3e-3, batch_size=32, warmup_steps=1)
    student = tmp_path / "student"
    student.mkdir()
    config = DistilConfig(targets=64, training=training)
    distil(config, tmp_path / "teacher", write_counted(tmp_path / "more"), student, no_progress)
    module, card = load_module(student)
    assert isinstance(module, DiffusionPolicy)
    assert isinstance(card.model, DiffusionPolicyConfig)
    assert (card.model.chunk_actor, module.chunk_actor) == (None, None)


def test_what_does_not_keep_the_actor_refuses_the_policy(policy: Path, tmp_path: Path) -> None:
    saved(policy, tmp_path / "out")
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(HandoffError, match="finetune: the policy was fine-tuned by 'rl_token'"):
        finetune(SMALL, tmp_path / "out", lambda: Counting(3), again, no_progress)
    teacher, student = load_module(tmp_path / "out"), load_module(policy)
    with pytest.raises(HandoffError, match="the teacher was fine-tuned by 'rl_token'"):
        check_compatible(tmp_path / "out", student, teacher, OnPolicyDistilConfig())


def test_a_flow_policy_with_a_backbone_is_refined_and_exported(tmp_path: Path) -> None:
    base = flowing()
    (tmp_path / "policy").mkdir()
    save_policy(tmp_path / "policy", card_of(base), base.state_dict(), base.extra_files())
    out = tmp_path / "out"
    out.mkdir()
    config = replace(SMALL, algorithm=replace(RL_TOKEN, steps=4))
    finetune(config, tmp_path / "policy", lambda: WordLine(4), out, no_progress)
    module, card = load_module(out)
    assert isinstance(module, VlaPolicy)
    assert card.model.sampler_steps == 4
    actor = module.chunk_actor
    assert actor is not None
    weights = module.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in base.state_dict().items())
    # The token differs with the words, and the exported graph contains encoder and actor.
    obs, noise = torch.rand(2, 1, 1), torch.randn(2, *module.chunk_shape)
    tokens: list[Tensor] = []
    for words in (WORDS[:2], WORDS[1::-1]):
        features = module.encoded_sampler(ObservationTensors(obs, {}, words)).tokens()
        tokens.append(actor.encoder(features.token_BLW, features.mask_BL))
    assert not torch.allclose(tokens[0], tokens[1])
    session = onnxruntime.InferenceSession(to_onnx(module, 20).SerializeToString())
    token = module.tokens(WORDS[:2])
    inputs = {
        "observation": obs.numpy(),
        "noise": noise.numpy(),
        "tokens": token.token_BL.numpy(),
        "tokens_mask": token.mask_BL.numpy(),
    }
    with torch.no_grad():
        expected = module(obs, noise, {}, WORDS[:2]).numpy()
    found = np.asarray(session.run(["action"], inputs)[0])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_sentence_encoder_is_observed(tmp_path: Path) -> None:
    base = small_policy(write_encoder(tmp_path / "encoder"), {}, ResnetEncoderConfig())
    env = ChunkEnv(Asked(4), base, 2, count(100), 0.9)
    made = RlTokenFinetuning(RL_TOKEN, base, env, seed=0)
    made.rollout(3)
    # Every observed step is a token, of the vector and the features of the words.
    assert made.bottleneck.encoder.config.features == base.encoder.outputs
    assert (
        made._replay.table.obs.shape[1] == TOKEN.width + base.encoder.steps * base.encoder.outputs
    )


def test_a_policy_without_features_for_an_actor_is_refused() -> None:
    setup = FinetuneSetup(
        policy=cast(ChunkPolicy, torch.nn.Identity()),
        model=DiffusionPolicyConfig(),
        env=envs(),
        seed=0,
        reward=RewardShaping(),
        demos=None,
    )
    with pytest.raises(HandoffError, match="is a Identity, whose sampler has no initial noise"):
        setup.denoising_policy()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dropout": 1.5}, "dropout"),
        ({"noise": 0.0}, "noise"),
        ({"shared_noise": -0.1}, "shared_noise"),
        ({"limit": 0.0}, "limit"),
        ({"bc_weight": -1.0}, "bc_weight"),
        ({"critics": 0}, "critics"),
        ({"token": {"width": 7}}, "width is 7, expected an even number"),
        ({"token": {"width": 8, "heads": 3}}, "width 8 with 3 heads"),
        ({"noise_limit": 1.0}, "noise_limit"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(HandoffError, match=match):
        validate(RlTokenFinetuneConfig, options, "algorithm")
