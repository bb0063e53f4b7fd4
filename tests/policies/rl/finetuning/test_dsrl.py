"""DSRL: chosen noise, stored transitions, what learns and what stays, and the policy that it leaves,
in environments whose every number is known."""

from collections.abc import Sequence
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
from policies.rl.collection.interfaces import StepResult
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.config import DsrlFinetuneConfig, FinetuneConfig
from policies.rl.finetuning.dsrl import DsrlFinetuning
from policies.rl.finetuning.finetune import CURVE, finetune
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.networks.config import MlpSizes
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.rl.collection.test_collector import envs
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import LIMIT, Counting
from tests.policies.rl.finetuning.test_finetune import KilledError, killing, policy
from tests.policies.rl.finetuning.test_with_instructions import Asked, small_policy
from tests.policies.rl.on_policy.test_flow_actor import flowing
from tests.policies.rl.on_policy.test_token_actor import card_of
from tests.policies.sentence_fixture import write_encoder
from tests.toy_envs.word_line import WORDS, WordLine

__all__ = ["policy"]

TINY = MlpSizes(hidden=(16,))
DSRL = DsrlFinetuneConfig(critic=TINY, actor=TINY, batch_size=16, updates=10, warm_up=1)
SMALL = FinetuneConfig(algorithm=DSRL, rollouts=4, decisions=6, save_every=1, first_seed=0)


def make(config: DsrlFinetuneConfig = DSRL, num_envs: int = 2) -> DsrlFinetuning:
    chunk_env = envs(num_envs)
    base = chunk_env._policy
    assert isinstance(base, DiffusionPolicy)
    return DsrlFinetuning(config, base, chunk_env, seed=0)


