"""Measures a policy in `handoff deploy` at a simulated arm, with a person beside it who lets it act.

    python -m tests.benchmarks.deployed runs/pick_cube_cameras/bundle --json

The session is that of `handoff deploy BUNDLE`: console, viewer, cameras of the simulated scene, the
loop in real time, and inference beside it. The person is a page that starts the arm and touches
nothing else. Episodes begin at the starts of an evaluation.

solved: episodes in which the task was solved, with Wilson's interval.
faults: episodes that the robot or a limit ended; a session ends with one, and another begins.
takeovers: of the person; 0, or the page misbehaved.
seconds: robot time of an episode, median.
inference_ms: host time of an inference, median and 95th percentile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

FIRST_SEED = 100_000
"""Seed of the first start, as of the protocols."""
LONGEST = 120.0
"""Wall time of an episode after which the measurement gives up [s]."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, help="folder with policy.onnx")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--host", default="127.0.90.1", help="address of the simulated arm")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("overrides", nargs="*", help="changes of the session's options")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(
            arguments.bundle, Path(folder), arguments.episodes, arguments.host, arguments.overrides
        )
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


def measured(
    bundle: Path, out: Path, episodes: int, host: str, overrides: list[str]
) -> dict[str, Any]:
    """The figures of a session of so many episodes.

    Args:
        bundle: folder with `policy.onnx`.
        out: folder of the session.
        episodes: number of episodes.
        host: address of the simulated arm.
        overrides: changes of the session's options.
    """
    from robots.episodes.store import EpisodeStore
    from sim.evaluation.intervals import success_rate
    from tests.flows.console_session import Session

    until = time.monotonic() + episodes * LONGEST
    running = Session(_deploy, out, bundle, episodes, [*overrides, f"twin.host='{host}'"])
    page = running.page()
    page.go()
    while running.process.is_alive() and time.monotonic() < until:
        _heartbeat(page)
    running.process.join(30.0)
    store = EpisodeStore.open(out / "store.zarr", "r")
    about = [store.metadata(number) for number in range(store.num_episodes)]
    inference = [value for each in about for value in each["inference_ms"]]
    return {
        "episodes": len(about),
        "solved": success_rate([each["success"] for each in about]),
        "faults": [each["fault"] for each in about if each["fault"]],
        "takeovers": sum(each["takeovers"] for each in about),
        "seconds": statistics.median(
            len(store.read(number, "robot", ["time"])["time"]) / 1000.0
            for number in range(store.num_episodes)
        ),
        "inference_ms": [float(np.quantile(inference, share)) for share in (0.5, 0.95)],
        "seeds": [each["seed"] for each in about],
    }


def _heartbeat(page: Any) -> None:
    """Sends that nothing is pressed, and reads the state; starts the arm if it waits for that, and
    recovers it after a fault."""
    from websockets.exceptions import ConnectionClosed

    try:
        page.keys()
        state = page.state()
        if state["mode"] == "fault":
            page.say(kind="recover", cause="")
        elif state["why"].startswith(("Ready.", f"{page.name} recovered")):
            page.go()
    except ConnectionClosed:
        time.sleep(0.1)


def _deploy(out: Path, bundle: Path, episodes: int, overrides: list[str], here: Any) -> None:
    """The session, in a process of its own."""
    from flows.deployment.session import deploy, session_of
    from real.console.control.arbiter import ArbiterConfig
    from real.console.server import ConsoleConfig
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.contract import ONNX_FILE

    def say(text: str) -> None:
        if text.startswith("console  "):
            here.send(text.removeprefix("console  "))

    session = session_of(OnnxPolicy(bundle / ONNX_FILE).contract.task, overrides)
    session = replace(session, first_seed=FIRST_SEED)
    # A page on a busy machine may be late.
    console = ConsoleConfig(port=0, arbiter=ArbiterConfig(watchdog=2.0, pause=0.2))
    deploy(session, bundle, out, console, episodes=episodes, say=say)


if __name__ == "__main__":
    main()
