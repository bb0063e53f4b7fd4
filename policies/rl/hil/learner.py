"""Runs the learner process: receives steps over a websocket, updates continuously, and publishes
parameters.

An entry is written to a log on disk before it is acknowledged, and at the next start the log is
replayed from the position of the checkpoint. A crash at any moment (kill -9) therefore neither
loses nor duplicates acknowledged steps; the updates since the last checkpoint are repeated.

The output folder contains `learner.pt` (weights, optimisers, counters, and the matching sizes of
the buffers), `replay` and `demos` (see `Replay.save`), `received` (the log), `metrics.jsonl`,
`training.png`, and in `logs` what other loggers write.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from policies.rl.hil.make_learner import Publish
from policies.rl.hil.message_log import MessageLog, SequenceTracker
from policies.rl.hil.server import LearnerServer
from policies.rl.off_policy.config import OnlineConfig, updates_due
from policies.rl.off_policy.online import Learner, MinibatchSampler
from policies.rl.replay.buffer import Replay, sizes_of
from policies.rl.replay.files import HEAD
from policies.training.loggers import EntryLog, JsonLines
from policies.training.plots import draw_training
from robots.errors import HandoffError
from robots.wire.learner import RECENT_EPISODES, Hello, Parameters
from robots.wire.shared_pictures import RECEIVED_EPISODES, SharedPictures
from robots.wire.steps import Steps, select_steps

LOG = logging.getLogger(__name__)
STATE = "learner.pt"
METRICS = "metrics.jsonl"
PICTURE = "training.png"
LOGS = "logs"
RECEIVED = "received"
BUFFERS = ("replay", "demos")
"""Names of the buffers and their folders."""
UPDATES_PER_START = 10**9
"""A parameter version is this times the number of starts, plus the number of updates."""
WAIT_SECONDS = 0.05
"""Interval at which `stop` is checked while no update is due [s]."""


class Counters(NamedTuple):
    """Progress of the training."""

    steps: int
    """Steps received from actors, without demonstrations."""
    updates: int
    """Updates of the learner."""
    episodes: int
    """Ended episodes."""
    interventions: int
    """Steps in which a person acted."""
    recent_success: float
    """Success rate over the last 20 ended episodes; 0 before the first."""
    recent_interventions: float
    """Fraction of the steps of these episodes in which a person acted; 1 before the first."""


class RewardRelabeling(Protocol):
    """Replaces rewards before steps are stored, and later; see
    `policies.rl.hil.rlif.InterventionReward` and `policies.rl.hil.judged_success.JudgedSuccess`."""

    def __call__(self, steps: Steps) -> Steps:
        """Relabelled steps whose reward is known; others are delayed."""
        ...

    def revise(self, buffers: Iterable[Replay]) -> None:
        """Replaces rewards that are stored already; called between updates."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State of the relabelling, including delayed steps."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        ...


