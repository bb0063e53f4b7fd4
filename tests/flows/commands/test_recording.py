"""`handoff record` without an arm: one folder has all that was recorded, and Ctrl-C ends it with one
line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.commands.app import main
from robots.episodes.store import EpisodeStore


def recorded(folder: Path, episodes: int) -> int:
    """Number of episodes in the store after a simulated operator has demonstrated."""
    given = ["--operator", "simulated", "--episodes", str(episodes), "--out", str(folder)]
    assert main(["record", "reach", *given]) == 0
    with EpisodeStore.open(folder / "demos" / "store.zarr") as store:
        return store.num_episodes


def test_all_that_is_recorded_is_in_the_folder_that_out_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recorded(tmp_path / "r1", 1) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["r1"]
    assert (tmp_path / "r1" / "demos").resolve().parent == tmp_path / "r1" / "artifacts"
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"demos    {tmp_path / 'r1' / 'demos' / 'store.zarr'}"
    )
    # The same command with a larger number adds to it.
    assert recorded(tmp_path / "r1", 2) == 2


def title(process: psutil.Process) -> str:
    """Its title; empty when it has ended since it was listed."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def at_work(pid: int) -> None:
    """Waits until the process of the stage is there, and a moment more for those of the session."""
    limit = time.monotonic() + 60.0
    while not any(
        "handoff: demos" in title(child) for child in psutil.Process(pid).children(recursive=True)
    ):
        assert time.monotonic() < limit, "the stage does not begin"
        time.sleep(0.05)
    time.sleep(1.0)


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        (["reach", "--operator", "console", "--port", "0"], "console  "),
        (["push_t", "--operator", "simulated", "--episodes", "200"], "demos"),
    ],
)
def test_ctrl_c_ends_a_recording_with_what_it_does_and_what_was_kept(
    tmp_path: Path, options: list[str], begun: str
) -> None:
    command = [sys.executable, "-u", "-m", "flows", "record", "--out", "session"]
    with subprocess.Popen(
        [*command, *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while begun not in process.stdout.readline():
            assert process.poll() is None
        at_work(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read().splitlines()
    assert process.returncode == 130
    lines = [line for line in rest if not line.startswith(("▸", "✗"))]
    assert lines == [
        "stopping: what is running saves its state, for up to 10 s",
        "handoff: interrupted. What was recorded is kept; run the same command to go on.",
    ]


def test_a_misspelt_task_of_the_simulation_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", "reech"]) == 1
    assert "'reech' is not known, did you mean 'reach'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
