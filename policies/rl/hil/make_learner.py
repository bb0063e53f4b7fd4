"""Makes the learner of a human-in-the-loop session from its demonstrations, and saves the policy
that it has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from policies.rl.hil.config import Difference
from policies.rl.off_policy.config import GripperConfig, SacConfig
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.schema import EpisodeSchema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps

if TYPE_CHECKING:
    from policies.rl.off_policy.sac import Sac


class ActionTranslation(Protocol):
    """From the environment's actions to the learner's;
    `robots.control.gripper_commands.CommandedHand` is one."""

    def from_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, W) of the environment, such as a person's, to (N, A) of the learner."""
        ...

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: the learner's action (N, A) tells the gripper to turn round."""
        ...


def make_learner(
    sac: SacConfig,
    fields: Mapping[str, FieldSpec],
    action: ActionSpec,
    demonstrations: Sequence[Steps],
    *,
    differences: Sequence[Difference] = (),
    close_ups: Sequence[Difference] = (),
    seed: int = 0,
) -> Sac:
    """The learner before its first update, its normalisation fitted to the demonstrations.

    Args:
        sac: options; an action with a gripper gets a critic for it in any case.
        fields: of the observation vector, in their order there.
        action: of the environment.
        demonstrations: at least one.
        differences: what the learner is shown beside the vector.
        close_ups: likewise, but through tanh.
        seed: of the initial weights.

    Raises:
        HandoffError: a difference of fields that the learner does not see.
    """
    import torch

    from policies.rl.off_policy.sac_bc import sac_learner
    from policies.rl.replay.transitions import Sizes

    commanded = action.names[-1:] == ("gripper",)
    sizes = Sizes(
        observation=demonstrations[0].observation.shape[1],
        action=action.size,
        differences=tuple(_entries(fields, shown) for shown in differences),
        close_ups=tuple(_entries(fields, shown) for shown in close_ups),
    )
    learner = sac_learner(with_gripper(sac) if commanded else sac, sizes, seed)
    seen = np.concatenate([steps.observation for steps in demonstrations])
    learner.networks.features.fit(
        torch.from_numpy(seen.min(axis=0)), torch.from_numpy(seen.max(axis=0))
    )
    return learner


def with_gripper(sac: SacConfig) -> SacConfig:
    """The learner with a critic for the gripper, unless it has one."""
    return sac if sac.gripper is not None else replace(sac, gripper=GripperConfig())


def demonstration_steps(
    store: EpisodeStore, vector: Callable[[Observation], np.ndarray], actions: ActionTranslation
) -> Iterator[Steps]:
    """The demonstrations as the learner takes them, an episode at a time: reward 1 at success and 0
    elsewhere.

    Args:
        store: the demonstrations.
        vector: from observations (N, ...) to what the learner sees (N, O).
        actions: from those of the store to the learner's.
    """
    for episode in range(store.num_episodes):
        rows, final = store.read(episode, STREAM), store.read(episode, FINAL)
        seen = np.concatenate([vector(rows), vector(final)])
        count = len(rows["action"])
        last = np.arange(count) == count - 1
        solved = last & (rows["success"] > 0)
        command = actions.from_world(rows["action"].astype(np.float64), rows)
        yield plain_steps(
            episode=np.full(count, episode),
            number=np.arange(count),
            observation=seen[:-1],
            action=command,
            reward=solved,
            next_observation=seen[1:],
            terminated=solved,
            truncated=last & ~solved,
            demo=True,
            toggle=actions.toggled(command, rows),
        )


def save_learned(
    folder: Path,
    learner: Sac,
    schema: EpisodeSchema,
    fields: Sequence[str],
    version: int,
    gripper_width_max: float,
) -> None:
    """Writes the learned policy into a directory.

    Args:
        folder: the directory.
        learner: that has learned.
        schema: of the demonstrations.
        fields: of the observation vector, in their order there.
        version: of the parameters: updates made.
        gripper_width_max: largest opening of the robot's gripper [m].
    """
    from policies.card import PolicyCard
    from policies.families.rl_actor import save_actor
    from policies.policy_config import LearnedActorConfig
    from policies.rl.actor_export import sac_actor
    from robots.wire.learner import Parameters

    card, arrays = sac_actor(learner)
    stream = schema.stream(STREAM)
    policy = PolicyCard(
        task=schema.name,
        rate_hz=stream.rate_hz,
        observation={name: stream.fields[name] for name in fields},
        action=stream.fields["action"],
        model=LearnedActorConfig(
            observation_fields=tuple(fields), card=card, gripper_width_max=gripper_width_max
        ),
        robot=schema.robot,
    )
    save_actor(folder, policy, Parameters(version, card, arrays))


def _entries(fields: Mapping[str, FieldSpec], shown: Difference) -> tuple[int, int, int, float]:
    begin = _begin(fields, shown.field, shown.entries)
    other = -1 if shown.other is None else _begin(fields, shown.other, shown.entries)
    return begin, other, shown.entries, shown.scale


def _begin(fields: Mapping[str, FieldSpec], name: str, entries: int) -> int:
    """Where the field begins in the observation vector."""
    begin = 0
    for field, spec in fields.items():
        if field == name and prod(spec.shape) >= entries:
            return begin
        begin += prod(spec.shape)
    raise HandoffError(
        f"learner: a difference of {entries} entries of '{name}', which are not among what it sees: {list(fields)}."
    )
