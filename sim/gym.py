"""Any registered Gymnasium environment as an engine, and the published push-T benchmark in SI units."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec
from robots.types import Observation, WorldState
from sim.engine import Reading
from sim.gym_spaces import action_spec, control_rate, field_specs, flat, mend_joint_types, time_limit
from sim.gym_state import History, MujocoState, tried_state
from sim.tasks.push_t import SUCCESS_COVERAGE, keypoints
from sim.worlds import Worlds, WorldsConfig

PIXELS_PER_METRE = 1000.0
RATE_HZ = 10.0
"""Control rate of the benchmark; each period is ten physics steps of 10 ms."""
COVERAGE_DECIMALS = 9
"""Coverage is told to so many decimals; success is decided before rounding."""
NO_LIMIT = 2**31 - 1
"""A time limit [control periods] that no episode reaches."""
SUCCESS_KEYS = ("is_success", "success")


@config
class GymConfig:
    """How a Gymnasium environment becomes a world."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`, such as `obs_type`."""
    success: Literal["info", "terminated", "never"] = "info"
    """Solved means: `info["is_success"]` or `info["success"]`; or that the environment terminated; or it cannot be."""
    end_on_success: bool = False
    """Whether a solved world is over although the environment itself would go on (the Fetch tasks never terminate)."""
    info: tuple[str, ...] = ()
    """Keys of the environment's info that hold one number each and are passed on; 0 after a reset."""
    max_steps: int | None = None
    """Time limit [control periods]; None takes the registered one."""
    rate_hz: float | None = None
    """Control periods per second; None takes the environment's own, `metadata["render_fps"]` or else 1 / `dt`."""
    saving: Literal["state", "replay"] = "state"
    """How `save` works: MuJoCo's state is copied; or, for any environment, the actions since the start are kept and
    taken again at `restore`, exactly but at the price of as many steps."""


