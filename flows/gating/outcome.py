"""Holds what a gate was given and what it measured, for the verdict and the release page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.gating.ancestry import Evaluations
from flows.gating.conditions import Condition, unmet
from flows.gating.config import GateConfig, looser
from flows.runner.artifact import MANIFEST
from robots.contract import ONNX_FILE
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.gating.closed_loop import Played
    from real.deploy.onnx_policy import OnnxPolicy

FIGURES = "gate.json"
"""All conditions with their values."""
VERDICT = "verdict.json"
"""The conditions whose values are the same whenever the gate is repeated."""
LATENCIES = "latency.png"
PAGE = "release.html"


@dataclass(frozen=True)
class Evidence:
    """What the gate is given beside the bundle."""

    reference: Path | None = None
    """Folder of the exported teacher, for its inference time."""
    evaluations: Sequence[Path] = ()
    """Folders of evaluations of the trained policy and of its teacher."""
    twin: Path | None = None
    """Artifact of the episodes at the twin."""


@dataclass(frozen=True)
class Gated:
    """Everything that was measured, for the verdict and the release page."""

    settings: GateConfig
    bundle: Path
    policy: OnnxPolicy
    conditions: Sequence[Condition]
    metrics: Mapping[str, Any]
    played: Played | None = None
    incumbent: OnnxPolicy | None = None
    incumbent_played: Played | None = None
    evidence: Evidence = field(default_factory=Evidence)
    evaluations: Evaluations = field(default_factory=lambda: Evaluations(None, None, None))
    """The evaluations among the evidence that the episodes are compared with."""

    def with_conditions(
        self, conditions: Iterable[Condition], metrics: Mapping[str, Any] | None = None
    ) -> Gated:
        """Returns this with further conditions and metrics."""
        return replace(
            self,
            conditions=[*self.conditions, *conditions],
            metrics={**self.metrics, **(metrics or {})},
        )

    @property
    def passed(self) -> bool:
        """Whether every condition is met."""
        return not unmet(self.conditions)

    @property
    def looser(self) -> list[str]:
        """Limits that are looser than the defaults."""
        return looser(self.settings, self.policy.contract)


def read_conditions(out: Path) -> list[Condition]:
    """Reads the conditions that `gate` wrote to `out`."""
    verdict = json.loads((out / FIGURES).read_bytes())
    return [Condition(**entries) for entries in verdict["conditions"]]


def incumbent_bundle(given: str) -> Path:
    """Returns the folder of the bundle that is replaced.

    Args:
        given: folder of a bundle or release, or artifact of a gate or approval.

    Raises:
        HandoffError: no exported policy there, or a gate whose bundle was changed.
    """
    path = Path(given)
    if (path / ONNX_FILE).is_file():
        return path
    if (path / MANIFEST).is_file():
        from flows.deployment.release import released_bundle

        return released_bundle(path)
    raise HandoffError(
        f"gate: incumbent is '{given}', which holds no {ONNX_FILE} and is no gate. Give the folder of a bundle, of "
        "a release or of a gate, such as runs/demo/gate."
    )
