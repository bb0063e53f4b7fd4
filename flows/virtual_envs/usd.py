"""Converts an arm to USD in the virtual environment that has the converter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flows.virtual_envs.program import run_program
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.servers import start
from sim.servers.config import ServerConfig
from sim.servers.venvs import server_python

SECONDS = 300.0
"""Time limit of a conversion [s]."""
PROGRAM = """
import sys
from pathlib import Path
servers, root, robot, out = sys.argv[1:]
sys.path.append(servers)
from start import OwnPackages
sys.path.remove(servers)
sys.meta_path.insert(0, OwnPackages(root))
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.isaac.usd import robot_usd
try:
    made = robot_usd(find_robot(robot), Path(out) if out else None)
except HandoffError as error:
    sys.exit(str(error))
print("\\n" + str(made))
"""
"""Program of the other Python, which finds the packages of this checkout as a server does."""


def usd_command(robot: str, *, out: Path | None, venv: str, say: Callable[[str], None]) -> None:
    """Converts an arm with its gripper to USD.

    Args:
        robot: name of the arm.
        out: folder of the file; None takes the cache from which Isaac Lab's tasks are made.
        venv: name or folder of the virtual environment.
        say: prints one line.

    Raises:
        HandoffError: no such arm or virtual environment, or the converter failed.
    """
    find_robot(robot)
    python = server_python(ServerConfig(venv=venv))
    servers = Path(start.__file__).parent
    place = "" if out is None else str(out.expanduser().absolute())
    command = [python, "-s", "-c", PROGRAM, str(servers), str(servers.parents[1]), robot, place]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    try:
        printed = run_program(command, SECONDS, variables=environment)
    except HandoffError as error:
        raise HandoffError(f"{robot}: {error}") from None
    say(printed.splitlines()[-1])
