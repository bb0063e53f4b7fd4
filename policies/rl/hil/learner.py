"""The learner's process: steps come in over a websocket, updates go as fast as they can, parameters
go out.

What is acknowledged is on this side's disk: every entry goes into a log first, and the log is read
again from the checkpoint's place on at the next start. So kill -9 at any moment loses no
acknowledged step, and takes none twice; it costs the updates since the last checkpoint, which are
made again.

A training's folder: `learner.pt` (weights, optimisers, counters, and how much of the rest belongs
to them), `replay` and `demos` (see `Replay.save`), `received` (the log), `metrics.jsonl` and
`training.png`.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from policies.checkpoint import read_state, save_state
from policies.random_streams import LearnerStream
from policies.rl.actor_export import sac_actor
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.hil.config import LearnerConfig
from policies.rl.hil.inbox import Inbox, Ledger
from policies.rl.hil.server import LearnerServer
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.online import Batches, Learner, due
from policies.rl.replay.buffer import Replay, sizes_of
from policies.rl.replay.files import HEAD
from policies.training.loggers import JsonLines
from policies.training.plots import draw_training
from robots.errors import HandoffError
from robots.wire.learner import RECENT_EPISODES, ActorCard, Hello, Parameters
from robots.wire.steps import Steps, chosen

STATE = "learner.pt"
METRICS = "metrics.jsonl"
PICTURE = "training.png"
RECEIVED = "received"
BUFFERS = ("replay", "demos")
"""Folders of the buffers."""
UPDATES_PER_START = 10**9
"""Versions of published parameters are this times the number of the learner's start, plus the
updates."""
WAIT_SECONDS = 0.05
"""Time between looks at `stop` while there is nothing to learn [s]."""


class Counters(NamedTuple):
    """Where training stands."""

    steps: int
    """Taken from actors, without demonstrations."""
    updates: int
    episodes: int
    """Ended ones."""
    interventions: int
    """Steps at which a person acted."""
    recent_success: float
    """Share of the last 20 ended episodes that ended in success; 0 before the first."""
    recent_interventions: float
    """Share of their steps at which a person acted; 1 before the first."""


Publish = Callable[[Any], tuple[ActorCard, dict[str, np.ndarray]]]
"""A learner's actor as it is published; `policies.rl.actor_export.sac_actor` for SAC's."""


class Rewrite(Protocol):
    """Gives steps other rewards before they are stored; `policies.rl.hil.rlif.InterventionReward`
    is one."""

    def __call__(self, steps: Steps) -> Steps:
        """The steps whose reward is known by now."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next call depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        ...


