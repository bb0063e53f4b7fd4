"""Trains diffusion policies offline: EDP from new weights, offline PPO from a pretrained policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.card import PolicyCard
from policies.checkpoint import save_policy
from policies.data.demonstrations import check_agreement, open_store
from policies.data.windows import chunks, window_index
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module, new_module
from policies.normalize import MinMaxStatistics, MomentStatistics
from policies.policy import refuse_actors
from policies.policy_config import DiffusionPolicyConfig
from policies.rewards.labels import Labeller
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.offline.config import EdpConfig, OfflinePpoAlgorithmConfig, OfflineRunConfig
from policies.rl.offline.dynamics_ensemble import ChunkTransitions, DynamicsEnsemble
from policies.rl.offline.edp import Edp
from policies.rl.offline.offline_dataset import RecordedChunks, chunk_dataset
from policies.rl.offline.offline_ppo import GateResult, OfflinePpo, fit_critics
from policies.rl.offline.recorded import RecordedEpisodes, read_recorded
from policies.rl.offline.train import OfflineConfig, finish_curve, identity, run_updates
from policies.training.loggers import CURVE, EntryLog, write_json_lines
from robots.errors import HandoffError
from robots.interfaces import Progress

TASK_REWARD = RewardShaping()
"""The recorded reward, unchanged."""


def train_edp(
    config: EdpConfig,
    label: Labeller,
    settings: str,
    run: OfflineRunConfig,
    demos: Path,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains a diffusion policy by EDP; arguments and errors of `train_offline`."""
    episodes = read_recorded(demos, config.policy, label)
    card = episodes.card
    policy = _new_policy(card, config.policy, run.seed)
    _fit_normalisers(policy, card, episodes)
    learner = Edp(config, policy, run.seed)
    dataset = chunk_dataset(
        episodes, policy, config.policy, TASK_REWARD, config.discount, config.failures_end
    )
    metrics = run_updates(
        learner,
        RecordedChunks(dataset, learner.executed_part),
        OfflineConfig(updates=config.updates, batch_size=config.batch_size),
        run,
        identity(settings, demos),
        out,
        progress,
    )
    save_policy(out, card, learner.networks.actor_target.state_dict())
    finish_curve(out)
    return {**episodes.summary, **metrics}


def train_offline_ppo(
    config: OfflinePpoAlgorithmConfig,
    label: Labeller,
    run: OfflineRunConfig,
    demos: Path,
    pretrained: Path,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Improves a pretrained diffusion policy by offline PPO; arguments and errors of
    `train_offline`."""
    log = EntryLog(run, out, "updates")
    policy, card = _pretrained(pretrained, demos)
    model = policy.config
    episodes = read_recorded(demos, model, label)
    dataset = chunk_dataset(
        episodes,
        policy,
        model,
        TASK_REWARD,
        config.discount,
        config.failures_end,
        episodes.sensors,
    )
    first = model.n_obs_steps - 1

    def executed(chunk_RHA: Tensor) -> Tensor:
        return chunk_RHA[:, first : first + model.n_action_steps].flatten(1)

    data = ChunkTransitions(
        obs_RF=dataset.obs.flatten(1),
        action_RD=executed(dataset.chunk_RHA),
        reward_R=dataset.reward_R,
        discount_R=dataset.discount_R,
        next_obs_RF=dataset.next_obs.flatten(1),
    )
    critics = fit_critics(
        config.critics, data, config.critic_updates, config.critic_batch, run.seed, None, progress
    )
    dynamics = DynamicsEnsemble(
        config.dynamics, data.obs_RF.shape[1], data.action_RD.shape[1], run.seed
    )
    fitted = dynamics.fit(data.rows(dataset.next_obs_recorded_R), progress)
    entries: list[dict[str, float]] = []

    def report(judgement: GateResult) -> None:
        entries.append({name: float(value) for name, value in judgement._asdict().items()})
        write_json_lines(out / CURVE, entries)
        log.log(entries)
        note = f"offline PPO, judged {judgement.value:.3f}, best {judgement.best:.3f}"
        progress(judgement.updates, config.ppo.updates, note)

    learner = OfflinePpo(config.ppo, policy, critics, dynamics, executed, run.seed)
    learner.improve(dataset.obs, report)
    log.close()
    sampled = replace(card, model=model.with_sampler_steps(config.ppo.denoising.steps))
    save_policy(out, sampled, policy.state_dict())
    finish_curve(out, ("updates", "update"))
    return {
        **episodes.summary,
        "updates": config.ppo.updates,
        "accepted": int(sum(entry["accepted"] for entry in entries)),
        "judged": len(entries),
        "value": entries[-1]["best"],
        "dynamics_error": fitted["error"],
    }


def _pretrained(folder: Path, demos: Path) -> tuple[DiffusionPolicy, PolicyCard]:
    """The pretrained policy, whose fields must agree with those of the store.

    Raises:
        HandoffError: another family, a flow, instructions, or a store that does not fit.
    """
    policy, card = load_module(folder)
    refuse_actors(policy, f"{folder}: the policy")
    if not isinstance(policy, DiffusionPolicy) or policy.language_conditioned:
        follows = " that follows instructions" if policy.language_conditioned else ""
        raise HandoffError(
            f"{folder}: holds a policy of the family '{card.model.kind}'{follows}, expected a diffusion policy without "
            "instructions for offline_ppo."
        )
    store = open_store(str(demos), demos / "store.zarr", card.model)
    check_agreement(store._replace(name=str(folder), card=card), store)
    return policy.eval().requires_grad_(False), card


def _new_policy(card: PolicyCard, config: DiffusionPolicyConfig, seed: int) -> DiffusionPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = new_module(config, card.shapes)
    assert isinstance(policy, DiffusionPolicy)
    return policy


def _fit_normalisers(policy: DiffusionPolicy, card: PolicyCard, episodes: RecordedEpisodes) -> None:
    """Fits the normalisers as imitation does, to all episodes."""
    observation = MinMaxStatistics(card.observation_size)
    observation.update(episodes.observation_MO)
    policy.normalize_observation.fit(observation)
    index = window_index(np.asarray(episodes.ends_E), *card.model.window)
    chunk_NHA = chunks(index, episodes.observation_MO, episodes.action_MA, card.anchor)
    moments = MomentStatistics(chunk_NHA.shape[1:])
    moments.update(chunk_NHA)
    policy.fit_action(moments, lambda: chunk_NHA)
