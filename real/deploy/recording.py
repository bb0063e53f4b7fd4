"""Records a deployed episode, and stores it even if a fault ended it.

A fault is a limit, a lost connection, an error, Ctrl-C or a signal. The episode is written to the
disk while it runs, so that a kill loses its last moments only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from real.deploy.episode_recorder import LoopRecord, RecordWriter, num_rows, tracking_figures
from robots.episodes.running_episode import EpisodeSink, MemoryRecording, RunningEpisode
from robots.errors import HandoffError, error_text
from robots.signals import delayed_signals
from robots.specifications.shares import outcomes

if TYPE_CHECKING:
    from real.driver.driven_arm import DrivenArm
    from real.franka.state_recorder import StateRecorder
    from robots.episodes.store import EpisodeStore

SYNC_SECONDS = 1.0
"""Time after which the rows of a running episode are flushed to the disk, which bounds the loss if
the power fails [s]."""


class EpisodeRecording:
    """One episode at an arm, which is stored when the context ends; an exception in it propagates.

    The context encloses that of the arm: the arm is at rest before the episode is committed, and an
    error on leaving the arm's context loses nothing. An episode that ended before its first target
    was streamed is not stored. If the disk cannot be written, the error ends the episode.

    Args:
        store: store with a schema by `real.deploy.episode_recorder.deploy_schema`, open for
            appending.
        outcome: called at the end of the episode for its JSON-ready metadata, to which `fault`, the
            figures of `tracking_figures` and the outcomes of specifications are added; returns None
            to store nothing.
        begin: called when the episode begins for the JSON-ready metadata that are known then. The
            episode is written while it runs, and after a kill
            `robots.episodes.running_episode.recover_interrupted` stores it with these metadata.
            None keeps the running episode in memory, for a simulated one that is run again after a
            kill.
        dropped: store with the same schema, on the same disk, of episodes with a `discard_reason`;
            None stores them with the others.

    Raises:
        HandoffError: the episode cannot be stored; the message contains the fault that ended it.
    """

    def __init__(
        self,
        store: EpisodeStore,
        outcome: Callable[[], Mapping[str, Any] | None],
        begin: Callable[[], Mapping[str, Any]] | None = None,
        dropped: EpisodeStore | None = None,
    ) -> None:
        self._store = store
        self._dropped = dropped
        self._outcome = outcome
        self._begin = begin
        self._about: Mapping[str, Any] = {}
        self._writer: RecordWriter | None = None
        self._recorder: StateRecorder | None = None
        self._error: BaseException | None = None
        self.record = LoopRecord()
        """Record to be filled by `run_episode`."""
        self.figures: dict[str, float] = {}
        """Figures of the arm's tracking, once the episode is stored."""

    @property
    def fault(self) -> str | None:
        """Message of the error that ended the episode, or None."""
        return None if self._error is None else error_text(self._error)

    @property
    def error(self) -> BaseException | None:
        """The error that ended the episode, or None."""
        return self._error

    @contextmanager
    def of(self, arm: DrivenArm) -> Iterator[None]:
        """Context in which the episode runs; on leaving it waits for the robot's states.

        Raises:
            HandoffError: the states do not arrive, or the disk cannot be written.
        """
        self._open(arm)
        try:
            yield
        except BaseException as error:
            self._error = error
            # The fault may have cut off the last states; then the fault is the error to raise.
            with suppress(HandoffError):
                self._await_states(arm)
            raise
        self._await_states(arm)

    def __enter__(self) -> EpisodeRecording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._error is None:
            self._error = error
        with delayed_signals():
            try:
                self._store_episode()
            except Exception as error_in_storing:
                if self._error is None:
                    raise
                # A disk that could not be written may have ended the episode as well.
                if error_text(error_in_storing) != self.fault:
                    fault = error_text(self._error).removesuffix(".")
                    raise HandoffError(
                        f"{fault}. The recorded episode could not be stored: {error_text(error_in_storing)}"
                    ) from error_in_storing

    def _open(self, arm: DrivenArm) -> None:
        """Begins the recording of an episode at `arm`."""
        if self._begin is None:
            sink: EpisodeSink = MemoryRecording(self._store, self._store.schema)
        else:
            self._about = self._begin()
            sink = RunningEpisode(self._store, self._about, SYNC_SECONDS)
        writer = RecordWriter(self.record, sink)

        def write() -> None:
            # The arm makes its recorder when it takes control.
            if arm.recorder is not None:
                writer.write(arm.recorder)

        self._writer = writer
        self.record.write = write

    def _await_states(self, arm: DrivenArm) -> None:
        self._recorder = arm.recorder
        if self._recorder is not None and self.record.reference:
            self._recorder.wait(self.record.end)

    def _store_episode(self) -> None:
        """Commits the episode, or drops it if there is nothing to store."""
        record = self.record
        if self._writer is None:
            return
        streamed = num_rows(record.policy) and num_rows(record.reference)
        outcome = self._outcome() if streamed and self._recorder is not None else None
        if outcome is None or self._recorder is None:
            self._writer.discard()
            return
        period = 1.0 / self._store.schema.streams["reference"].rate_hz
        states = self._recorder.arrived(record.begin, record.end)
        figures = tracking_figures(record, states, period)
        metadata = {**self._about, **outcome, "fault": self.fault, **figures}
        if record.specifications:
            metadata["specifications"] = outcomes(record.specifications)
        into = self._dropped if metadata.get("discard_reason") else None
        self._writer.commit(self._recorder, metadata, into)
        self.figures = figures
