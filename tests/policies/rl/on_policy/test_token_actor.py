"""Actors of action tokens: log-probabilities, values, workers and learning."""

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.data.visited_states import FILE
from policies.families.token_vla import TokenVlaPolicy
from policies.families.vla import VlaPolicy
from policies.load import load_module, new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import TokenVlaConfig
from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.finetuning.config import FinetuneConfig, VlaFinetuneConfig
from policies.rl.finetuning.finetune import CURVE, finetune
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.advantages import ChunkRollout, grouped_table, valued_table
from policies.rl.on_policy.config import GroupConfig, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.ppo import OnPolicyLearner
from policies.rl.on_policy.rollout import Table, to_level
from policies.rl.on_policy.token_actor import TokenActor
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.language.text import decode
from robots.spec import FieldSpec
from tests.policies.rl.finetuning.test_finetune import KilledError, killing
from tests.policies.rl.on_policy.test_ppo import Sum
from tests.toy_envs.word_line import WORDS, WordLine

NUM_ENVS, DECISIONS, HORIZON = 8, 5, 3
LEARNING = OnPolicyConfig(
    ppo=PpoConfig(clip=0.2, clip_high=0.28, dual_clip=3.0, value_clip=0.2, value_huber=10.0),
    clip_min=None,
    denoising_discount=1.0,
    epochs=2,
    batch_size=13,
    target_kl=None,
    critic_warmup_rollouts=0,
    max_grad_norm=1.0,
)
DECODINGS = pytest.mark.parametrize("decoding", ["parallel", "autoregressive"])
LEVELS = pytest.mark.parametrize("level", ["token", "action", "chunk"])


def alone(part: Tensor) -> Tensor:
    return part


def reading(decoding: str = "parallel", seed: int = 0) -> TokenVlaPolicy:
    """Chunks of three actions of two entries, four bins each; as good as untaught."""
    config = TokenVlaConfig(
        backbone=BackboneConfig(
            scratch=ScratchConfig(sentences=WORDS, width=16, layers=1, heads=2, feedforward=24)
        ),
        train_backbone="all",
        observation_fields=("place",),
        anchor_field=None,
        horizon=HORIZON,
        n_action_steps=HORIZON,
        bins=4,
        decoding=decoding,  # type: ignore[arg-type]
    )
    torch.manual_seed(seed)
    policy = new_module(config, Shapes({"place": (0, 1)}, 2, None, {}))
    assert isinstance(policy, TokenVlaPolicy)
    return policy


def envs(policy: TokenVlaPolicy, number: int = NUM_ENVS) -> ChunkEnv:
    return ChunkEnv(WordLine(number), policy, HORIZON, count(1000), 0.99)


def actor(
    level: Any = "token", values: Any = "action", decoding: str = "parallel", **options: Any
) -> TokenActor:
    policy = reading(decoding)
    torch.manual_seed(5)
    return TokenActor(policy, level, values, (8,), **options)


def collect_rollout(made: TokenActor) -> ChunkRollout:
    return ChunkCollector(envs(made.policy), made).rollout(DECISIONS)


