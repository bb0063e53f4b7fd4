"""Flow-SDE and Flow-Noise actors: log-probabilities, values and learning."""

import copy
import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.checkpoint import save_policy
from policies.families.vla import VlaPolicy
from policies.load import load_module, new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import VlaConfig
from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.finetuning.config import FinetuneConfig, VlaFinetuneConfig
from policies.rl.finetuning.finetune import CURVE, finetune
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.advantages import ChunkRollout, valued_table
from policies.rl.on_policy.config import FlowNoiseConfig, GroupConfig
from policies.rl.on_policy.flow_actor import FlowActor, NoiseNetwork
from policies.rl.on_policy.learned_noise import noisy_chain_likelihood
from policies.rl.on_policy.ppo import ActorEvaluation, OnPolicyLearner
from policies.rl.on_policy.rollout import Table
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.rl.finetuning.test_finetune import KilledError, killing
from tests.policies.rl.on_policy.test_token_actor import LEARNING, alone, card_of
from tests.toy_envs.word_line import WORDS, WordLine

NUM_ENVS, DECISIONS, HORIZON, STEPS = 8, 5, 3, 4
ONE, ALL = FlowNoiseConfig(steps=STEPS), FlowNoiseConfig(steps=STEPS, one_step=False)
LEARNED = FlowNoiseConfig(kind="learned", steps=STEPS, hidden=8)
WIDE = replace(LEARNED, low=0.2, high=0.6)
"""As much as the SDE's: the published bounds are those of a policy that needs to be right by a
little."""
NOISES = pytest.mark.parametrize(
    "noise", [ONE, ALL, LEARNED], ids=["one_step", "all_steps", "learned"]
)


def flowing(seed: int = 0) -> VlaPolicy:
    """Chunks of three actions of two entries; as good as untaught."""
    config = VlaConfig(
        backbone=BackboneConfig(
            scratch=ScratchConfig(sentences=WORDS, width=16, layers=2, heads=2, feedforward=24)
        ),
        train_backbone="all",
        observation_fields=("place",),
        anchor_field=None,
        horizon=HORIZON,
        n_action_steps=HORIZON,
        inference_steps=10,
    )
    torch.manual_seed(seed)
    policy = new_module(config, Shapes({"place": (0, 1)}, 2, None, {}))
    assert isinstance(policy, VlaPolicy)
    return policy


def envs(policy: VlaPolicy, number: int = NUM_ENVS, execute: int = HORIZON) -> ChunkEnv:
    return ChunkEnv(WordLine(number), policy, execute, count(1000), 0.99)


def actor(noise: FlowNoiseConfig, keep_reference: bool = False) -> FlowActor:
    policy = flowing()
    torch.manual_seed(5)
    return FlowActor(policy, noise, "chunk", "chunk", (8,), keep_reference)


def collect_rollout(made: FlowActor) -> ChunkRollout:
    return ChunkCollector(envs(made.policy), made).rollout(DECISIONS)


def asked(made: FlowActor, table: Table, part: int) -> ActorEvaluation:
    trace = {name: kept[:, part] for name, kept in table.trace.items()}
    with torch.no_grad():
        return made.evaluate(table.obs, torch.full((len(table.obs),), part), trace)


