"""Kills runs at random moments and continues them: are the artifacts those of an undisturbed run?

    python -m tests.benchmarks.kills --kills 50 --json

The recipe `smoke` runs up to its student (ingest, pretraining, fine-tuning, distillation), with
checkpoints every second. An undisturbed run gives the digests. Then, in a new folder each time, a
run is started, one process is killed by SIGKILL at a moment drawn uniformly over the duration of an
undisturbed run, and the run is started again until it completes. Killed in turn are

- `flow`: the process of `handoff run`;
- `stage`: the process of the stage at work;
- `worker`: the worker of a Prefect server with all recipes deployed (`handoff server`);
- `server`: Prefect's server itself.

Per victim: kills, those after which every digest was that of the undisturbed run (`equal`), starts
until completion, and stages that the last start found finished. A moment at which there is no such
process, after the end or between two stages, counts as none and is drawn again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from robots.signals import raising_signals
from tests.flows.processes import title, variable
from tests.flows.served import PrefectServer, prefect_server_at_work

RECIPE, LAST = "smoke", "student"
VICTIMS = ("flow", "stage", "worker", "server")
OVERRIDES = (
    "pretrained.training.checkpoint_seconds=1",
    "student.algorithm.training.checkpoint_seconds=1",
)
MOST_STARTS = 5
"""Starts after which a run counts as not continued."""
END_SECONDS = 600.0
"""Time limit of a run [s]."""
LOST_SECONDS = 60.0
"""Time without a process after which a run of a deployment counts as ended [s]."""
STAGES = ("demos", "pretrained", "teacher", "student")
TITLE = "handoff: "
"""Begins the title of a stage's process."""


@dataclass(frozen=True)
class Killed:
    """One kill and what came of it."""

    victim: str
    at_s: float
    """Time of the kill after the start [s]."""
    during: str
    """Stage at work then; empty between stages."""
    starts: int
    """Starts after the kill."""
    found: int
    """Stages that were finished when the last start began."""
    equal: bool
    """Whether all digests are those of the undisturbed run."""


def main() -> None:
    """Kills and prints."""
    assert __doc__
    run_command(__doc__, "kills", 50, measure)


def run_command(
    about: str, what: str, number: int, measure: Callable[[Path, int, int], dict[str, Any]]
) -> None:
    """Parses the arguments of a benchmark, measures in a temporary folder and prints the figures;
    the last line is one JSON object when asked for.

    Args:
        about: what the command's help says.
        what: what is counted, e.g. `kills`.
        number: how many there are by default.
        measure: called with the folder, the number and the seed of the moments.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(f"--{what}", dest="number", type=int, default=number)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    with raising_signals(), tempfile.TemporaryDirectory(prefix=f"handoff-{what}-") as folder:
        figures = measure(Path(folder), arguments.number, arguments.seed)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=1))


def measure(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills runs in a folder.

    Returns:
        Per victim `kills`, `equal`, `starts`, `found`; `seconds` of an undisturbed run without and
        with the server, and every `kill`.
    """
    rng = random.Random(seed)
    with ExitStack() as stack:
        (folder / "lab").mkdir()
        server = stack.enter_context(prefect_server_at_work(folder / "lab"))
        by_server = partial(ServedRun, server)
        expected, seconds = undisturbed(Run, folder / "here")
        assert set(expected) == set(STAGES), "the undisturbed run did not complete"
        served, served_seconds = undisturbed(by_server, folder / "served")
        assert served == expected, "the server's run differs"
        done: list[Killed] = []
        for number in range(kills):
            victim = VICTIMS[number % len(VICTIMS)]
            start = by_server if victim in ("worker", "server") else Run
            duration = served_seconds if start is by_server else seconds
            killed = None
            while killed is None:
                runs = folder / f"{number}-{rng.random():.6f}"
                killed = kill(victim, start, runs, rng.uniform(0.0, duration), expected)
            done.append(killed)
            print(killed, file=sys.stderr, flush=True)
    return {
        **{victim: _of([one for one in done if one.victim == victim]) for victim in VICTIMS},
        "all": _of(done),
        "seconds": round(seconds, 1),
        "served_seconds": round(served_seconds, 1),
        "kill": [asdict(one) for one in done],
    }


