"""Fine-tuning runs from saved policy to saved policy: outputs, resumption and detection of
collapse."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.data.visited_states import load_visited_states
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module
from policies.networks.config import MlpConfig
from policies.policy import ChunkPolicy
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.finetuning.config import BestOfNFinetuneConfig, DppoFinetuneConfig, FinetuneConfig
from policies.rl.finetuning.finetune import CURVE, STATE, finetune
from policies.rl.networks.config import MlpSizes
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import Step
from robots.spec import FieldSpec
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import Counting
from tests.policies.rl.finetuning.test_demonstration_selection import EXPO, Q_CHUNKING
from tests.policies.rl.test_rl100 import CONFIG as RL100

DPPO = DppoFinetuneConfig(
    denoising=DppoConfig(steps=5),
    learning=OnPolicyConfig(batch_size=60, epochs=2, critic_warmup_rollouts=1),
    critic=(16,),
)
BEST_OF_N = BestOfNFinetuneConfig(
    samples=4,
    backup_samples=2,
    critic=MlpSizes(hidden=(16,)),
    updates=5,
    batch_size=8,
    warm_up=1,
    imitate_every=2,
    imitation=TrainingConfig(
        steps=20, learning_rate=1e-3, batch_size=8, warmup_steps=0, log_every=10
    ),
)
SMALL = FinetuneConfig(algorithm=DPPO, rollouts=4, decisions=6, save_every=1, first_seed=0)
METHODS = pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, algorithm=BEST_OF_N),
        replace(SMALL, algorithm=EXPO),
        replace(SMALL, algorithm=Q_CHUNKING),
        replace(SMALL, algorithm=replace(RL100, offline_every=1)),
    ],
    ids=["dppo", "best_of_n", "expo", "q_chunking", "rl100"],
)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def write_policy(folder: Path, objective: Literal["diffusion", "flow"] = "diffusion") -> Path:
    """An untrained policy in `folder/policy`, with demonstrations beside it."""
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        objective=objective,
        anchor_field=None,
        observation_fields=("step", "seed"),
        n_obs_steps=2,
        horizon=4,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=10,
        network=MlpConfig(width=16, blocks=1),
    )
    module = DiffusionPolicy(config, Shapes({"step": (0, 1), "seed": (1, 2)}, 1, None, {}))
    saved = folder / "policy"
    saved.mkdir()
    save_policy(saved, card_of(module), module.state_dict())
    write_counted(folder / "demos", episodes=8)
    return saved


def card_of(module: ChunkPolicy) -> PolicyCard:
    one = FieldSpec(shape=(1,))
    fields = {"step": one, "seed": one}
    return PolicyCard(
        task="counting", rate_hz=10.0, observation=fields, action=one, model=module.config
    )  # type: ignore[attr-defined]


class KilledError(Exception):
    """As by kill -9: nothing more is written."""


def killing(after: int):
    def progress(done: int, total: int, note: str = "") -> None:
        if done == after and note.startswith("success"):
            raise KilledError

    return progress


def quiet(done: int, total: int, note: str = "") -> None:
    """Nobody looks."""


def run_finetuning(
    policy: Path,
    out: Path,
    config: FinetuneConfig = SMALL,
    progress=lambda *progress_calls: None,
    env=Counting,
):
    out.mkdir(exist_ok=True)
    return finetune(config, policy, lambda: env(3), out, progress, policy.parent / "demos")


def curve(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / CURVE).read_text().splitlines()]


def test_a_finetuned_policy_samples_with_the_steps_of_its_finetuning(policy, tmp_path):
    progress_calls = []
    metrics = run_finetuning(
        policy,
        tmp_path / "out",
        progress=lambda done, total, note="": progress_calls.append((done, total)),
    )
    assert progress_calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    module, card = load_module(tmp_path / "out")
    before, _ = load_module(policy)
    assert card.model.inference_steps == 5  # type: ignore[union-attr]
    assert len(module.steps) == 5  # type: ignore[attr-defined]
    weights = before.state_dict()
    assert any(
        not torch.equal(weight, weights[name]) for name, weight in module.state_dict().items()
    )
    assert torch.equal(module.normalize_action.scale, before.normalize_action.scale)
    entries = curve(tmp_path / "out")
    assert [entry["rollout"] for entry in entries] == [1, 2, 3, 4]
    assert metrics["steps"] == entries[-1]["steps"] <= 4 * 6 * 2 * 3
    assert (tmp_path / "out" / "finetune.png").stat().st_size > 1000
    assert not (tmp_path / "out" / STATE).exists()
    visited = load_visited_states(tmp_path / "out", module.observation_shape)
    # Of every decision in every environment, the last one behind all others.
    assert visited is not None
    assert len(visited) == 4 * 6 * 3
    assert torch.isfinite(visited).all()


@METHODS
def test_a_killed_run_resumes_after_its_last_saved_state(config, policy, tmp_path):
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "out", config, progress=killing(2))
    before = curve(tmp_path / "out")
    state = torch.load(tmp_path / "out" / STATE, weights_only=True)
    run_finetuning(policy, tmp_path / "out", config)
    after = curve(tmp_path / "out")
    assert after[:2] == before
    assert [entry["rollout"] for entry in after] == [1, 2, 3, 4]
    assert after[2]["episodes"] > after[1]["episodes"]
    assert state["seeds"] >= 3
    # What was met before is not forgotten.
    assert len(state["visited_states"]) == 2 * 6 * 3
    visited = load_visited_states(tmp_path / "out", load_module(policy)[0].observation_shape)
    assert visited is not None
    kept = state["visited_states"]
    torch.testing.assert_close(visited[: len(kept)], kept)
    assert len(visited) == 4 * 6 * 3


@METHODS
def test_a_killed_run_learns_as_much_as_an_uninterrupted_one(config, policy, tmp_path):
    """New episodes begin where it goes on, so the weights differ, but not by more than practice
    changes them."""
    run_finetuning(policy, tmp_path / "whole", config)
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "killed", config, progress=killing(3))
    run_finetuning(policy, tmp_path / "killed", config)
    weights = [
        load_module(folder)[0].state_dict()
        for folder in (policy, tmp_path / "whole", tmp_path / "killed")
    ]
    moved, apart = (
        float(
            sum(
                (weights[a][name] - weights[b][name]).double().square().sum() for name in weights[0]
            )
        )
        ** 0.5
        for a, b in ((1, 0), (2, 1))
    )
    assert 0.0 < apart < moved


def test_rl100_killed_before_its_first_rollout_resumes(policy, tmp_path):
    def kill(done: int, total: int, note: str = "") -> None:
        if note == "dynamics":
            raise KilledError

    config = replace(SMALL, algorithm=RL100)
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "out", config, progress=kill)
    run_finetuning(policy, tmp_path / "out", config)
    assert [entry["rollout"] for entry in curve(tmp_path / "out")] == [1, 2, 3, 4]
    assert not (tmp_path / "out" / "recorded").exists()


def test_rl100_with_other_demonstrations_starts_a_new_run(policy, tmp_path):
    config = replace(SMALL, algorithm=RL100)
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "out", config, progress=killing(2))
    shutil.rmtree(policy.parent / "demos")
    write_counted(policy.parent / "demos", episodes=7)
    progress_calls = []
    run_finetuning(
        policy,
        tmp_path / "out",
        config,
        lambda done, total, note="": progress_calls.append((done, note)),
    )
    assert next(done for done, note in progress_calls if note.startswith("success")) == 1


def test_what_another_configuration_left_is_not_gone_on_with(policy, tmp_path):
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "out", progress=killing(2))
    progress_calls = []
    config = replace(SMALL, seed=1)
    run_finetuning(
        policy, tmp_path / "out", config, lambda done, total, note="": progress_calls.append(done)
    )
    assert progress_calls[0] == 1


class Indifferent(Counting):
    """Pays nothing, whatever is done, and never ends."""

    def step(self, action: np.ndarray) -> Step:
        self.steps[:] = 0
        made = super().step(action)
        return made._replace(reward=np.zeros_like(made.reward), terminated=made.terminated & False)


def test_a_run_without_signal_is_stopped(policy, tmp_path):
    still = replace(
        DPPO,
        learning=replace(
            DPPO.learning, critic_learning_rate=0.0, gae_lambda=0.0, actor_learning_rate=0.0
        ),
    )
    config = replace(SMALL, rollouts=20, algorithm=still)
    with pytest.raises(
        HandoffError, match="no weight of the policy has changed in the last 3 rollouts"
    ):
        run_finetuning(policy, tmp_path / "out", config, env=Indifferent)


def test_values_that_explode_stop_it(policy, tmp_path):
    hasty = replace(DPPO, learning=replace(DPPO.learning, critic_learning_rate=1e4))
    config = replace(SMALL, rollouts=20, algorithm=hasty)
    with pytest.raises(HandoffError, match=r"the value loss is|the loss of rollout"):
        run_finetuning(policy, tmp_path / "out", config)


def test_rl100_without_demonstrations_is_refused(policy, tmp_path):
    with pytest.raises(HandoffError, match="learns from demonstrations, but demos is None"):
        finetune(
            replace(SMALL, algorithm=RL100), policy, lambda: Counting(3), tmp_path / "out", quiet
        )


def test_a_policy_that_does_not_denoise_is_refused(policy, tmp_path):
    from policies.families.behaviour_cloning import BehaviourCloningPolicy
    from policies.policy_config import BehaviourCloningConfig

    config = BehaviourCloningConfig(
        anchor_field=None, n_obs_steps=2, horizon=4, n_action_steps=2, hidden=(8,)
    )
    module = BehaviourCloningPolicy(config, Shapes({"step": (0, 1), "seed": (1, 2)}, 1, None, {}))
    save_policy(policy, card_of(module), module.state_dict())
    with pytest.raises(HandoffError, match="expected a diffusion or flow policy"):
        run_finetuning(policy, tmp_path / "out")


def test_rollouts_and_picture_are_logged_also_of_a_resumed_run(policy, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    imitation = replace(BEST_OF_N.imitation, loggers=("tensorboard",))
    algorithm = replace(BEST_OF_N, imitation=imitation)
    config = replace(SMALL, algorithm=algorithm, loggers=("tensorboard",))
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "out", config, progress=killing(3))
    run_finetuning(policy, tmp_path / "out", config)
    events = EventAccumulator(str(tmp_path / "out" / "finetune" / "tensorboard"))
    events.Reload()
    for name in ("success", "critic_loss"):
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("success")] == pytest.approx(
        [entry["success"] for entry in curve(tmp_path / "out")]
    )
    (image,) = events.Images("curve")
    assert image.step == 4
    # The curves of imitation phases are in files of their own.
    phases = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    phases.Reload()
    assert [event.step for event in phases.Scalars("loss")] == [10, 20]
