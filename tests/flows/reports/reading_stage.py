"""A stage for tests of reproduction that reads a file from outside the recipe: the one that its
options or `$HANDOFF_DATA` name."""

from __future__ import annotations

import os
from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.runner.artifact import file_digest
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress


@config
class ReadConfig:
    """A file to read."""

    file: str = ""
    """Path of the file; empty takes `$HANDOFF_DATA`."""


def located(config: ReadConfig) -> Path:
    """Returns the path of the file.

    Raises:
        HandoffError: no such file.
    """
    path = Path(config.file or os.environ.get("HANDOFF_DATA", ""))
    if not path.is_file():
        raise HandoffError(f"{path} does not exist.")
    return path


def external(config: ReadConfig, fetch: bool) -> dict[str, str]:
    """Returns the sha256 of the file."""
    return {"number": file_digest(located(config))}


def run(config: ReadConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Copies the number."""
    (out / "number.txt").write_bytes(located(config).read_bytes())
    return Output({})