@DECODINGS
@LEVELS
def test_what_was_said_of_a_chunk_is_said_again(level: Any, decoding: str):
    """Invariants 8 and 12: recomputed log-probabilities and values are those of acting."""
    made = actor(level, "chunk", decoding)
    rollout = collect_rollout(made)
    table = valued_table(LEARNING, level, rollout, alone)
    trace = {name: kept[:, 0] for name, kept in table.trace.items()}
    with torch.no_grad():
        again = made.evaluate(table.obs, torch.zeros(len(table.obs), dtype=torch.long), trace)
    torch.testing.assert_close(again.log_prob, table.log_prob_RKU[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again.value, table.old_value_RV, rtol=1e-4, atol=1e-5)


@LEVELS
def test_the_first_step_clips_nothing_and_moves_the_policy_and_its_values(level: Any):
    made = actor(level, "chunk")
    before = copy.deepcopy((made.policy.state_dict(), made.head.state_dict()))  # type: ignore[union-attr]
    config = replace(LEARNING, epochs=1, batch_size=10**6)
    statistics = OnPolicyLearner(config, made, made.head).learn(
        valued_table(config, level, collect_rollout(made), alone)
    )
    assert statistics.clipped == 0.0
    assert statistics.ratio == pytest.approx(1.0, abs=1e-4)
    assert statistics.kl == pytest.approx(0.0, abs=1e-6)
    for module, old in zip((made.policy, made.head), before, strict=True):
        assert module is not None
        assert any(
            not torch.equal(weight, old[name]) for name, weight in module.state_dict().items()
        )


def test_the_gradient_at_the_policy_that_acted_is_the_policy_gradient():
    """Invariant 12: of PPO's loss at ratio 1, against the advantage-weighted log-likelihood."""
    made = actor("token", None)
    group = GroupConfig(size=4, drop_alike=False, length_norm=False)
    rollout = ChunkCollector(envs(made.policy), made).episodes(4, DECISIONS, ("return",))
    drawn = torch.randn(rollout.outcome_NM.shape, generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    table = grouped_table(group, "token", rollout._replace(outcome_NM=drawn), alone)
    trace = {name: kept[:, 0] for name, kept in table.trace.items()}
    found = made.evaluate(table.obs, torch.zeros(len(table.obs), dtype=torch.long), trace)
    assert table.valid_RU is not None
    counted = (
        torch.where(table.valid_RU, found.log_prob * table.advantage_RU, 0.0).sum()
        / table.valid_RU.sum()
    )
    (-counted).backward()
    expected = [part.grad.clone() for part in made.parameters() if part.grad is not None]
    config = replace(LEARNING, epochs=1, batch_size=10**6, max_grad_norm=None)
    OnPolicyLearner(config, made, None).learn(table)
    grads = [part.grad for part in made.parameters() if part.grad is not None]
    assert len(grads) == len(expected) > 5
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_groups_that_all_came_to_the_same_move_nothing():
    """Invariant 13, through the whole update."""
    made = actor("token", None)
    rollout = ChunkCollector(envs(made.policy), made).episodes(4, DECISIONS, ("return",))
    same = rollout._replace(outcome_NM=torch.ones(NUM_ENVS, 1))
    before = copy.deepcopy(made.policy.state_dict())
    for group in (GroupConfig(size=4), GroupConfig(size=4, drop_alike=False)):
        OnPolicyLearner(LEARNING, made, None).learn(grouped_table(group, "token", same, alone))
    assert all(
        torch.equal(weight, before[name]) for name, weight in made.policy.state_dict().items()
    )


def test_an_old_rollouts_update_by_the_policy_that_acted_is_that_of_plain_ppo():
    """Invariant 13: decoupled PPO collapses to PPO where the proximal policy is the one that
    acted."""
    plain, decoupled = actor("action", "action"), actor("action", "action")
    rollout = collect_rollout(plain)
    for made, config in ((plain, LEARNING), (decoupled, replace(LEARNING, decoupled=True))):
        OnPolicyLearner(config, made, made.head).learn(
            valued_table(config, "action", rollout, alone)
        )
    for one, other in zip(plain.parameters(), decoupled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_an_older_policys_rollout_is_bounded_by_the_policy_as_it_is_now():
    made = actor("chunk", None, temperature=1.0)
    rollout = ChunkCollector(envs(made.policy), made).episodes(4, DECISIONS, ("return",))
    drawn = torch.randn(NUM_ENVS, 1, generator=torch.Generator().manual_seed(1))
    table = grouped_table(GroupConfig(size=4), "chunk", rollout._replace(outcome_NM=drawn), alone)
    torch.nn.init.normal_(made.policy.head.weight, std=0.5)
    config = replace(LEARNING, epochs=1, batch_size=10**6)
    plain = OnPolicyLearner(config, copy.deepcopy(made), None).learn(table)
    decoupled = OnPolicyLearner(replace(config, decoupled=True), made, None).learn(table)
    assert plain.kl > 0.1
    assert plain.clipped > 0.1
    assert decoupled.ratio == pytest.approx(1.0, abs=1e-4)
    assert decoupled.clipped == 0.0


def shared(rollout: ChunkRollout, worker: int, workers: int) -> ChunkRollout:
    """The environments of one of several workers."""
    size = NUM_ENVS // workers
    mine = slice(worker * size, (worker + 1) * size)
    found = {}
    for name, part in rollout._asdict().items():
        if name == "trace":
            found[name] = {key: kept[:, mine] for key, kept in part.items()}
        elif isinstance(part, int) or part is None:
            found[name] = part
        else:
            found[name] = part[mine] if name.endswith(("_NV", "_NM")) else part[:, mine]
    return ChunkRollout(**found)._replace(first_row=worker * size, num_envs=NUM_ENVS)


def table_of(kind: str, rollout: ChunkRollout, reduce: Any) -> Table:
    if kind == "ppo":
        return valued_table(LEARNING, "token", rollout, reduce)
    return grouped_table(GroupConfig(size=2), "token", rollout, reduce)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_one_two_and_four_workers_make_the_same_update(kind: str, workers: int):
    """Of some minibatches a worker has no row, and of some groups none is kept."""
    whole = actor("token", "action" if kind == "ppo" else None)
    collector = ChunkCollector(envs(whole.policy), whole)
    if kind == "ppo":
        rollout = collector.rollout(DECISIONS)
    else:
        outcome = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])[:, None]
        rollout = collector.episodes(2, DECISIONS, ("return",))._replace(outcome_NM=outcome)
    actors = [copy.deepcopy(whole) for _ in range(workers)]
    expected = OnPolicyLearner(LEARNING, whole, whole.head).learn(table_of(kind, rollout, alone))
    sums = Sum(workers)

    def work(number: int) -> float:
        try:
            reduce = sums.of(number)
            learner = OnPolicyLearner(LEARNING, actors[number], actors[number].head, reduce=reduce)
            return learner.learn(table_of(kind, shared(rollout, number, workers), reduce)).kl
        except BaseException:
            sums.abort()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, number) for number in range(workers)]
    failed = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(failed, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    for number in range(workers):
        for mine, all_of_it in zip(actors[number].parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine, all_of_it, rtol=1e-4, atol=1e-6)
        assert futures[number].result() == pytest.approx(expected.kl, rel=1e-3, abs=1e-7)


def test_groups_begin_in_one_state_and_stay_ended():
    made = actor("token", None)
    rollout = ChunkCollector(envs(made.policy), made).episodes(
        4, DECISIONS, ("return", "success", "brevity")
    )
    first = rollout.obs[0]
    for name in ("vector", "instruction"):
        pairs = first[name].unflatten(0, (2, 4))
        assert (pairs == pairs[:, :1]).all()
    assert not torch.equal(first["vector"][0], first["vector"][4])
    ended = (rollout.terminated_TN | rollout.truncated_TN).sum(dim=0)
    assert (ended <= 1).all()
    over = (rollout.terminated_TN | rollout.truncated_TN).cumsum(dim=0).bool()
    assert (rollout.length_TN[1:][over[:-1]] == 0).all()
    assert rollout.outcome_NM is not None
    returned, solved, brevity = rollout.outcome_NM.T
    torch.testing.assert_close(returned, solved)
    left = 1.0 - rollout.length_TN.sum(dim=0) / (DECISIONS * HORIZON)
    torch.testing.assert_close(brevity, solved * left)


def test_an_environment_that_is_reset_has_a_new_instruction():
    policy = reading()
    place = envs(policy)
    for _ in range(8):
        place.step(torch.ones(NUM_ENVS, HORIZON, 2))
        env = place.env
        assert isinstance(env, WordLine)
        obs = place.observation()
        instructions = [bytes(row[row > 0].tolist()).decode() for row in obs["instruction"]]
        assert instructions == [WORDS[int(right)] for right in env.right]
        assert torch.equal(
            policy.normalize_observation.inverse(obs["vector"])[:, 0, 0],
            torch.from_numpy(env.place).float(),
        )


def test_levels_of_entropy_add_up():
    entropy = torch.rand(2, HORIZON, 2)
    executed = torch.tensor([[True] * HORIZON, [True, False, False]])
    chunk = to_level(entropy, executed, "chunk").log_prob_RU[:, 0]
    assert chunk.tolist() == pytest.approx([float(entropy[0].sum()), float(entropy[1, 0].sum())])


def imitate(policy: TokenVlaPolicy, share: float) -> None:
    """Teaches the right way with that probability, else the wrong one."""
    draw = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for step in range(60):
        right, good = draw.random(64) < 0.5, draw.random(64) < share
        sign = torch.from_numpy(np.where(right == good, 0.75, -0.75).astype(np.float32))
        vector = torch.from_numpy(draw.uniform(-1, 1, (64, 1, 1)).astype(np.float32))
        observed = ObservationTensors(vector, {}, tuple(WORDS[int(one)] for one in right))
        batch = Batch(
            observed,
            sign[:, None, None].expand(-1, HORIZON, 2),
            torch.zeros(64, HORIZON, dtype=torch.bool),
        )
        loss = policy.loss(batch, np.random.default_rng(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("group", [None, GroupConfig(size=4)])
def test_finetuning_learns_to_follow_the_instruction(group: GroupConfig | None):
    """From half right to nearly all right; what it was taught does not tell the ways apart."""
    policy = reading()
    imitate(policy, 0.5)
    learning = replace(
        LEARNING, epochs=2, batch_size=128, actor_learning_rate=3e-3, critic_learning_rate=3e-3
    )
    config = VlaFinetuneConfig(group=group, critic=(16,), learning=learning)
    finetuning = VlaFinetuning(config, policy, envs(policy, 128), seed=0)
    shard = []
    for _ in range(12):
        before = len(finetuning.statistics.ended)
        finetuning.rollout(6)
        finetuning.statistics.flush()
        ended = finetuning.statistics.ended[before:]
        shard.append(float(np.mean([one.success for one in ended])))
    assert shard[0] < 0.8
    assert np.mean(shard[-3:]) > 0.9


def test_with_adapters_the_backbone_stays_as_it_was(tmp_path: Path):
    """LoRA: a policy of adapters, saved and loaded again, learns by them and by what is not the
    backbone's own."""
    module = TokenVlaPolicy(
        replace(reading().config, train_backbone="lora"), Shapes({"place": (0, 1)}, 2, None, {})
    )
    save_policy(tmp_path, card_of(module), module.state_dict(), module.extra_files())
    policy, _ = load_module(tmp_path, trainable=True)
    assert isinstance(policy, TokenVlaPolicy)
    before = copy.deepcopy(policy.state_dict())
    config = VlaFinetuneConfig(critic=(8,), learning=LEARNING)
    VlaFinetuning(config, policy, envs(policy), seed=0).rollout(DECISIONS)
    moved = {
        name
        for name, weight in policy.state_dict().items()
        if not torch.equal(weight, before[name])
    }
    own = {name for name in moved if name.startswith("backbone.text") and "lora_" not in name}
    assert own == set()
    assert any("lora_" in name for name in moved)
    assert "query_NW" in moved


def test_a_killed_run_continues_with_the_same_weights():
    policy = reading()
    config = VlaFinetuneConfig(critic=(8,), learning=LEARNING)
    finetuning = VlaFinetuning(config, policy, envs(policy), seed=0)
    finetuning.rollout(3)
    state = copy.deepcopy(finetuning.state_dict())
    other = reading(seed=9)
    again = VlaFinetuning(config, other, envs(other), seed=0)
    again.load_state_dict(state)
    assert again.rollouts == 1
    for name, weight in other.state_dict().items():
        assert torch.equal(weight, policy.state_dict()[name]), name
    assert torch.equal(
        again.state_dict()["collector"]["generator"], state["collector"]["generator"]
    )
    for name, weight in again.state_dict()["extra_modules"]["head"].items():
        assert torch.equal(weight, state["extra_modules"]["head"][name])


def test_groups_that_all_fail_stop_the_run_and_groups_that_all_succeed_do_not():
    policy = reading()
    config = VlaFinetuneConfig(group=GroupConfig(size=4), critic=(8,), learning=LEARNING)
    finetuning = VlaFinetuning(config, policy, envs(policy), seed=0)

    def outcomes(value: float) -> None:
        made = finetuning._collector.episodes

        def all_alike(*asked: Any) -> ChunkRollout:
            return made(*asked)._replace(outcome_NM=torch.full((NUM_ENVS, 1), value))

        finetuning._collector.episodes = all_alike  # type: ignore[method-assign]

    outcomes(1.0)
    for _ in range(5):
        assert finetuning.rollout(2)["kept"] == 0.0
    outcomes(0.0)
    finetuning.rollout(2)
    finetuning.rollout(2)
    with pytest.raises(HandoffError, match="had equal outcomes and failed"):
        finetuning.rollout(2)


def card_of(module: TokenVlaPolicy | VlaPolicy) -> PolicyCard:
    return PolicyCard(
        task="line",
        rate_hz=10.0,
        observation={"place": FieldSpec(shape=(1,))},
        sensors={},
        action=FieldSpec(shape=(2,)),
        model=module.config,
    )


@pytest.mark.parametrize("group", [None, GroupConfig(size=4)])
def test_a_saved_policy_is_finetuned_and_resumes_after_a_kill(
    group: GroupConfig | None, tmp_path: Path
):
    module = reading()
    save_policy(tmp_path / "policy", card_of(module), module.state_dict(), module.extra_files())
    method = VlaFinetuneConfig(group=group, critic=(8,), learning=LEARNING)
    config = FinetuneConfig(
        algorithm=method, rollouts=4, decisions=DECISIONS, save_every=1, first_seed=0
    )

    def finetuned_in(out: Path, progress: Any) -> list[dict[str, float]]:
        out.mkdir(exist_ok=True)
        finetune(config, tmp_path / "policy", lambda: WordLine(NUM_ENVS), out, progress)
        return [json.loads(line) for line in (out / CURVE).read_text().splitlines()]

    whole = finetuned_in(tmp_path / "whole", no_progress)
    with pytest.raises(KilledError):
        finetuned_in(tmp_path / "cut", killing(2))
    cut = finetuned_in(tmp_path / "cut", no_progress)
    assert len(whole) == len(cut) == 4
    for one, other in zip(whole[:2], cut[:2], strict=True):
        assert {**one, "cpu_seconds": 0} == {**other, "cpu_seconds": 0}
    found, found_card = load_module(tmp_path / "cut")
    assert found_card.model == module.config
    assert any(
        not torch.equal(one, other)
        for one, other in zip(found.parameters(), module.parameters(), strict=True)
    )
    visited = load_file(tmp_path / "cut" / FILE)
    assert visited["vector"].shape[1:] == (1, 1)
    assert set(decode(visited["instruction"].numpy())) == set(WORDS)
