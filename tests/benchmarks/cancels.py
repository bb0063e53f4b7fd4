"""Cancels runs on a Prefect server at random moments and continues them: how fast do their
processes end, and are the artifacts those of an undisturbed run?

    python -m tests.benchmarks.cancels --cancels 20 --json

The recipe `smoke` runs up to its student as a deployment of `handoff server`, as in
`tests.benchmarks.kills`. While a stage is at work, at a moment drawn uniformly over the duration of
an undisturbed run, the run is cancelled as the button of Prefect's page does. A moment without a
stage is drawn again. Seconds are counted from that request: until the process of the stage has
ended (`stage`), until no process of the run is left (`all`), and until the server shows the run as
ended (`state`). Then the run is started again until it completes.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.kills import (
    LOST_SECONDS,
    MOST_STARTS,
    ServedRun,
    digests,
    finish,
    run_command,
    stage_of,
    undisturbed,
)
from tests.flows.served import PrefectServer, prefect_server_at_work

PERIOD = 0.02
"""Time between two looks at the processes [s]."""
LIMIT_S = 5.0
"""What the processes are meant to end within [s]."""


@dataclass(frozen=True)
class Cancelled:
    """One cancelled run and what came of it."""

    at_s: float
    """Time of the request after the start [s]."""
    during: str
    """Stage at work then."""
    stage_s: float
    """Time until that stage's process had ended [s]."""
    all_s: float
    """Time until no process of the run was left [s]."""
    state_s: float
    """Time until the run was final on the server [s]."""
    state: str
    """Last state of the run on the server."""
    equal: bool
    """Whether the continued run has all digests of the undisturbed one."""


def main() -> None:
    """Cancels and prints."""
    assert __doc__
    run_command(__doc__, "cancels", 20, measure)


def measure(folder: Path, cancels: int, seed: int) -> dict[str, Any]:
    """Cancels runs in a folder.

    Returns:
        `cancels`, those with a final state `Cancelled` (`cancelled`), within `LIMIT_S` (`in_time`)
        and with equal digests behind (`equal`); median and largest of `stage_s`, `all_s` and
        `state_s`; and every `cancel`.
    """
    rng = random.Random(seed)
    done: list[Cancelled] = []
    (folder / "lab").mkdir()
    with prefect_server_at_work(folder / "lab") as server:
        expected, seconds = undisturbed(partial(ServedRun, server), folder / "served")
        assert expected, "the undisturbed run did not complete"
        while len(done) < cancels:
            runs = folder / f"{len(done)}-{rng.random():.6f}"
            one = cancel(server, runs, rng.uniform(0.0, seconds), expected)
            if one is not None:
                done.append(one)
                print(one, file=sys.stderr, flush=True)
    return {
        "cancels": len(done),
        "cancelled": sum(one.state == "Cancelled" for one in done),
        "in_time": sum(one.all_s <= LIMIT_S for one in done),
        "equal": sum(one.equal for one in done),
        **_spread("stage_s", [one.stage_s for one in done]),
        **_spread("all_s", [one.all_s for one in done]),
        **_spread("state_s", [one.state_s for one in done]),
        "served_seconds": round(seconds, 1),
        "cancel": [asdict(one) for one in done],
    }


def cancel(
    server: PrefectServer, runs: Path, at_s: float, expected: dict[str, str]
) -> Cancelled | None:
    """Cancels a new run, and continues it.

    Args:
        server: runs it.
        runs: its folder.
        at_s: time of the request after the start [s].
        expected: digests by stage.

    Returns:
        What came of it; None if no stage was at work.
    """
    run = ServedRun(server, runs)
    time.sleep(at_s)
    stage = next((one for one in run.processes() if stage_of(one)), None)
    if stage is None:
        finish(run)
        return None
    during = stage_of(stage)
    began = time.monotonic()
    server.cancel(run.id)
    while stage.is_running():
        time.sleep(PERIOD)
    stage_s = time.monotonic() - began
    while run.processes():
        time.sleep(PERIOD)
    all_s = time.monotonic() - began
    state = server.state(run.id)
    while (state is None or not state.is_final()) and time.monotonic() - began < LOST_SECONDS:
        time.sleep(PERIOD)
        state = server.state(run.id)
    state_s = time.monotonic() - began
    for _ in range(MOST_STARTS):
        finish(ServedRun(server, runs))
        if len(digests(runs)) == len(expected):
            break
    return Cancelled(
        round(at_s, 1),
        during,
        round(stage_s, 2),
        round(all_s, 2),
        round(state_s, 2),
        "" if state is None else str(state.name),
        digests(runs) == expected,
    )


def _spread(name: str, values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {f"{name}_median": values[len(values) // 2], f"{name}_max": values[-1]}


if __name__ == "__main__":
    main()
