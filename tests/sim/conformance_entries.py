"""Every engine that the conformance suite runs over: add an entry, and all of `conformance.py`
applies to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pytest

from robots.franka import RobotName
from robots.interfaces import Observation, VecEnv
from sim.make import TASKS, find_task
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim.servers.gym_hil import make_gym_hil, pick_up
from tests.sim.servers.meta_world import go_to_goal, make_meta_world
from tests.sim.walk import (
    make_walk,
    make_walk_in_server,
    make_walk_in_workers,
    make_walk_of_all,
    make_walk_specified,
)

OnEnd = Literal["reset", "freeze"]


@dataclass(frozen=True)
class Entry:
    """One engine (and task) under test."""

    name: str
    make: Callable[[int, OnEnd, int], VecEnv]
    """`(num_envs, on_end, max_steps)`; max_steps is never above the task's own limit."""
    save: bool = True
    """Whether it saves states; otherwise it must refuse to."""
    exact: bool = True
    """Whether numbers repeat bit by bit; otherwise to `tolerance` (GPU physics)."""
    tolerance: float = 1e-4
    """Absolute and relative."""
    solve: Callable[[Observation], np.ndarray] | None = None
    """Observation to action (N, A) that terminates every environment within `solve_steps`; None
    where that is hard."""
    solve_steps: int = 30
    reuse: bool = False
    """Whether environments take so long to make that checks should share them."""
    slow: bool = False
    """Whether its environments are slow, and other environments of its engine are tested; see
    `tests.sim.conformance.is_slow`."""
    marks: tuple[pytest.MarkDecorator, ...] = ()
    """Such as `pytest.mark.gpu`, or `pytest.mark.needs("maniskill")`."""


