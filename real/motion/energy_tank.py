"""Bounds the energy that a moving reference puts into an arm through its springs.

A reference that moves by d while the springs pull with K e does the work (K e) d + d K d / 2 on
them, exactly, since it moves in steps. The tank pays for it. What the damping of the impedance law
takes out of the arm refills the tank, up to its size; work that the springs give back to the
reference is not credited. Whatever the reference does, the arm therefore delivers no more energy to
its surroundings than the tank had at the beginning, its refill, and what came in from outside. As
the level nears zero, the reference is slowed down so that it can brake within what is left; on an
empty tank it moves towards the arm only.

The tank of a passivity filter: Ferraguti, Secchi and Fantuzzi 2013; valves that limit the outflow:
Shahriari, Johannsmeier and Haddadin 2018. It acts at the rate of the stream, not at 1 kHz, and by
the model of the impedance law; work of the feed-forward of an acceleration is left out, which is
bounded by the kinetic energy of the reference.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from real.motion.reference_bounds import CoordinateResponse
from robots.config import Share, changed_options, config
from robots.control.actions import Motion
from robots.errors import HandoffError, SafetyError

Energy = Annotated[float, Field(gt=0.0, le=1000.0)]
"""An energy [J]."""
HALVINGS = 24
"""Halvings of an interval in the search for the largest velocity."""
AT_REST = 1e-3
"""Speed below which a reference counts as at rest [m/s]."""


@config
class EnergyTankConfig:
    """Energy that a reference may put into the arm; unlimited by default."""

    size: Energy | None = None
    """Largest energy in the tank [J]; None leaves the energy unlimited."""
    initial: Energy | None = None
    """Energy in the tank at the beginning of every episode [J]; None fills it."""
    recovery: Share = 1.0
    """Share by which the energy that the damping of the impedance law takes out of the arm refills
    the tank."""
    refill_power: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Power that refills the tank besides, for losses that the model leaves out, such as friction
    in the joints [W]."""
    blocked_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 1.0
    """Time for which an empty tank may keep a reference at rest that is asked to move, before the
    episode ends [s]."""

    def __post_init__(self) -> None:
        changed = changed_options(self)
        if self.size is None and changed:
            raise HandoffError(
                f"energy_tank: {changed[0]} has no effect without a size. Give energy_tank.size, too."
            )
        if self.size is not None and self.initial is not None and self.initial > self.size:
            raise HandoffError(
                f"energy_tank: initial {self.initial} J is more than its size of {self.size} J. Lower one, or raise "
                "the other."
            )


class EnergyTank:
    """The tank of one episode; it implements `real.motion.governor.VelocityFilter`.

    Args:
        config: size and refill; `size` is given.
        period: period of a stream tick [s].
        braking: deceleration of the reference along each coordinate [m/s^2].
        feeds_velocity: whether the impedance law damps the arm's velocity against that of the
            reference, instead of against rest.

    Raises:
        HandoffError: no size is given.
    """

    def __init__(
        self, config: EnergyTankConfig, period: float, braking: float, *, feeds_velocity: bool
    ) -> None:
        if config.size is None:
            raise HandoffError("energy_tank: size is None, expected an energy [J].")
        self._config = config
        self._size = config.size
        self._period = period
        self._braking = braking
        self._feeds_velocity = feeds_velocity
        self.level = config.size if config.initial is None else config.initial
        """Energy in the tank [J]; below 0 by what the arm's own motion made the braking cost."""
        self._waited = 0.0
        self._velocity = np.zeros(0)
        self._lead = np.zeros(0)
        self._stiffness = np.zeros((0, 0))
        self._measured: np.ndarray | None = None
        self._loss: float | None = None

    def observe(
        self, reference: Motion, measured: np.ndarray, response: CoordinateResponse, loss: float
    ) -> None:
        """Takes the state at the beginning of a tick, and refills the tank for the tick before.

        Args:
            reference: the reference now.
            measured: (D,) position of the arm [m].
            response: answer of the impedance law in the coordinates.
            loss: power that the damping of all joints takes out of the arm [W], where it acts
                against rest.
        """
        before = self._measured
        self._measured = measured
        if self._feeds_velocity:
            gone = np.zeros_like(measured) if before is None else measured - before
            slip = reference.velocity - gone / self._period
            loss = float(slip @ response.damping @ slip)
            # What the damper pulls with is paid for, what it turns to heat comes back below.
            pulled = float(reference.velocity @ response.damping @ slip)
            self.level -= max(pulled, 0.0) * self._period
        mean = loss if self._loss is None else (loss + self._loss) / 2.0
        self._loss = loss
        refill = self._config.recovery * mean + self._config.refill_power
        # The tick before the first one is not part of the episode.
        if before is not None:
            self.level = min(self._size, self.level + refill * self._period)
        self._velocity = reference.velocity
        self._lead = reference.position - measured
        self._stiffness = response.stiffness

    def shortened(self, braked: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """The velocity (D,) [m/s] nearest to `wanted`, on the line from `braked`, from which the
        reference can brake within the energy that is left; `wanted` itself if it can.

        Args:
            braked: (D,) velocity after braking for this tick [m/s].
            wanted: (D,) velocity at the end of the tick that the governor allows [m/s].

        Raises:
            SafetyError: the tank is empty and has kept the reference at rest for
                `blocked_seconds`.
        """
        velocity = self._largest(braked, wanted)
        held = np.linalg.norm(velocity) < AT_REST <= np.linalg.norm(wanted)
        self._waited = self._waited + self._period if held else 0.0
        if self._waited > self._config.blocked_seconds:
            raise SafetyError(
                f"energy tank: {max(self.level, 0.0):.2f} of {self._size:g} J are left, and the reference has stood "
                f"for {self._config.blocked_seconds:g} s. Does the policy push against something, or swing?"
            )
        return velocity

    def spend(self, moved: np.ndarray) -> None:
        """Pays for the reference's motion in this tick by `moved` (D,) [m]."""
        work = float((self._stiffness @ self._lead) @ moved + moved @ self._stiffness @ moved / 2.0)
        self.level -= max(work, 0.0)

    def _largest(self, braked: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        if self._cost(wanted) <= self.level:
            return wanted
        if not self._cost(braked) <= self.level:
            return braked
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            share = (low + high) / 2.0
            affordable = self._cost(braked + share * (wanted - braked)) <= self.level
            low, high = (share, high) if affordable else (low, share)
        return braked + low * (wanted - braked)

    def _cost(self, velocity: np.ndarray) -> float:
        """Work of the reference until it rests, from `velocity` (D,) at the end of this tick, with
        the arm standing [J]; parts of the way that the springs pull along do not count."""
        dt = self._period
        way = (self._velocity + velocity) / 2.0 * dt
        way = way + velocity * (np.abs(velocity) / (2.0 * self._braking) + dt / 2.0)
        begin = float((self._stiffness @ self._lead) @ way)
        rise = float(way @ self._stiffness @ way)
        # The force along the way rises from `begin` to `begin + rise`.
        end = begin + rise
        if begin >= 0.0:
            return begin + rise / 2.0
        return end * end / (2.0 * rise) if end > 0.0 else 0.0