@NOISES
def test_what_was_said_of_a_chunk_is_said_again(noise: FlowNoiseConfig):
    """Invariants 8 and 12: recomputed log-probabilities and values are those of acting."""
    made = actor(noise)
    table = valued_table(LEARNING, "chunk", collect_rollout(made), alone)
    for part in range(made.denoising_steps):
        again = asked(made, table, part)
        torch.testing.assert_close(
            again.log_prob, table.log_prob_RKU[:, part], rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(again.value, table.old_value_RV, rtol=1e-4, atol=1e-5)


@NOISES
def test_the_first_step_clips_nothing_and_moves_policy_values_and_noise(noise: FlowNoiseConfig):
    made = actor(noise)
    modules = [made.policy, made.head] + (
        [made.noise_network] if made.noise_network is not None else []
    )
    before = [copy.deepcopy(module.state_dict()) for module in modules if module is not None]
    config = replace(LEARNING, epochs=1, batch_size=10**6)
    statistics = OnPolicyLearner(config, made, made.head).learn(
        valued_table(config, "chunk", collect_rollout(made), alone)
    )
    assert statistics.clipped == 0.0
    assert statistics.ratio == pytest.approx(1.0, abs=1e-3)
    for module, old in zip(modules, before, strict=True):
        assert module is not None
        assert any(
            not torch.equal(weight, old[name]) for name, weight in module.state_dict().items()
        )


def test_one_step_of_a_decision_is_random_and_all_come_up():
    trace = collect_rollout(actor(ONE)).trace
    assert (trace["std"] > 0.0).all()
    assert trace["step"].unique().tolist() == list(range(STEPS))


def test_the_chunk_that_is_executed_lies_at_the_end_of_its_chain():
    made = actor(LEARNED)
    obs = envs(made.policy).observation()
    decided = made.decide(obs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(decided.trace["chain"][:, 0, -1], decided.chunk_BHA)


def test_a_chain_is_as_likely_as_its_steps_worked_by_hand():
    """An expert whose velocity is 0 makes every step a Gaussian around where it stands."""
    made = actor(FlowNoiseConfig(kind="learned", steps=2, low=0.1, high=0.1))
    for part in (made.policy.expert.out.weight, made.policy.expert.out.bias):
        torch.nn.init.zeros_(part)
    looked = made.policy.expert_context(ObservationTensors(torch.zeros(1, 1, 1), {}, (WORDS[0],)))
    chain = torch.zeros(1, 3, HORIZON, 2)
    chain[0, 1:, 0, 0] = torch.tensor([0.1, 0.3])
    with torch.no_grad():
        log_prob, entropy = noisy_chain_likelihood(made._learned_steps(looked), chain)
    still = -np.log(0.1) - 0.5 * np.log(2.0 * np.pi)
    assert float(log_prob[0, 1, 0]) == pytest.approx(2.0 * still, abs=1e-5)
    # One deviation, then two.
    assert float(log_prob[0, 0, 0]) == pytest.approx(2.0 * still - 0.5 - 2.0, abs=1e-4)
    assert float(entropy[0, 0, 0]) == pytest.approx(
        2.0 * (np.log(0.1) + 0.5 * np.log(2.0 * np.pi * np.e)), abs=1e-5
    )


def test_learned_deviations_stay_within_their_bounds():
    network = NoiseNetwork(flowing(), replace(LEARNED, low=0.08, high=0.16))
    last = network.layers[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.normal_(last.weight, std=100.0)
    with torch.no_grad():
        std = network(torch.randn(50, HORIZON, flowing().expert.width))
    assert float(std.min()) == pytest.approx(0.08, rel=1e-3)
    assert float(std.max()) == pytest.approx(0.16, rel=1e-3)


def test_the_value_is_the_observations_alone():
    made = actor(ONE)
    obs = envs(made.policy).observation()
    decided = made.decide(obs, torch.Generator().manual_seed(0)).value_BV
    torch.testing.assert_close(decided, made.decide(obs, torch.Generator().manual_seed(1)).value_BV)
    torch.testing.assert_close(decided, made.value(obs))


def test_cloning_is_the_loss_of_imitating_the_policy_as_it_was():
    made = actor(ONE, keep_reference=True)
    obs = envs(made.policy, 64).observation()

    def loss() -> float:
        with torch.no_grad():
            return float(made.bc_loss(obs, torch.Generator().manual_seed(0)))

    unmoved = loss()
    assert unmoved == loss()
    torch.nn.init.normal_(made.policy.expert.out.bias, std=3.0)
    assert loss() > unmoved + 1.0


@pytest.mark.parametrize("settings", [{"steps": 0}, {"low": 0.2}, {"sde_noise": 0.0}])
def test_noise_that_cannot_be_is_refused(settings: dict[str, float]):
    with pytest.raises(HandoffError, match="flow noise has"):
        FlowNoiseConfig(**settings)  # type: ignore[arg-type]


def test_a_chunk_of_which_only_a_part_is_executed_is_refused():
    policy = flowing()
    with pytest.raises(HandoffError, match="n_action_steps"):
        VlaFinetuning(VlaFinetuneConfig(), policy, envs(policy, execute=2), seed=0)


def imitate(policy: VlaPolicy) -> None:
    """Teaches both ways, whatever is said."""
    draw = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(150):
        right, sign = (
            draw.random(64) < 0.5,
            np.where(draw.random(64) < 0.5, 0.75, -0.75).astype(np.float32),
        )
        vector = torch.from_numpy(draw.uniform(-1, 1, (64, 1, 1)).astype(np.float32))
        observed = ObservationTensors(vector, {}, tuple(WORDS[int(one)] for one in right))
        chunk = torch.from_numpy(sign)[:, None, None].expand(-1, HORIZON, 2)
        loss = policy.loss(Batch(observed, chunk, torch.zeros(64, HORIZON, dtype=torch.bool)), draw)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("group", "noise"),
    [
        pytest.param(None, ONE, id="ppo_one_step"),
        pytest.param(None, WIDE, id="ppo_learned", marks=pytest.mark.slow),
        pytest.param(GroupConfig(size=4), ALL, id="grpo_all_steps", marks=pytest.mark.slow),
    ],
)
def test_finetuning_learns_to_follow_the_instruction(
    group: GroupConfig | None, noise: FlowNoiseConfig
):
    """From half right to nearly all right; what it was taught does not tell the ways apart."""
    policy = flowing()
    imitate(policy)
    learning = replace(
        LEARNING, epochs=2, batch_size=128, actor_learning_rate=1e-3, critic_learning_rate=3e-3
    )
    config = VlaFinetuneConfig(
        group=group, log_prob_level="chunk", values="chunk", critic=(16,), flow=noise
    )
    finetuning = VlaFinetuning(
        replace(config, learning=learning), policy, envs(policy, 128), seed=0
    )
    shard = []
    for _ in range(15):
        before = len(finetuning.statistics.ended)
        finetuning.rollout(6)
        finetuning.statistics.flush()
        ended = finetuning.statistics.ended[before:]
        shard.append(float(np.mean([one.success for one in ended])))
    assert shard[0] < 0.8
    assert np.mean(shard[-3:]) > 0.9


def test_a_saved_policy_is_finetuned_and_resumes_after_a_kill(tmp_path: Path):
    module = flowing()
    save_policy(tmp_path / "policy", card_of(module), module.state_dict(), module.extra_files())
    method = VlaFinetuneConfig(
        flow=LEARNED, log_prob_level="chunk", values="chunk", critic=(8,), learning=LEARNING
    )
    config = FinetuneConfig(
        algorithm=method, rollouts=4, decisions=DECISIONS, save_every=1, first_seed=0
    )

    def finetuned_in(out: Path, progress: object) -> list[dict[str, float]]:
        out.mkdir(exist_ok=True)
        finetune(config, tmp_path / "policy", lambda: WordLine(NUM_ENVS), out, progress)  # type: ignore[arg-type]
        return [json.loads(line) for line in (out / CURVE).read_text().splitlines()]

    whole = finetuned_in(tmp_path / "whole", no_progress)
    with pytest.raises(KilledError):
        finetuned_in(tmp_path / "cut", killing(2))
    cut = finetuned_in(tmp_path / "cut", no_progress)
    assert len(whole) == len(cut) == 4
    for one, other in zip(whole[:2], cut[:2], strict=True):
        assert {**one, "cpu_seconds": 0} == {**other, "cpu_seconds": 0}
    found, found_card = load_module(tmp_path / "cut")
    assert found_card.model == replace(module.config, inference_steps=STEPS)
    assert found.sampler == f"flow-{STEPS}"
