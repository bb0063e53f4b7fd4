"""Measures what a scripted person who sees only the page's pictures can do at the console.

    python -m tests.benchmarks.person pick_cube --episodes 20 --json

The person decides every 250 ms, give or take 100 ms, from the newest pictures, and presses keys; a
longest attempt is 60 s. `--lockstep` plays the same attempts in simulated time, without page and
server, for a machine that is busy.

solved: attempts in which the task was solved, with Wilson's interval.
seconds: duration of the solved ones, median and largest.
without_pictures: share of the decisions for which no new picture had come.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from robots.proportions import wilson
from tests.person.attempts import Person
from tests.person.skills import SKILLS

LONGEST = 90.0
"""Wall time of an attempt after which the measurement gives up [s]."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=sorted(SKILLS))
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--lockstep", action="store_true", help="in simulated time")
    parser.add_argument("--json", action="store_true", help="one JSON object last")
    options = parser.parse_args()
    measure = in_lockstep if options.lockstep else at_the_page
    figures = measure(options.task, options.episodes)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


def in_lockstep(task: str, episodes: int) -> dict[str, Any]:
    """Figures of attempts in simulated time."""
    from tests.person.lockstep import attempts

    return _figures(task, attempts(task, range(episodes)))


def at_the_page(task: str, episodes: int) -> dict[str, Any]:
    """Figures of attempts in a session of `handoff record`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flows", "record", task, "--port", "0"]
        command += ["--episodes", str(episodes), "--out", str(Path(folder) / "session")]
        environment = {**os.environ, "COLUMNS": "200"}
        session = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert session.stdout is not None
            while "http" not in (line := session.stdout.readline()):
                assert line, "the session ended before its console was open"
            url = next(word for word in line.split() if word.startswith("http"))
            person, until = Person(url, task), time.monotonic() + LONGEST * episodes
            done = person.sit_through(
                lambda: (
                    session.poll() is not None
                    or len(person.done.episodes) >= episodes
                    or time.monotonic() > until
                )
            )
        finally:
            session.terminate()
            session.communicate()
    durations = [
        float(episode["seconds"]) if episode["success"] else None  # pyright: ignore
        for episode in done.episodes[:episodes]
    ]
    share = done.without_pictures / max(done.decisions, 1)
    return {**_figures(task, durations), "without_pictures": round(share, 3)}


def _figures(task: str, durations: list[float | None]) -> dict[str, Any]:
    solved = [seconds for seconds in durations if seconds is not None]
    low, high = wilson(len(solved), len(durations))
    return {
        "task": task,
        "solved": {"k": len(solved), "n": len(durations), "low": low, "high": high},
        "seconds": {
            "median": round(statistics.median(solved), 1) if solved else None,
            "largest": round(max(solved), 1) if solved else None,
        },
        "attempts": [None if seconds is None else round(seconds, 1) for seconds in durations],
    }


if __name__ == "__main__":
    main()
