"""Sets up the algorithm of a correction session: learner, replay buffers, updates and rewards.

All algorithms run in the same learner process (`policies.rl.hil.learner`) and exchange the same
steps and actors with the robot. They differ in the following.

| algorithm | buffers at the start                    | minibatches           | reward             |
|-----------|-----------------------------------------|-----------------------|--------------------|
| HIL-SERL  | demonstrations apart                    | half demonstrations   | success            |
| RLPD      | demonstrations apart                    | half demonstrations   | success            |
| RLIF      | demonstrations in the replay, reward 0  | replay                | interventions only |
| WSRL      | empty                                   | replay                | success            |
| JSRL      | demonstrations apart                    | replay                | success            |
| HG-DAgger | demonstrations apart                    | demonstrations only   | none               |

"Demonstrations" includes corrections, which are added to both buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from policies.random_streams import LearnerStream
from policies.rl.hil.config import (
    HgDaggerConfig,
    HilAlgorithm,
    HilJsrlConfig,
    HilReplayConfig,
    HilRlpdConfig,
    HilSerlConfig,
    HilWsrlConfig,
    RelativeFeature,
    RlifConfig,
    ScaledTanhFeature,
)
from policies.rl.hil.make_learner import (
    Maps,
    Publish,
    fit_features,
    has_gripper,
    learner_sizes,
    make_learner,
)
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps

if TYPE_CHECKING:
    from policies.rl.hil.learner import RewardRelabeling
    from policies.rl.off_policy.online import Learner
    from policies.rl.off_policy.sac import Sac
    from policies.rl.replay.buffer import Replay

UNREAD_CAPACITY = 1024
"""Capacity of a buffer that the algorithm does not sample from [steps]."""


@dataclass(frozen=True)
class SessionData:
    """Data of a session that determine its learner."""

    fields: Mapping[str, FieldSpec]
    """Fields of the observation vector, in order."""
    action: ActionSpec
    """Action of the environment."""
    demonstrations: Sequence[Steps]
    """Demonstrations, one entry per episode, at least one."""
    relative_features: Sequence[RelativeFeature] = ()
    """Additional linear network inputs."""
    scaled_features: Sequence[ScaledTanhFeature] = ()
    """Additional network inputs through tanh."""
    maps: Maps = ()
    """Feature maps that the steps have as pictures."""
    folder: Path | None = None
    """Folder of the learner, whose subfolders keep the maps of the buffers; None keeps maps in
    memory."""
    offline: Path | None = None
    """Folder of the policy that WSRL goes on from."""
    seed: int = 0
    """Seed of weights and minibatches."""


@dataclass(frozen=True)
class LearnerSetup:
    """Arguments of `policies.rl.hil.learner.run_learner` that depend on the algorithm."""

    learner: Learner
    """New learner."""
    replay: Replay
    """Buffer of the steps that the actor sends."""
    demos: Replay
    """Buffer of demonstrations and corrections."""
    online: OnlineConfig
    """Updates per step, and composition of the minibatches."""
    publish: Publish
    """Exports the learner's actor."""
    relabel: RewardRelabeling | None = None
    """Replaces the rewards of received steps; None keeps them."""


def set_up_learner(algorithm: HilAlgorithm, data: SessionData) -> LearnerSetup:
    """Learner and buffers of an algorithm at the start of a session.

    Args:
        algorithm: options of the algorithm.
        data: demonstrations, observations and actions of the session.

    Raises:
        HandoffError: a feature uses a field that is not in the observation vector, or WSRL has no
            offline learner, or one that does not fit.
    """
    match algorithm:
        case HilSerlConfig() | HilRlpdConfig() | HilJsrlConfig():
            return _mixed(algorithm, data)
        case RlifConfig():
            return _rlif(algorithm, data)
        case HilWsrlConfig():
            return _wsrl(algorithm, data)
        case HgDaggerConfig():
            return _hg_dagger(algorithm, data)


def _sac_learner(config: SacConfig, data: SessionData) -> Sac:
    """SAC with the session's observation fields, features and seed."""
    return make_learner(
        config,
        data.fields,
        data.action,
        data.demonstrations,
        relative_features=data.relative_features,
        scaled_features=data.scaled_features,
        maps=data.maps,
        seed=data.seed,
    )