class Run:
    """A run of the recipe by `handoff run`."""

    def __init__(self, runs: Path) -> None:
        words = ["run", RECIPE, "--until", LAST, f"runs={runs}", *OVERRIDES]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flows", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ended(self) -> bool:
        """Whether nothing of the run is at work any more."""
        return self._process.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """The processes of the run."""
        return [] if self.ended() else family(self._process.pid)

    def victim(self, name: str) -> psutil.Process | None:
        """The process to be killed; None if there is none now."""
        if name == "flow":
            return None if self.ended() else psutil.Process(self._process.pid)
        return next((one for one in self.processes() if stage_of(one)), None)


class ServedRun:
    """A run of the recipe's deployment; methods as those of `Run`."""

    def __init__(self, server: PrefectServer, runs: Path) -> None:
        self._server = server
        parameters = {"overrides": [f"runs={runs}", *OVERRIDES], "until": LAST}
        self.id = str(server.start(f"handoff/{RECIPE}", parameters).id)
        self._seen = time.monotonic()

    def ended(self) -> bool:
        if self.processes():
            self._seen = time.monotonic()
            return False
        state = self._server.state(self.id)
        if state is None:
            return False
        # A run whose server or worker dies may remain in the state that it had.
        return state.is_final() or time.monotonic() - self._seen > LOST_SECONDS

    def processes(self) -> list[psutil.Process]:
        # Runs outlive their worker, so they are not looked for below the server.
        return [
            part
            for one in psutil.process_iter()
            if variable(one, "PREFECT__FLOW_RUN_ID") == self.id
            for part in family(one.pid)
        ]

    def victim(self, name: str) -> psutil.Process | None:
        below = family(self._server.process.pid)
        return next((one for one in below if f"prefect {name} start" in title(one)), None)


def undisturbed(
    start: Callable[[Path], Run | ServedRun], runs: Path
) -> tuple[dict[str, str], float]:
    """Runs the recipe once.

    Returns:
        Digests of its artifacts by stage, and the duration [s].
    """
    began = time.monotonic()
    finish(start(runs))
    return digests(runs), time.monotonic() - began


def kill(
    victim: str,
    start: Callable[[Path], Run | ServedRun],
    runs: Path,
    at_s: float,
    expected: Mapping[str, str],
) -> Killed | None:
    """Kills a process of a new run, and continues the run.

    Args:
        victim: one of `VICTIMS`.
        start: starts a run in a folder.
        runs: the folder.
        at_s: time of the kill after the start [s].
        expected: digests by stage.

    Returns:
        What came of it; None if there was no such process.
    """
    run = start(runs)
    time.sleep(at_s)
    process = run.victim(victim)
    during = next((stage_of(one) for one in run.processes() if stage_of(one)), "")
    if process is None or run.ended():
        finish(run)
        return None
    process.kill()
    finish(run)
    starts, found = 0, len(digests(runs))
    while len(digests(runs)) < len(expected) and starts < MOST_STARTS:
        found = len(digests(runs))
        starts += 1
        finish(start(runs))
    return Killed(victim, round(at_s, 1), during, starts, found, digests(runs) == dict(expected))


def finish(run: Run | ServedRun) -> None:
    """Waits for the end of a run."""
    deadline = time.monotonic() + END_SECONDS
    while not run.ended():
        assert time.monotonic() < deadline, "a run did not end"
        time.sleep(0.2)


def digests(runs: Path) -> dict[str, str]:
    """Digests of the artifacts of a run, by stage; of those that its last start did not reach as
    well."""
    found = {}
    for manifest in sorted((runs / "artifacts").glob("[a-z]*/artifact.json")):
        stated = json.loads(manifest.read_text())
        found[stated["stage"]] = stated["digest"]
    return found


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def stage_of(process: psutil.Process) -> str:
    """Stage that a process works at; empty if none."""
    name = title(process).strip().removeprefix(TITLE)
    return name if title(process).startswith(TITLE) and name in STAGES else ""


def _of(kills: Sequence[Killed]) -> dict[str, Any]:
    return {
        "kills": len(kills),
        "equal": sum(one.equal for one in kills),
        "starts": max((one.starts for one in kills), default=0),
        "found": sum(one.found for one in kills),
    }


if __name__ == "__main__":
    main()
