"""Makes the tasks of Meta-World, such as `pick-place-v3`, as an engine for an environment server.

Meta-World's own Gymnasium ids choose starts from a list at random, whatever the seed of a reset.
Here every reset draws the places of object and goal from its seed, in the whole range of the task,
and the goal is observed, as in its MT1 benchmark. Written for metaworld 3.1.1; nothing here needs
it before `engine` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robots.errors import HandoffError, suggest
from sim.engines.gym import GymConfig, GymEngine

ENVIRONMENT = "handoff/MetaWorld-v0"
"""Id under which the environments are registered."""
NO_LIMIT = 2**31 - 1
"""Steps after which Meta-World itself would refuse to go on."""
LIMIT = 500
"""Meta-World's time limit [control periods]."""
OPTIONS = ("max_steps", "camera_name", "width", "height", "render_mode", "reward_function_version")
"""Options of `engine`."""


def engine(task: str, num_envs: int, options: Mapping[str, Any]) -> GymEngine:
    """N environments of one task.

    An observation is `observation` (39,): hand, gripper and up to two objects now and one step ago,
    and the goal [m]; an action is (4,) in [-1, 1]: steps of the hand of 1 cm, and the gripper's
    effort. Success ends an episode.

    Args:
        task: name of a task, such as `pick-place-v3`.
        num_envs: N.
        options: see `OPTIONS`: `max_steps` is the time limit [control periods], by default 500; the
            others are those of Meta-World's classes.

    Raises:
        HandoffError: Meta-World is not installed here, or an unknown task or option.
    """
    try:
        from metaworld.env_dict import (  # pyright: ignore[reportMissingImports]
            ALL_V3_ENVIRONMENTS,
        )
    except ImportError as error:
        raise HandoffError(
            f"meta-world {task}: cannot be imported ({error}). Make its virtual environment: handoff envs create "
            "metaworld"
        ) from None
    if task not in ALL_V3_ENVIRONMENTS:
        raise HandoffError(f"meta-world: task '{task}', {suggest(task, ALL_V3_ENVIRONMENTS)}")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise HandoffError(f"meta-world {task}: unknown options {unknown}, expected {OPTIONS}.")
    own = {name: value for name, value in options.items() if name != "max_steps"}
    _register()
    config = GymConfig(
        options={"task": task, **own},
        end_on_success=True,
        max_steps=options.get("max_steps", LIMIT),
        saving="replay",
    )
    return GymEngine(ENVIRONMENT, num_envs, config)


def _register() -> None:
    from gymnasium.envs.registration import register, registry

    if ENVIRONMENT not in registry:
        register(id=ENVIRONMENT, entry_point=_make)


def _make(task: str, **options: Any) -> Any:
    """One environment whose resets depend on their seed alone."""
    from gymnasium import Wrapper
    from metaworld.env_dict import (  # pyright: ignore[reportMissingImports]
        ALL_V3_ENVIRONMENTS,
    )

    class Seeded(Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            if seed is not None:
                self.unwrapped.seed(seed)  # type: ignore[attr-defined]
            return self.env.reset()

    env = ALL_V3_ENVIRONMENTS[task](**options)
    # What its `set_task` would set from a list of tasks.
    env._partially_observable = False
    env.__dict__.pop("sawyer_observation_space", None)
    env._set_task_called = True
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env.max_path_length = NO_LIMIT
    return Seeded(env)
