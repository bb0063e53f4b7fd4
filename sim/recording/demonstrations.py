"""Records demonstrations of scripted experts.

Every environment has its own random stream, keyed by its seed, so an episode does not depend on the
others of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from robots.interfaces import Observation, Progress, no_progress
from sim.engines.mujoco import MujocoEngine
from sim.episode_streams import EpisodeStream
from sim.recording.batches import (
    EpisodeBatch,
    RecordingSummary,
    check_seeds,
    record,
    stack_frames,
    with_noise,
)
from sim.recording.config import ExpertDemonstrationsConfig
from sim.tasks.task import Task
from sim.vec_env import EngineVecEnv, VecEnvConfig


def demonstrate(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    config: ExpertDemonstrationsConfig | None = None,
    progress: Progress = no_progress,
) -> RecordingSummary:
    """Records the scripted expert, one attempt per seed, in the store at `out`.

    An episode ends with success, failure or the task's time limit. Metadata: `seed`, `success`,
    `source`.

    Args:
        task: the demonstrated task.
        seeds: seeds of the initial states and of the noise.
        out: missing folder, or the store of an interrupted call, which is continued.
        config: settings of the recording.
        progress: counts attempts.

    Raises:
        HandoffError: no seeds, or an error of the engine or the store.
    """
    config = config or ExpertDemonstrationsConfig()
    check_seeds(seeds, config.batch)
    return record(task, seeds, out, config.batch, config.mujoco, {}, _ExpertBatch(config), progress)


class _ExpertBatch:
    source = "expert"

    def __init__(self, config: ExpertDemonstrationsConfig) -> None:
        self.config = config

    def __call__(self, engine: MujocoEngine, seeds: np.ndarray) -> EpisodeBatch:
        env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
        rngs = [np.random.default_rng([seed, EpisodeStream.RECORDING]) for seed in seeds]
        noise_N = np.full(len(seeds), self.config.noise)
        if self.config.noise_high is not None:
            noise_N = np.array(
                [rng.uniform(self.config.noise, self.config.noise_high) for rng in rngs]
            )
        observation = env.reset(seeds.tolist())
        frames: list[Observation] = []
        success = np.zeros(len(seeds), dtype=bool)
        ended = np.zeros(len(seeds), dtype=bool)
        while not ended.all():
            target = engine.task.expert(engine.view)
            action = engine.to_action(with_noise(target, noise_N, rngs))
            step = env.step(action)
            success = step.info["success"]
            frames.append(
                {
                    **observation,
                    "action": action,
                    "reward": step.reward,
                    "success": success.astype(np.uint8),
                }
            )
            observation = step.observation
            ended = step.terminated | step.truncated
        keep = success | (self.config.keep == "all")
        return EpisodeBatch(stack_frames(frames), env.steps, success, keep)
