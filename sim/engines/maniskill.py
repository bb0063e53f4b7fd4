"""Wraps any ManiSkill 3 environment as an engine: PhysX on the CPU with one scene per environment,
or on a GPU with one batch of scenes.

Written for mani_skill 3.0.1 and SAPIEN 3.0.3. The batch uses the same code with a width of N
instead of 1; it has been tested only with a fake, not on a GPU. ManiSkill requires a Vulkan driver
even without images, because materials belong to its renderer. Its assets are licensed CC BY-NC:
they are used through the package and never downloaded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState
from robots.spec import FieldSpec
from sim.engine import EngineState
from sim.engines.gym_state import ActionHistory
from sim.engines.maniskill_task import (
    ManiSkillConfig,
    action_spec,
    environment_arguments,
    field_specs,
    find_task,
    finger_limits,
    leaves,
    make_environment,
    observation_fields,
)

NO_LIMIT = 2**31 - 1
"""Time limit that no episode reaches [control periods], for tasks registered without one."""
TRIAL_STEPS = 10
"""Random actions after which a reset must be reproducible; otherwise each reset rebuilds the
scene."""
COLLECTED_RESETS = 25
"""Resets that rebuild a scene of about a megabyte, after which garbage is collected."""
MAX_SEED = 2**32 - 1
"""Maximum seed, because ManiSkill seeds NumPy's RandomState, which takes 32 bits."""


