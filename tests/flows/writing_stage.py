"""A stage for tests that writes continuously, without progress reports; its first attempt does not
end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil

from flows.artifacts import Episodes, Output
from flows.runner.stage import Stage, StageOutcome, run_stage
from robots.config import config
from robots.interfaces import Progress, no_progress

LINES = "lines.txt"
PERIOD_SECONDS = 0.01


@config
class WritingConfig:
    deaf_seconds: float = 0.0
    """Time from SIGTERM to the end of the process [s], as in a long call of C code; 0 ends it at
    once."""


def run(config: WritingConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Appends the id of this process to `out/lines.txt`: forever in the first attempt, 20 times in
    later ones."""
    if config.deaf_seconds:
        signal.signal(
            signal.SIGTERM, lambda *_: threading.Timer(config.deaf_seconds, os._exit, (1,)).start()
        )
    before = writers(out)
    beside = False
    count = 0
    while not before or count < 20:
        beside |= any(lives(number) for number in before)
        with (out / LINES).open("a") as file:
            file.write(f"{os.getpid()}\n")
        count += 1
        time.sleep(PERIOD_SECONDS)
    return Output({"beside": beside})


def writers(out: Path) -> list[int]:
    """Ids of the processes that have written, in turn; a process that alternated with another has
    several entries."""
    file = out / LINES
    numbers = [int(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [
        number
        for number, previous in zip(numbers, [None, *numbers], strict=False)
        if number != previous
    ]


def lives(number: int) -> bool:
    """Whether that process exists and is no zombie."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stage(deaf_seconds: float) -> Stage:
    """The stage as a pipeline declares it."""
    return Stage(
        "write", "lines", "tests.flows.writing_stage", WritingConfig(deaf_seconds=deaf_seconds)
    )


def write(root: Path, deaf_seconds: float = 0.0, progress: Progress = no_progress) -> StageOutcome:
    """Runs the stage as a pipeline does."""
    return run_stage(stage(deaf_seconds), {}, root, progress)