class Training:
    """One training in one folder; see `run_learner`, which makes and runs it."""

    def __init__(
        self,
        folder: Path,
        learner: Learner,
        replay: Replay,
        demos: Replay,
        online: OnlineConfig,
        config: LearnerConfig,
        *,
        seed: int,
        publish: Publish,
        rewrite: Rewrite | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.learner = learner
        self.online = online
        self.config = config
        self.seed = seed
        self.publish = publish
        self.rewrite = rewrite
        self.buffers: dict[str, Replay] = dict(zip(BUFFERS, (replay, demos), strict=True))
        self.batches = Batches(online, replay, demos)
        self.statistics = EpisodeStatistics(keep=RECENT_EPISODES)
        self.ledger = Ledger()
        self.applied = 0
        self.updates = self.starts = 0
        self.seconds = 0.0
        self.began = time.monotonic()
        self.lines = JsonLines(folder / METRICS)
        self.known = {name: buffer.added for name, buffer in self.buffers.items()}
        """Steps in each buffer that belong to `applied`; what it holds beyond them comes out of the
        log again."""
        self._resume()
        self.inbox = Inbox(folder / RECEIVED, self.ledger, self.applied, config.log_bytes)
        self.starts += 1
        self._save_state()
        self.receive()
        ahead = {name: buffer.added - self.known[name] for name, buffer in self.buffers.items()}
        if any(ahead.values()):
            self.inbox.close()
            raise HandoffError(
                f"{folder}: buffers hold steps that the log lacks ({ahead}). Was a part of it copied?"
            )
        self.saved = time.monotonic()

    @property
    def counters(self) -> Counters:
        """Now."""
        statistics = self.statistics
        return Counters(
            statistics.steps,
            self.updates,
            statistics.episodes,
            statistics.interventions,
            statistics.success_rate(),
            statistics.intervention_rate(),
        )

    @property
    def due(self) -> bool:
        """Whether the data that are there allow one more update."""
        if math.isinf(self.online.updates_per_step):
            return self.statistics.steps > self.online.training_starts
        return self.updates < due(self.online, self.statistics.steps)

    def receive(self) -> None:
        """Puts what has come into the buffers."""
        for number, message in self.inbox.drain():
            self.ledger.take(message)
            self.applied = number + 1
            if not isinstance(message, Hello):
                self._take(self.ledger.episodes(message))

    def update(self) -> Mapping[str, Any]:
        """One update; its chance depends on the seed and its number alone."""
        draw = np.random.default_rng([self.seed, LearnerStream.REPLAY, self.updates])
        metrics = self.learner.update([self.batches(draw) for _ in range(self.online.minibatches)])
        self.updates += 1
        return metrics

    def parameters(self) -> Parameters:
        """The present actor."""
        return Parameters(
            self.starts * UPDATES_PER_START + self.updates, *self.publish(self.learner)
        )

    def note(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Adds a line to the metrics; returns it."""
        counters = self.counters
        line = {name: float(value) for name, value in metrics.items()}
        line |= {
            name: float(value) for name, value in counters._asdict().items() if name != "updates"
        }
        line |= {
            "recent_length": self.statistics.success_length(),
            "seconds": self._spent(),
            "lost_entries": float(self.ledger.lost),
        }
        self.lines.log(self.updates, line)
        return line

    def checkpoint(self) -> None:
        """Saves all; a crash at any moment leaves the old state or the new one.

        The buffers may be saved and the rest not: then they hold more than belongs to the rest, see
        `known`.
        """
        for name, buffer in self.buffers.items():
            buffer.save(self.folder / name)
        self._save_state()
        self.lines.flush()
        self.inbox.drop(self.applied)
        self.saved = time.monotonic()

    def _take(self, steps: Steps) -> None:
        """To the replay, and what a person did to the demonstrations as well; demonstrations only
        there (HIL-SERL)."""
        if steps.demo.any():
            self._append("demos", chosen(steps, steps.demo))
            steps = chosen(steps, ~steps.demo)
        self.statistics.add_steps(steps)
        if self.rewrite is not None:
            steps = self.rewrite(steps)
        self._append("replay", steps)
        self._append("demos", chosen(steps, steps.intervention))

    def _append(self, name: str, steps: Steps) -> None:
        """Appends those rows that the buffer does not hold already."""
        buffer = self.buffers[name]
        held = min(buffer.added - self.known[name], steps.rows)
        self.known[name] += steps.rows
        if held < steps.rows:
            buffer.append(chosen(steps, np.arange(held, steps.rows)) if held else steps)

    @property
    def _identity(self) -> str:
        """What a checkpoint must agree with."""
        return f"{type(self.learner).__name__} {sizes_of(self.buffers['replay'])} seed {self.seed}"

    def _spent(self) -> float:
        return self.seconds + time.monotonic() - self.began

    def _save_state(self) -> None:
        state = {
            "identity": self._identity,
            "learner": self.learner.state_dict(),
            "rewrite": None if self.rewrite is None else self.rewrite.state_dict(),
            "ledger": self.ledger.state_dict(),
            "tally": self.statistics.state_dict(),
            "counts": {"applied": self.applied, "updates": self.updates, "starts": self.starts},
            "known": dict(self.known),
            "seconds": self._spent(),
            "lines": self.lines.entries,
        }
        save_state(self.folder / STATE, _tensors(state))

    def _resume(self) -> None:
        file = self.folder / STATE
        state = read_state(file, self._identity)
        if state is None:
            if file.exists():
                raise HandoffError(
                    f"{file}: is of another training than {self._identity}. Choose another folder."
                )
            return
        state = _arrays(state)
        self.learner.load_state_dict(state["learner"])
        if self.rewrite is not None:
            self.rewrite.load_state_dict(state["rewrite"])
        self.ledger = Ledger(**state["ledger"])
        self.statistics.load_state_dict(state["tally"])
        counts = state["counts"]
        self.applied = counts["applied"]
        self.updates = counts["updates"]
        self.starts = counts["starts"]
        self.seconds = state["seconds"]
        self.lines = JsonLines(self.folder / METRICS, state["lines"])
        for name, buffer in self.buffers.items():
            if (self.folder / name / HEAD).exists():
                buffer.load(self.folder / name)
            if buffer.added < state["known"][name]:
                raise HandoffError(
                    f"{self.folder / name}: {buffer.added} steps, the checkpoint belongs to {state['known'][name]}. "
                    "Other demonstrations than at the start, or a folder that was removed?"
                )
        self.known = state["known"]


def run_learner(
    folder: Path,
    learner: Learner,
    replay: Replay,
    demos: Replay,
    online: OnlineConfig,
    config: LearnerConfig,
    token: str,
    *,
    seed: int = 0,
    publish: Publish = sac_actor,
    rewrite: Rewrite | None = None,
    stop: Callable[[Counters], bool] = lambda counters: False,
    pause: Callable[[Counters], bool] = lambda counters: False,
    watch: Callable[[Counters, dict[str, float]], None] = lambda counters, metrics: None,
    ready: Callable[[int], None] = lambda port: None,
) -> Counters:
    """Learns until `stop` says so, or SIGTERM or SIGINT comes (main thread only); saves, and
    returns where it stands.

    Args:
        folder: of this training; resumed when there is one in it.
        learner: as made anew; its state comes from the checkpoint when there is one.
        replay: empty. All steps that arrive go there, demonstrations excepted. With pictures: made
            with `folder / "replay"`.
        demos: filled with what was there before the session, the same at every start; corrections
            and demonstrations that arrive are added. Once saved, the checkpoint's content replaces
            it. With pictures: made with `folder / "demos"`.
        online: sizes of minibatches and when to begin; `updates_per_step` is a limit here, infinity
            is none.
        config: see there.
        token: that actors must show.
        seed: of minibatches.
        publish: what actors are sent.
        rewrite: gives what arrives other rewards; None leaves them.
        stop: asked after every update, and while waiting.
        pause: likewise; whether actors shall hold still, for instance because learning cannot keep
            up.
        watch: told every `metrics_every` updates.
        ready: told the port once actors can connect.

    Raises:
        HandoffError: the folder holds another training or a damaged one, the port is taken, the
            disk is full, or the parameters are no longer finite.
    """
    training = Training(
        folder, learner, replay, demos, online, config, seed=seed, publish=publish, rewrite=rewrite
    )
    server = LearnerServer(training.inbox, sizes_of(replay), config, token)
    try:
        with _ends() as ending:
            server.publish(training.parameters())
            ready(server.start())
            while not ending.is_set() and not stop(training.counters):
                training.receive()
                server.pause(pause(training.counters))
                if training.due:
                    metrics = training.update()
                    if training.updates % config.publish_every == 0:
                        server.publish(training.parameters())
                    if training.updates % config.metrics_every == 0:
                        watch(training.counters, training.note(metrics))
                else:
                    training.inbox.wait(WAIT_SECONDS)
                if time.monotonic() - training.saved >= config.checkpoint_seconds:
                    training.checkpoint()
            server.stop()
            training.receive()
            training.checkpoint()
            draw_training(training.lines.entries, folder / PICTURE)
            return training.counters
    finally:
        server.stop()
        training.inbox.close()


@contextmanager
def _ends() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, where signals can be had."""
    ending = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: ending.set()) for number in numbers]
    try:
        yield ending
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _tensors(value: Any) -> Any:
    """Arrays as marked tensors, so that the file can be read without running code."""
    if isinstance(value, np.ndarray):
        return {"__ndarray__": torch.from_numpy(np.array(value))}
    if isinstance(value, Mapping):
        return {name: _tensors(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(one) for one in value)
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    """What `_tensors` was given."""
    if isinstance(value, dict):
        if value.keys() == {"__ndarray__"}:
            tensor: Tensor = value["__ndarray__"]
            return tensor.numpy()
        return {name: _arrays(one) for name, one in value.items()}
    return type(value)(_arrays(one) for one in value) if isinstance(value, list | tuple) else value
