"""A stage for tests that adds its value to those of its inputs, counts its runs, and can fail on
request."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress


@config
class CountingConfig:
    value: int = 0
    tally: str = ""
    fail: str = ""


def run(config: CountingConfig, out: Path, progress: Progress, **inputs: Path) -> Output[Episodes]:
    if config.tally:
        with open(config.tally, "a") as file:
            file.write("ran\n")
    resumed = (out / "half.txt").exists()
    (out / "half.txt").write_text("half")
    progress(1, 2, "half way")
    match config.fail:
        case "error":
            raise HandoffError("counting: value 3, limit 2. Too many?")
        case "bug":
            raise ZeroDivisionError("a bug")
        case "exit":
            os._exit(7)
        case "exit once" if not resumed:
            sys.stderr.write("out of luck\n")
            sys.stderr.flush()
            os._exit(7)
        case "full":
            raise OSError(28, "No space left on device", "somewhere/result.txt")
    total = config.value + sum(int((path / "result.txt").read_text()) for path in inputs.values())
    (out / "result.txt").write_text(str(total))
    progress(2, 2)
    return Output({"total": total, "resumed": resumed})
