"""Learner process of the stage `correct`: SAC with a demonstration buffer; saves its policy."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from flows.correction.actor_process import learner_actions
from flows.correction.config import CorrectConfig
from real.hil.interfaces import observation_vector
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.spec import ActionSpec

STATUS_SECONDS = 0.2
"""Interval between two messages with the counters to the parent [s]."""


def learn(
    config: CorrectConfig,
    folder: Path,
    demonstrations: Path,
    action: ActionSpec,
    token: str,
    parent: Connection,
) -> None:
    """Trains until all steps and the updates due for them are made; writes the policy to `folder`.

    Sends the parent `("ready", port)`, `("counters", ...)` at intervals, and `("enough",)` once the
    actor may end.

    Raises:
        HandoffError: the process was asked to end earlier.
    """
    import torch

    from policies.rl.hil.learner import Counters, run_learner
    from policies.rl.hil.make_learner import demonstration_steps, make_learner, save_learned_policy
    from policies.rl.off_policy.online import updates_due
    from policies.rl.replay.buffer import Replay

    torch.set_num_threads(1)
    # Demonstrations as steps of the learner.
    store = EpisodeStore.open(demonstrations / "store.zarr")
    observed = config.env.observation_fields
    vector = observation_vector(store.schema.stream(FINAL).fields, observed)
    robot = find_robot(config.env.robot)
    steps = list(demonstration_steps(store, vector, learner_actions(action, robot)))
    fields = store.schema.stream(STREAM).fields
    # Learner and replay buffers.
    learner = make_learner(
        config.sac,
        {name: fields[name] for name in observed},
        action,
        steps,
        relative_features=config.relative_features,
        scaled_features=config.scaled_features,
        seed=config.seed,
    )
    size = steps[0].observation.shape[1]
    replay = Replay(config.replay, size, action.size)
    demos = Replay(replace(config.replay, capacity=config.demo_capacity), size, action.size)
    for episode in steps:
        demos.append(episode)
    # Report to the parent, stop after the last update, and pause the actor when the learner lags.
    last_report, enough = 0.0, False

    def stop(counters: Counters) -> bool:
        nonlocal last_report, enough
        if time.monotonic() - last_report >= STATUS_SECONDS:
            last_report = time.monotonic()
            parent.send(("counters", counters._asdict()))
        if counters.steps >= config.steps and not enough:
            enough = True
            parent.send(("enough",))
        return enough and counters.updates >= updates_due(config.online, config.steps)

    def pause(counters: Counters) -> bool:
        overdue = updates_due(config.online, counters.steps) - counters.updates
        return config.backlog is not None and overdue > config.backlog

    counters = run_learner(
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
    width_max = robot.gripper.width_max
    save_learned_policy(folder, learner, store.schema, observed, counters.updates, width_max)
    parent.send(("counters", counters._asdict()))


def _ended_early(config: CorrectConfig, steps: int) -> HandoffError:
    return HandoffError(
        f"learner: ended by a signal after {steps} of {config.steps} steps; its state is saved. Run the same command "
        "to resume."
    )
