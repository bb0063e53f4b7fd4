"""Measures what a scripted person who sees only the page's pictures can do at the console.

    python -m tests.benchmarks.person pick_cube --episodes 20 --json

The person decides every 250 ms, give or take 100 ms, from the newest pictures, and presses keys; a
longest attempt is 60 s. `--lockstep` plays the same attempts in simulated time, without page and
server, for a machine that is busy; push_t, whose person steers with the stick on the page, is played
in no other way. `--hil OUT` sits through a whole correction session, in which the
person demonstrates, and takes the arm over from a policy that takes longer than a second.

coverage: of push_t, the largest coverage of the goal in each attempt.
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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robots.proportions import wilson
from tests.person.attempts import Attempts, Person
from tests.person.skills import SKILLS

BOARD = "push_t"
"""The task in which the person steers with the stick."""
LONGEST = 90.0
"""Wall time of an attempt after which the measurement gives up [s]."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=sorted([*SKILLS, BOARD]))
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--lockstep", action="store_true", help="in simulated time")
    parser.add_argument("--json", action="store_true", help="one JSON object last")
    parser.add_argument("--hil", type=Path, metavar="OUT", help="a whole correction session")
    parser.add_argument("overrides", nargs="*", help="changes of the session's options")
    options = parser.parse_intermixed_args()
    if options.task == BOARD and (options.hil is not None or not options.lockstep):
        parser.error("push_t is played with --lockstep only")
    if options.hil is not None:
        figures = whole_session(options.task, options.hil, options.overrides)
    else:
        measure = in_lockstep if options.lockstep else at_the_page
        figures = measure(options.task, options.episodes)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


def in_lockstep(task: str, episodes: int) -> dict[str, Any]:
    """Figures of attempts in simulated time."""
    from tests.person.lockstep import attempts, pushed

    if task == BOARD:
        results = pushed(range(episodes))
        coverage = [round(result.coverage, 3) for result in results]
        return {**_figures(task, [result.seconds for result in results]), "coverage": coverage}
    return _figures(task, attempts(task, range(episodes)))


def at_the_page(task: str, episodes: int) -> dict[str, Any]:
    """Figures of attempts in a session of `handoff record`."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "session")
        command = ["record", task, "--port", "0", "--episodes", str(episodes), "--out", out]
        until = time.monotonic() + LONGEST * episodes
        done, _ = sit(
            command,
            task,
            lambda done: len(done.episodes) >= episodes or time.monotonic() > until,
        )
    durations = [
        float(episode["seconds"]) if episode["success"] else None  # pyright: ignore
        for episode in done.episodes[:episodes]
    ]
    share = done.without_pictures / max(done.decisions, 1)
    return {**_figures(task, durations), "without_pictures": round(share, 3)}


def whole_session(task: str, out: Path, overrides: list[str]) -> dict[str, Any]:
    """Figures of `handoff hil TASK --operator console`, from the demonstrations to the gate."""
    command = ["hil", task, "--operator", "console", "--port", "0", "--out", str(out), *overrides]
    began = time.monotonic()
    done, status = sit(command, task, lambda _: False)
    return {
        "task": task,
        "status": status,
        "minutes": round((time.monotonic() - began) / 60.0, 1),
        "episodes": len(done.episodes),
        "metrics": json.loads((out / "summary.json").read_text())["metrics"],
    }


def sit(
    command: list[str], task: str, enough: Callable[[Attempts], bool]
) -> tuple[Attempts, int | None]:
    """Sits through a session; returns what was done, and the session's exit status, None if the
    person left first.

    Args:
        command: arguments of `handoff`.
        task: name of the task.
        enough: whether the person leaves.
    """
    session = subprocess.Popen(
        [sys.executable, "-m", "flows", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        assert session.stdout is not None
        while "http" not in (line := session.stdout.readline()):
            assert line, "the session ended before its console was open"
        url = next(word for word in line.split() if word.startswith("http"))
        # What the session writes is read on, or it would wait.
        output = session.stdout
        threading.Thread(target=lambda: [print(text, end="") for text in output]).start()
        person = Person(url, task)
        done = person.sit_through(lambda: session.poll() is not None or enough(person.done))
        # The console ends before the session does.
        return done, None if enough(done) else session.wait()
    finally:
        session.terminate()
        session.wait()


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
