"""A small learner of PointReach and an actor beside it, for the tests of the two processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from policies.rl.hil.config import LearnerConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, OnlineConfig, SacConfig
from policies.rl.replay.transitions import Sizes
from tests.toy_envs.point_reach import PointReach
from tests.toy_envs.toy_env import demonstrations
from tests.toy_envs.vec_env import ExpertOperator, ToyActions, ToyVecEnv

TOKEN = "token-of-the-tests"
TINY = MlpSizes(hidden=(8,))
ONLINE = OnlineConfig(batch_size=8, training_starts=10, updates_per_step=2.0)
LONG = 120.0
"""Limit of every wait of these tests [s]: only a defect reaches it."""


def buffers() -> tuple[Any, Any]:
    """An empty replay, and one demonstration."""
    from policies.rl.replay.buffer import Replay
    from policies.rl.replay.config import ReplayConfig

    replay, demos = (Replay(ReplayConfig(capacity=20_000), 7, 3) for _ in range(2))
    for part in demonstrations(PointReach(1, 1000), 1):
        demos.append(part)
    return replay, demos


def sac() -> Any:
    """Eight units."""
    from policies.rl.off_policy.sac import Sac

    config = SacConfig(critic=TINY, actor=TINY, gripper=GripperConfig(network=TINY))
    return Sac(config, Sizes(observation=7, action=3), 0)


def loaded(folder: Path) -> dict[str, np.ndarray]:
    """Columns of the replay that a training has saved, oldest step first."""
    replay, _ = buffers()
    replay.load(folder / "replay")
    return {name: column[: len(replay)] for name, column in replay.columns.items()}


def learn(folder: Path, port: int, tell: Connection) -> None:
    """The learner's process: tells its port, then the counts of updates at which it stands, until
    SIGTERM."""
    import torch

    from policies.rl.hil.learner import run_learner

    torch.set_num_threads(1)
    replay, demos = buffers()
    config = LearnerConfig(port=port, publish_every=5, metrics_every=5, checkpoint_seconds=0.3)
    run_learner(
        folder,
        sac(),
        replay,
        demos,
        ONLINE,
        config,
        TOKEN,
        ready=tell.send,
        watch=lambda counters, _: tell.send(counters.updates),
    )


def act(
    folder: Path,
    port: int,
    steps: int,
    *,
    record: Path,
    die_at: int | None = None,
    commit_every: int = 1,
) -> None:
    """An actor's process: makes control steps and sends them, or kills itself with SIGKILL while it
    makes one.

    Args:
        folder: of the journal.
        port: of the learner.
        steps: to make.
        record: file to which episode and number of every committed step are added.
        die_at: step at which it dies: in the middle of writing the step's record into the journal.
        commit_every: see `ActorConfig`.
    """
    from real.hil.actor import Actor, ActorConfig, ActorStep
    from real.hil.journal import Journal
    from real.hil.learner_client import LearnerClient

    made = 0
    file = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    real_write = os.pwrite

    def torn(descriptor: int, data: memoryview, place: int) -> int:
        if made == die_at:
            real_write(descriptor, data[: len(data) // 2], place)
            os.kill(os.getpid(), 9)
        return real_write(descriptor, data, place)

    def note(acted: ActorStep) -> None:
        nonlocal made
        made += 1
        os.write(file, np.array([acted.steps.episode[0], acted.steps.number[0]]).tobytes())

    env = ToyVecEnv(PointReach)
    config = ActorConfig(commit_every=commit_every)
    with (
        Journal(folder, segment_bytes=4000) as journal,
        LearnerClient(journal, link_config(port), TOKEN, folder) as link,
    ):
        os.pwrite = torn  # type: ignore[assignment]
        actor = Actor(
            env,
            ExpertOperator(env.toy_env, 10, 3),
            journal,
            link,
            config,
            actions=ToyActions(env.toy_env),
            watch=note,
        )
        try:
            actor.run(steps)
        finally:
            os.pwrite = real_write
        assert link.flush(LONG)


def link_config(port: int) -> Any:
    """Patient, but not for long."""
    from real.hil.learner_client import LearnerClientConfig

    return LearnerClientConfig(uri=f"ws://127.0.0.1:{port}", wait_first=0.05, wait_longest=0.2)


class Serving:
    """`run_learner` on a thread of the test, until `stop`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        from policies.rl.hil.learner import run_learner

        self.folder, self._ending = folder, threading.Event()
        replay, demos = buffers()
        ready = threading.Event()
        ports: list[int] = []

        def tell(port: int) -> None:
            ports.append(port)
            ready.set()

        config = LearnerConfig(port=0, publish_every=5, metrics_every=5, checkpoint_seconds=0.3)
        arguments = (folder, sac(), replay, demos, ONLINE, config, TOKEN)
        stop: Callable[[Any], bool] = lambda counters: self._ending.is_set()  # noqa: E731
        self._thread = threading.Thread(
            target=lambda: run_learner(*arguments, stop=stop, ready=tell, **options), daemon=True
        )
        self._thread.start()
        assert ready.wait(LONG)
        self.port = ports[0]

    def stop(self) -> None:
        """Saves and ends."""
        self._ending.set()
        self._thread.join(LONG)
        assert not self._thread.is_alive()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class Counted:
    """A clock for simulated environments that lets the other threads run.

    Args:
        seconds: real time per step [s], whatever the step says.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ticks = seconds, 0

    def now(self) -> float:
        """Steps so far."""
        return float(self._ticks)

    def advance(self, seconds: float) -> float:
        """One step more."""
        self._ticks += 1
        time.sleep(self._seconds)
        return self.now()
