"""Stores a deployed episode even if a fault ended it: a limit, a lost connection, an error, Ctrl-C
or a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from real.deploy.episode_recorder import LoopRecord, append_episode, tracking_figures
from robots.errors import HandoffError, error_text
from robots.signals import delayed_signals

if TYPE_CHECKING:
    from real.franka.arm import FrankaArm
    from real.franka.state_recorder import StateRecorder
    from robots.episodes.store import EpisodeStore


class EpisodeRecording:
    """One episode at an arm, which is stored when the context ends; an exception in it propagates.

    The context encloses that of the arm: the arm is at rest before anything is written, and an
    error on leaving the arm's context loses nothing. An episode that ended before its first target
    was streamed is not stored.

    Args:
        store: store with a schema by `real.deploy.episode_recorder.deploy_schema`, open for
            appending.
        outcome: called at the end of the episode for its JSON-ready metadata, to which `fault` and
            the figures of `tracking_figures` are added; returns None to store nothing.

    Raises:
        HandoffError: the episode cannot be stored; the message contains the fault that ended it.
    """

    def __init__(
        self, store: EpisodeStore, outcome: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._store = store
        self._outcome = outcome
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
    def of(self, arm: FrankaArm) -> Iterator[None]:
        """Context in which the episode runs; on leaving it waits for the robot's states.

        Raises:
            HandoffError: the states do not arrive.
        """
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
                self._append()
            except Exception as error_in_storing:
                if self.fault is None:
                    raise
                fault = self.fault.removesuffix(".")
                raise HandoffError(
                    f"{fault}. The recorded episode could not be stored: {error_text(error_in_storing)}"
                ) from error_in_storing

    def _await_states(self, arm: FrankaArm) -> None:
        self._recorder = arm.recorder
        if self._recorder is not None and self.record.reference:
            self._recorder.wait(self.record.end)

    def _append(self) -> None:
        record = self.record
        if self._recorder is None or not record.policy or not record.reference:
            return
        outcome = self._outcome()
        if outcome is None:
            return
        robot = self._recorder.arrived(record.begin, record.end)
        figures = tracking_figures(record, robot)
        append_episode(self._store, record, robot, {**outcome, "fault": self.fault, **figures})
        self.figures = figures
