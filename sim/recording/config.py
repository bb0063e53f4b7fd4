"""Options of this package."""

from __future__ import annotations

from typing import Literal

from robots.config import Count, NonNegative, Positive, Whole, config
from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig
from sim.make import EnvConfig

Weights = tuple[NonNegative, NonNegative, NonNegative, NonNegative, NonNegative, NonNegative]


@config
class PlayConfig:
    """Recording of play."""

    steps: Count = 400
    """Length of an episode [control periods]; the task's time limit and success do not end it."""
    weights: Weights = (0.2, 0.15, 0.2, 0.1, 0.1, 0.25)
    """Relative probability of each `SubGoal`."""
    duration: tuple[Positive, Positive] = (0.6, 2.5)
    """Minimum and maximum time limit of one sub-goal [s]; it ends earlier when it is reached."""
    noise: NonNegative = 0.005
    """Standard deviation of the noise on the target position at every step [m]."""
    spread: NonNegative = 0.01
    """Standard deviation of the offset from an object at which the gripper approaches or pushes it
    [m]; a larger value records misses."""
    turn: NonNegative = 1.0
    """Maximum yaw offset of the gripper from the expert's [rad]."""
    slowest: Positive = 0.5
    """Minimum speed as a fraction of the maximum; speeds are drawn between it and 1."""
    batch: Count = 16
    """Number of environments recorded together, which bounds memory."""
    mujoco: MujocoConfig = MujocoConfig()
    """Options of the engine: action space, randomisation, cameras."""


@config
class ExpertDemonstrationsConfig:
    """Recording of scripted demonstrations."""

    noise: NonNegative = 0.0
    """Standard deviation of the noise on the target position at every step [m]; with `noise_high`,
    its lower bound. With noise, the field `action_expert` holds what the expert would have done
    where the noise had led it: a policy with `action_field: action_expert` learns from these
    actions (DART, arXiv 1703.09327), and `action` remains what the arm was told."""
    noise_high: NonNegative | None = None
    """Upper bound of the standard deviation [m], which is drawn uniformly for every episode, so
    that good and bad behaviour is recorded; None takes `noise` for all."""
    settle: Whole = 0
    """Control periods for which an episode goes on after its first success, so that it shows how
    the goal is held; failure and the task's time limit end it earlier."""
    keep: Literal["successful", "all"] = "successful"
    """Episodes that are stored: solved ones, or failed ones too; their metadata contain `success`
    in either case."""
    batch: Count = 16
    """Number of environments recorded together, which bounds memory."""
    mujoco: MujocoConfig = MujocoConfig()
    """Options of MuJoCo: action space, randomisation, cameras."""
    simulator: EnvConfig | None = None
    """Environments of another engine in which the expert acts, such as maniskill with `arm`; task
    and robot are those of the recording. None takes MuJoCo with the options `mujoco`."""

    @property
    def noisy(self) -> bool:
        """Whether any episode has noise."""
        return max(self.noise, self.noise_high or 0.0) > 0.0

    def __post_init__(self) -> None:
        if self.noise < 0.0 or (self.noise_high is not None and self.noise_high < self.noise):
            raise HandoffError(
                f"demonstrate: noise is {self.noise} with noise_high {self.noise_high}, expected 0 <= noise <= "
                "noise_high."
            )
        if self.simulator is None:
            return
        if self.mujoco != MujocoConfig():
            raise HandoffError(
                "demonstrate: mujoco has options, but the expert acts in the environments of simulator. Move them to "
                "simulator."
            )
        for name in ("task", "robot", "workers", "on_end", "max_steps"):
            if getattr(self.simulator, name) != getattr(EnvConfig(), name):
                raise HandoffError(
                    f"demonstrate: simulator.{name} is {getattr(self.simulator, name)}, but the recording decides it. "
                    "Leave it out; task and robot are options of the stage."
                )


@config
class TaskRewardConfig:
    """Reward of the simulated task, by playing the recorded actions again from the recorded
    seeds."""

    kind: Literal["task"] = "task"
    tolerance: Positive = 1e-3
    """Largest difference between a recorded and a replayed observation [unit of the field]; beyond
    it the episode was recorded with other options or another engine."""
    mujoco: MujocoConfig = MujocoConfig()
    """Options of the engine with which the episodes were recorded."""
