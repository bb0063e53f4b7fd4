"""Any ManiSkill 3 environment as an engine: PhysX on the CPU, one scene per world, or on a GPU, one
batch of scenes.

Written against mani_skill 3.0.1 and SAPIEN 3.0.3. The batch is the same code with a width of N
instead of 1; it has run on a stand-in only, not on a GPU. ManiSkill asks for a Vulkan driver even
when no picture is wanted, because materials belong to its renderer. Its assets are licensed CC
BY-NC: they are used through the package and never fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import WorldState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.gym_state import ActionHistory
from sim.engines.maniskill_task import (
    ManiSkillConfig,
    action_spec,
    environment_arguments,
    field_specs,
    find_task,
    leaves,
    make_environment,
    observed,
)

NO_LIMIT = 2**31 - 1
"""A time limit [control periods] that no episode reaches, for tasks registered without one."""
TRIAL_STEPS = 10
"""Random actions after which a reset must start the same way again, or each reset builds the scene
anew."""
MAX_SEED = 2**32 - 1
"""ManiSkill seeds NumPy's RandomState, which takes 32 bits."""


class ManiSkillEngine:
    """N worlds of one ManiSkill task, without ManiSkill's own time limit and automatic reset.

    Fields of the observation are named by their path, such as `agent/qpos` and `extra/obj_pose`;
    they are float32, flags as 0 and 1. Pictures are `image_<camera>`, (H, W, 3) uint8. ManiSkill
    clips actions to its bounds. Actions of several robots are laid end to end. On the CPU a world's
    trajectory depends on its seed and actions alone, bit for bit where few bodies touch
    (PickCube-v1, PegInsertionSide-v1); PhysX does not promise the order in which it resolves
    contacts, and PushT-v1's block has been seen to differ in its last bit (1.5e-7 m). On CUDA what
    ManiSkill draws when it builds the scene (the peg's size) depends on the world's number instead.
    """

    def __init__(self, task: str, num_envs: int, config: ManiSkillConfig | None = None) -> None:
        """Makes the worlds.

        Args:
            task: registered id, such as `PickCube-v1`.
            num_envs: N, at least 1.
            config: how it becomes worlds.

        Raises:
            HandoffError: package, task, assets, robot or Vulkan driver missing, or an impossible
                configuration.
        """
        self.config = config or ManiSkillConfig()
        self.num_envs, self.name = num_envs, f"maniskill {task}"
        batched = self.config.sim_backend == "physx_cuda"
        saving = self.config.saving or ("state" if batched else "replay")
        if num_envs < 1:
            raise HandoffError(f"{self.name}: {num_envs} worlds asked for, at least 1 is needed.")
        if batched and saving == "replay":
            raise HandoffError(
                f"{self.name}: saving='replay' with physx_cuda, which steps all worlds together. Set saving='state'."
            )
        make, limit = find_task(self.name, task)
        self._width = num_envs if batched else 1
        arguments = environment_arguments(self.config, self._width)
        self._envs: list[Any] = []
        for _ in range(num_envs // self._width):
            self._envs.append(make_environment(self.name, make, arguments))
        first = self._envs[0]
        self.observation_spec: Mapping[str, FieldSpec] = field_specs(
            self.name, first.get_obs(), self._width
        )
        self.action_spec, self._action_slices = action_spec(self.name, first)
        self.rate_hz = float(first.control_freq)
        self.max_steps = limit or NO_LIMIT
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._history = (
            ActionHistory(num_envs, self.action_spec.size) if saving == "replay" else None
        )
        zeros = np.zeros(self._width)
        # A batch cannot be built anew for some of its worlds; a task that always builds anew needs
        # no trial.
        trial = self.config.rebuild is None and not batched and first.reconfiguration_freq != 1
        self._rebuild = not batched and (
            not self._repeats(first) if trial else bool(self.config.rebuild)
        )
        self._parts = [
            self._answer(env.get_obs(info := env.get_info()), info, zeros) for env in self._envs
        ]

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`. One world at a time, for ManiSkill seeds all it resets together from
        the first's seed.

        A reset takes 3 to 5 ms, or about 0.3 s where the scene must be built anew (by
        PegInsertionSide-v1 itself, and for tasks whose own reset does not start everything anew).

        Raises:
            HandoffError: a seed of more than 32 bits.
        """
        if (np.asarray(seeds) > MAX_SEED).any():
            raise HandoffError(
                f"{self.name}: seed {int(np.max(seeds))}, ManiSkill takes at most {MAX_SEED}."
            )
        for world, seed in zip(worlds, seeds, strict=True):
            at, row = divmod(int(world), self._width)
            env = self._envs[at]
            options: dict[str, Any] = {"reconfigure": True} if self._rebuild else {}
            if self._width > 1:
                options = {"env_idx": env.elapsed_steps.new_tensor([row]).long()}
            observation, info = env.reset(seed=[int(seed)] * self._width, options=options)
            reward = self._parts[at].reward.copy()
            reward[row] = 0.0
            self._parts[at] = self._answer(observation, info, reward)
        self._seeds[worlds] = seeds
        if self._history is not None:
            self._history.clear(worlds)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`. A batch steps worlds that do not run too, with an action of zeros."""
        for at, env in enumerate(self._envs):
            rows = np.arange(at * self._width, (at + 1) * self._width)
            if running[rows].any():
                observation, reward, info = self._advance(
                    env, np.where(running[rows, None], action[rows], 0.0)
                )
                self._parts[at] = self._answer(observation, info, reward)
        if self._history is not None:
            for world in np.flatnonzero(running):
                self._history.add(int(world), action[world])

    def read(self) -> EngineState:
        """See `Engine.read`."""
        parts = self._parts
        return EngineState(
            observation={
                name: np.concatenate([p.observation[name] for p in parts])
                for name in parts[0].observation
            },
            reward=np.concatenate([p.reward for p in parts]),
            terminated=np.concatenate([p.terminated for p in parts]),
            success=np.concatenate([p.success for p in parts]),
            info={name: np.concatenate([p.info[name] for p in parts]) for name in parts[0].info},
        )

    def save(self) -> WorldState:
        """See `Engine.save`.

        Returns:
            `start`, the seeds; by replay, the actions and the observation against which `restore`
            checks itself; by state, ManiSkill's own state dictionary, the elapsed steps and the
            reward.
        """
        if self._history is not None:
            seen = {f"observation_{name}": array for name, array in self.read().observation.items()}
            seen = {name: array for name, array in seen.items() if array.dtype != np.uint8}
            return {"start": self._seeds.copy(), **self._history.save(), **seen}
        trees = [dict(leaves(env.get_state_dict())) for env in self._envs]
        return {
            "start": self._seeds.copy(),
            "elapsed": np.concatenate([_array(env.elapsed_steps) for env in self._envs]),
            "reward": np.concatenate([part.reward for part in self._parts]),
            **{path: np.concatenate([_array(tree[path]) for tree in trees]) for path in trees[0]},
        }

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`. Both ways reset from the saved seed first, which brings back what a
        task drew then.

        By state, variables that a task changes from step to step, and that are not in ManiSkill's
        state dictionary, start anew.

        Raises:
            HandoffError: the state is of another kind, or replay did not repeat what was saved.
        """
        expected = self.save().keys()
        if expected != state.keys():
            raise HandoffError(
                f"{self.name}: state has fields {sorted(state)}, expected {sorted(expected)}. "
                "Was it saved by another task, or with another `saving`?"
            )
        self.reset(worlds, state["start"])
        for row, world in enumerate(worlds):
            if self._history is not None:
                self._repeat(self._history, int(world), row, state)
            else:
                self._put(int(world), row, state)

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`: the observation and ManiSkill's state dictionary."""
        at, row = divmod(world, self._width)
        seen = {
            f"observation_{name}": array[row] for name, array in self._parts[at].observation.items()
        }
        return {
            **seen,
            **{path: _array(leaf)[row] for path, leaf in leaves(self._envs[at].get_state_dict())},
        }

    def close(self) -> None:
        """See `Engine.close`."""
        for env in self._envs:
            env.close()

    def _repeats(self, env: Any) -> bool:
        """Whether a reset starts anew all that steps change. Some leave the robot where it was, or
        its contacts."""
        low, high = (
            np.clip(bound, -1.0, 1.0) for bound in (self.action_spec.low, self.action_spec.high)
        )
        actions = np.random.default_rng(0).uniform(
            low, high, size=(TRIAL_STEPS, 1, self.action_spec.size)
        )
        ends: list[list[bytes]] = []
        with _without_pictures(env):
            for seed in (0, 1, 0, 1):
                env.reset(seed=seed)
                observation = [self._advance(env, action)[0] for action in actions][-1]
                ends.append([_array(leaf).tobytes() for _, leaf in leaves(observation)])
        return ends[:2] == ends[2:]

    def _advance(
        self, env: Any, action_NA: np.ndarray
    ) -> tuple[Any, np.ndarray, Mapping[str, Any]]:
        flat = action_NA.astype(np.float32)
        form = (
            {key: flat[:, part] for key, part in self._action_slices.items()}
            if self._action_slices
            else flat
        )
        observation, reward, _, _, info = env.step(form)
        return observation, _array(reward, "float64"), info

    def _answer(self, observation: Any, info: Mapping[str, Any], reward: np.ndarray) -> EngineState:
        """Copies what one environment answered. Over means solved or failed, as in ManiSkill's own
        step."""
        n = self._width
        flags = {
            name: _array(value)
            for name, value in info.items()
            if name not in ("elapsed_steps", "reconfigure")
            and getattr(value, "shape", ())[:1] == (n,)
        }
        never = np.zeros(n, dtype=bool)
        success = flags.pop("success", never).astype(bool)
        return EngineState(
            observation={
                name: _array(value, self.observation_spec[name].dtype)
                for name, value in observed(observation)
            },
            reward=reward.copy(),
            terminated=success | flags.get("fail", never).astype(bool),
            success=success,
            info=flags,
        )

    def _repeat(self, history: ActionHistory, world: int, row: int, state: WorldState) -> None:
        """Takes the saved actions again in a world that has just been reset, and compares where it
        arrives."""
        env, part = self._envs[world], self._parts[world]
        actions = history.of(state, row)
        last = None
        with _without_pictures(env):
            for action in actions:
                last = self._advance(env, action[None])
                history.add(world, action)
        if last is not None:
            observation, reward, info = last
            if self.config.observation != "state":
                observation = env.get_obs(info)
            part = self._parts[world] = self._answer(observation, info, reward)
        for name, array in part.observation.items():
            if array.dtype != np.uint8 and not np.array_equal(
                array[0], state[f"observation_{name}"][row]
            ):
                raise HandoffError(
                    f"{self.name}: {len(actions)} actions from seed {self._seeds[world]} lead to another '{name}' than "
                    "was saved. Does the task draw at random while it runs, or is its physics not repeatable? "
                    "`saving='state'` restores it, though not bit by bit."
                )

    def _put(self, world: int, row: int, state: WorldState) -> None:
        """Puts one saved state into a world that has just been reset."""
        from mani_skill.utils import common

        at, index = divmod(world, self._width)
        env = self._envs[at]
        present = env.get_state_dict()
        controllers = present.pop("controller", None)
        where = (
            {} if self._width == 1 else {"env_idx": env.elapsed_steps.new_tensor([index]).long()}
        )
        env.set_state_dict(_rebuilt(present, lambda path, _: state[path][row][None]), **where)
        if controllers:

            def target(path: str, now: Any) -> Any:
                batch = _array(now)
                batch[index] = state[path][row]
                return common.to_tensor(batch, device=env.device)

            env.agent.set_controller_state(_rebuilt(controllers, target, "controller/"))
        env.elapsed_steps[index] = int(state["elapsed"][row])
        reward = self._parts[at].reward.copy()
        reward[index] = state["reward"][row]
        info = env.get_info()
        self._parts[at] = self._answer(env.get_obs(info), info, reward)


@contextmanager
def _without_pictures(env: Any) -> Iterator[None]:
    """Steps within draw nothing; physics, reward and counters are the same."""
    mode, env._obs_mode = env._obs_mode, "state_dict"
    try:
        yield
    finally:
        env._obs_mode = mode


def _array(value: Any, dtype: str | None = None) -> np.ndarray:
    """An own copy of a tensor on any device, or of an array."""
    return np.array(value.cpu().numpy() if hasattr(value, "cpu") else value, dtype=dtype)


def _rebuilt(
    tree: Mapping[str, Any], leaf: Callable[[str, Any], Any], path: str = ""
) -> dict[str, Any]:
    """A tree of the same form, each leaf made from its path and its present value."""
    return {
        key: _rebuilt(value, leaf, f"{path}{key}/")
        if isinstance(value, Mapping)
        else leaf(f"{path}{key}", value)
        for key, value in tree.items()
    }