class GymEngine:
    """N instances of one Gymnasium environment in this process: `Box` actions, `Box` or (nested) `Dict` observations.

    Fields of a nested observation are named by their path, `outer/inner`; a bare `Box` is `observation`. Gymnasium's
    `TimeLimit` only tells `max_steps`; `sim.worlds` applies it. Actions are passed on as they are, not clipped.
    """

    def __init__(self, env_id: str, num_envs: int, config: GymConfig | None = None) -> None:
        """Makes the instances.

        Args:
            env_id: registered id; `module:id` imports the module that registers it first, such as
                `gym_pusht:gym_pusht/PushT-v0` or `gymnasium_robotics:FetchPickAndPlace-v4`.
            num_envs: N, at least 1.
            config: how it becomes a world.

        Raises:
            HandoffError: unknown id, spaces other than the above, or no time limit or rate known.
        """
        self.config = config or GymConfig()
        self.env_id, self.num_envs, self.name = env_id, num_envs, f"gymnasium {env_id.rpartition(':')[2]}"
        if num_envs < 1:
            raise HandoffError(f"{self.name}: {num_envs} worlds asked for, at least 1 is needed.")
        self._envs = [self._make() for _ in range(num_envs)]
        first = self._envs[0]
        self.observation_spec: Mapping[str, FieldSpec] = field_specs(self.name, first.observation_space)
        self.action_spec = action_spec(self.name, first.action_space)
        self.rate_hz = self.config.rate_hz or control_rate(self.name, first)
        self.max_steps = self.config.max_steps or time_limit(self.name, env_id)
        n = num_envs
        self._observation: Observation = {
            name: np.zeros((n, *spec.shape), dtype=spec.dtype) for name, spec in self.observation_spec.items()
        }
        self._reward = np.zeros(n)
        self._terminated, self._success = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self._info = {key: np.zeros(n) for key in self.config.info}
        self._seeds = np.zeros(n, dtype=np.int64)
        self._history = History(n, self.action_spec.size) if self.config.saving == "replay" else None
        self._mujoco: MujocoState | None = None
        self._refusal = ""

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`."""
        for i, seed in zip(worlds, seeds, strict=True):
            observation, _ = self._envs[i].reset(seed=int(seed))
            self._put(int(i), observation, 0.0, False, None)
        self._seeds[worlds] = seeds
        if self._history is not None:
            self._history.clear(worlds)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`.

        Raises:
            HandoffError: the environment truncated the episode by itself, or does not tell success as configured.
        """
        for i in np.flatnonzero(running):
            self._step(int(i), action[i])

    def read(self) -> Reading:
        """See `Engine.read`."""
        return Reading(
            observation={name: array.copy() for name, array in self._observation.items()},
            reward=self._reward.copy(),
            terminated=self._terminated.copy(),
            success=self._success.copy(),
            info={name: array.copy() for name, array in self._info.items()},
        )

    def save(self) -> WorldState:
        """See `Engine.save`.

        Raises:
            HandoffError: its state cannot be copied, or a trial (once, on another instance) was not repeated exactly.
        """
        if self._history is not None:
            return {"start": self._seeds.copy(), **self._history.save()}
        rows = [self._snapshot().save(env.unwrapped) for env in self._envs]
        return {
            **{name: np.stack([row[name] for row in rows]) for name in rows[0]},
            **{f"now_{name}": array.copy() for name, array in self._told().items()},
            **{f"observation_{name}": array.copy() for name, array in self._observation.items()},
        }

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`."""
        if self._history is not None:
            self.reset(worlds, state["start"])
            for row, i in enumerate(worlds):
                for action in self._history.of(state, row):
                    self._step(int(i), action)
            return
        snapshot = self._snapshot()
        for row, i in enumerate(worlds):
            snapshot.restore(self._envs[i].unwrapped, {name: array[row] for name, array in state.items()})
        for name, array in self._told().items():
            array[worlds] = state[f"now_{name}"]
        for name, array in self._observation.items():
            array[worlds] = state[f"observation_{name}"]

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`."""
        data = getattr(self._envs[world].unwrapped, "data", None)
        arrays = {name: np.array(getattr(data, name)) for name in ("qpos", "qvel", "ctrl") if hasattr(data, name)}
        return {**arrays, **{f"observation_{name}": array[world] for name, array in self._observation.items()}}

    def close(self) -> None:
        """See `Engine.close`."""
        for env in self._envs:
            env.close()

    def _told(self) -> dict[str, np.ndarray]:
        return {"reward": self._reward, "terminated": self._terminated, "success": self._success, **self._info}

    def _make(self) -> Any:
        import gymnasium

        # pygame, which some environments draw with, otherwise greets on standard output when imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            if self.env_id.startswith("gymnasium_robotics:"):
                mend_joint_types()
            options = dict(self.config.options)
            return gymnasium.make(self.env_id, max_episode_steps=-1, disable_env_checker=True, **options)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise HandoffError(
                f"{self.name}: cannot be made ({error}). Is its package installed, and named before the id, as in "
                "`gym_pusht:gym_pusht/PushT-v0`?"
            ) from None

    def _step(self, world: int, action: np.ndarray) -> None:
        env = self._envs[world]
        if self._history is not None:
            self._history.add(world, action)
        shaped = action.reshape(env.action_space.shape).astype(env.action_space.dtype)
        observation, reward, terminated, truncated, info = env.step(shaped)
        if truncated:
            raise HandoffError(
                f"{self.name}: world {world} truncated its episode by itself. Set a max_steps below its own time limit."
            )
        self._put(world, observation, float(reward), bool(terminated), info)

    def _put(
        self, world: int, observation: Any, reward: float, terminated: bool, info: Mapping[str, Any] | None
    ) -> None:
        """Files one world's answer; after a reset there is no `info`."""
        for name, value in flat(observation).items():
            self._observation[name][world] = value
        success = info is not None and self._solved(terminated, info)
        self._reward[world], self._success[world] = reward, success
        self._terminated[world] = terminated or (success and self.config.end_on_success)
        for key, array in self._info.items():
            if info is not None and key not in info:
                raise HandoffError(f"{self.name}: no info '{key}', the environment tells {sorted(info)}.")
            array[world] = 0.0 if info is None else info[key]

    def _solved(self, terminated: bool, info: Mapping[str, Any]) -> bool:
        match self.config.success:
            case "terminated":
                return terminated
            case "never":
                return False
            case "info":
                for key in SUCCESS_KEYS:
                    if key in info:
                        return bool(info[key])
                raise HandoffError(
                    f"{self.name}: its info tells no success, only {sorted(info)}. "
                    "Set success to 'terminated' or 'never'."
                )

    def _snapshot(self) -> MujocoState:
        """The copier, tried out on a spare instance when first asked for: state kept out of sight shows there."""
        if self._mujoco is None and not self._refusal:
            env = self._make()
            try:
                self._mujoco = tried_state(env, self.name)
            except HandoffError as error:
                # Kept, for a guard may ask before every step.
                self._refusal = str(error)
            finally:
                env.close()
        if self._mujoco is None:
            raise HandoffError(self._refusal)
        return self._mujoco


class PushTEngine:
    """N gym-pusht worlds in one process, without gymnasium's wrappers.

    Observation fields, all in the board's frame (x right, y down): `agent` (N, 2) m, `keypoints` (N, 9, 2) m,
    `block_pose` (N, 3) m, m, rad in [0, 2 pi). The action (N, 2) is the agent's target position in m, not clipped, as
    in the published protocol. The reward is clip(coverage / 0.95, 0, 1); info `coverage`, 0 after a reset.

    States are saved as the start and the actions since, and a restore takes those again: pymunk hides the pushes
    between bodies that its next step begins with. With positions and velocities alone 6 of 60 random states had the
    same future; after 30 steps the median was 0.15 mm off, one in ten more than 77 mm.
    """

    name = "gym-pusht push_t"
    rate_hz = RATE_HZ
    max_steps = 300  # of the published protocol
    observation_spec: Mapping[str, FieldSpec] = {
        "agent": FieldSpec(shape=(2,), unit="m", frame="board", about="centre of the pusher, x y"),
        "keypoints": FieldSpec(shape=(9, 2), unit="m", frame="board", about="points of the block, x y"),
        "block_pose": FieldSpec(shape=(3,), unit="m, m, rad", frame="board", about="block x, y, angle in [0, 2 pi)"),
    }
    action_spec = ActionSpec(
        low=(0.0, 0.0), high=(0.512, 0.512), names=("x", "y"), unit="m", interface="position_target"
    )

    def __init__(self, num_envs: int, frame_size: int = 96):
        """Makes the worlds.

        Args:
            num_envs: N, at least 1.
            frame_size: edge of the square pictures of `render` [px].
        """
        # pygame, which gym-pusht draws with, otherwise greets on standard output when imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        from gym_pusht.envs.pusht import PushTEnv

        if num_envs < 1:
            raise HandoffError(f"gym-pusht: {num_envs} worlds asked for, at least 1 is needed.")
        self.num_envs = num_envs
        self._worlds = [
            PushTEnv(obs_type="state", visualization_width=frame_size, visualization_height=frame_size)
            for _ in range(num_envs)
        ]
        self._coverage = np.zeros(num_envs)
        self._solved = np.zeros(num_envs, dtype=bool)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._start = np.full((num_envs, 5), np.nan)
        self._history = History(num_envs, 2)

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """Starts `worlds` at the published benchmark's random poses of their seeds."""
        self._begin(worlds, seeds, np.full((len(worlds), 5), np.nan))

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Advances the worlds that run by 0.1 s; see `Engine.step`."""
        for i in np.flatnonzero(running):
            self._step(int(i), action[i])

    def read(self) -> Reading:
        """See `Engine.read`."""
        state_N5 = np.array([world.get_obs() for world in self._worlds], dtype=np.float64)
        state_N5[:, :4] /= PIXELS_PER_METRE
        return Reading(
            observation={
                "agent": state_N5[:, :2].astype(np.float32),
                "keypoints": keypoints(state_N5[:, 2:]).astype(np.float32),
                "block_pose": state_N5[:, 2:].astype(np.float32),
            },
            reward=np.clip(self._coverage / SUCCESS_COVERAGE, 0.0, 1.0),
            terminated=self._solved.copy(),
            success=self._solved.copy(),
            info={"coverage": self._coverage.copy()},
        )

    def save(self) -> WorldState:
        """`start_seed` (N,), `start_state` (N, 5) agent x, y and block x, y, angle [m, rad] where a world was put
        at a state, else NaN, and the actions since.
        """
        return {"start_seed": self._seeds.copy(), "start_state": self._start.copy(), **self._history.save()}

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`; takes as long as the actions took."""
        self._begin(worlds, state["start_seed"], state["start_state"])
        for row, i in enumerate(worlds):
            for action in self._history.of(state, row):
                self._step(int(i), action)

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """State [px, rad] and velocities [px/s, rad/s] of one world."""
        env = self._worlds[world]
        return {
            "state": np.asarray(env.get_obs()),
            "agent_velocity": np.array(env.agent.velocity),
            "block_velocity": np.array([*env.block.velocity, env.block.angular_velocity]),
        }

    def render(self, world: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB picture of one world, with the last target as a red cross."""
        return np.asarray(self._worlds[world].render())

    def close(self) -> None:
        """Frees what drawing has taken."""
        for world in self._worlds:
            world.close()

    def _begin(self, worlds: np.ndarray, seeds: np.ndarray, states: np.ndarray) -> None:
        for i, seed, state in zip(worlds, seeds, states, strict=True):
            world = self._worlds[i]
            world.reset(seed=int(seed))
            if np.isfinite(state).all():
                _put_at(world, state)
        self._seeds[worlds], self._start[worlds] = seeds, states
        self._history.clear(worlds)
        self._coverage[worlds], self._solved[worlds] = 0.0, False

    def _step(self, world: int, action: np.ndarray) -> None:
        self._history.add(world, action)
        _, _, self._solved[world], _, info = self._worlds[world].step(PIXELS_PER_METRE * action)
        # The polygon overlap (GEOS) differs in its last bits from process to process; the physics does not.
        self._coverage[world] = round(info["coverage"], COVERAGE_DECIMALS)


