"""Builds the learner of a human-in-the-loop session from its demonstrations, and saves its
policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from policies.networks.config import TrunkConfig
from policies.rl.hil.config import RelativeFeature
from policies.rl.off_policy.config import GripperConfig, SacConfig
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.schema import EpisodeSchema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import ActionSpec, FieldSpec
from robots.wire.actor_card import ActorCard
from robots.wire.steps import Steps, plain_steps

if TYPE_CHECKING:
    from policies.rl.networks.ensemble import Features
    from policies.rl.off_policy.sac import Sac
    from policies.rl.replay.transitions import Sizes

Publish = Callable[[Any], tuple[ActorCard, dict[str, np.ndarray]]]
"""Exports a learner's actor as card and parameters; see `policies.rl.actor_export.sac_actor`."""


Maps = Sequence[tuple[str, int, int, int]]
"""(name, channels, rows, columns) of the feature maps of cameras."""
Encode = Callable[[Observation], Mapping[str, np.ndarray]]
"""Maps observations (N, ...) to the feature maps of their pictures, by field."""


class ActionTranslation(Protocol):
    """Interface of the conversion from environment actions to learner actions, implemented by
    `robots.control.gripper_commands.CommandedGripper`."""

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """Converts environment actions (N, W), such as a person's, to learner actions (N, A)."""
        ...

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: whether learner actions (N, A) reverse the gripper."""
        ...


def make_learner(
    sac: SacConfig,
    fields: Mapping[str, FieldSpec],
    action: ActionSpec,
    demonstrations: Sequence[Steps],
    *,
    relative_features: Sequence[RelativeFeature] = (),
    scaled_features: Sequence[RelativeFeature] = (),
    maps: Maps = (),
    seed: int = 0,
) -> Sac:
    """New learner with its normalisation fitted to the demonstrations.

    Args:
        sac: options of SAC; if the action has a gripper, a gripper critic is always added.
        fields: fields of the observation vector, in order.
        action: action of the environment.
        demonstrations: at least one demonstration.
        relative_features: additional linear network inputs.
        scaled_features: additional network inputs through tanh.
        maps: feature maps of a frozen trunk; see `policies.rl.replay.transitions.Sizes`.
        seed: seed of the initial weights.

    Raises:
        HandoffError: a feature uses a field that is not in the observation vector.
    """
    from policies.rl.off_policy.sac_bc import sac_learner

    sizes = learner_sizes(
        fields,
        action,
        relative_features=relative_features,
        scaled_features=scaled_features,
        maps=maps,
    )
    learner = sac_learner(with_gripper(sac) if has_gripper(action) else sac, sizes, seed)
    fit_features(learner.networks.features, demonstrations)
    return learner


def learner_sizes(
    fields: Mapping[str, FieldSpec],
    action: ActionSpec,
    *,
    relative_features: Sequence[RelativeFeature] = (),
    scaled_features: Sequence[RelativeFeature] = (),
    maps: Maps = (),
) -> Sizes:
    """Sizes of observations and actions of a learner; see `make_learner`.

    Raises:
        HandoffError: a feature uses a field that is not in the observation vector.
    """
    from policies.rl.replay.transitions import Sizes

    return Sizes(
        observation=sum(prod(spec.shape) for spec in fields.values()),
        action=action.size,
        relative_features=tuple(_feature_spec(fields, feature) for feature in relative_features),
        scaled_features=tuple(_feature_spec(fields, feature) for feature in scaled_features),
        maps=tuple(maps),
    )


def fit_features(features: Features, demonstrations: Sequence[Steps]) -> None:
    """Fits the normalisation of a learner's features to the range of demonstrations."""
    import torch

    obs = np.concatenate([steps.observation for steps in demonstrations])
    features.fit(torch.from_numpy(obs.min(axis=0)), torch.from_numpy(obs.max(axis=0)))


def has_gripper(action: ActionSpec) -> bool:
    """Whether the last entry of an action commands a gripper."""
    return action.names[-1:] == ("gripper",)


