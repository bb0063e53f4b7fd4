"""Allocates simulators on several machines: a placement group of a Ray cluster with one bundle of
resources per simulator.

Ray places the bundles, detects lost machines and moves their bundles to others;
`sim.processes.ray_process` restores the environments there. Every machine needs the same version of
Handoff, which is checked.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from robots.errors import HandoffError
from robots.extras import pip_install
from robots.interfaces import VecEnv
from sim.processes.config import ClusterConfig

ANSWER_S = 5.0
"""Timeout for connecting to the cluster's address [s]."""


class Cluster:
    """Resources for simulators in a Ray cluster; the connection stays open until this process ends.

    Args:
        config: address of the cluster and resources per simulator.
        simulators: number of simulators.

    Raises:
        HandoffError: Ray is not installed, no cluster at the address, or no free resources in time.
    """

    def __init__(self, config: ClusterConfig, simulators: int) -> None:
        connect(config.address, "placement", logs=True)
        from ray.util.placement_group import placement_group

        self.config = config
        self._bundle = {"CPU": config.cores} | ({"GPU": config.gpus} if config.gpus else {})
        self._group = placement_group([self._bundle] * simulators, strategy=config.strategy)
        if not self._group.wait(timeout_seconds=config.patience_s):
            error = self.no_room(f"{simulators} simulators")
            self.close()
            raise error

    def start(
        self, number: int, actor: type, make: Callable[[int], VecEnv], sizes: Sequence[int]
    ) -> Any:
        """Starts an actor in bundle `number` and returns its handle; the actor is created as soon
        as the bundle has a node, and finds modules where this process does."""
        import sys

        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = ray.remote(actor).options(
            num_cpus=self.config.cores,
            num_gpus=self.config.gpus,
            # Ray would restart it without its environments; the client restarts and restores it.
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            ),
        )
        return remote.remote(make, tuple(sizes), tuple(sys.path))

    def no_room(self, requested: str) -> HandoffError:
        """The error for resources that did not become free in time."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        total = ray.cluster_resources()
        free = ray.available_resources()
        return HandoffError(
            f"placement: no room for {requested} within {self.config.patience_s:g} s: each needs "
            f"{_format(self._bundle)}, placed {self.config.strategy}; {len(nodes)} nodes have {_format(total)}, of "
            f"which {_format(free)} are free. Add nodes, or use fewer simulators, cores or gpus."
        )

    def close(self) -> None:
        """Frees the resources and ends the actors there; a second call does nothing."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if ray.is_initialized():
            remove_placement_group(self._group)


def connect(address: str, about: str, *, logs: bool) -> None:
    """Connects this process to a Ray cluster unless it is connected.

    Args:
        address: address of the cluster; see `ClusterConfig.address`.
        about: beginning of errors: what needs the cluster.
        logs: prints here what the processes in the cluster print.

    Raises:
        HandoffError: Ray is not installed, or no cluster at the address.
    """
    # No usage statistics are sent.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise HandoffError(
            f"{about}: a cluster needs Ray. Install it: {pip_install('ray')}."
        ) from None
    if ray.is_initialized():
        return
    try:
        _check_answers(address)
        # An existing cluster's dashboard is its owner's choice; a new local one has none.
        dashboard = False if address == "local" else None
        with _kept_handler():
            ray.init(
                address=address,
                logging_level=logging.ERROR,
                log_to_driver=logs,
                include_dashboard=dashboard,
            )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise HandoffError(
            f"{about}: no Ray cluster at '{address}' ({reason}). Start one with `ray start --head` and, on "
            "the other machines, `ray start --address=HOST:6379`; or take the address 'local', for this machine alone."
        ) from None


@contextmanager
def _kept_handler() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray replaces in the main thread."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_answers(address: str) -> None:
    """Checks that a server listens at the address; Ray itself would retry for over a minute and
    then exit the process.

    Raises:
        OSError: no server listens there.
        ValueError: the address is malformed.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ValueError("expected auto, local or HOST:PORT")
    socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


def _format(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