class LearnerTraining:
    """State of the training in one folder; constructed and run by `run_learner`."""

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
        relabel: RewardRelabeling | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.learner = learner
        self.online = online
        self.config = config
        self.seed = seed
        self.publish = publish
        self.relabel = relabel
        self.buffers: dict[str, Replay] = dict(zip(BUFFERS, (replay, demos), strict=True))
        self.batches = MinibatchSampler(online, replay, demos)
        self.statistics = EpisodeStatistics(keep=RECENT_EPISODES)
        self.sequences = SequenceTracker()
        self.pictures = SharedPictures(RECEIVED_EPISODES)
        self.applied = 0
        self.updates = self.starts = 0
        self.seconds = 0.0
        self.began = time.monotonic()
        self.lines = JsonLines(folder / METRICS)
        self.log = EntryLog(config, folder / LOGS)
        self.known = {name: buffer.added for name, buffer in self.buffers.items()}
        """Steps in each buffer before log entry `applied`; later ones are replayed from the log."""
        self._resume()
        self.message_log = MessageLog(
            folder / RECEIVED, self.sequences, self.applied, config.log_bytes
        )
        self.starts += 1
        self._save_state()
        self.receive()
        ahead = {name: buffer.added - self.known[name] for name, buffer in self.buffers.items()}
        if any(ahead.values()):
            self.message_log.close()
            raise HandoffError(
                f"{folder}: buffers hold more steps than the log ({ahead}). Was only a part of the folder copied?"
            )
        self.saved = time.monotonic()

    @property
    def counters(self) -> Counters:
        """Current counters."""
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
    def update_due(self) -> bool:
        """Whether the received data allow another update."""
        if math.isinf(self.online.updates_per_step):
            return self.statistics.steps > self.online.training_starts
        return self.updates < updates_due(self.online, self.statistics.steps)

    def receive(self) -> None:
        """Moves received steps into the buffers."""
        for number, message in self.message_log.drain():
            self.sequences.take(message)
            self.applied = number + 1
            if not isinstance(message, Hello):
                steps = self.sequences.with_unique_episodes(message)
                if message.own_pictures is not None:
                    steps = self._with_pictures(steps, message.own_pictures)
                if steps.rows:
                    self._store(steps)

    def _with_pictures(self, steps: Steps, own_pictures: np.ndarray) -> Steps:
        complete = self.pictures.complete(steps, own_pictures)
        if complete.rows < steps.rows:
            LOG.warning(
                "%d steps are left out: the pictures before them were in entries that are lost.",
                steps.rows - complete.rows,
            )
        return complete

    def revise(self) -> None:
        """Replaces stored rewards whose judgement has changed."""
        if self.relabel is not None:
            self.relabel.revise(self.buffers.values())

    def update(self) -> Mapping[str, Any]:
        """One update; its random numbers depend only on the seed and its number."""
        rng = np.random.default_rng([self.seed, LearnerStream.REPLAY, self.updates])
        metrics = self.learner.update([self.batches(rng) for _ in range(self.online.minibatches)])
        self.updates += 1
        return metrics

    def parameters(self) -> Parameters:
        """Current parameters of the actor."""
        return Parameters(
            self.starts * UPDATES_PER_START + self.updates, *self.publish(self.learner)
        )

    def log_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Appends a line to the metrics and returns it."""
        counters = self.counters
        line = {name: float(value) for name, value in metrics.items()}
        line |= {
            name: float(value) for name, value in counters._asdict().items() if name != "updates"
        }
        line |= {
            "recent_length": self.statistics.success_length(),
            "seconds": self._elapsed(),
            "lost_entries": float(self.sequences.lost),
        }
        self.lines.log(self.updates, line)
        return line

    def checkpoint(self) -> None:
        """Saves the complete state; a crash leaves the old or the new state.

        If only the buffers were saved, they hold more steps than the checkpoint; see `known`.
        """
        for name, buffer in self.buffers.items():
            buffer.save(self.folder / name)
        self._save_state()
        self.lines.flush()
        self.log.log(self.lines.entries)
        self.message_log.drop(self.applied)
        self.saved = time.monotonic()

    def _store(self, steps: Steps) -> None:
        """Appends steps to the replay and interventions also to the demonstrations; demonstrations
        go to the latter only (HIL-SERL)."""
        if steps.demo.any():
            self._append("demos", select_steps(steps, steps.demo))
            steps = select_steps(steps, ~steps.demo)
        self.statistics.add_steps(steps)
        if self.relabel is not None:
            steps = self.relabel(steps)
        self._append("replay", steps)
        self._append("demos", select_steps(steps, steps.intervention))

    def _append(self, name: str, steps: Steps) -> None:
        """Appends the rows that the buffer does not hold yet."""
        buffer = self.buffers[name]
        present = min(buffer.added - self.known[name], steps.rows)
        self.known[name] += steps.rows
        if present < steps.rows:
            buffer.append(select_steps(steps, np.arange(present, steps.rows)) if present else steps)

    @property
    def _identity(self) -> str:
        """Identity of the training, which a checkpoint must match."""
        return f"{type(self.learner).__name__} {sizes_of(self.buffers['replay'])} seed {self.seed}"

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.began

    def _save_state(self) -> None:
        state = {
            "identity": self._identity,
            "learner": self.learner.state_dict(),
            "rewrite": None if self.relabel is None else self.relabel.state_dict(),
            "ledger": self.sequences.state_dict(),
            "pictures": self.pictures.state_dict(),
            "tally": self.statistics.state_dict(),
            "counts": {"applied": self.applied, "updates": self.updates, "starts": self.starts},
            "known": dict(self.known),
            "seconds": self._elapsed(),
            "lines": self.lines.entries,
        }
        save_state(self.folder / STATE, _tensors(state))

    def _resume(self) -> None:
        file = self.folder / STATE
        state = read_state(file, self._identity)
        if state is None:
            if file.exists():
                raise HandoffError(
                    f"{file}: is of another training, expected {self._identity}. Choose another folder."
                )
            return
        state = _arrays(state)
        self.learner.load_state_dict(state["learner"])
        if self.relabel is not None:
            self.relabel.load_state_dict(state["rewrite"])
        self.sequences = SequenceTracker(**state["ledger"])
        self.pictures.load_state_dict(state.get("pictures", {}))
        self.statistics.load_state_dict(state["tally"])
        counts = state["counts"]
        self.applied = counts["applied"]
        self.updates = counts["updates"]
        self.starts = counts["starts"]
        self.seconds = state["seconds"]
        self.lines = JsonLines(self.folder / METRICS, state["lines"])
        self.log.resume(self.lines.entries)
        for name, buffer in self.buffers.items():
            if (self.folder / name / HEAD).exists():
                buffer.load(self.folder / name)
            if buffer.added < state["known"][name]:
                raise HandoffError(
                    f"{self.folder / name}: {buffer.added} steps, but the checkpoint has {state['known'][name]}. "
                    "Do the demonstrations differ from the first start, or was a folder removed?"
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
    relabel: RewardRelabeling | None = None,
    stop: Callable[[Counters], bool] = lambda counters: False,
    pause: Callable[[Counters], bool] = lambda counters: False,
    watch: Callable[[Counters, dict[str, float]], None] = lambda counters, metrics: None,
    ready: Callable[[int], None] = lambda port: None,
) -> Counters:
    """Runs the learner until `stop` returns True, or SIGTERM or SIGINT arrives (main thread only);
    saves the state and returns the counters.

    Args:
        folder: output folder; a training in it is resumed.
        learner: new learner; its state is restored from a checkpoint if there is one.
        replay: empty buffer for all received steps except demonstrations. With images, constructed
            with `folder / "replay"`.
        demos: buffer with the demonstrations recorded before, the same at every start; received
            corrections and demonstrations are added. A checkpoint replaces its content. With
            images, constructed with `folder / "demos"`.
        online: sizes of minibatches and steps before the first update; `updates_per_step` is an
            upper limit here, infinity for none.
        config: options of the process.
        token: token that actors must present.
        seed: seed of the minibatches.
        publish: exports the actor's parameters.
        relabel: replaces the rewards of received steps; None keeps them.
        stop: called after every update and while waiting; returns whether to stop.
        pause: called at the same times; returns whether actors should pause, for instance because
            updates cannot keep up.
        watch: called every `metrics_every` updates with counters and metrics.
        ready: called with the port once actors can connect.

    Raises:
        HandoffError: the folder holds another or a damaged training, the port is in use, the disk
            is full, or parameters are not finite.
    """
    training = LearnerTraining(
        folder, learner, replay, demos, online, config, seed=seed, publish=publish, relabel=relabel
    )
    server = LearnerServer(training.message_log, sizes_of(replay), config, token)
    try:
        with _stop_signals() as stopped:
            server.publish(training.parameters())
            ready(server.start())
            while not stopped.is_set() and not stop(training.counters):
                training.receive()
                training.revise()
                server.pause(pause(training.counters))
                if training.update_due:
                    metrics = training.update()
                    if training.updates % config.publish_every == 0:
                        server.publish(training.parameters())
                    if training.updates % config.metrics_every == 0:
                        watch(training.counters, training.log_metrics(metrics))
                else:
                    training.message_log.wait(WAIT_SECONDS)
                if time.monotonic() - training.saved >= config.checkpoint_seconds:
                    training.checkpoint()
            server.stop()
            training.receive()
            training.checkpoint()
            draw_training(training.lines.entries, folder / PICTURE)
            return training.counters
    finally:
        server.stop()
        training.log.close()
        training.message_log.close()


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Event that is set by SIGTERM and SIGINT; in other threads than the main one it is never
    set."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _tensors(value: Any) -> Any:
    """Converts arrays to marked tensors, so that the file can be loaded without executing code."""
    if isinstance(value, np.ndarray):
        return {"__ndarray__": torch.from_numpy(np.array(value))}
    if isinstance(value, Mapping):
        return {name: _tensors(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(entry) for entry in value)
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    """Reverts `_tensors`."""
    if isinstance(value, dict):
        if value.keys() == {"__ndarray__"}:
            tensor: Tensor = value["__ndarray__"]
            return tensor.numpy()
        return {name: _arrays(entry) for name, entry in value.items()}
    return (
        type(value)(_arrays(entry) for entry in value) if isinstance(value, list | tuple) else value
    )
