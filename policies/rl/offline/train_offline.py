"""Trains a policy on a recorded store by any offline algorithm; the stage `offline`.

Algorithms on observation vectors (IQL, XQL, f-DVL, Cal-QL, with or without trajectory weighting)
give a policy of single actions, saved with its learner; pictures are entries of the vector, as
features of a frozen network. EDP and offline PPO give a diffusion policy, which is distilled as any
other; offline PPO encodes pictures by the encoder of its pretrained policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.policy_config import BehaviourCloningConfig
from policies.rewards.config import RewardSource
from policies.rewards.labels import Labeller, new_labeller
from policies.rl.offline.config import (
    CalQlConfig,
    EdpConfig,
    OfflineAlgorithm,
    OfflinePpoAlgorithmConfig,
    OfflineRunConfig,
    StateAlgorithm,
    TrajectoryWeightedConfig,
)
from policies.rl.offline.iql import shrink_final_layers
from policies.rl.offline.recorded import ActionScale, as_replay, read_recorded
from policies.rl.offline.saved_learner import new_learner, save_learner
from policies.rl.offline.train import (
    OfflineConfig,
    finish_curve,
    fit_features,
    identity,
    run_updates,
)
from policies.rl.replay.trajectory_weighting import (
    TrajectoryWeightingConfig,
    trajectory_probability,
)
from policies.rl.replay.transitions import Sizes
from policies.training.loop import torch_threads
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress


def train_offline(
    algorithm: OfflineAlgorithm,
    reward: RewardSource,
    run: OfflineRunConfig,
    demos: Path,
    out: Path,
    progress: Progress,
    *,
    classifier: Path | None = None,
    policy: Path | None = None,
) -> dict[str, Any]:
    """Trains a policy and writes it to `out`, with its curve (`loss.jsonl`, `loss.png`).

    An interrupted run resumes from its checkpoint in `out` and ends with the same weights; offline
    PPO starts again.

    Args:
        algorithm: algorithm and its options.
        reward: source of the reward.
        run: seed, checkpoints and threads.
        demos: folder of the recorded store.
        out: folder of the policy.
        progress: called after every update.
        classifier: folder of a success classifier, for the reward of that kind.
        policy: folder of the pretrained diffusion policy of offline PPO.

    Returns:
        Metrics: episodes, solved_episodes, data_steps, updates, cpu_seconds, and the last entry of
        the curve.

    Raises:
        HandoffError: unusable data, inputs that the algorithm does not take or misses, or values
            that are not finite.
    """
    if (policy is not None) != isinstance(algorithm, OfflinePpoAlgorithmConfig):
        given = "no policy is given" if policy is None else "a policy is given"
        raise HandoffError(
            f"offline: the algorithm is '{algorithm.kind}', but {given}. offline_ppo improves a pretrained policy; "
            "the others start from new weights."
        )
    label = new_labeller(reward, classifier)
    settings = str((to_plain(algorithm), to_plain(reward), run.seed))
    with torch_threads(run.threads):
        match algorithm:
            case EdpConfig():
                from policies.rl.offline.train_diffusion import train_edp

                return train_edp(algorithm, label, settings, run, demos, out, progress)
            case OfflinePpoAlgorithmConfig():
                from policies.rl.offline.train_diffusion import train_offline_ppo

                assert policy is not None
                return train_offline_ppo(algorithm, label, run, demos, policy, out, progress)
            case TrajectoryWeightedConfig():
                return _train_state(
                    algorithm.learner,
                    algorithm.weighting,
                    label,
                    settings,
                    run,
                    demos,
                    out,
                    progress,
                )
            case _:
                return _train_state(algorithm, None, label, settings, run, demos, out, progress)


def _train_state(
    config: StateAlgorithm,
    weighting: TrajectoryWeightingConfig | None,
    label: Labeller,
    settings: str,
    run: OfflineRunConfig,
    demos: Path,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    # Any family of single actions names the fields to read.
    reading = BehaviourCloningConfig(
        observation_fields=config.observation_fields,
        image_fields=config.image_fields,
        anchor_field=None,
        horizon=1,
        n_action_steps=1,
    )
    episodes = read_recorded(demos, reading, label, config.image_features)
    scale = ActionScale.fit(episodes.action_MA)
    replay = as_replay(episodes, scale, config, mc_return=isinstance(config, CalQlConfig))
    sizes = Sizes(observation=episodes.observation_MO.shape[1], action=episodes.action_MA.shape[1])
    learner = new_learner(config, sizes, run.seed)
    if not isinstance(config, CalQlConfig):
        shrink_final_layers(learner.networks)  # type: ignore[arg-type]
    fit_features(learner.networks.features, replay)
    probability = None if weighting is None else trajectory_probability(replay, weighting)
    metrics = run_updates(
        learner,
        replay,
        OfflineConfig(updates=config.updates, batch_size=config.batch_size),
        run,
        identity(settings, demos),
        out,
        progress,
        probability=probability,
    )
    save_learner(out, learner, config, scale, episodes.card, reading.stream)
    finish_curve(out)
    return {**episodes.summary, **metrics}
