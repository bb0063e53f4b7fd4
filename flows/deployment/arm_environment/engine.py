"""Implements an engine whose physics is a simulated arm behind the robot's network protocols.

To everything that learns, demonstrates or watches it is the engine of the task: it has the task's
observations, actions and starts. A control period is one policy step of a deployment, through the
same driver, coordinates, governor and joint limits; what the arm and its gripper measure is
observed as they measure it, and the objects as a perfect tracker would.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from flows.deployment.robot_limit import held_arm
from flows.deployment.task_table import gripper_of_twin
from flows.deployment.twin import lost_connection, processor_for_twin
from flows.session.simulated_arm import SimulatedArm
from robots.contract import Contract
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError, SafetyError, error_text
from robots.interfaces import Clock, Observation, Progress, no_progress
from sim.engine import EngineState
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.tasks.task import Task

if TYPE_CHECKING:
    from real.driver.driven_arm import DrivenArm
    from real.driver.driven_stream import DrivenStream
    from real.driver.driver import Driver
    from real.franka.gripper import GripperTarget
    from real.motion.action_space import CartesianSteps
    from sim.twin.twin import Twin

FAULT = "arm_fault"
"""Entry of `info`: whether a fault of the arm has ended the episode."""
AFTER_FAULT = 1.0
"""Time that passes after a fault before the next episode begins [s]."""
PATIENCE = 3600.0
"""Time for which an environment waits while another session has the simulated arm [s]."""


class TwinEngine(MujocoEngine):
    """One environment at a simulated arm. A fault of the arm ends the episode, which is not solved,
    and the arm is recovered, as a person would who has looked at the table.

    Args:
        task: a task whose actions are Cartesian steps of an arm with a gripper.
        config: reward and cameras.
        arm: the arm.
        paced: whether time passes no faster than real time, as a person needs.
        progress: called with a note while another session has the arm.

    Raises:
        HandoffError: another kind of actions, or an option that the arm does not support.
    """

    def __init__(
        self,
        task: Task,
        config: MujocoConfig,
        arm: SimulatedArm,
        *,
        paced: bool,
        progress: Progress = no_progress,
    ) -> None:
        from real.driver.driver import Driver
        from real.motion.force_guard import check_reflex
        from real.motion.stream import ticks_per_step
        from sim.twin.task_world import TaskWorld
        from sim.twin.twin import start_twin

        if not isinstance(task.actions, CartesianDelta):
            raise HandoffError(
                f"{task.name}: its actions are no steps of a gripper's pose, so it cannot be done at an arm. Leave "
                "out env.arm."
            )
        if config.randomized:
            raise HandoffError(
                f"{task.name}: randomized varies the simulation of the task, not a simulated arm. Leave out one of "
                "env.randomized and env.arm."
            )
        check_reflex(arm.stream.force, arm.arm)
        self._arm_config = arm
        self._ticks = ticks_per_step(arm.stream.stream_hz, task.rate_hz)
        super().__init__(task, 1, config)
        self.name = f"arm {task.name}"
        self.fault: str | None = None
        """What ended the running episode, or the last one, if the arm did."""
        self._episode = ExitStack()
        self._measured: Observation = {}
        self._arm: DrivenArm | None = None
        self._motion: tuple[CartesianSteps, DrivenStream] | None = None
        self._gripper: GripperTarget | None = None
        self._held = ExitStack()
        with ExitStack() as stack:
            robot = task.robot.config_name
            host = arm.twin.host
            stack.enter_context(held_arm(host, robot, patience=PATIENCE, progress=progress))
            settings = replace(arm.twin, cpu=stack.enter_context(processor_for_twin()))
            world = partial(TaskWorld, task.name, robot)
            self._twin: Twin = stack.enter_context(start_twin(settings, world))
            self._driver: Driver = stack.enter_context(Driver())
            self._held = stack.pop_all()
        self._clock = _clock(self._twin, paced=paced)

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`: places the objects, connects, and takes control of the arm."""
        from flows.session.simulated_arm import arm_of_twin
        from real.franka.gripper import GripperTarget
        from real.motion.action_space import CartesianSteps

        self._end_episode()
        super().reset(env_ids, seeds)
        options = self._arm_config
        robot, twin = self.task.robot, self._twin
        twin.reset(int(seeds[0]))
        self.fault = None
        with ExitStack() as stack:
            self._gripper = None
            if self.use_gripper:
                host = options.twin.host
                device = gripper_of_twin(twin, host, options.gripper, robot)
                self._gripper = GripperTarget(
                    stack.enter_context(device), self.period, robot.gripper
                )
            settings = replace(options.arm, host=options.twin.host, robot=robot.config_name)
            arm = arm_of_twin(self._driver, settings, options.twin, twin)
            self._arm = stack.enter_context(arm)
            space = CartesianSteps(self._contract(), arm.preflight().base_T_ee, robot)
            arm.start()
            limits = replace(options.stream, governor=space.governed(options.stream.governor))
            # An action comes when the learner has decided, so that none is too old.
            motion = arm.stream(self._clock, space, limits, None)
            self._motion = (space, motion)
            self._episode = stack.pop_all()
        self._look()

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`."""
        if not running[0]:
            return
        try:
            self._act(action[0])
        except HandoffError as error:
            if not isinstance(error, SafetyError) and not lost_connection(error):
                raise
            self.fault = error_text(error)
            self._end_episode()
        self._look()

    def read(self) -> EngineState:
        """See `Engine.read`: with what the arm and its gripper measure; a fault of the arm
        terminates the episode."""
        state = super().read()
        faulty = np.array([self.fault is not None])
        observed = {
            name: np.ascontiguousarray(value[None], self.observation_spec[name].dtype)
            for name, value in self._measured.items()
            if name in self.observation_spec
        }
        return state._replace(
            observation={**state.observation, **observed},
            reward=np.where(faulty, 0.0, state.reward),
            terminated=state.terminated | faulty,
            success=state.success & ~faulty,
            info={**state.info, FAULT: faulty},
        )

    def save(self) -> dict[str, np.ndarray]:
        """See `Engine.save`.

        Raises:
            HandoffError: always; an arm cannot return to a state by itself.
        """
        raise HandoffError(f"{self.name}: the state of an arm cannot be saved.")

    def close(self) -> None:
        """Brings the arm to rest, disconnects, and ends the twin's process."""
        try:
            self._end_episode()
        finally:
            self._held.close()
            super().close()

    def _contract(self) -> Contract:
        """What an action means to the arm."""
        return Contract(
            task=self.task.name,
            observation={},
            action=self.action_spec.field_spec(),
            rate_hz=self.rate_hz,
            n_obs_steps=1,
            horizon=1,
            n_action_steps=1,
            action_interface="cartesian_delta",
            sampler="",
            training_data="",
            policy="",
            steps=self.actions if isinstance(self.actions, CartesianDelta) else None,
            robot=self.task.robot.config_name,
        )

    def _act(self, action: np.ndarray) -> None:
        """Executes an action (A,) for one control period."""
        assert self._motion is not None, "reset comes first"
        space, motion = self._motion
        motion.set_target(space.next_target(action, motion.target, motion.last.measured))
        if self._gripper is not None:
            self._gripper.apply(float(action[-1]))
        for _ in range(self._ticks):
            motion.send()
            motion.pass_tick()

    def _look(self) -> None:
        """Takes over what the arm measures, and the state of the simulated scene."""
        assert self._motion is not None
        space, motion = self._motion
        self._measured = dict(space.proprioception(motion.last.state, motion.target))
        opening = self._target[0, -1:]
        if self._gripper is not None and self.fault is None:
            self._measured |= self._gripper.observation()
            opening = np.asarray(self._measured["width_target"], float)
        qpos, qvel, goal = self._twin.call("scene_state")
        target = np.concatenate([space.pose(motion.target), opening])
        self.show(0, qpos, qvel, target, goal)
        if self._earlier.shape[1]:
            # The picture that is observed is the oldest.
            now = self._twin.call("scene_time")
            then = self._twin.call("scene_at", now - self.picture_age)
            self._earlier[0, 0] = then[0]

    def _end_episode(self) -> None:
        """Brings the arm to rest and disconnects; recovers it after a fault."""
        arm = self._arm
        self._arm = None
        if arm is not None and self.fault is not None:
            # The next connection finds out whether it is still in trouble.
            with suppress(HandoffError):
                arm.recover()
        self._episode.close()
        if arm is not None and self.fault is not None:
            self._twin.advance(AFTER_FAULT)


def _clock(twin: Twin, *, paced: bool) -> Clock:
    from real.clock import PacedClock

    return PacedClock(twin) if paced else twin