def _mixed(
    algorithm: HilSerlConfig | HilRlpdConfig | HilJsrlConfig, data: SessionData
) -> LearnerSetup:
    """SAC on steps, and on demonstrations and corrections apart from them."""
    from policies.rl.actor_export import sac_actor

    learner = _sac_learner(algorithm.sac, data)
    replay = _buffer(algorithm.replay, data, name="replay")
    demos = _buffer(algorithm.replay, data, algorithm.demo_capacity, name="demos")
    # Saved buffers hold the demonstrations, and their maps need not be computed again.
    if not has_saved_maps(data.folder if data.maps else None):
        for episode in data.demonstrations:
            demos.append(episode)
    return LearnerSetup(learner, replay, demos, algorithm.online.online(), sac_actor)


def has_saved_maps(folder: Path | None) -> bool:
    """Whether the learner's `folder` has a saved buffer of demonstrations with their maps."""
    from policies.rl.replay.files import HEAD

    return folder is not None and (folder / "demos" / HEAD).exists()


def _rlif(algorithm: RlifConfig, data: SessionData) -> LearnerSetup:
    """SAC on steps and demonstrations together, whose rewards are those of interventions.

    Demonstrations have no interventions, so their reward is 0 [C]. Their episodes are numbered from
    -1 downwards, apart from those of actors.
    """
    from policies.rl.actor_export import sac_actor
    from policies.rl.hil.rlif import InterventionReward

    learner = _sac_learner(algorithm.sac, data)
    replay = _buffer(algorithm.replay, data)
    for episode in data.demonstrations:
        replay.append(
            episode._replace(
                episode=-1 - episode.episode, reward=np.zeros(episode.rows, np.float32)
            )
        )
    return LearnerSetup(
        learner,
        replay,
        _buffer(algorithm.replay, data, UNREAD_CAPACITY),
        algorithm.online.online(),
        sac_actor,
        InterventionReward(algorithm),
    )


def _wsrl(algorithm: HilWsrlConfig, data: SessionData) -> LearnerSetup:
    """SAC with the weights and normalisation of an offline learner, on an empty replay."""
    from policies.rl.actor_export import sac_actor
    from policies.rl.off_policy.wsrl import load_offline, warm_started

    if data.offline is None:
        raise HandoffError("wsrl: no offline policy. Add one to the stage's inputs, as `offline`.")
    sizes = learner_sizes(
        data.fields,
        data.action,
        relative_features=data.relative_features,
        scaled_features=data.scaled_features,
    )
    networks = load_offline(data.offline, tuple(data.fields), data.action.low, data.action.high)
    return LearnerSetup(
        warm_started(networks, algorithm.sac, sizes, data.seed),
        _buffer(algorithm.replay, data),
        _buffer(algorithm.replay, data, UNREAD_CAPACITY),
        algorithm.online.online(),
        sac_actor,
    )


def _hg_dagger(algorithm: HgDaggerConfig, data: SessionData) -> LearnerSetup:
    """Imitation of demonstrations and corrections, after cloning updates on demonstrations."""
    from policies.rl.hil.hg_dagger import HgDagger, hg_dagger_actor
    from policies.rl.off_policy.online import MinibatchSampler

    sizes = learner_sizes(
        data.fields,
        data.action,
        relative_features=data.relative_features,
        scaled_features=data.scaled_features,
    )
    learner = HgDagger(algorithm, sizes, data.seed, gripper=has_gripper(data.action))
    fit_features(learner.networks["features"], data.demonstrations)  # type: ignore[arg-type]
    unrewarded = HilReplayConfig()
    replay = _buffer(unrewarded, data, UNREAD_CAPACITY)
    demos = _buffer(unrewarded, data, algorithm.demo_capacity)
    for episode in data.demonstrations:
        demos.append(episode)
    online = replace(algorithm.online.online(), demo_share=1.0)
    sampler = MinibatchSampler(online, replay, demos)
    for update in range(algorithm.cloning_updates):
        rng = np.random.default_rng([data.seed, LearnerStream.CLONING, update])
        learner.update([sampler(rng)])
    return LearnerSetup(learner, replay, demos, online, hg_dagger_actor)


def _buffer(
    config: HilReplayConfig, data: SessionData, capacity: int | None = None, name: str = ""
) -> Replay:
    """Empty buffer; one of a `name` keeps the feature maps of the session."""
    from policies.rl.replay.buffer import Replay

    observation = data.demonstrations[0].observation.shape[1]
    options = config.replay(capacity)
    if not (name and data.maps):
        return Replay(options, observation, data.action.size)
    folder = None if data.folder is None else data.folder / name
    return Replay(options, observation, data.action.size, folder=folder, maps=tuple(data.maps))
