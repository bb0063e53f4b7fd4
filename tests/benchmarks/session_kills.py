"""Kills a session with corrections at random moments and continues it: is every committed episode
still there, once and unchanged?

    python -m tests.benchmarks.session_kills --kills 50 --json

`handoff hil reach` runs with a simulated person up to the stage `corrected`: demonstrations, then
RL with corrections, in which an actor records episodes and a learner trains. In a new folder each
time, a session is started, killed by SIGKILL at a moment drawn uniformly over the duration of an
undisturbed session, and started again until it completes. Killed in turn are

- `session`: the process of `handoff hil`;
- `stage`: the process of the stage at work;
- `actor` and `learner`: the two processes of `corrected`;
- `all`: all processes at once, as by a power failure.

Per victim: kills, those after which the session completed (`completed`), those after which every
episode that was committed at the moment of the kill is in the last store, at its place, with the
same content, and no seed is there twice (`kept`), those after which the demonstrations, which are
deterministic, have the digest of the undisturbed session (`equal`), and committed episodes in all.
A moment at which there is no such process counts as none and is drawn again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.benchmarks.kills import MOST_STARTS, TITLE, digests, family, run_command
from tests.flows.processes import title

VICTIMS = ("session", "actor", "learner", "stage", "all")
STAGES = ("demos", "corrected")
DETERMINISTIC = "demos"
OVERRIDES = (
    "~clone",
    "~classifier",
    "corrected.inputs.classifier=null",
    "demos.episodes=4",
    "corrected.algorithm.reward=task",
    "corrected.speed=0",
    "corrected.backlog=20",
    "corrected.algorithm.online.updates_per_step=0.5",
    "corrected.algorithm.online.minibatches=1",
    "corrected.algorithm.online.batch_size=32",
    "corrected.actor.commit_every=10",
    "corrected.algorithm.sac.critic.hidden=[16]",
    "corrected.algorithm.sac.actor.hidden=[16]",
    "corrected.learner.publish_every=20",
    "corrected.learner.checkpoint_seconds=0.5",
)
STEPS = 600
END_SECONDS = 600.0
"""Time limit of a session [s]."""


@dataclass(frozen=True)
class Killed:
    """One kill and what came of it."""

    victim: str
    at_s: float
    """Time of the kill after the start [s]."""
    during: str
    """Stage at work then; empty between stages."""
    committed: int
    """Episodes that were committed then."""
    episodes: int
    """Episodes in the end."""
    starts: int
    """Starts after the kill."""
    completed: bool
    kept: bool
    equal: bool


def main() -> None:
    """Kills and prints."""
    assert __doc__
    run_command(__doc__, "kills", 50, measure)


def measure(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills sessions in a folder.

    Returns:
        Figures per victim, `seconds` of an undisturbed session, and every `kill`.
    """
    rng = random.Random(seed)
    began = time.monotonic()
    assert finish(start(folder / "undisturbed")) == 0, "the undisturbed session did not complete"
    seconds = time.monotonic() - began
    expected = digests(folder / "undisturbed")[DETERMINISTIC]
    done: list[Killed] = []
    for number in range(kills):
        victim = VICTIMS[number % len(VICTIMS)]
        killed = None
        while killed is None:
            runs = folder / f"{number}-{rng.random():.6f}"
            killed = kill(victim, runs, rng.uniform(0.0, seconds), expected)
        done.append(killed)
        print(killed, file=sys.stderr, flush=True)
    return {
        **{victim: _of([one for one in done if one.victim == victim]) for victim in VICTIMS},
        "all kills": _of(done),
        "seconds": round(seconds, 1),
        "kill": [asdict(one) for one in done],
    }


def start(runs: Path) -> subprocess.Popen[bytes]:
    """Starts the session in a process group of its own."""
    words = ["hil", "reach", "--operator", "simulated", "--steps", str(STEPS)]
    words += ["--until", STAGES[-1], *OVERRIDES, "--out", str(runs / "session")]
    return subprocess.Popen(
        [sys.executable, "-m", "flows", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(victim: str, runs: Path, at_s: float, expected: str) -> Killed | None:
    """Kills a process of a new session, and continues the session.

    Args:
        victim: one of `VICTIMS`.
        runs: folder of the session and its artifacts.
        at_s: time of the kill after the start [s].
        expected: digest of the demonstrations.

    Returns:
        What came of it; None if there was no such process.
    """
    session = start(runs)
    time.sleep(at_s)
    processes = family(session.pid) if session.poll() is None else []
    during = next((name for one in processes if (name := role(one)) in STAGES), "")
    hit = _victims(victim, processes)
    # Before the kill: what is committed now must be there in the end.
    before = episodes(runs)
    for process in hit:
        with suppress(psutil.Error):
            process.kill()
    code = finish(session)
    if not hit:
        return None
    starts = 0
    while code != 0 and starts < MOST_STARTS:
        starts += 1
        code = finish(start(runs))
    after = episodes(runs)
    return Killed(
        victim=victim,
        at_s=round(at_s, 1),
        during=during,
        committed=len(before),
        episodes=len(after),
        starts=starts,
        completed=code == 0,
        kept=after[: len(before)] == before and len({seed for seed, _ in after}) == len(after),
        equal=digests(runs).get(DETERMINISTIC) == expected,
    )


def episodes(runs: Path) -> list[tuple[int, str]]:
    """Seed, and digest of content and metadata, of every committed episode with corrections."""
    found = sorted(runs.glob(f"artifacts/{STAGES[-1]}-*/store.zarr/index.json"))
    assert len(found) <= 1, found
    if not found:
        return []
    path = found[0].parent
    try:
        store = EpisodeStore.open(path)
        return [_identity(store, number) for number in range(store.num_episodes)]
    except HandoffError:
        if path.exists():
            raise
        # Meanwhile the finished stage has renamed its folder.
        return episodes(runs)


def _identity(store: EpisodeStore, number: int) -> tuple[int, str]:
    about = store.metadata(number)
    content = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for stream in sorted(store.schema.streams):
        for name, values in sorted(store.read(number, stream).items()):
            content.update(name.encode() + values.tobytes())
    return about.get("seed", -1), content.hexdigest()


def role(process: psutil.Process) -> str:
    """What a process of the session is, by its title: a stage, `actor` or `learner`."""
    return title(process).strip().removeprefix(TITLE)


def finish(session: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a session and of all its processes; returns its exit code."""
    code = session.wait(END_SECONDS)
    deadline = time.monotonic() + END_SECONDS
    while _group(session.pid):
        assert time.monotonic() < deadline, "processes of a session did not end"
        time.sleep(0.2)
    return code


def _victims(victim: str, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    match victim:
        case "session":
            return list(processes[:1])
        case "all":
            return list(processes)
        case "stage":
            return [one for one in processes if role(one) in STAGES][:1]
    return [one for one in processes if role(one) == victim][:1]


def _group(number: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def _of(kills: Sequence[Killed]) -> dict[str, int]:
    return {
        "kills": len(kills),
        "completed": sum(one.completed for one in kills),
        "kept": sum(one.kept for one in kills),
        "equal": sum(one.equal for one in kills),
        "committed": sum(one.committed for one in kills),
        "starts": max((one.starts for one in kills), default=0),
    }


if __name__ == "__main__":
    main()
