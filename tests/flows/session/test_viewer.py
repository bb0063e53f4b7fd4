"""The process that draws a session ends at once."""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from flows.session import viewer
from flows.session.config import HilEnvConfig
from robots.processes import Child, end


def stubborn(pipe: Connection) -> None:
    """A viewer with an import that swallows every exception, as some of SciPy's do."""

    class Imports:
        def __init__(self, *arguments: Any) -> None:
            pipe.send("importing")
            while True:
                try:
                    time.sleep(60.0)
                except BaseException:  # noqa: BLE001
                    continue

    viewer.SceneView = Imports  # type: ignore[assignment,misc]
    env = HilEnvConfig(task="reach", observation_fields=())
    viewer._run_viewer(env, "ws://127.0.0.1:9", "", images=False)


def test_a_viewer_ends_at_once_whatever_it_imports() -> None:
    child = Child("viewer", stubborn, daemon=True)
    assert child.receive() == "importing"
    end([child.process], 20.0)
    assert child.process.exitcode == -signal.SIGTERM
