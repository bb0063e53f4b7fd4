"""Learner process of the stage `correct`: trains the session's algorithm and saves its policy."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from flows.correction.actor_process import STATUS_SECONDS, learner_actions
from flows.correction.config import CorrectConfig
from flows.correction.hints import published
from flows.correction.pictures import session_trunk
from flows.correction.versions import newer_judgement, versions_overdue
from real.hil.interfaces import observation_vector
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.spec import ActionSpec

if TYPE_CHECKING:
    from policies.rl.hil.algorithms import LearnerSetup
    from policies.rl.hil.learner import Counters, RewardRelabeling
    from policies.rl.off_policy.config import OnlineConfig


class _Reports:
    """Reports the counters to the parent, and decides when the training ends and when the actor
    waits for updates."""

    def __init__(
        self, config: CorrectConfig, online: OnlineConfig, folder: Path, parent: Connection
    ) -> None:
        self.config = config
        refresh = config.refresh
        self.overdue = None if refresh is None else versions_overdue(folder, refresh.every)
        self.online = online
        self.parent = parent
        self.reported = 0.0
        self.enough = False

    def stop(self, counters: Counters) -> bool:
        """Whether all steps and the updates due for them are made."""
        from policies.rl.off_policy.config import updates_due

        if time.monotonic() - self.reported >= STATUS_SECONDS:
            self.reported = time.monotonic()
            self.parent.send(("counters", counters._asdict()))
        if counters.steps >= self.config.steps and not self.enough:
            self.enough = True
            self.parent.send(("enough",))
        return self.enough and counters.updates >= updates_due(self.online, self.config.steps)

    def pause(self, counters: Counters) -> bool:
        """Whether more updates are overdue than allowed, or two versions of the classifier."""
        from policies.rl.off_policy.config import updates_due

        if self.config.backlog is None:
            return False
        overdue = updates_due(self.online, counters.steps) - counters.updates
        late = self.overdue is not None and self.overdue(counters.episodes)
        return late or overdue > self.config.backlog


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

    from policies.rl.hil.learner import run_learner
    from policies.rl.hil.make_learner import save_learned_policy

    torch.set_num_threads(1)
    store = EpisodeStore.open(demonstrations / "store.zarr")
    setup = _set_up(config, store, offline, action, folder)
    reports = _Reports(config, setup.online, folder, parent)
    counters = run_learner(
        folder / "learner",
        setup.learner,
        setup.replay,
        setup.demos,
        setup.online,
        config.learner,
        token,
        seed=config.seed,
        publish=published(config, setup.publish),
        relabel=_relabelling(config, setup, folder),
        stop=reports.stop,
        pause=reports.pause,
        ready=lambda port: parent.send(("ready", port)),
    )
    if not reports.stop(counters):
        raise _ended_early(config, counters.steps)
    save_learned_policy(
        folder,
        setup.learner,
        setup.publish,
        store.schema,
        config.env.observation_fields,
        counters.updates,
        find_robot(config.env.robot).gripper.width_max,
        action,
        config.trunk if config.actor.pictures else None,
    )
    parent.send(("counters", counters._asdict()))


def _set_up(
    config: CorrectConfig,
    store: EpisodeStore,
    offline: Path | None,
    action: ActionSpec,
    folder: Path,
) -> LearnerSetup:
    """Learner and replay buffers of the algorithm, with the demonstrations of `store`."""
    from policies.rl.hil.algorithms import SessionData, has_saved_maps, set_up_learner
    from policies.rl.hil.make_learner import demonstration_steps

    observed = config.env.observation_fields
    vector = observation_vector(store.schema.stream(FINAL).fields, observed)
    actions = learner_actions(config.algorithm, action, find_robot(config.env.robot))
    fields = store.schema.stream(STREAM).fields
    # The maps of demonstrations are computed once, before the first checkpoint.
    learner_folder = folder / "learner"
    encode = session_trunk(config, folder)
    encoded = None if has_saved_maps(learner_folder) else encode
    data = SessionData(
        fields={name: fields[name] for name in observed},
        action=action,
        demonstrations=list(demonstration_steps(store, vector, actions, encoded)),
        relative_features=config.relative_features,
        scaled_features=config.scaled_features,
        maps=() if encode is None else encode.maps,
        folder=learner_folder,
        offline=offline,
        seed=config.seed,
    )
    return set_up_learner(config.algorithm, data)


def _relabelling(
    config: CorrectConfig, setup: LearnerSetup, folder: Path
) -> RewardRelabeling | None:
    """What replaces rewards: with a classifier that is refreshed, its newest judgement."""
    from policies.rl.hil.judged_success import JudgedSuccess

    if config.refresh is None:
        return setup.relabel
    return JudgedSuccess(newer_judgement(folder))


def _ended_early(config: CorrectConfig, steps: int) -> HandoffError:
    return HandoffError(
        f"learner: ended by a signal after {steps} of {config.steps} steps; its state is saved. Run the same command "
        "to resume."
    )
