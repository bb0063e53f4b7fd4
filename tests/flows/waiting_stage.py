"""A stage for tests that starts, waits, and writes a file when it is asked to end."""

from __future__ import annotations

import time
from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.config import config
from robots.interfaces import Progress

BEGUN, CLEANED = "begun", "cleaned"


@config
class WaitingConfig:
    folder: str = ""
    """Folder of the marker files; a stage's own folder has another name in every run."""


def run(config: WaitingConfig, out: Path, progress: Progress) -> Output[Episodes]:
    (Path(config.folder) / BEGUN).touch()
    try:
        time.sleep(120.0)
    finally:
        (Path(config.folder) / CLEANED).touch()
    return Output({})
