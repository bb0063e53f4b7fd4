"""Pendulum: swing a rod up and hold it there with a weak motor; dense reward, no success.
Gymnasium's Pendulum-v1."""

from __future__ import annotations

import numpy as np

from tests.toy_envs.toy_env import Act, ToyEnv

STEP_TIME = 0.05
"""Of one control step [s]."""
GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
"""[m/s^2], [kg], [m]."""
MAX_TORQUE, MAX_SPEED = 2.0, 8.0
"""[Nm], at action 1, and [rad/s]."""


class Pendulum(ToyEnv):
    """A rod on a hinge; angle 0 [rad] is upright, and gravity is stronger than the motor.

    Observation (O = 3): cosine and sine of the angle, velocity [rad/s]. Action: torque over
    `MAX_TORQUE`. Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) of the state before the step,
    the angle within pi of upright.
    """

    observation_size, action_size, max_steps, near = 3, 1, 200, 0.0

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        self.angle, self.velocity, self.cost = (np.zeros(num_envs) for _ in range(3))
        super().__init__(num_envs, seed)

    def start(self, row: int, rng: np.random.Generator) -> None:
        """See `ToyEnv.start`: any angle, up to 1 rad/s."""
        self.angle[row], self.velocity[row] = rng.uniform([-np.pi, -1.0], [np.pi, 1.0])

    def move(self, action_NA: np.ndarray) -> None:
        """See `ToyEnv.move`."""
        torque = MAX_TORQUE * np.clip(action_NA[:, 0], -1.0, 1.0)
        self.cost = within_pi(self.angle) ** 2 + 0.1 * self.velocity**2 + 0.001 * torque**2
        gravity = 1.5 * GRAVITY / LENGTH * np.sin(self.angle)
        self.velocity = self.velocity + (gravity + 3.0 / (MASS * LENGTH**2) * torque) * STEP_TIME
        self.velocity = np.clip(self.velocity, -MAX_SPEED, MAX_SPEED)
        self.angle = self.angle + self.velocity * STEP_TIME

    def observe(self) -> np.ndarray:
        """See `ToyEnv.observe`."""
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.velocity], axis=1).astype(
            np.float32
        )

    def solved(self) -> np.ndarray:
        """See `ToyEnv.solved`: never; every episode lasts to the time limit."""
        return np.zeros(self.num_envs, bool)

    def reward(self) -> np.ndarray:
        """See `ToyEnv.reward`: of the step just made."""
        return -self.cost

    def expert(self, misjudged_N2: np.ndarray | float = 0.0) -> np.ndarray:
        """See `ToyEnv.expert`: pumps energy up to that of the rod at rest upright, and holds it
        there once it is near.

        Args:
            misjudged_N2: angle [rad] and velocity [rad/s] are taken for that much more.
        """
        misjudged_N2 = np.broadcast_to(misjudged_N2, (self.num_envs, 2))
        angle, velocity = (
            within_pi(self.angle + misjudged_N2[:, 0]),
            self.velocity + misjudged_N2[:, 1],
        )
        # Energy over m l^2 / 3, 0 for the rod at rest upright.
        energy = 0.5 * velocity**2 + 1.5 * GRAVITY / LENGTH * (np.cos(angle) - 1.0)
        pump = -np.sign(energy) * np.where(velocity >= 0.0, 1.0, -1.0)
        hold = -(10.0 * angle + 2.5 * velocity) / MAX_TORQUE
        near = np.abs(angle) < 0.35
        return np.clip(np.where(near, hold, pump), -1.0, 1.0)[:, None]

    def remaining(self) -> np.ndarray:
        """See `ToyEnv.remaining`: away from upright [rad]."""
        return np.abs(within_pi(self.angle))


def within_pi(angle: np.ndarray) -> np.ndarray:
    """The same angle in [-pi, pi) [rad]."""
    return (angle + np.pi) % (2.0 * np.pi) - np.pi


def mean_return(toy_env: Pendulum, act: Act, episodes: int) -> float:
    """Mean return of whole episodes of `act`, a function from (N, O) to (N, A); N divides
    `episodes`.

    All environments must stand at the start of an episode.
    """
    total = 0.0
    observation = toy_env.observe()
    for _ in range(episodes // toy_env.num_envs * toy_env.max_steps):
        outcome = toy_env.step(act(observation))
        total += float(outcome.reward.sum())
        observation = outcome.observation
    return total / episodes
