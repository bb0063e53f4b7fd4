"""Episodes of a task on the MuJoCo engine, as its tests need them."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np

from sim.engines.mujoco import MujocoEngine
from sim.tasks.task import Task
from sim.vec_env import EngineVecEnv, VecEnvConfig


def started(task: Task, n: int = 1) -> MujocoEngine:
    """N environments at the starts of seeds 0 .. N - 1."""
    engine = MujocoEngine(task, n)
    engine.reset(np.arange(n), np.arange(n))
    return engine


def expert_episodes(task: Task, n: int, takeover: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Success (N,) and dense rewards (T, N), NaN after an episode's end; `takeover` random actions
    come first."""
    engine = MujocoEngine(task, n)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze", max_steps=takeover + task.max_steps))
    env.reset(range(n))
    rng = np.random.default_rng(0)
    for _ in range(takeover):
        env.step(rng.uniform(-1.0, 1.0, (n, engine.action_spec.size)))
    rewards = []
    solved = np.zeros(n, dtype=bool)
    for _ in range(task.max_steps):
        step = env.step(engine.expert_action())
        solved = step.info["success"]
        rewards.append(np.where(step.executed > 0, step.reward, np.nan))
    return solved, np.array(rewards)


def random_episodes(task: Task, n: int) -> tuple[np.ndarray, float]:
    """Success (N,) under uniform random actions, and the largest speed of any joint or object
    [rad/s, m/s]."""
    engine = MujocoEngine(task, n)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    env.reset(range(n))
    rng = np.random.default_rng(0)
    solved, fastest = np.zeros(n, dtype=bool), 0.0
    for _ in range(task.max_steps):
        solved = env.step(rng.uniform(-1.0, 1.0, (n, engine.action_spec.size))).info["success"]
        fastest = max(fastest, float(np.abs(engine.qvel).max()))
    return solved, fastest


def rewards_rise(rewards: np.ndarray) -> np.ndarray:
    """(N,) bool: the mean reward of an episode's last tenth is above that of its first tenth."""
    rises = []
    for column in rewards.T:
        episode = column[np.isfinite(column)]
        tenth = max(1, len(episode) // 10)
        rises.append(episode[-tenth:].mean() > episode[:tenth].mean())
    return np.array(rises)


def deepest_contact(engine: MujocoEngine) -> float:
    """The deepest penetration in any environment [m]; 0 without contact."""
    data, deepest = mujoco.MjData(engine.model), 0.0
    for qpos in engine.qpos:
        data.qpos[:] = qpos
        mujoco.mj_fwdPosition(engine.model, data)
        if data.ncon:
            deepest = max(deepest, -float(data.contact.dist.min()))
    return deepest


def idle_motion(engine: MujocoEngine) -> np.ndarray:
    """(nq,) largest change of each coordinate in any environment within 0.2 s of the zero action,
    the gripper open."""
    before = engine.qpos.copy()
    action = np.zeros((engine.num_envs, engine.action_spec.size))
    action[:, -1] = 1.0
    for _ in range(round(0.2 * engine.rate_hz)):
        engine.step(action, np.ones(engine.num_envs, dtype=bool))
    return np.abs(engine.qpos - before).max(axis=0)


def put(
    engine: MujocoEngine,
    joint: str,
    position: np.ndarray | float,
    velocity: np.ndarray | float = 0.0,
) -> None:
    """Writes the coordinates and velocities of `joint` in every environment."""
    a, b = engine.layout.qpos[joint], engine.layout.qvel[joint]
    engine.qpos[:, a : a + np.size(position)] = position
    engine.qvel[:, b : b + np.size(velocity)] = velocity
    engine._changed()
