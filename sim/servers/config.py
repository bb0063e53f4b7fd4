"""Configures environment servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from robots.config import Seconds, Whole, config


@config
class ServerConfig:
    """The other side of an environment server: exactly one of `venv`, `python` and `address`."""

    venv: str = ""
    """Name of a virtual environment made by `handoff envs create`, or folder of another one."""
    python: str = ""
    """Path of the Python program that runs the server on this machine."""
    address: str = ""
    """Address HOST:PORT of `python -m sim.servers.listen`, or several separated by commas, over
    which servers are distributed in turn; $HANDOFF_TOKEN is their token."""
    engine: str = "gym"
    """Engine on the other side: `gym`, `isaaclab`, `maniskill`, `mujoco`, `warp`, whose options are
    those of the environment, or the dotted path of an engine of one's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of an engine of one's own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server on this machine, such as `MUJOCO_GL: egl`; others are
    those of this process."""
    start_s: Seconds = 600.0
    """Time limit until the environments are made [s]; engines that compile kernels need
    minutes."""
    response_s: Seconds = 120.0
    """Time limit for one response [s], after which the server is ended."""
    restarts: Whole = 3
    """Number of times in a row that a server which died or whose connection was lost is replaced at
    one request; with 0 it is an error at once."""
    patience_s: Seconds = 120.0
    """Time limit for reaching a machine again [s], at any of the addresses."""