def make_push_t(picture: int | None, num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.engines.gym_push_t import PushTConfig, PushTEngine

    engine = PushTEngine(num_envs, config=PushTConfig(picture=picture))
    return EngineVecEnv(engine, VecEnvConfig(on_end=on_end, max_steps=max_steps))


def make_gym_push_t(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.engines.gym import GymConfig, GymEngine

    config = GymConfig(
        options={"obs_type": "environment_state_agent_pos"}, saving="replay", info=("coverage",)
    )
    engine = GymEngine("gym_pusht:gym_pusht/PushT-v0", num_envs, config)
    return EngineVecEnv(engine, VecEnvConfig(on_end=on_end, max_steps=max_steps))


def make_fetch(task: str, num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.engines.gym import GymConfig, GymEngine

    engine = GymEngine(f"gymnasium_robotics:{task}", num_envs, GymConfig(end_on_success=True))
    return EngineVecEnv(engine, VecEnvConfig(on_end=on_end, max_steps=max_steps))


def make_mujoco(
    task: str, num_envs: int, on_end: OnEnd, max_steps: int, robot: RobotName = "fr3"
) -> VecEnv:
    from sim.make import EnvConfig, make_vec_env

    config = EnvConfig(task=task, robot=robot, on_end=on_end, max_steps=max_steps)
    return make_vec_env(config, num_envs)


def make_randomized(task: str, num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.make import EnvConfig, make_vec_env

    config = EnvConfig(task=task, on_end=on_end, max_steps=max_steps, randomized=True, threads=2)
    return make_vec_env(config, num_envs)


def make_maniskill(
    task: str, saving: Literal["replay", "state"], num_envs: int, on_end: OnEnd, max_steps: int
) -> VecEnv:
    from sim.engines.maniskill_task import ManiSkillConfig
    from sim.make import EnvConfig, make_vec_env

    options = ManiSkillConfig(saving=saving)
    config = EnvConfig(
        engine="maniskill", task=task, on_end=on_end, max_steps=max_steps, maniskill=options
    )
    return make_vec_env(config, num_envs)


def make_maniskill_arm(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    """PickCube-v1 with the observations and actions of `pick_cube`."""
    from sim.engines.maniskill_task import ManiSkillArm, ManiSkillConfig
    from sim.make import EnvConfig, make_vec_env

    arm = ManiSkillArm(
        environment="PickCube-v1", bodies={"cube": "extra/obj_pose"}, goal="extra/goal_pos"
    )
    config = EnvConfig(
        engine="maniskill",
        task="pick_cube",
        robot="panda",
        on_end=on_end,
        max_steps=max_steps,
        maniskill=ManiSkillConfig(arm=arm),
    )
    return make_vec_env(config, num_envs)


def go_to_the_goal(observation: Observation) -> np.ndarray:
    """The task reach moves its target by 2 cm per unit of action; a quarter of the way at a time
    does not overshoot."""
    return np.clip(
        0.25 * (observation["goal"] - observation["grasp_pose"][:, :3]) / 0.02, -1.0, 1.0
    )


def make_warp_reach(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    import warp  # pyright: ignore[reportMissingImports]

    from sim.engines.warp import WarpEngine

    # Kernels are compiled at their first use; unoptimised they take a third of the time.
    warp.config.optimization_level = 0
    return EngineVecEnv(
        WarpEngine(find_task("reach"), num_envs), VecEnvConfig(on_end=on_end, max_steps=max_steps)
    )


def reach_for_the_goal(observation: Observation) -> np.ndarray:
    """Fetch moves its gripper by 5 cm per unit of action."""
    delta = (observation["desired_goal"] - observation["achieved_goal"]) / 0.05
    return np.pad(np.clip(delta, -1.0, 1.0), ((0, 0), (0, 1)))


def walk_on(observation: Observation) -> np.ndarray:
    return np.ones((len(observation["place"]), 1))


MANISKILL = pytest.mark.needs("maniskill")

ENTRIES = [
    Entry("mujoco_reach", partial(make_mujoco, "reach"), solve=go_to_the_goal, solve_steps=60),
    *(
        Entry(f"mujoco_{task}", partial(make_mujoco, task), reuse=True)
        for task in TASKS
        if task != "reach"
    ),
    Entry(
        "mujoco_reach_panda",
        partial(make_mujoco, "reach", robot="panda"),
        solve=go_to_the_goal,
        solve_steps=60,
    ),
    Entry("mujoco_pick_cube_panda", partial(make_mujoco, "pick_cube", robot="panda"), reuse=True),
    Entry("mujoco_pick_cube_randomized", partial(make_randomized, "pick_cube"), reuse=True),
    Entry("walk", make_walk, solve=walk_on),
    Entry("walk_of_all", make_walk_of_all, solve=walk_on),
    Entry("walk_specified", make_walk_specified, solve=walk_on),
    Entry("walk_in_workers", make_walk_in_workers, solve=walk_on, reuse=True),
    Entry("walk_in_server", make_walk_in_server, solve=walk_on, reuse=True),
    Entry("gym_push_t_published", partial(make_push_t, None)),
    Entry("gym_push_t_pictures", partial(make_push_t, 96)),
    Entry("gym_push_t", make_gym_push_t),
    Entry(
        "gym_hil_pick_cube",
        make_gym_hil,
        solve=pick_up,
        solve_steps=60,
        reuse=True,
        marks=(pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600)),
    ),
    Entry(
        "metaworld_reach",
        make_meta_world,
        solve=go_to_goal,
        solve_steps=120,
        reuse=True,
        marks=(pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600)),
    ),
    Entry(
        "gym_fetch_reach",
        partial(make_fetch, "FetchReach-v4"),
        reuse=True,
        solve=reach_for_the_goal,
    ),
    Entry("gym_fetch_pick_and_place", partial(make_fetch, "FetchPickAndPlace-v4"), reuse=True),
    Entry(
        "warp_reach",
        make_warp_reach,
        reuse=True,
        marks=(pytest.mark.needs("warp"),),
    ),
    *(
        Entry(
            f"maniskill_{task}",
            partial(make_maniskill, task, "replay"),
            reuse=True,
            # Every start of it has a peg of another size, and so builds the scene anew.
            slow=task == "PegInsertionSide-v1",
            marks=(MANISKILL, *marks),
        )
        for task, *marks in (("PickCube-v1",), ("PegInsertionSide-v1", pytest.mark.nightly))
    ),
    Entry("maniskill_arm_pick_cube", make_maniskill_arm, reuse=True, marks=(MANISKILL,)),
    # The T rests on many contacts, which PhysX need not resolve in the same order: its pose differs
    # in the last bit.
    Entry(
        "maniskill_PushT-v1",
        partial(make_maniskill, "PushT-v1", "state"),
        exact=False,
        tolerance=1e-3,
        reuse=True,
        # Its contacts take long.
        slow=True,
        marks=(MANISKILL, pytest.mark.nightly),
    ),
]
