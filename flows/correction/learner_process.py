"""Learner process of the stage `correct`: trains the session's algorithm and saves its policy."""

from __future__ import annotations

import time
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
    offline: Path | None,
    action: ActionSpec,
    token: str,
    parent: Connection,
) -> None:
    """Trains until all steps and the updates due for them are made; writes the policy to `folder`.
    `offline` is the policy that WSRL goes on from.

    Sends the parent `("ready", port)`, `("counters", ...)` at intervals, and `("enough",)` once the
    actor may end.

    Raises:
        HandoffError: the process was asked to end earlier.
    """
    import torch

    from policies.rl.hil.algorithms import SessionData, set_up_learner
    from policies.rl.hil.learner import Counters, run_learner
    from policies.rl.hil.make_learner import demonstration_steps, save_learned_policy
    from policies.rl.off_policy.online import updates_due

    torch.set_num_threads(1)
    # Demonstrations as steps of the learner.
    store = EpisodeStore.open(demonstrations / "store.zarr")
    observed = config.env.observation_fields
    vector = observation_vector(store.schema.stream(FINAL).fields, observed)
    robot = find_robot(config.env.robot)
    steps = list(demonstration_steps(store, vector, learner_actions(action, robot)))
    fields = store.schema.stream(STREAM).fields
    # Learner and replay buffers.
    setup = set_up_learner(
        config.algorithm,
        SessionData(
            fields={name: fields[name] for name in observed},
            action=action,
            demonstrations=steps,
            relative_features=config.relative_features,
            scaled_features=config.scaled_features,
            offline=offline,
            seed=config.seed,
        ),
    )
    online = setup.online
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
        return enough and counters.updates >= updates_due(online, config.steps)

    def pause(counters: Counters) -> bool:
        overdue = updates_due(online, counters.steps) - counters.updates
        return config.backlog is not None and overdue > config.backlog

    counters = run_learner(
        folder / "learner",
        setup.learner,
        setup.replay,
        setup.demos,
        online,
        config.learner,
        token,
        seed=config.seed,
        publish=setup.publish,
        relabel=setup.relabel,
        stop=stop,
        pause=pause,
        ready=lambda port: parent.send(("ready", port)),
    )
    if not stop(counters):
        raise _ended_early(config, counters.steps)
    save_learned_policy(
        folder,
        setup.learner,
        setup.publish,
        store.schema,
        observed,
        counters.updates,
        robot.gripper.width_max,
        action,
    )
    parent.send(("counters", counters._asdict()))


def _ended_early(config: CorrectConfig, steps: int) -> HandoffError:
    return HandoffError(
        f"learner: ended by a signal after {steps} of {config.steps} steps; its state is saved. Run the same command "
        "to resume."
    )
