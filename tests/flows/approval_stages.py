"""Stages for tests of approvals, which make artifacts of the kinds that `approve` takes."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Bundle, Gate, Output
from robots.config import config
from robots.interfaces import Progress


@config
class NothingConfig:
    text: str = "weights"


def bundle(config: NothingConfig, out: Path, progress: Progress) -> Output[Bundle]:
    (out / "policy.onnx").write_text(config.text)
    return Output({"bytes": 7})


def gate(config: NothingConfig, out: Path, progress: Progress, *, bundle: Bundle) -> Output[Gate]:
    (out / "verdict.json").write_text(config.text)
    return Output({"passed": True, "parity": 1e-6})
