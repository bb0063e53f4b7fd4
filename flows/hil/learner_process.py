"""The learner's process of the stage `train`: SAC with a demonstration buffer, and its policy as a
directory."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from flows.hil.actor_process import learner_actions
from flows.hil.config import CorrectConfig
from real.hil.interfaces import observation_vector
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.spec import ActionSpec

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

    from policies.rl.hil.learner import Counters, run_learner
    from policies.rl.hil.make_learner import demonstration_steps, make_learner, save_learned
    from policies.rl.off_policy.online import due
    from policies.rl.replay.buffer import Replay

    torch.set_num_threads(1)
    store = EpisodeStore.open(demonstrations / "store.zarr")
    seen = config.world.observation_fields
    vector = observation_vector(store.schema.stream(FINAL).fields, seen)
    robot = find_robot(config.world.robot)
    steps = list(demonstration_steps(store, vector, learner_actions(action, robot)))
    fields = store.schema.stream(STREAM).fields
    learner = make_learner(
        config.sac,
        {name: fields[name] for name in seen},
        action,
        steps,
        differences=config.differences,
        close_ups=config.close_ups,
        seed=config.seed,
    )
    size = steps[0].observation.shape[1]
    replay = Replay(config.replay, size, action.size)
    demos = Replay(replace(config.replay, capacity=config.demo_capacity), size, action.size)
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
    save_learned(folder, learner, store.schema, seen, counters.updates, width_max)
    parent.send(("counters", counters._asdict()))


def _ended_early(config: CorrectConfig, steps: int) -> HandoffError:
    return HandoffError(
        f"learner: ended by a signal after {steps} of {config.steps} steps; all it has is saved. Run the same command "
        "to go on."
    )