def spied(made: DsrlFinetuning, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Chunks that the environments are given from now on."""
    given: list[Tensor] = []
    step = made.env.step

    def spy(decision: Tensor) -> StepResult:
        given.append(decision)
        return step(decision)

    monkeypatch.setattr(made.env, "step", spy)
    return given


def saved(policy: Path, out: Path, config: FinetuneConfig = SMALL) -> DiffusionPolicy:
    out.mkdir()
    finetune(config, policy, lambda: Counting(3), out, no_progress)
    module, _ = load_module(out)
    assert isinstance(module, DiffusionPolicy)
    return module


def sample(module: DiffusionPolicy, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Chunks of random observations, and the noise that was given."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.rand(rows, *module.observation_shape, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(rows, *module.chunk_shape, generator=generator)
    with torch.no_grad():
        return module.sample(ObservationTensors(obs), noise), noise


def test_chunks_are_those_of_the_frozen_policy_for_the_stored_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make(replace(DSRL, noise_limit=0.8))
    for warm in (True, False):
        given = spied(made, monkeypatch)
        made.rollout(3)
        table = made._replay.rollout(made.done - 1)
        rows = torch.nonzero(table.acted_R)[:, 0]
        noise = 0.8 * table.executed_RHA[rows].float()
        assert noise.abs().max() <= 0.8
        assert (noise.abs() == 0.8).any() == warm, "standard normal noise is clipped"
        obs = table.obs[rows].unflatten(1, made.policy.encoded_shape)
        chunks = made.policy.sample(ObservationTensors(obs), noise)
        # The noise is stored in half precision.
        torch.testing.assert_close(torch.cat(given), chunks, atol=5e-3, rtol=0.0)


def test_rewards_and_values_are_discounted_per_executed_action() -> None:
    made = make()
    made.rollout(6)
    table = made._replay.table
    obs = table.obs.unflatten(1, made.policy.encoded_shape)
    step, seed = obs[:, -1, 0], obs[:, -1, 1]
    for row in made._replay.acted.tolist():
        # A step pays its number; environment 0 is solved at step 3, the others end at the limit.
        first = float(step[row]) + 1.0
        solved = seed[row] == 100.0 and first == 3.0
        executed = 1 if solved or first == LIMIT else 2
        rewards = [first + number for number in range(executed)]
        paid = sum(0.9**number * reward for number, reward in enumerate(rewards))
        if seed[row] in (100.0, 101.0):
            assert table.reward_R[row] == pytest.approx(paid)
            expected = 0.0 if solved else 0.9**executed
            assert table.discount_R[row] == pytest.approx(expected)


def test_only_actor_critics_and_temperature_learn() -> None:
    made = make()
    base = {name: weight.clone() for name, weight in made.policy.state_dict().items()}
    parts = made.learner.networks
    before = {name: weight.clone() for name, weight in parts.state_dict().items()}
    made.rollout(5)
    made.rollout(5)
    after = made.policy.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in base.items())
    assert all(parameter.grad is None for parameter in made.policy.parameters())
    moved = {
        name.split(".")[0]
        for name, weight in parts.state_dict().items()
        if not torch.equal(weight, before[name])
    }
    assert moved == {"actor", "critic", "critic_target", "log_temperature"}


def test_no_update_is_made_before_the_last_rollout_of_the_policy_itself() -> None:
    made = make(replace(DSRL, warm_up=2))
    assert made.rollout(3) == {"critic_loss": 0.0, "value": 0.0}
    assert made.learner.updates == 0
    assert made.rollout(3)["critic_loss"] > 0.0
    assert made.learner.updates == DSRL.updates


def test_one_noise_can_be_chosen_for_all_actions_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make(replace(DSRL, noise_steps=1))
    assert made.learner.sizes.action == 1
    given = spied(made, monkeypatch)
    made.rollout(2)
    rows = made._replay.acted
    noise = 1.5 * made._replay.table.executed_RHA[rows].float().expand(-1, 4, -1)
    obs = made._replay.table.obs[rows].unflatten(1, made.policy.encoded_shape)
    chunks = made.policy.sample(ObservationTensors(obs), noise)
    torch.testing.assert_close(torch.cat(given), chunks, atol=5e-3, rtol=0.0)
    with pytest.raises(HandoffError, match="noise_steps is 5, expected 1 to 4"):
        make(replace(DSRL, noise_steps=5))


def test_the_learner_finds_the_noise_that_is_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards are replaced by the mean of the stored noise."""
    made = make(replace(DSRL, updates=400, discount=0.5, learning_rate=3e-3, temperature=0.01))
    made.rollout(40)
    table = made._replay.table
    table.reward_R.copy_(table.executed_RHA.float().mean(dim=(1, 2)))
    table.discount_R.zero_()
    made.learner = make(made.config).learner
    for number in range(400):
        made.update(torch.Generator().manual_seed(number))
    mode = made.learner.act(table.obs.numpy())
    assert mode.mean() > 0.8


def test_a_rollout_is_the_same_for_the_same_seed_and_after_a_resumption(tmp_path: Path) -> None:
    whole, again = make(), make()
    assert whole.rollout(4) == again.rollout(4)
    again.save_rollouts(tmp_path)
    resumed = make()
    resumed.load_state_dict(again.state_dict())
    resumed.load_rollouts(tmp_path)
    for old, new in zip(whole._replay.rollout(0), resumed._replay.rollout(0), strict=True):
        assert torch.equal(old, new)
    # In environments at the same state the next rollout and its updates are the same.
    whole.env.begin()
    assert whole.env.observation().shape == resumed.env.observation().shape
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    metrics = [made.update(one) for made, one in zip((whole, resumed), generators, strict=True)]
    assert metrics[0] == metrics[1]
    assert resumed.learner.updates == whole.learner.updates


def test_the_saved_policy_has_the_weights_of_the_pretrained_one_and_an_actor(
    policy: Path, tmp_path: Path
) -> None:
    base, _ = load_module(policy)
    module = saved(policy, tmp_path / "out")
    weights = module.state_dict()
    for name, weight in base.state_dict().items():
        assert torch.equal(weight, weights[name])
    assert module.noise_actor is not None
    # It acts by the mode, whatever the noise, and as the base does for the actor's noise.
    (chunk, noise), (other, _) = sample(module, 5, 0), sample(module, 5, 1)
    assert torch.equal(chunk, other)
    obs = torch.rand(5, *module.observation_shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        chosen = module.noise_actor(obs.flatten(1), noise)
        torch.testing.assert_close(base.sample(ObservationTensors(obs), chosen), chunk)
    assert chosen.abs().max() <= DSRL.noise_limit


def test_the_saved_actor_is_the_learners(policy: Path, tmp_path: Path) -> None:
    made = make()
    for _ in range(2):
        made.rollout(4)
    made.finish("", tmp_path, no_progress)
    actor = made.policy.noise_actor
    assert actor is not None
    features = made._replay.table.obs
    expected = made.config.noise_limit * made.learner.act(features.numpy())
    noise = actor(features, torch.zeros(len(features), *made.policy.chunk_shape))
    np.testing.assert_allclose(noise.flatten(1).numpy(), expected, atol=1e-5)


def test_sampled_noise_depends_on_the_given_noise_and_stays_within_its_limit(
    policy: Path, tmp_path: Path
) -> None:
    config = replace(SMALL, algorithm=replace(DSRL, acts="sample", noise_limit=0.5, steps=5))
    module = saved(policy, tmp_path / "out", config)
    assert module.sampler_steps == 5
    assert not torch.equal(sample(module, 5, 0)[0], sample(module, 5, 1)[0])
    assert module.noise_actor is not None
    far = 100.0 * torch.randn(5, *module.chunk_shape, generator=torch.Generator().manual_seed(0))
    features = torch.zeros(5, 4)
    assert module.noise_actor(features, far).abs().max() <= 0.5


@pytest.mark.parametrize("objective", ["diffusion", "flow"])
@pytest.mark.parametrize("acts", ["mode", "sample"])
def test_the_exported_graph_contains_the_actor(objective: str, acts: str, tmp_path: Path) -> None:
    made = make(replace(DSRL, acts=acts, noise_steps=2))  # type: ignore[arg-type]
    made.policy.config = replace(made.policy.config, objective=objective)  # type: ignore[arg-type]
    made.rollout(3)
    made.finish("", tmp_path, no_progress)
    graph = to_onnx(made.policy, 20)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    generator = torch.Generator().manual_seed(0)
    obs = torch.rand(3, *made.policy.observation_shape, generator=generator)
    noise = torch.randn(3, *made.policy.chunk_shape, generator=generator)
    with torch.no_grad():
        expected = made.policy(obs, noise).numpy()
    inputs = {"observation": obs.numpy(), "noise": noise.numpy()}
    assert {entry.name for entry in session.get_inputs()} == set(inputs)
    found = np.asarray(session.run(["action"], inputs)[0])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_killed_run_goes_on(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KilledError):
        finetune(SMALL, policy, lambda: Counting(3), out, killing(2))
    assert (out / "experience").is_dir()
    before = (out / CURVE).read_text().splitlines() if (out / CURVE).exists() else []
    finetune(SMALL, policy, lambda: Counting(3), out, no_progress)
    lines = (out / CURVE).read_text().splitlines()
    assert len(lines) == 4
    assert lines[: len(before)] == before
    assert not (out / "experience").exists()
    load_policy(out)


def test_a_student_of_one_step_has_no_actor_and_learns_the_steered_chunks(
    policy: Path, tmp_path: Path
) -> None:
    teacher = saved(policy, tmp_path / "teacher")
    training = TrainingConfig(steps=400, learning_rate=3e-3, batch_size=32, warmup_steps=1)
    student = tmp_path / "student"
    student.mkdir()
    config = DistilConfig(targets=512, training=training)
    distil(config, tmp_path / "teacher", write_counted(tmp_path / "more"), student, no_progress)
    module, card = load_module(student)
    assert isinstance(module, DiffusionPolicy)
    assert isinstance(card.model, DiffusionPolicyConfig)
    assert (card.model.noise_actor, module.noise_actor) == (None, None)
    base, _ = load_module(policy)
    assert isinstance(base, DiffusionPolicy)

    def distances(rows: int = 64) -> Sequence[float]:
        (steered, _), (taught, _), (plain, _) = (
            sample(one, rows, 3) for one in (teacher, module, base)
        )
        return [float((one - steered).square().mean()) for one in (taught, plain)]

    taught, plain = distances()
    assert taught < 0.5 * plain


def test_what_does_not_keep_the_actor_refuses_the_policy(policy: Path, tmp_path: Path) -> None:
    saved(policy, tmp_path / "out")
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(HandoffError, match="finetune: the policy was fine-tuned by 'dsrl'"):
        finetune(SMALL, tmp_path / "out", lambda: Counting(3), again, no_progress)
    teacher, student = load_module(tmp_path / "out"), load_module(policy)
    with pytest.raises(HandoffError, match="the teacher was fine-tuned by 'dsrl'"):
        check_compatible(tmp_path / "out", student, teacher, OnPolicyDistilConfig())


def test_a_flow_policy_with_a_backbone_is_steered_and_exported(tmp_path: Path) -> None:
    base = flowing()
    (tmp_path / "policy").mkdir()
    save_policy(tmp_path / "policy", card_of(base), base.state_dict(), base.extra_files())
    out = tmp_path / "out"
    out.mkdir()
    config = replace(SMALL, algorithm=replace(DSRL, noise_steps=1, steps=4))
    finetune(config, tmp_path / "policy", lambda: WordLine(4), out, no_progress)
    module, card = load_module(out)
    assert isinstance(module, VlaPolicy)
    assert (card.model.sampler_steps, module.noise_actor is None) == (4, False)
    weights = module.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in base.state_dict().items())
    # The words matter to the noise, and the exported graph chooses it.
    obs, noise = torch.rand(2, 1, 1), torch.randn(2, *module.chunk_shape)
    features = [
        module.encoded_sampler(ObservationTensors(obs, {}, words)).features()
        for words in (WORDS[:2], WORDS[1::-1])
    ]
    assert not torch.allclose(features[0], features[1])
    session = onnxruntime.InferenceSession(to_onnx(module, 20).SerializeToString())
    tokens = module.tokens(WORDS[:2])
    inputs = {
        "observation": obs.numpy(),
        "noise": noise.numpy(),
        "tokens": tokens.token_BL.numpy(),
        "tokens_mask": tokens.mask_BL.numpy(),
    }
    with torch.no_grad():
        expected = module(obs, noise, {}, WORDS[:2]).numpy()
    found = np.asarray(session.run(["action"], inputs)[0])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_sentence_encoder_is_observed(tmp_path: Path) -> None:
    base = small_policy(write_encoder(tmp_path / "encoder"), {}, ResnetEncoderConfig())
    env = ChunkEnv(Asked(4), base, 2, count(100), 0.9)
    made = DsrlFinetuning(DSRL, base, env, seed=0)
    made.rollout(3)
    features = made._replay.table.obs
    # Environments at the same step differ by their words as well as by their seed.
    words = base.encoder.outputs - base.encoder.entries
    assert words > 0
    instructed = features.unflatten(1, (base.encoder.steps, -1))[:, -1, -words:]
    assert not torch.allclose(instructed[0], instructed[1])


def test_a_policy_without_an_initial_noise_is_refused() -> None:
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
