"""Stands in for Isaac Lab: small environments with its semantics, behind proxies that know the
recorded API only."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.sim.isaaclab_api import RECORD

API = json.loads(RECORD.read_text())
FAR = 4.0
EPISODE_STEPS = 60


def signature(parameters: list[dict[str, Any]]) -> inspect.Signature:
    """What a recorded list of parameters accepts."""
    return inspect.Signature(
        [
            inspect.Parameter(
                item["name"],
                getattr(inspect.Parameter, item["kind"]),
                default=None if item["default"] else inspect.Parameter.empty,
            )
            for item in parameters
        ]
    )


class Recorded:
    """Lets through what the classes have in the record, called as they are declared; all else does
    not exist."""

    def __init__(self, target: Any, *classes: str):
        known = [API["classes"][name] for name in classes]
        vars(self).update(
            _target=target,
            _classes=classes,
            _methods={
                name: parameters for item in known for name, parameters in item["methods"].items()
            },
            _values={name for item in known for name in (*item["properties"], *item["attributes"])},
        )

    def __getattr__(self, name: str) -> Any:
        if name in self._methods:
            bound = signature(self._methods[name])

            def call(*arguments: Any, **named: Any) -> Any:
                bound.bind(*arguments, **named)
                return getattr(self._target, name)(*arguments, **named)

            return call
        if name not in self._values:
            raise AttributeError(f"{API['wheel']}: {self._classes} have no {name}")
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"{API['wheel']}: {self._classes} have no {name}")
        setattr(self._target, name, value)


class FakeEnvironment:
    """Environments on a line. Like Isaac Lab's: one random generator, resets within the step,
    buffers written again."""

    def __init__(self, cfg: Any, num_envs: int, log: list[str], time_out_after: int):
        self.cfg, self.num_envs, self.log, self.time_out_after = cfg, num_envs, log, time_out_after
        self.step_dt, self.max_episode_length = 0.05, EPISODE_STEPS
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.place, self.observed_place = torch.zeros(self.num_envs), torch.zeros(self.num_envs)
        self.obs_buf = {
            "policy": torch.zeros(self.num_envs, 2),
            "critic": {"place": torch.zeros(self.num_envs, 1)},
        }
        self.extras: dict[str, Any] = {}
        self.has_rtx_sensors, self.rendered, self.resets = True, 0, 0
        self.scene = Recorded(SimpleNamespace(write_data_to_sim=lambda: None), "InteractiveScene")
        self.sim = Recorded(
            SimpleNamespace(forward=self._forward, render=self._render), "SimulationContext"
        )

    def seed(self, seed: int = -1) -> int:
        torch.manual_seed(seed)
        return seed

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        assert action.dtype == torch.float32
        self.episode_length_buf += 1
        self.place += action[:, 0]
        self._forward()
        self.terminated = self.place >= FAR
        time_outs = self.episode_length_buf >= self.time_out_after
        reward = self.place.clone()
        ended = (self.terminated | time_outs).nonzero().squeeze(-1)
        if len(ended):
            if self.cfg.compute_final_obs:
                observation = self._compute_observations()
                self.extras["final_obs"] = {
                    "policy": observation["policy"].clone(),
                    "critic": {"place": observation["critic"]["place"].clone()},
                }
            self._reset_idx(ended)
            self._forward()
        return self._compute_observations(), reward, self.terminated, time_outs, self.extras

    def close(self) -> None:
        self.log.append("environment closed")

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        self.resets += len(env_ids)
        self.place[env_ids] = torch.rand(len(env_ids))
        self.episode_length_buf[env_ids] = 0

    def _forward(self) -> None:
        self.observed_place[:] = self.place

    def _render(self) -> None:
        self.rendered += 1

    def _compute_observations(self) -> dict[str, Any]:
        self.obs_buf["policy"][:, 0], self.obs_buf["policy"][:, 1] = (
            self.observed_place,
            self.episode_length_buf,
        )
        self.obs_buf["critic"]["place"][:, 0] = self.observed_place
        return self.obs_buf


class FakeManaged(FakeEnvironment):
    def __init__(self, cfg: Any, num_envs: int, log: list[str]):
        super().__init__(cfg, num_envs, log, EPISODE_STEPS)
        self.observation_manager = None
        manager = SimpleNamespace(active_terms=["time_out", "success"], get_term=self._term)
        self.termination_manager = Recorded(manager, "TerminationManager")

    def reset(
        self, env_ids: Any = slice(None), *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict]:
        if seed is not None:
            self.seed(seed)
        self._reset_idx(torch.arange(self.num_envs)[env_ids])
        self._forward()
        return self._compute_observations(), self.extras

    def _term(self, name: str) -> torch.Tensor:
        assert name == "success"
        return self.terminated


class FakeDirect(FakeEnvironment):
    def __init__(self, cfg: Any, num_envs: int, log: list[str]):
        # Direct tasks compare with the limit less one.
        super().__init__(cfg, num_envs, log, EPISODE_STEPS - 1)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            self.seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        self._forward()
        return self._compute_observations(), self.extras


def install(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """Puts the stand-ins where `sim.engines.isaac_lab` looks for Isaac Lab.

    Args:
        monkeypatch: takes them away again.
        kind: `managed` or `direct`.

    Returns:
        What happened to the simulator and its environments, in order.
    """
    log: list[str] = []
    configs = (
        ("ManagerBasedEnvCfg", "ManagerBasedRLEnvCfg") if kind == "managed" else ("DirectRLEnvCfg",)
    )
    classes = ("ManagerBasedEnv", "ManagerBasedRLEnv") if kind == "managed" else ("DirectRLEnv",)

    def parse_env_cfg(*arguments: Any, **named: Any) -> Recorded:
        values = (
            signature(API["functions"]["isaaclab_tasks.utils.parse_env_cfg"])
            .bind(*arguments, **named)
            .arguments
        )
        if values["task_name"] != "Isaac-Line":
            raise gymnasium.error.NameNotFound(values["task_name"])
        log.append(f"configured for {values['device']} with {values['overrides']}")
        scene = SimpleNamespace(num_envs=values["num_envs"])
        cfg = SimpleNamespace(
            scene=scene, num_rerenders_on_reset=2, compute_final_obs=False, seed=None
        )
        return Recorded(cfg, *configs)

    @contextmanager
    def launched(values: dict[str, Any]) -> Iterator[None]:
        log.append(f"launched with {values['launcher_args']}")
        try:
            yield
        finally:
            log.append("simulator closed")

    def launch_simulation(*arguments: Any, **named: Any) -> Any:
        bound = signature(API["functions"]["isaaclab.app.launch_simulation"]).bind(
            *arguments, **named
        )
        return launched(bound.arguments)

    def make(task: str, cfg: Recorded) -> Any:
        log.append(f"made {task} from seed {cfg.seed}")
        environment = (FakeManaged if kind == "managed" else FakeDirect)(
            cfg, cfg.scene.num_envs, log
        )
        return SimpleNamespace(unwrapped=Recorded(environment, *classes))

    app, utils = ModuleType("isaaclab.app"), ModuleType("isaaclab_tasks.utils")
    vars(app)["launch_simulation"], vars(utils)["parse_env_cfg"] = launch_simulation, parse_env_cfg
    tasks = ModuleType("isaaclab_tasks")
    vars(tasks)["utils"] = utils
    for module in (ModuleType("isaaclab"), app, tasks, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(gymnasium, "make", make)
    return log
