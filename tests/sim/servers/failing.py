"""A walk that fails in the way that its option names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError
from tests.sim.walk import WalkEngine

FAR_AWAY = 2.0
"""A step that makes a failing walk fail."""


class FailingWalk(WalkEngine):
    """Fails at the first action of `FAR_AWAY` or more."""

    def __init__(self, num_envs: int, failure: str) -> None:
        super().__init__(num_envs)
        self.failure = failure

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        if (action >= FAR_AWAY).any():
            fail(self.failure)
        super().step(action, running)
        if self.failure == "unrepeatable":
            # Noise that depends on the process.
            self.place += 1e-9 * os.getpid()


def fail(failure: str) -> None:
    match failure:
        case "refuse":
            raise HandoffError("failing walk: too far.")
        case "raise":
            raise ZeroDivisionError("nothing to divide")
        case "exit":
            sys.stdout.write("the last words\n")
            sys.stdout.flush()
            os._exit(7)
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600.0)


def engine(task: str, num_envs: int, options: Mapping[str, Any]) -> FailingWalk:
    match options["failure"]:
        case "variable":
            raise HandoffError(f"failing walk: {os.environ.get('WALK')} {sys.flags.no_user_site}")
        case "imports":
            sys.path[:] = [place for place in sys.path if not Path(place, "policies").is_dir()]
            names = ("robots", "sim", "policies", "flows", "pydantic", "mujoco")
            raise HandoffError(f"failing walk: imports {[n for n in names if find_spec(n)]}")
        case "start":
            time.sleep(600.0)
        case "process":
            child = subprocess.Popen(["sleep", "600"])
            raise HandoffError(f"failing walk: process {child.pid}")
        case "unmade":
            raise KeyError("no such thing")
    return FailingWalk(num_envs, options["failure"])