class ManiSkillEngine:
    """N environments of one ManiSkill task, without ManiSkill's own time limit and automatic reset.

    Fields of the observation are named by their path, such as `agent/qpos` and `extra/obj_pose`;
    they are float32, flags are 0 and 1. Images are `image_<camera>`, (H, W, 3) uint8. ManiSkill
    clips actions to its bounds. Actions of several robots are concatenated. On the CPU an
    environment's trajectory depends only on its seed and actions, bit for bit with few contacts
    (PickCube-v1, PegInsertionSide-v1); PhysX does not guarantee the order in which it resolves
    contacts, and PushT-v1's block was observed to differ in its last bit (1.5e-7 m). On CUDA the
    values that ManiSkill draws when it builds the scene (such as the peg's size) depend on the
    environment's index instead.
    """

    def __init__(self, task: str, num_envs: int, config: ManiSkillConfig | None = None) -> None:
        """Makes the environments.

        Args:
            task: registered id, such as `PickCube-v1`.
            num_envs: N, at least 1.
            config: options of ManiSkill.

        Raises:
            HandoffError: package, task, assets, robot or Vulkan driver missing, or an unsupported
                configuration.
        """
        self.config = config or ManiSkillConfig()
        self.num_envs = num_envs
        self.name = f"maniskill {task}"
        batched = self.config.sim_backend == "physx_cuda"
        saving = self.config.saving or ("state" if batched else "replay")
        if num_envs < 1:
            raise HandoffError(f"{self.name}: {num_envs} environments, at least 1 is needed.")
        if batched and saving == "replay":
            raise HandoffError(
                f"{self.name}: saving='replay' with physx_cuda, which steps all environments together. Set "
                "saving='state'."
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
        self.finger_limits = finger_limits(first)
        self.rate_hz = float(first.control_freq)
        self.max_steps = limit or NO_LIMIT
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._history = (
            ActionHistory(num_envs, self.action_spec.size) if saving == "replay" else None
        )
        zeros = np.zeros(self._width)
        # A batch cannot be rebuilt for some of its environments; a task that always rebuilds needs
        # no trial.
        trial = self.config.rebuild is None and not batched and first.reconfiguration_freq != 1
        self._rebuild = not batched and (
            not self._repeats(first) if trial else bool(self.config.rebuild)
        )
        self._rebuilds = not batched and (self._rebuild or first.reconfiguration_freq != 0)
        self._resets = 0
        self._states = [
            self._state(env.get_obs(info := env.get_info()), info, zeros) for env in self._envs
        ]

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """See `Engine.reset`. Environments are reset one at a time, because ManiSkill seeds all
        that are reset together from the first one's seed.

        A reset takes 3 to 5 ms, or 0.1 s if the scene must be rebuilt (PegInsertionSide-v1 does so
        itself; also for tasks whose own reset is incomplete).

        Raises:
            HandoffError: a seed of more than 32 bits.
        """
        if (np.asarray(seeds) > MAX_SEED).any():
            raise HandoffError(
                f"{self.name}: seed {int(np.max(seeds))}, ManiSkill takes at most {MAX_SEED}."
            )
        for env_id, seed in zip(env_ids, seeds, strict=True):
            at, row = divmod(int(env_id), self._width)
            env = self._envs[at]
            options: dict[str, Any] = {"reconfigure": True} if self._rebuild else {}
            if self._width > 1:
                options = {"env_idx": env.elapsed_steps.new_tensor([row]).long()}
            with self._rare_collections():
                observation, info = env.reset(seed=[int(seed)] * self._width, options=options)
            reward = self._states[at].reward.copy()
            reward[row] = 0.0
            self._states[at] = self._state(observation, info, reward)
        self._seeds[env_ids] = seeds
        if self._history is not None:
            self._history.clear(env_ids)

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """See `Engine.step`. A batch also steps environments that are not running, with an action
        of zeros."""
        for at, env in enumerate(self._envs):
            rows = np.arange(at * self._width, (at + 1) * self._width)
            if running[rows].any():
                observation, reward, info = self._advance(
                    env, np.where(running[rows, None], action[rows], 0.0)
                )
                self._states[at] = self._state(observation, info, reward)
        if self._history is not None:
            for env_id in np.flatnonzero(running):
                self._history.add(int(env_id), action[env_id])

    def read(self) -> EngineState:
        """See `Engine.read`."""
        states = self._states
        return EngineState(
            observation={
                name: np.concatenate([s.observation[name] for s in states])
                for name in states[0].observation
            },
            reward=np.concatenate([s.reward for s in states]),
            terminated=np.concatenate([s.terminated for s in states]),
            success=np.concatenate([s.success for s in states]),
            info={name: np.concatenate([s.info[name] for s in states]) for name in states[0].info},
        )

    def save(self) -> EnvState:
        """See `Engine.save`.

        Returns:
            `start`, the seeds; for `replay`, the actions and the observation with which `restore`
            checks the result; for `state`, ManiSkill's own state dictionary, the elapsed steps and
            the reward.
        """
        if self._history is not None:
            fields = {
                f"observation_{name}": array for name, array in self.read().observation.items()
            }
            fields = {name: array for name, array in fields.items() if array.dtype != np.uint8}
            return {"start": self._seeds.copy(), **self._history.save(), **fields}
        trees = [dict(leaves(env.get_state_dict())) for env in self._envs]
        return {
            "start": self._seeds.copy(),
            "elapsed": np.concatenate([_array(env.elapsed_steps) for env in self._envs]),
            "reward": np.concatenate([state.reward for state in self._states]),
            **{path: np.concatenate([_array(tree[path]) for tree in trees]) for path in trees[0]},
        }

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`. Both methods first reset from the saved seed, which restores the
        values that the task drew then.

        With `state`, variables that a task changes in steps, and that are not in ManiSkill's state
        dictionary, have their initial values.

        Raises:
            HandoffError: a state of another kind, or a replay that did not reproduce the saved
                observation.
        """
        expected = self.save().keys()
        if expected != state.keys():
            raise HandoffError(
                f"{self.name}: state has fields {sorted(state)}, expected {sorted(expected)}. "
                "Was it saved by another task or with another `saving`?"
            )
        self.reset(env_ids, state["start"])
        for row, env_id in enumerate(env_ids):
            if self._history is not None:
                self._repeat(self._history, int(env_id), row, state)
            else:
                self._put(int(env_id), row, state)

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """See `Engine.dump`: the observation and ManiSkill's state dictionary."""
        at, row = divmod(env_id, self._width)
        fields = {
            f"observation_{name}": array[row]
            for name, array in self._states[at].observation.items()
        }
        return {
            **fields,
            **{path: _array(leaf)[row] for path, leaf in leaves(self._envs[at].get_state_dict())},
        }

    def close(self) -> None:
        """See `Engine.close`."""
        with _without_old_objects():
            for env in self._envs[:-1]:
                env.close()
        # Its collection releases the scenes of all.
        self._envs[-1].close()

    @contextmanager
    def _rare_collections(self) -> Iterator[None]:
        """Collects garbage after every 25th reset that rebuilds a scene, instead of in each. On a
        GPU, whose memory scenes hold, ManiSkill collects in each."""
        if not self._rebuilds:
            yield
            return
        with _without_old_objects():
            yield
        self._resets += 1
        if self._resets % COLLECTED_RESETS == 0:
            gc.collect()

    def _repeats(self, env: Any) -> bool:
        """Tests whether a reset restores everything that steps change; some tasks keep the robot's
        pose or its contacts."""
        low, high = (
            np.clip(bound, -1.0, 1.0) for bound in (self.action_spec.low, self.action_spec.high)
        )
        actions = np.random.default_rng(0).uniform(
            low, high, size=(TRIAL_STEPS, 1, self.action_spec.size)
        )
        ends: list[list[bytes]] = []
        with _without_rendering(env):
            for seed in (0, 1, 0, 1):
                env.reset(seed=seed)
                observation = [self._advance(env, action)[0] for action in actions][-1]
                ends.append([_array(leaf).tobytes() for _, leaf in leaves(observation)])
        return ends[:2] == ends[2:]

    def _advance(
        self, env: Any, action_NA: np.ndarray
    ) -> tuple[Any, np.ndarray, Mapping[str, Any]]:
        flat = action_NA.astype(np.float32)
        actions = (
            {key: flat[:, entries] for key, entries in self._action_slices.items()}
            if self._action_slices
            else flat
        )
        observation, reward, _, _, info = env.step(actions)
        return observation, _array(reward, "float64"), info

    def _state(self, observation: Any, info: Mapping[str, Any], reward: np.ndarray) -> EngineState:
        """Copies one environment's result; it is terminated on success or failure, as in
        ManiSkill's own step."""
        n = self._width
        flags = {
            name: _array(value)
            for name, value in info.items()
            if name not in ("elapsed_steps", "reconfigure")
            and getattr(value, "shape", ())[:1] == (n,)
        }
        false = np.zeros(n, dtype=bool)
        success = flags.pop("success", false).astype(bool)
        return EngineState(
            observation={
                name: _array(value, self.observation_spec[name].dtype)
                for name, value in observation_fields(observation)
            },
            reward=reward.copy(),
            terminated=success | flags.get("fail", false).astype(bool),
            success=success,
            info=flags,
        )

    def _repeat(self, history: ActionHistory, env_id: int, row: int, state: EnvState) -> None:
        """Repeats the saved actions in an environment that has just been reset, and compares the
        final observation."""
        env, replayed = self._envs[env_id], self._states[env_id]
        actions = history.of(state, row)
        last = None
        with _without_rendering(env):
            for action in actions:
                last = self._advance(env, action[None])
                history.add(env_id, action)
        if last is not None:
            observation, reward, info = last
            if self.config.observation != "state":
                observation = env.get_obs(info)
            replayed = self._states[env_id] = self._state(observation, info, reward)
        for name, array in replayed.observation.items():
            if array.dtype != np.uint8 and not np.array_equal(
                array[0], state[f"observation_{name}"][row]
            ):
                raise HandoffError(
                    f"{self.name}: {len(actions)} actions from seed {self._seeds[env_id]} lead to another "
                    f"'{name}' than saved. Does the task draw random numbers in steps, or is its physics not "
                    "reproducible? `saving='state'` restores it, but not bit for bit."
                )

    def _put(self, env_id: int, row: int, state: EnvState) -> None:
        """Writes a saved state into an environment that has just been reset."""
        from mani_skill.utils import common

        at, index = divmod(env_id, self._width)
        env = self._envs[at]
        current = env.get_state_dict()
        controllers = current.pop("controller", None)
        selection = (
            {} if self._width == 1 else {"env_idx": env.elapsed_steps.new_tensor([index]).long()}
        )
        env.set_state_dict(
            _map_leaves(current, lambda path, _: state[path][row][None]), **selection
        )
        if controllers:

            def target(path: str, value: Any) -> Any:
                batch = _array(value)
                batch[index] = state[path][row]
                return common.to_tensor(batch, device=env.device)

            env.agent.set_controller_state(_map_leaves(controllers, target, "controller/"))
        env.elapsed_steps[index] = int(state["elapsed"][row])
        reward = self._states[at].reward.copy()
        reward[index] = state["reward"][row]
        info = env.get_info()
        self._states[at] = self._state(env.get_obs(info), info, reward)


@contextmanager
def _without_old_objects() -> Iterator[None]:
    """Keeps garbage collections from visiting the objects that exist already.

    ManiSkill collects whenever it builds or closes a scene. That takes a quarter of a second where
    torch is loaded, more than all else of a reset, and longer the more objects the process has.
    Freezing restarts Python's count towards collections of its own, so the caller has to collect
    now and then. A process that has frozen objects itself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _without_rendering(env: Any) -> Iterator[None]:
    """Disables rendering in steps; physics, reward and counters are unchanged."""
    mode = env._obs_mode
    env._obs_mode = "state_dict"
    try:
        yield
    finally:
        env._obs_mode = mode


def _array(value: Any, dtype: str | None = None) -> np.ndarray:
    """A copy of a tensor on any device, or of an array."""
    return np.array(value.cpu().numpy() if hasattr(value, "cpu") else value, dtype=dtype)


def _map_leaves(
    tree: Mapping[str, Any], leaf: Callable[[str, Any], Any], path: str = ""
) -> dict[str, Any]:
    """Applies `leaf` to the path and value of every leaf of a tree."""
    return {
        key: _map_leaves(value, leaf, f"{path}{key}/")
        if isinstance(value, Mapping)
        else leaf(f"{path}{key}", value)
        for key, value in tree.items()
    }
