"""The time between two episodes of a session at an arm: a person lays the table, drives the arm
home or guides it by hand, and starts the next episode."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flows.deployment.arms import drive
from flows.deployment.config import ResetConfig
from flows.session.arm_supervisor import WAIT_SECONDS, ArmSupervisor
from real.franka.connection import check_answers
from real.franka.slot import is_on_this_computer
from robots.errors import SafetyError, error_text
from robots.interfaces import Clock, ResetMotion

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.console.control.reset_offer import ResetQuestion
    from real.driver.driven_arm import DrivenArm
    from real.motion.fence import FenceConfig

OBJECTS = "Put the objects back for the next episode."
"""What there is to do, where the session states no sentence of its own."""
AT_START = "The arm is at its start."
DRAWN_SECONDS = 0.1
"""Time between two scenes for the pages while the arm moves [s]."""
TWIN_SECONDS = 2.0
"""Time between two questions whether a simulated arm of another program is there [s]."""


class ResetPlace(Protocol):
    """An arm at its table, between two episodes."""

    manual_reset: bool
    """Whether a person places the objects before every episode."""

    def arm(self) -> DrivenArm:
        """Returns the arm, not yet connected."""
        ...

    def clock(self, arm: DrivenArm) -> Clock:
        """Returns the robot's clock, which runs in real time."""
        ...

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """Returns the joint positions (J,) [rad] over which the connected arm comes to the start of
        an episode."""
        ...

    def follow(self, state: ArmState) -> None:
        """Takes the state of the arm, for those who draw it."""
        ...


class ResetPhase:
    """Waits for a person before every episode.

    Args:
        place: the arm at its table.
        supervisor: the person at the console.
        config: what the pages say, and bounds of hand guiding.
        fence: places that the arm keeps out of.
        host: address of the arm; empty for one that the session simulates itself. A simulated arm
            of another program is asked now and then whether it is there; a real one is not.
    """

    def __init__(
        self,
        place: ResetPlace,
        supervisor: ArmSupervisor,
        config: ResetConfig,
        fence: FenceConfig,
        host: str = "",
    ) -> None:
        self._watched = host if host and is_on_this_computer(host) else ""
        self._asked = time.monotonic()
        self._place = place
        self._supervisor = supervisor
        self._config = config
        self._fence = fence
        self._drawn = 0.0

    def await_start(self, words: str = "", question: ResetQuestion | None = None) -> bool:
        """Waits until the person starts the episode, and moves the arm as they ask meanwhile;
        returns False if they end the session.

        A way into the fence, or an arm that is not ready, is said on the pages, and nothing moves.

        Args:
            words: sentences before the session's own, or in place of the one for the objects.
            question: what the person may answer until they start; then every arm waits for them.

        Raises:
            HandoffError: a fault of the arm, a lost connection, or a simulated arm of another
                program that is gone.
        """
        person, config = self._supervisor.supervision, self._config
        waits = self._place.manual_reset if config.by_person is None else config.by_person
        usual = OBJECTS if self._place.manual_reset and not words else ""
        sentence = f"{words} {config.sentence or usual}".strip()
        self._supervisor.open_reset(sentence, wait=waits or question is not None, question=question)
        try:
            while not person.stopped:
                if person.reset_motion is not ResetMotion.NONE:
                    done = self._move(person.reset_motion)
                    # A person who ended it has said why the arm holds.
                    if done:
                        said = f"{done} {sentence}".strip()
                        self._supervisor.open_reset(said, wait=True, question=question)
                elif not person.paused:
                    return True
                self._ask_the_twin()
                time.sleep(WAIT_SECONDS)
                person.poll()
            return False
        finally:
            self._supervisor.operator.close_reset()

    def _ask_the_twin(self) -> None:
        """Asks a simulated arm of another program, every `TWIN_SECONDS`, whether it is there.

        Raises:
            ConnectionLostError: it is gone.
        """
        if self._watched and time.monotonic() - self._asked > TWIN_SECONDS:
            check_answers(self._watched)
            self._asked = time.monotonic()

    def _move(self, motion: ResetMotion) -> str:
        """Moves the arm for as long as the person asks for it; returns what has ended it, as a
        sentence, unless the person has.

        Raises:
            HandoffError: a fault of the arm, or a lost connection.
        """
        from real.arm import ArmFaultError

        try:
            with self._place.arm() as arm:
                arm.preflight()
                # In real time, so that a person can watch and hold it.
                arm.keep_time(self._place.clock(arm))
                if motion is ResetMotion.HOME:
                    return AT_START if self._drive_home(arm) else ""
                self._guide(arm)
                return ""
        except ArmFaultError:
            raise
        except SafetyError as refused:
            return error_text(refused)

    def _asks_for(self, motion: ResetMotion) -> bool:
        person = self._supervisor.supervision
        person.poll()
        return person.reset_motion is motion and not person.stopped

    def _drive_home(self, arm: DrivenArm) -> bool:
        """Drives the arm to its start; returns False if the person held it on the way."""
        ahead = self._place.way_home(arm)
        total = _length([arm.state().q, *ahead])

        def halted() -> bool:
            state = arm.state()
            left = _length([state.q, *ahead])
            self._supervisor.operator.show_progress(1.0 - left / total if total else 1.0)
            self._draw(state)
            return not self._asks_for(ResetMotion.HOME)

        return self._asks_for(ResetMotion.HOME) and drive(arm, ahead, halted, self._fence)

    def _guide(self, arm: DrivenArm) -> None:
        """Lets the arm yield until the person ends it."""

        def wanted() -> bool:
            self._draw(arm.state())
            return self._asks_for(ResetMotion.LIMP)

        arm.guide(self._config.guiding, self._fence, wanted)

    def _draw(self, state: ArmState) -> None:
        """Shows the arm to those who draw it, ten times a second."""
        now = time.monotonic()
        if now - self._drawn < DRAWN_SECONDS:
            return
        self._drawn = now
        self._place.follow(state)
        self._supervisor.show()


def _length(way: list[np.ndarray]) -> float:
    """Length of a way over joint positions (J,), by the joint that turns most on every part
    [rad]."""
    return float(sum(np.abs(end - begin).max() for begin, end in pairwise(way)))
