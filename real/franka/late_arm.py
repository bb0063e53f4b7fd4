"""Delays the targets on their way to the driver of an arm, as a slow network or computer does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from real.arm import JointPositionTarget, PoseTarget
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from robots.interfaces import Clock

HALF_TICK = 5e-4
"""Difference up to which two times count as equal, half of the robot's cycle [s]."""


class LateArm(FrankaArm):
    """A `FrankaArm` whose targets take effect later; until the first one has come, the arm holds
    its pose. A motion that ends forgets the targets under way."""

    def __init__(
        self,
        config: FrankaConfig,
        clock: Clock | None,
        await_motion: Callable[[], None],
        delay: float,
    ) -> None:
        """Prepares the arm, see `FrankaArm`.

        Args:
            config: connection, controller and collision behaviour.
            clock: clock of robot time.
            await_motion: called after every start of a motion.
            delay: delay of every target [s]; it takes effect with the first target that is set
                after it, so its resolution is the period of the targets.
        """
        super().__init__(config, clock, await_motion)
        self._delay = delay
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()

    def start(self, states: int | None = None) -> None:
        """See `FrankaArm`."""
        self._waiting.clear()
        super().start(states)

    def set_target(self, target: PoseTarget | JointPositionTarget) -> None:
        """See `FrankaArm`."""
        self._send_later(partial(super().set_target, target))

    def _send_later(self, send: Callable[[], None]) -> None:
        """Sends the newest target that is due."""
        now = self.clock.now()
        self._waiting.append((now + self._delay, send))
        due: Callable[[], None] | None = None
        while self._waiting and self._waiting[0][0] <= now + HALF_TICK:
            due = self._waiting.popleft()[1]
        if due is not None:
            due()


def new_arm(
    config: FrankaConfig,
    clock: Clock | None,
    await_motion: Callable[[], None],
    delay: float = 0.0,
) -> FrankaArm:
    """An arm, not yet connected, whose targets arrive late if there is a delay; for the arguments
    see `FrankaArm` and `LateArm`."""
    if delay > 0.0:
        return LateArm(config, clock, await_motion, delay)
    return FrankaArm(config, clock, await_motion)
