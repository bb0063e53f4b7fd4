"""A session whose processes are ended while it trains: the next run resumes it to its end, and
records no episode twice.

`tests/policies/rl` and `tests/real` check that no committed step is lost or counted twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from robots.episodes.corrections import STREAM
from robots.episodes.running_episode import INTERRUPTED
from robots.episodes.store import EpisodeStore

STEPS = 600
SMALL = f"""
hil reach --operator simulated --steps {STEPS} --until corrected
~clone ~classifier corrected.inputs.classifier=null demos.episodes=4
corrected.algorithm.reward=task corrected.speed=0 corrected.backlog=20
corrected.algorithm.online.updates_per_step=0.5 corrected.algorithm.online.minibatches=1
corrected.algorithm.online.batch_size=32 corrected.actor.commit_every=10
corrected.algorithm.sac.critic.hidden=[16] corrected.algorithm.sac.actor.hidden=[16]
corrected.learner.publish_every=20 corrected.learner.checkpoint_seconds=0.5
corrected.learner.metrics_every=5
"""
LONG = 180.0
"""Time limit of a wait [s], reached only by a defect."""


def session(out: Path) -> subprocess.Popen[str]:
    """Starts a session in a new process group."""
    command = [sys.executable, "-m", "flows", *SMALL.split(), "--out", str(out)]
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=merged, text=True)


def wait_for_updates(out: Path, running: subprocess.Popen[str], more: int = 0) -> int:
    """Waits until the learner has made more updates than `more`; returns the lines of its
    metrics."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()[0]
        logs = list(out.parent.glob("artifacts/corrected-*.partial/learner/metrics.jsonl"))
        lines = sum(len(log.read_text().splitlines()) for log in logs)
        if lines > more:
            return lines
        time.sleep(0.05)
    raise AssertionError("the learner made no updates")


def listening(pid: int) -> psutil.Process:
    """The learner's process: the one below `pid` that waits for connections."""
    for child in psutil.Process(pid).children(recursive=True):
        if any(
            connection.status == psutil.CONN_LISTEN for connection in child.net_connections("tcp")
        ):
            return child
    raise AssertionError("no process listens")


def test_a_session_whose_processes_are_ended_resumes(tmp_path: Path) -> None:
    out = tmp_path / "session"
    running = session(out)
    lines = wait_for_updates(out, running, more=5)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    # In the second run only the learner is asked to end: it saves, and the session prints how to
    # resume.
    running = session(out)
    wait_for_updates(out, running, more=lines)
    listening(running.pid).terminate()
    output = running.communicate(timeout=LONG)[0]
    assert running.returncode == 1, output
    assert "ended by a signal" in output
    assert "Run the same command to resume" in " ".join(output.split())
    running = session(out)
    output = running.communicate(timeout=LONG)[0]
    assert running.returncode == 0, output
    store = EpisodeStore.open(out / "corrected" / "store.zarr")
    lengths = np.diff(store.ends(STREAM), prepend=0)
    # Three runs; what a kill cut off is recorded without its outcome.
    assert STEPS - 300 <= lengths.sum() <= STEPS + 200
    metadata = [store.metadata(episode) for episode in range(store.num_episodes)]
    seeds = [about["seed"] for about in metadata if about["discard_reason"] != INTERRUPTED]
    assert len(set(seeds)) == len(seeds), "no episode is recorded twice"
