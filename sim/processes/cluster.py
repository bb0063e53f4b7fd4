"""Simulators on several machines: a placement group of a Ray cluster, a bundle of resources for
each.

Ray places them, tells of machines that are lost and gives their bundles other ones;
`sim.processes.ray_process` makes the worlds there what they were. Every machine needs the same
Handoff: what is installed there is compared.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from robots.errors import HandoffError
from robots.interfaces import VecEnv
from sim.processes.config import ClusterConfig

ANSWER_S = 5.0


class Cluster:
    """Room for simulators in a Ray cluster; the connection lives as long as this process.

    Args:
        config: which cluster, and how much of it.
        simulators: how many.

    Raises:
        HandoffError: Ray is missing, nobody answers at the address, or there is no room in time.
    """

    def __init__(self, config: ClusterConfig, simulators: int) -> None:
        _connect(config)
        from ray.util.placement_group import placement_group

        self.config = config
        self._bundle = {"CPU": config.cores} | ({"GPU": config.gpus} if config.gpus else {})
        self._room = placement_group([self._bundle] * simulators, strategy=config.strategy)
        if not self._room.wait(timeout_seconds=config.patience_s):
            told = self.no_room(f"{simulators} simulators")
            self.close()
            raise told

    def start(
        self, number: int, actor: type, make: Callable[[int], VecEnv], sizes: Sequence[int]
    ) -> Any:
        """A handle of a new actor in the bundle of that number; it is made as soon as the bundle
        has a node."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        placed = ray.remote(actor).options(
            num_cpus=self.config.cores,
            num_gpus=self.config.gpus,
            # Ray would start it empty; who asks starts it anew, and tells it what its worlds were.
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._room, placement_group_bundle_index=number
            ),
        )
        return placed.remote(make, tuple(sizes))

    def no_room(self, wanted: str) -> HandoffError:
        """The error of having waited long enough."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        there = ray.cluster_resources()
        free = ray.available_resources()
        return HandoffError(
            f"placement: no room for {wanted} within {self.config.patience_s:g} s: each asks for "
            f"{_told(self._bundle)}, placed {self.config.strategy}; {len(nodes)} nodes have {_told(there)}, of which "
            f"{_told(free)} are free. Add nodes, or ask for fewer simulators, cores or gpus."
        )

    def close(self) -> None:
        """Gives the room back, and ends whatever runs there; a second call does nothing."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if ray.is_initialized():
            remove_placement_group(self._room)


def _connect(config: ClusterConfig) -> None:
    """Connects this process to the cluster, if it is not."""
    # Nothing of a run is told to anybody else.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise HandoffError(
            "placement: a cluster needs Ray. Install it: pip install 'handoff[ray]'."
        ) from None
    if ray.is_initialized():
        return
    try:
        _check_answers(config.address)
        # Whoever starts a cluster decides about its dashboard.
        dashboard = False if config.address == "local" else None
        ray.init(address=config.address, logging_level=logging.ERROR, include_dashboard=dashboard)
    except (OSError, ValueError, RuntimeError) as error:
        raise HandoffError(
            f"placement: no Ray cluster at '{config.address}' ({error}). Start one with `ray start --head` and, on "
            "the other machines, `ray start --address=HOST:6379`; or say address: local for this machine alone."
        ) from None


def _check_answers(address: str) -> None:
    """Somebody listens there; Ray itself tries for over a minute, and ends the process then.

    Raises:
        OSError: nobody does.
        ValueError: it is no address.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError("expected auto, local or HOST:PORT")
    socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


def _told(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
