"""Makes a vectorised environment whose environments are in environment servers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.outside import OWN, add_place, outside_module
from sim.processes.vec_env import Shard, SplitEnv
from sim.servers.config import ServerConfig
from sim.servers.engines import EnvRequest
from sim.servers.recovery import RecoveringClient
from sim.servers.venvs import check_place
from sim.vec_env import VecEnvConfig


class ServerVecEnv(SplitEnv):
    """N environments in W servers; a server is a process, which ends with this one.

    The order of environments is kept: a server has consecutive ones.
    """

    def __init__(
        self,
        config: ServerConfig,
        request: Callable[[int], EnvRequest],
        num_envs: int,
        servers: int,
    ) -> None:
        """Starts the servers and waits until each has made its environments.

        Args:
            config: place of the servers, and time limits.
            request: the environments of one server, by their number.
            num_envs: N, distributed as evenly as possible.
            servers: W, at most N.

        Raises:
            HandoffError: W is not in 1..N, no such place, or a server that could not make its
                environments, died or did not answer in time.
        """
        check_place(config)
        if not 1 <= servers <= num_envs:
            raise HandoffError(
                f"workers: {servers} for {num_envs} environments, expected 1..{num_envs}."
            )
        sizes = [len(part) for part in np.array_split(np.arange(num_envs), servers)]
        self._clients: list[RecoveringClient] = []
        try:
            for number, size in enumerate(sizes):
                name = f"environment server {config.venv or config.address or config.python}"
                name = name if servers == 1 else f"{name} {number}"
                self._clients.append(RecoveringClient(name, config, request(size), number))
            specs, *_ = [client.ready() for client in self._clients]
        except BaseException:
            self.close()
            raise
        begins = np.cumsum([0, *sizes])
        super().__init__(
            [
                Shard(client, 0, int(begin), size)
                for client, begin, size in zip(self._clients, begins, sizes, strict=False)
            ],
            specs,
        )

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the servers; None on another machine."""
        return [client.pid for client in self._clients]

    def close(self) -> None:
        """Ends the servers; a second call does nothing."""
        for client in self._clients:
            client.request_exit()
        for client in self._clients:
            client.close()


def make_server_env(
    config: ServerConfig,
    task: str,
    episodes: VecEnvConfig,
    options: Mapping[str, Any],
    num_envs: int,
    servers: int,
) -> ServerVecEnv:
    """Makes N environments in W servers.

    Args:
        config: place of the servers, and their engine.
        task: the engine's name of the task.
        episodes: start and end of episodes.
        options: options of the engine, as plain values.
        num_envs: N.
        servers: W.

    Raises:
        HandoffError: see `ServerVecEnv`.
    """

    def request(size: int) -> EnvRequest:
        return EnvRequest(
            engine=config.engine,
            task=task,
            num_envs=size,
            on_end=episodes.on_end,
            max_steps=episodes.max_steps,
            options=options,
            # `module:id` imports the module that registers an environment.
            place=own_place(config.engine) or own_place(task),
        )

    return ServerVecEnv(config, request, num_envs, servers)


def own_place(name: str) -> str:
    """Folder in which the other side finds the module of an engine or task of one's own.

    Args:
        name: dotted path of an engine, or `module:id` of a task.

    Returns:
        The folder; empty if the name has no module, or if the module is installed, one of
        Handoff's, or only on the other side.
    """
    module = outside_module(name) or name.rpartition(":")[0]
    top = module.partition(".")[0]
    if not top.isidentifier() or top in OWN:
        return ""
    add_place(Path.cwd())
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    folder = file.parent.parent if file.name == "__init__.py" else file.parent
    installed = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    # The packages beside an installed one belong to this Python, not to the other.
    return "" if any(folder.is_relative_to(prefix / "lib") for prefix in installed) else str(folder)
