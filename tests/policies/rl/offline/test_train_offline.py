"""Offline training on a recorded store: what every algorithm leaves, resuming, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.checkpoint import read_card, read_state
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rewards.config import (
    ClassifierRewardConfig,
    RecordedRewardConfig,
    RewardSource,
    SuccessRewardConfig,
)
from policies.rewards.labels import EpisodeLabels, new_labeller
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.offline.config import (
    CalQlConfig,
    DynamicsConfig,
    EdpConfig,
    ExpectileCriticsConfig,
    FDvlConfig,
    IqlConfig,
    OfflineAlgorithm,
    OfflinePpoAlgorithmConfig,
    OfflinePpoConfig,
    OfflineRunConfig,
    TrajectoryWeightedConfig,
    XqlConfig,
)
from policies.rl.offline.recorded import ActionScale, as_replay, read_recorded
from policies.rl.offline.saved_learner import load_learner
from policies.rl.offline.train_offline import train_offline
from policies.rl.on_policy.config import DppoConfig
from policies.rl.replay.trajectory_weighting import TrajectoryWeightingConfig
from policies.training.config import TrainingConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec

TINY = MlpSizes(hidden=(16,), activation="relu", layer_norm=False)
STATE: dict[str, Any] = {"observation_fields": ("place",), "updates": 40, "batch_size": 16}
WEIGHTED: dict[str, Any] = {**STATE, "critic": TINY, "value_network": TINY, "actor": TINY}
RUN = OfflineRunConfig(log_every=10, checkpoint_seconds=0.0)
MODEL = DiffusionPolicyConfig(
    observation_fields=("place",),
    anchor_field=None,
    horizon=4,
    n_action_steps=2,
    train_timesteps=10,
    inference_steps=5,
    network=MlpConfig(width=16, blocks=1),
)
SPARSE = SuccessRewardConfig()
STATE_ALGORITHMS: list[OfflineAlgorithm] = [
    IqlConfig(**WEIGHTED),
    XqlConfig(**WEIGHTED),
    FDvlConfig(**WEIGHTED),
    CalQlConfig(**STATE, sac=SacConfig(critic=TINY, actor=TINY), actions=2, target_actions=2),
    TrajectoryWeightedConfig(
        weighting=TrajectoryWeightingConfig(kind="rw"), learner=IqlConfig(**WEIGHTED)
    ),
]


class KilledError(Exception):
    pass


def write_walks(
    folder: Path, *, reward: bool = True, solved: bool = True, actions: float = 1.0
) -> Path:
    """Eight walks on a line towards 1, of which the even ones arrive, with rewards at arrival."""
    fields = {"place": FieldSpec(shape=(2,)), "action": FieldSpec(shape=(1,))}
    fields |= {"success": FieldSpec(shape=(), dtype="uint8")} if solved else {}
    fields |= {"reward": FieldSpec(shape=())} if reward else {}
    schema = EpisodeSchema(name="walk", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    folder.mkdir()
    rng = np.random.default_rng(0)
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for number in range(8):
            arrives = number % 2 == 0
            step = 0.2 if arrives else -0.2
            place = np.stack([step * np.arange(5), rng.standard_normal(5)], axis=1)
            success = np.zeros(5, np.uint8)
            success[-1] = arrives
            columns: dict[str, Any] = {
                "place": place.astype(np.float32),
                "action": np.full((5, 1), actions * np.sign(step), np.float32),
                "success": success,
                "reward": success.astype(np.float32),
            }
            writer.append({"policy": {name: columns[name] for name in fields}}, {"seed": number})
    return folder


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walks(tmp_path_factory.mktemp("walks") / "demos")


def trained(
    algorithm: OfflineAlgorithm,
    demos: Path,
    out: Path,
    reward: RewardSource = SPARSE,
    run: OfflineRunConfig = RUN,
    **inputs: Any,
) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    return train_offline(algorithm, reward, run, demos, out, no_progress, **inputs)


@pytest.mark.parametrize("algorithm", STATE_ALGORITHMS, ids=lambda one: one.kind)
def test_learners_on_state_leave_a_policy_of_single_actions(
    algorithm: OfflineAlgorithm, demos: Path, tmp_path: Path
):
    metrics = trained(algorithm, demos, tmp_path)
    policy = load_policy(tmp_path)
    action = policy(np.zeros((3, 1, 2), np.float32), np.zeros((3, 1, 1), np.float32))
    assert np.isfinite(action).all()
    assert np.abs(action).max() <= 1.0
    assert read_card(tmp_path).task == "walk"
    assert (metrics["episodes"], metrics["solved_episodes"], metrics["data_steps"]) == (8, 4, 40)
    curve = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert [entry["update"] for entry in curve] == [10, 20, 30, 40]
    assert (tmp_path / "loss.png").stat().st_size > 0
    assert not (tmp_path / "training.pt").exists()


@pytest.mark.parametrize("algorithm", STATE_ALGORITHMS[:4], ids=lambda one: one.kind)
def test_the_saved_learner_acts_as_the_saved_policy(
    algorithm: OfflineAlgorithm, demos: Path, tmp_path: Path
):
    trained(algorithm, demos, tmp_path)
    saved, policy = load_learner(tmp_path), load_policy(tmp_path)
    obs = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    action = policy(obs[:, None], np.zeros((5, 1, 1), np.float32))[:, 0]
    expected = saved.scale.half_range_A * saved.learner.act(obs) + saved.scale.centre_A
    assert action == pytest.approx(expected, abs=1e-5)
    assert saved.config == algorithm


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("kind", ["iql", "cal_ql"])
def test_online_rl_starts_with_the_actor_and_the_critics_of_the_offline_learner(
    kind: str, layer_norm: bool, demos: Path, tmp_path: Path
):
    layers = replace(TINY, layer_norm=layer_norm)
    sac = SacConfig(critic=layers, actor=layers, critics=2)
    algorithm: OfflineAlgorithm = (
        IqlConfig(**STATE, critic=layers, value_network=layers, actor=layers)
        if kind == "iql"
        else CalQlConfig(**STATE, sac=sac, actions=2, target_actions=2)
    )
    trained(algorithm, demos, tmp_path)
    saved, state = load_learner(tmp_path), read_state(tmp_path / "offline.pt", "offline.pt")
    assert state is not None
    assert state["fields"] == ["place"]
    online = Sac(sac, saved.sizes)
    online.networks.load_state_dict(state["networks"])
    obs = np.random.default_rng(2).standard_normal((5, 2)).astype(np.float32)
    assert online.act(obs) == pytest.approx(saved.learner.act(obs), abs=1e-5)
    inputs = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 3))).float()
    with torch.no_grad():
        values = [one.networks.critic(inputs) for one in (online, saved.learner)]
    assert torch.allclose(values[0], values[1])


def test_a_folder_without_a_learner_is_refused(tmp_path: Path):
    with pytest.raises(HandoffError, match="no critics are here to go on from"):
        load_learner(tmp_path)


def test_actions_beyond_one_are_scaled_for_the_learner_and_back(tmp_path: Path):
    demos = write_walks(tmp_path / "demos", actions=30.0)
    scale = ActionScale.fit(np.array([[-30.0, 0.5], [10.0, -1.0]]))
    assert scale.centre_A.tolist() == [-10.0, 0.0]
    assert scale.half_range_A.tolist() == [20.0, 1.0]
    assert scale.to_learner(np.array([[10.0, 0.5]])).tolist() == [[1.0, 0.5]]
    clone = IqlConfig(**(WEIGHTED | {"updates": 400, "actor_learning_rate": 1e-2}))
    trained(replace(clone, inverse_temperature=0.0), demos, tmp_path / "out")
    place = np.array([[[0.8, 0.0]], [[-0.8, 0.0]]], np.float32)
    action = load_policy(tmp_path / "out")(place, np.zeros((2, 1, 1), np.float32))
    assert action[0, 0, 0] > 15.0
    assert action[1, 0, 0] < -15.0


@pytest.mark.parametrize(
    "algorithm",
    [
        STATE_ALGORITHMS[0],
        STATE_ALGORITHMS[3],
        EdpConfig(policy=MODEL, critic=TINY, updates=40, batch_size=16),
    ],
    ids=lambda one: one.kind,
)
def test_an_interrupted_run_ends_with_the_same_weights(
    algorithm: OfflineAlgorithm, demos: Path, tmp_path: Path
):
    def killer(done: int, total: int, note: str = "") -> None:
        if done == 25:
            raise KilledError

    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    trained(algorithm, demos, whole)
    resumed.mkdir()
    with pytest.raises(KilledError):
        train_offline(algorithm, SPARSE, RUN, demos, resumed, killer)
    updates: list[int] = []

    def count(done: int, total: int, note: str = "") -> None:
        updates.append(done)

    train_offline(algorithm, SPARSE, RUN, demos, resumed, count)
    assert updates[0] == 21
    weights = [(folder / "policy.safetensors").read_bytes() for folder in (whole, resumed)]
    assert weights[0] == weights[1]
    curves = [(folder / "loss.jsonl").read_text() for folder in (whole, resumed)]
    assert curves[0] == curves[1]


def test_edp_leaves_a_diffusion_policy_that_distils(demos: Path, tmp_path: Path):
    trained(EdpConfig(policy=MODEL, critic=TINY, updates=40, batch_size=16), demos, tmp_path)
    card = read_card(tmp_path)
    assert card.model == MODEL
    assert "one_step" in card.model.one_step_methods
    noise = np.random.default_rng(0).standard_normal((2, 4, 1)).astype(np.float32)
    assert np.isfinite(load_policy(tmp_path)(np.zeros((2, 1, 2), np.float32), noise)).all()


@pytest.fixture(scope="module")
def imitation(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imitation")
    training = TrainingConfig(steps=20, learning_rate=1e-3, warmup_steps=0, log_every=10)
    pretrain(PretrainConfig(policy=MODEL, training=training), demos, folder, no_progress)
    return folder


PPO = OfflinePpoAlgorithmConfig(
    critics=ExpectileCriticsConfig(critic=TINY, value_network=TINY),
    critic_updates=20,
    critic_batch=16,
    dynamics=DynamicsConfig(members=2, elites=1, network=TINY, updates=20, batch_size=16),
    ppo=OfflinePpoConfig(
        denoising=DppoConfig(steps=2),
        updates=6,
        gate_every=3,
        gate=False,
        batch_size=16,
        chains=32,
        judged_rows=20,
        judged_steps=1,
        learning_rate=1e-3,
    ),
)


@pytest.mark.parametrize("algorithm", [STATE_ALGORITHMS[0], PPO], ids=lambda one: one.kind)
def test_the_curve_goes_to_the_loggers(
    algorithm: OfflineAlgorithm, demos: Path, imitation: Path, tmp_path: Path
):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    inputs: dict[str, Any] = {"policy": imitation} if algorithm is PPO else {}
    trained(algorithm, demos, tmp_path, run=replace(RUN, loggers=("tensorboard",)), **inputs)
    curve = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    step, value = ("updates", "value") if algorithm is PPO else ("update", "critic_loss")
    logged = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars(value)
    assert [one.step for one in logged] == [entry[step] for entry in curve]
    assert [one.value for one in logged] == pytest.approx([entry[value] for entry in curve])


def test_offline_ppo_improves_a_pretrained_policy(demos: Path, imitation: Path, tmp_path: Path):
    metrics = trained(PPO, demos, tmp_path, policy=imitation)
    assert (metrics["judged"], metrics["accepted"]) == (2, 2)
    assert read_card(tmp_path).model.sampler_steps == 2
    weights = [(folder / "policy.safetensors").read_bytes() for folder in (imitation, tmp_path)]
    assert weights[0] != weights[1]


def test_the_inputs_of_an_algorithm_are_checked(demos: Path, imitation: Path, tmp_path: Path):
    with pytest.raises(HandoffError, match="'offline_ppo', but no policy is given"):
        trained(PPO, demos, tmp_path)
    with pytest.raises(HandoffError, match="'iql', but a policy is given"):
        trained(STATE_ALGORITHMS[0], demos, tmp_path, policy=imitation)
    with pytest.raises(HandoffError, match="'classifier', but no classifier is given"):
        trained(STATE_ALGORITHMS[0], demos, tmp_path, ClassifierRewardConfig())
    with pytest.raises(HandoffError, match="'success', but a classifier is given"):
        trained(STATE_ALGORITHMS[0], demos, tmp_path, classifier=imitation)


def test_stores_without_rewards_or_successes_are_refused(tmp_path: Path):
    plain = write_walks(tmp_path / "plain", reward=False, solved=False)
    with pytest.raises(HandoffError, match="neither a field 'success' nor metadata"):
        trained(STATE_ALGORITHMS[0], plain, tmp_path / "out")
    with pytest.raises(HandoffError, match="no reward field 'reward'"):
        trained(STATE_ALGORITHMS[0], plain, tmp_path / "out", RecordedRewardConfig())


def test_equal_rewards_without_a_solved_episode_are_refused(tmp_path: Path):
    demos = tmp_path / "demos"
    write_walks(demos)
    schema = EpisodeStore.open(demos / "store.zarr").schema
    failed = tmp_path / "failed"
    failed.mkdir()
    with EpisodeStore.create(failed / "store.zarr", schema) as store:
        store.append({"policy": EpisodeStore.open(demos / "store.zarr").read(1, "policy")}, {})
    with pytest.raises(HandoffError, match="none of 1 episodes is solved and every reward is 0"):
        trained(STATE_ALGORITHMS[0], failed, tmp_path / "out")


@pytest.mark.parametrize(("failures_end", "rows"), [(True, 40), (False, 36)])
def test_failed_episodes_end_with_value_0_or_lose_their_last_step(
    failures_end: bool, rows: int, demos: Path
):
    episodes = read_recorded(demos, MODEL, new_labeller(SPARSE))
    config = IqlConfig(**WEIGHTED, failures_end=failures_end)
    replay = as_replay(episodes, ActionScale.fit(episodes.action_MA), config, mc_return=False)
    assert len(replay) == rows
    ended = replay.columns["terminated"][:rows]
    assert int(ended.sum()) == (8 if failures_end else 4)
    assert float(replay.columns["reward"][:rows].sum()) == 4.0


def test_steps_after_the_first_success_are_dropped(demos: Path):
    def early(store: EpisodeStore, stream: str, episode: int) -> EpisodeLabels:
        solved = np.arange(5) == 2
        return EpisodeLabels(solved.astype(np.float32), solved)

    episodes = read_recorded(demos, MODEL, early)
    assert episodes.ends_E.tolist() == [3, 6, 9, 12, 15, 18, 21, 24]
    assert episodes.solved_E.all()