def with_gripper(sac: SacConfig) -> SacConfig:
    """SAC options with a gripper critic, added if there is none."""
    return sac if sac.gripper is not None else replace(sac, gripper=GripperConfig())


def demonstration_steps(
    store: EpisodeStore,
    vector: Callable[[Observation], np.ndarray],
    actions: ActionTranslation,
    encode: Encode | None = None,
) -> Iterator[Steps]:
    """Converts demonstrations to steps for the learner, one episode at a time, with reward 1 at
    success and 0 elsewhere.

    Args:
        store: demonstrations.
        vector: converts observations (N, ...) to observation vectors (N, O).
        actions: converts actions of the store to learner actions.
        encode: encodes the pictures of observations; None leaves them out.
    """
    for episode in range(store.num_episodes):
        rows, final = store.read(episode, STREAM), store.read(episode, FINAL)
        obs = np.concatenate([vector(rows), vector(final)])
        count = len(rows["action"])
        last = np.arange(count) == count - 1
        solved = last & (rows["success"] > 0)
        command = actions.from_env(rows["action"].astype(np.float64), rows)
        steps = plain_steps(
            episode=np.full(count, episode),
            number=np.arange(count),
            observation=obs[:-1],
            action=command,
            reward=solved,
            next_observation=obs[1:],
            terminated=solved,
            truncated=last & ~solved,
            demo=True,
            toggle=actions.toggled(command, rows),
        )
        if encode is not None:
            before, after = encode(rows), encode(final)
            steps = steps._replace(
                pictures=before,
                next_pictures={
                    name: np.concatenate([maps[1:], after[name]]) for name, maps in before.items()
                },
            )
        yield steps


def save_learned_policy(
    folder: Path,
    learner: Any,
    publish: Publish,
    schema: EpisodeSchema,
    fields: Sequence[str],
    version: int,
    gripper_width_max: float,
    action: ActionSpec,
    trunk: TrunkConfig | None = None,
) -> None:
    """Writes the learned policy to a folder.

    Args:
        folder: output folder.
        learner: trained learner.
        publish: exports the learner's actor.
        schema: episode schema of the demonstrations.
        fields: fields of the observation vector, in order.
        version: version of the parameters, the number of updates.
        gripper_width_max: maximum opening of the robot's gripper [m].
        action: action of the environment.
        trunk: frozen trunk whose feature maps the actor reads; None without pictures.
    """
    from policies.card import PolicyCard
    from policies.families.rl_actor import save_actor
    from policies.policy_config import LearnedActorConfig
    from robots.wire.learner import Parameters

    card, arrays = publish(learner)
    stream = schema.stream(STREAM)
    policy = PolicyCard(
        task=schema.name,
        rate_hz=stream.rate_hz,
        observation={name: stream.fields[name] for name in fields},
        action=stream.fields["action"],
        sensors={camera.field: stream.fields[camera.field] for camera in card.maps},
        model=LearnedActorConfig(
            observation_fields=tuple(fields),
            image_fields=tuple(camera.field for camera in card.maps),
            card=card,
            trunk=trunk,
            gripper_width_max=gripper_width_max,
        ),
        robot=schema.robot,
    )
    # A policy that commands the gripper writes entries of the environment, unscaled.
    bounds = (action.low, action.high) if card.hand is None else None
    save_actor(folder, policy, Parameters(version, card, arrays), bounds)


def _feature_spec(
    fields: Mapping[str, FieldSpec], feature: RelativeFeature
) -> tuple[int, int, int, float]:
    begin = _field_offset(fields, feature.field, feature.entries)
    other = -1 if feature.other is None else _field_offset(fields, feature.other, feature.entries)
    return begin, other, feature.entries, feature.scale


def _field_offset(fields: Mapping[str, FieldSpec], name: str, entries: int) -> int:
    """Offset of a field in the observation vector."""
    begin = 0
    for field, spec in fields.items():
        if field == name and prod(spec.shape) >= entries:
            return begin
        begin += prod(spec.shape)
    raise HandoffError(
        f"learner: a feature uses {entries} entries of '{name}', which the observation vector does not "
        "have. Its fields "
        f"are {list(fields)}."
    )
