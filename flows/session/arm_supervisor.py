"""Connects the person at the console to an arm's control loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flows.session.config import HilOperator
from flows.session.environment import person_name
from flows.session.viewer import described_cameras

if TYPE_CHECKING:
    from real.console.control.commands import Recovery
    from real.console.control.reset_offer import ResetQuestion
    from real.deploy.person_motion import PersonMotion
    from real.deploy.supervision import SupervisionConfig
    from robots.spec import ActionSpec

WAIT_SECONDS = 0.05
"""Polling interval while waiting for a person, or for the console [s]."""


class ArmSupervisor:
    """A person at the console who holds an arm still, steers it and labels episodes.

    Args:
        task: name of the task, shown at the console.
        stage: name of the stage, shown there too.
        rate_hz: steps per second.
        spec: actions of the person's device.
        config: takeovers and the time limit of holds.
        motion: the way in which the device moves the arm.
        person: name that is recorded where nobody at the console had the arm; empty takes the
            login.
        scene: returns the packed scene, for those who draw it; None sends none.
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.
        shown: further entries of what the console is told, such as `brief`, what is to be done, and
            `instruction`, what a policy of language is given.
        drawn: whether `flows.session.viewer.scene_viewer` draws the scene.
        still: whether nobody but the person moves the arm, as in demonstrations.

    Raises:
        HandoffError: no console is open.
    """

    def __init__(
        self,
        task: str,
        stage: str,
        rate_hz: float,
        spec: ActionSpec,
        config: SupervisionConfig,
        motion: PersonMotion,
        person: str = "",
        scene: Callable[[], bytes] | None = None,
        width_max: float | None = None,
        *,
        shown: Mapping[str, Any] | None = None,
        drawn: bool = False,
        still: bool = False,
    ) -> None:
        from real.console.client import ConsoleClient
        from real.console.console_operator import ConsoleOperator
        from real.console.process import console_address
        from real.deploy.supervision import Supervision

        address, token = console_address()
        about: dict[str, Any] = {"task": task, "stage": stage, "rate_hz": rate_hz}
        about |= {"actions": spec.names, "still": still, **(shown or {})}
        # An arm can be driven home and guided by hand between two episodes.
        about["reset"] = {"home": "", "limp": ""}
        client = ConsoleClient(address, token, {**about, **(described_cameras() if drawn else {})})
        client.start()
        self._client = client
        self._scene = scene
        self.person = person_name(HilOperator(kind="console", person=person))
        """Name that is recorded where nobody at the console had the arm."""
        self.episode: dict[str, str] = {}
        """What the console shows of every episode from the next one on, such as `instruction`."""
        self.operator = ConsoleOperator(
            spec,
            config.takeover,
            client,
            self.person,
            rate_hz,
            scene,
            about_episode=lambda: self.episode,
            width_max=width_max,
        )
        self.supervision = Supervision(self.operator, config, motion, self.operator.report_step)

    def show(self) -> None:
        """Shows the scene to those who draw it, while nothing moves."""
        if self._scene is not None:
            self._client.show(self._scene())

    def hold(self, reason: str) -> None:
        """Requests a hold and waits until the console holds; the arm stays still until a person
        resumes."""
        self.operator.hold(reason)
        self._await_hold()

    def open_reset(self, why: str, *, wait: bool, question: ResetQuestion | None = None) -> None:
        """See `ConsoleOperator.open_reset`; returns once the arm holds still, if it is to."""
        self.operator.open_reset(why, wait=wait, question=question)
        self.supervision.poll()
        if wait:
            self._await_hold()

    def _await_hold(self) -> None:
        person = self.supervision
        while not ((person.paused and not person.reset_motion) or person.stopped):
            time.sleep(WAIT_SECONDS)
            person.poll()

    def await_recovery(self, why: str, *, asks_cause: bool) -> Recovery | None:
        """Shows a fault, and waits until a person recovers the arm.

        Args:
            why: the fault as a sentence.
            asks_cause: whether the person has to give its cause.

        Returns:
            Who recovers the arm, and the cause; None if they end the session.
        """
        self.operator.fault(why, asks_cause=asks_cause)
        while not self.supervision.stopped:
            recovery = self.operator.recovery()
            if recovery is not None:
                return recovery
            time.sleep(WAIT_SECONDS)
            self.supervision.poll()
        return None

    def close(self) -> None:
        """Closes the connection to the console."""
        self.operator.close()