class PushTVecEnv(Worlds):
    """The published benchmark as it is evaluated: a solved world freezes until `reset`, and there is no time limit."""

    def __init__(self, num_envs: int, frame_size: int = 96):
        """Makes the worlds; call `reset` before `step`. Arguments as of `PushTEngine`."""
        self._push_t = PushTEngine(num_envs, frame_size)
        super().__init__(self._push_t, WorldsConfig(on_end="freeze", max_steps=NO_LIMIT, guard_steps=0))

    def reset_to(self, agent: np.ndarray, block_pose: np.ndarray) -> Observation:
        """Starts every world exactly at a recorded state, at rest.

        Args:
            agent: (N, 2) m.
            block_pose: (N, 3) m, m, rad.
        """
        for name, array in (("agent", agent), ("block_pose", block_pose)):
            if len(array) != self.num_envs:
                raise HandoffError(
                    f"gym-pusht: {len(array)} rows of {name} for {self.num_envs} worlds, expected one each."
                )
        self.reset([0] * self.num_envs)
        state_N5 = np.concatenate([agent, block_pose], axis=1, dtype=np.float64)
        return self.restore({**self.save(), "start_state": state_N5})

    def render(self, world: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB picture of one world, with the last target as a red cross."""
        return self._push_t.render(world)


def _put_at(world: Any, state: np.ndarray) -> None:
    """Puts a gym-pusht world at rest at agent x, y and block x, y, angle [m, rad].

    gym-pusht's own `reset_to_state` sets the block's position before its angle; the turn about the centre of mass then
    moves the block. Here the angle comes first, so that the state reached is the state given.
    """
    world._setup()
    world.agent.position = tuple(PIXELS_PER_METRE * state[:2])
    world.block.angle = float(state[4])
    world.block.position = tuple(PIXELS_PER_METRE * state[2:4])
    world.space.step(world.dt)
