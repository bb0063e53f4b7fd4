"""Records demonstrations of scripted experts.

Every environment has its own random stream, keyed by its seed, so an episode does not depend on the
others of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, Progress, no_progress
from robots.spec import ActionSpec, FieldSpec
from sim.engines.mujoco import MujocoEngine
from sim.episode_streams import EpisodeStream
from sim.ignore_success import IgnoreSuccess
from sim.make import make_vec_env
from sim.recording.batches import (
    EpisodeBatch,
    RecordedEngine,
    RecordingSummary,
    check_seeds,
    record,
    stack_frames,
    with_noise,
)
from sim.recording.config import ExpertDemonstrationsConfig
from sim.tasks.task import Task
from sim.vec_env import EngineVecEnv, VecEnvConfig

EXPERT_ACTION = "action_expert"
"""Field with the expert's action where noise was added to it."""


def demonstrate(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    config: ExpertDemonstrationsConfig | None = None,
    progress: Progress = no_progress,
) -> RecordingSummary:
    """Records the scripted expert, one attempt per seed, in the store at `out`.

    An episode ends `config.settle` steps after success, or with failure or the task's time limit.
    Metadata: `seed`, `success`, `source`.

    Args:
        task: the demonstrated task.
        seeds: seeds of the initial states and of the noise.
        out: missing folder, or the store of an interrupted call, which is continued.
        config: settings of the recording.
        progress: counts attempts.

    Raises:
        HandoffError: no seeds, an engine without scripted experts, or an error of the engine or the
            store.
    """
    config = config or ExpertDemonstrationsConfig()
    check_seeds(seeds, config.batch)
    make = partial(_engine, task, config)
    return record(make, seeds, out, config.batch, _ExpertBatch(config), progress)


def _engine(task: Task, config: ExpertDemonstrationsConfig, num_envs: int) -> RecordedEngine:
    """N environments of the task, in MuJoCo or in another simulator.

    Raises:
        HandoffError: an engine without scripted experts.
    """
    simulator = config.simulator
    if simulator is None:
        return MujocoEngine(task, num_envs, config.mujoco)
    translated = simulator.engine == "maniskill" and simulator.maniskill.arm is not None
    if simulator.engine not in ("mujoco", "warp") and not translated:
        raise HandoffError(
            f"demonstrate: the engine {simulator.engine} has no scripted expert of {task.name}. Set simulator.engine "
            "to warp, or to maniskill with maniskill.arm."
        )
    own = replace(simulator, task=task.name, robot=task.robot.config_name)
    engine = getattr(make_vec_env(own, num_envs), "engine", None)
    assert isinstance(engine, RecordedEngine)
    return engine


class _ExpertBatch:
    source = "expert"

    def __init__(self, config: ExpertDemonstrationsConfig) -> None:
        self.config = config

    def labels(self, action: ActionSpec) -> dict[str, FieldSpec]:
        """See `BatchRecorder.labels`."""
        if not self.config.noisy:
            return {}
        return {EXPERT_ACTION: action.field_spec("of the expert, without the noise")}

    def __call__(self, engine: RecordedEngine, seeds: np.ndarray) -> EpisodeBatch:
        # Success ends an episode only after `settle` steps.
        env = EngineVecEnv(IgnoreSuccess(engine), VecEnvConfig(on_end="freeze"))
        rngs = [np.random.default_rng([seed, EpisodeStream.RECORDING]) for seed in seeds]
        noise_N = np.full(len(seeds), self.config.noise)
        if self.config.noise_high is not None:
            noise_N = np.array(
                [rng.uniform(self.config.noise, self.config.noise_high) for rng in rngs]
            )
        observation = env.reset(seeds.tolist())
        frames: list[Observation] = []
        ends = _Ends(env.num_envs, self.config.settle)
        while not ends.all():
            target = engine.task.expert(engine.view)
            action = engine.to_action(with_noise(target, noise_N, rngs))
            # The expert's own action, before the step moves what it is computed from.
            expert = {EXPERT_ACTION: engine.to_action(target)} if self.config.noisy else {}
            step = env.step(action)
            success = step.info["success"]
            frames.append(
                {
                    **observation,
                    "action": action,
                    **expert,
                    "reward": step.reward,
                    "success": success.astype(np.uint8),
                }
            )
            observation = step.observation
            ends.add(success, step.terminated | step.truncated)
        keep = ends.solved | (self.config.keep == "all")
        return EpisodeBatch(stack_frames(frames), ends.length, ends.solved, keep)


class _Ends:
    """Ends of N episodes, each of which goes on for `settle` steps after its first success."""

    def __init__(self, num_envs: int, settle: int) -> None:
        self._settle = settle
        self._ended = np.zeros(num_envs, dtype=bool)
        self._solved_for = np.zeros(num_envs, dtype=np.int64)
        """Steps since the first success, counting its own."""
        self.length = np.zeros(num_envs, dtype=np.int64)
        """(N,) number of steps."""
        self.solved = np.zeros(num_envs, dtype=bool)
        """(N,) solved at any step."""

    def all(self) -> bool:
        """Returns whether all episodes have ended."""
        return bool(self._ended.all())

    def add(self, success: np.ndarray, ended: np.ndarray) -> None:
        """Counts a step.

        Args:
            success: (N,) whether the task is solved after it.
            ended: (N,) whether the environment ended the episode, otherwise than by success.
        """
        running = ~self._ended
        self.length += running
        self.solved |= running & success
        self._solved_for += running & self.solved
        self._ended |= ended | (self._solved_for > self._settle)
