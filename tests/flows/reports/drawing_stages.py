"""Stages for tests of reproduction: one draws numbers, the other adds them and reads a file outside
the pipeline, without telling anybody."""

from __future__ import annotations

import random
from pathlib import Path

from flows.artifacts import Episodes, Evaluation, Output
from flows.session.config import HilOperator
from robots.config import config
from robots.interfaces import Progress


@config
class DrawConfig:
    """Numbers to draw."""

    count: int = 3
    """Number of draws."""
    seed: int = 0
    """Seed of the draws."""
    operator: HilOperator = HilOperator()
    """Person who draws."""


@config
class AddConfig:
    """Numbers to add."""

    unlisted: str = ""
    """File whose number is added as well."""


def draw(config: DrawConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Draws numbers."""
    rng = random.Random(config.seed)
    drawn = [rng.random() for _ in range(config.count)]
    (out / "numbers.txt").write_text(" ".join(map(str, drawn)))
    return Output({"count": len(drawn)})


def add(config: AddConfig, out: Path, progress: Progress, *, demos: Episodes) -> Output[Evaluation]:
    """Adds the numbers."""
    total = sum(float(word) for word in (demos / "numbers.txt").read_text().split())
    if config.unlisted:
        total += float(Path(config.unlisted).read_text())
    (out / "total.txt").write_text(str(total))
    return Output({"total": total, "cpu_seconds": 0.25})
