"""Stages for tests of storages: one writes files in folders, the other adds their numbers."""

from __future__ import annotations

import os
from pathlib import Path

from flows.artifacts import Episodes, Evaluation, Output
from robots.config import config
from robots.interfaces import Progress


@config
class NumbersConfig:
    """Numbers to write."""

    count: int = 3
    """Number of files."""


@config
class SumConfig:
    """Numbers to add."""

    offset: float = 0.0
    """Number that is added as well."""


def numbers(config: NumbersConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes numbers, and the one of this computer if it has one."""
    (out / "store").mkdir(exist_ok=True)
    for i in range(config.count):
        (out / "store" / f"{i}.txt").write_text(str(i))
    (out / "extra.txt").write_text(os.environ.get("HANDOFF_TEST_NUMBER", "0"))
    (out / "empty.txt").touch()
    (out / "plot.png").write_bytes(b"a picture")
    return Output({"episodes": config.count})


def add(config: SumConfig, out: Path, progress: Progress, *, demos: Episodes) -> Output[Evaluation]:
    """Adds the numbers."""
    files = [*(demos / "store").iterdir(), demos / "extra.txt"]
    total = config.offset + sum(float(file.read_text()) for file in files)
    (out / "total.txt").write_text(str(total))
    return Output({"total": total})
