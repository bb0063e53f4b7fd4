"""Stages for tests of approvals, which make artifacts of the kinds that `approve` takes."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from flows.artifacts import Bundle, Gate, Output, Policy
from flows.session.config import HilEnvConfig, HilOperator
from policies.checkpoint import CARD
from robots.config import config
from robots.interfaces import Progress


@config
class NothingConfig:
    text: str = "weights"


def bundle(config: NothingConfig, out: Path, progress: Progress) -> Output[Bundle]:
    (out / "policy.onnx").write_text(config.text)
    return Output({"bytes": 7})


@config
class SessionConfig:
    """A stage with a person, who has nothing to do in it."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    operator: HilOperator = field(default_factory=HilOperator)


def session(config: SessionConfig, out: Path, progress: Progress) -> Output[Bundle]:
    (out / "policy.onnx").write_text(config.env.task)
    return Output({"bytes": 7})


def bundle_of(
    config: NothingConfig, out: Path, progress: Progress, *, policy: Policy
) -> Output[Bundle]:
    card = (policy / CARD).read_bytes()
    (out / "policy.onnx").write_bytes(card)
    return Output({"bytes": len(card)})


def gate(config: NothingConfig, out: Path, progress: Progress, *, bundle: Bundle) -> Output[Gate]:
    (out / "verdict.json").write_text(config.text)
    return Output({"passed": True, "parity": 1e-6})
