"""The learner's process of the stage `train`: SAC with a demonstration buffer, and its policy as a
directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from flows.hil.config import CorrectConfig, Difference
from real.hil.interfaces import Actions, observation_vector
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps

SAY_SECONDS = 0.2


def learn(
    config: CorrectConfig,
    folder: Path,
    demonstrations: Path,
    action: ActionSpec,
    token: str,
    parent: Connection,
) -> None:
    """Learns until all steps and the updates owed for them are made; writes the policy to `folder`.

    Says to the parent `("ready", port)`, `("counters", ...)` now and then, and `("enough",)` once
    the actor may end.

    Raises:
        HandoffError: it was asked to end before.
    """
    import torch

    from policies.rl.hil.learner import Counters, train
    from policies.rl.off_policy.online import due
    from policies.rl.replay.buffer import Replay

    torch.set_num_threads(1)
    store = EpisodeStore.open(demonstrations / "store.zarr")
    steps = list(demonstration_steps(store, config, action))
    size = steps[0].observation.shape[1]
    learner = new_learner(config, size, action, steps, store.schema.stream(STREAM).fields)
    replay = Replay(config.replay, size, action.size)
    demos = Replay(_with_capacity(config), size, action.size)
    for episode in steps:
        demos.append(episode)
    said, enough = 0.0, False

    def stop(counters: Counters) -> bool:
        nonlocal said, enough
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            parent.send(("counters", counters._asdict()))
        if counters.steps >= config.steps and not enough:
            enough = True
            parent.send(("enough",))
        return enough and counters.updates >= due(config.online, config.steps)

    def pause(counters: Counters) -> bool:
        behind = due(config.online, counters.steps) - counters.updates
        return config.backlog is not None and behind > config.backlog

    counters = train(
        folder / "learner",
        learner,
        replay,
        demos,
        config.online,
        config.learner,
        token,
        seed=config.seed,
        stop=stop,
        pause=pause,
        ready=lambda port: parent.send(("ready", port)),
    )
    if not stop(counters):
        raise _ended_early(config, counters.steps)
    save_learned(folder, config, learner, store, counters.updates)
    parent.send(("counters", counters._asdict()))


def _ended_early(config: CorrectConfig, steps: int) -> HandoffError:
    return HandoffError(
        f"learner: ended by a signal after {steps} of {config.steps} steps; all it has is saved. Run the same command "
        "to go on."
    )


def new_learner(
    config: CorrectConfig,
    size: int,
    action: ActionSpec,
    steps: list[Steps],
    fields: dict[str, FieldSpec],
) -> Any:
    """The learner before its first update, its normalisation fitted to the demonstrations.

    Args:
        config: options.
        size: O.
        action: of the world.
        steps: demonstrations.
        fields: of the observation.

    Raises:
        HandoffError: a difference of fields that the learner does not see.
    """
    import torch

    from flows.hil.config import with_hand
    from policies.rl.off_policy.sac_bc import sac_learner
    from policies.rl.replay.transitions import Sizes

    commanded = action.names[-1:] == ("gripper",)
    sac = with_hand(config.sac) if commanded else config.sac
    sizes = Sizes(
        observation=size,
        action=action.size,
        differences=tuple(_taken(config, fields, difference) for difference in config.differences),
        close_ups=tuple(_taken(config, fields, close_up) for close_up in config.close_ups),
    )
    learner = sac_learner(sac, sizes, config.seed)
    seen = np.concatenate([episode.observation for episode in steps])
    learner.networks.features.fit(
        torch.from_numpy(seen.min(axis=0)), torch.from_numpy(seen.max(axis=0))
    )
    return learner


def demonstration_steps(
    store: EpisodeStore, config: CorrectConfig, action: ActionSpec
) -> Iterator[Steps]:
    """The demonstrations as the learner takes them, an episode at a time: reward 1 at success and 0
    elsewhere."""
    from flows.hil.actor_process import learner_actions

    actions: Actions = learner_actions(action)
    vector = observation_vector(store.schema.stream(FINAL).fields, config.world.observation_fields)
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
    folder: Path, config: CorrectConfig, learner: Any, store: EpisodeStore, version: int
) -> None:
    """Writes the learned policy into the directory `folder`."""
    from policies.card import PolicyCard
    from policies.families.rl_actor import save_actor
    from policies.policy_config import LearnedActorConfig
    from policies.rl.actor_export import sac_actor
    from robots.wire.learner import Parameters

    card, arrays = sac_actor(learner)
    stream = store.schema.stream(STREAM)
    seen = config.world.observation_fields
    policy = PolicyCard(
        task=store.schema.name,
        rate_hz=stream.rate_hz,
        observation={name: stream.fields[name] for name in seen},
        action=stream.fields["action"],
        model=LearnedActorConfig(observation_fields=seen, card=card),
    )
    save_actor(folder, policy, Parameters(version, card, arrays))


def _taken(
    config: CorrectConfig, fields: dict[str, FieldSpec], shown: Difference
) -> tuple[int, int, int, float]:
    begin = _begin(config, fields, shown.field, shown.entries)
    other = -1 if shown.other is None else _begin(config, fields, shown.other, shown.entries)
    return begin, other, shown.entries, shown.scale


def _begin(config: CorrectConfig, fields: dict[str, FieldSpec], name: str, entries: int) -> int:
    """Where the field begins in the observation vector."""
    from math import prod

    begin = 0
    for field in config.world.observation_fields:
        if field == name and prod(fields[name].shape) >= entries:
            return begin
        begin += prod(fields[field].shape)
    raise HandoffError(
        f"learner: a difference of {entries} entries of '{name}', which are not among what it sees: "
        f"{list(config.world.observation_fields)}."
    )


def _with_capacity(config: CorrectConfig) -> Any:
    from dataclasses import replace

    return replace(config.replay, capacity=config.demo_capacity)
