"""Refuses, before anything runs, inputs with which a gate cannot pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.gating.config import GateConfig
from robots.errors import HandoffError


def check_inputs(settings: GateConfig, sources: Mapping[str, Any]) -> None:
    """Checks the inputs of the stage.

    Args:
        settings: conditions of the release.
        sources: options of the input stages, see `flows.runner.signature`.

    Raises:
        HandoffError: an input is missing without which a condition cannot be evaluated.
    """
    if settings.min_speedup is not None and "reference" not in sources:
        raise HandoffError(
            f"gate: min_speedup is {settings.min_speedup:g}, but there is no reference. Give the bundle of the "
            "teacher as the input 'reference', or leave min_speedup out."
        )
    if not sources.get("scores"):
        raise HandoffError(
            "gate: no input 'scores'. Give evaluations of the exported policy and of its teacher under the gate's "
            "protocol: what is not evaluated is not released."
        )
    if settings.twin is not None and "twin" not in sources:
        raise HandoffError(
            "gate: no input 'twin'. Give a stage that uses deploy, or waive the twin by twin: null, which a real arm "
            "refuses."
        )
    _check_specifications(settings, sources)
    names = sorted({evaluation.protocol.name for evaluation in sources["scores"]})
    if settings.protocol.name not in names:
        raise HandoffError(
            f"gate: its protocol is {settings.protocol.name}, its input 'scores' has evaluations under "
            f"{', '.join(names)}. Evaluate under the gate's protocol (shared.protocol)."
        )


def _check_specifications(settings: GateConfig, sources: Mapping[str, Any]) -> None:
    from sim.evaluation.protocol import check_specifications

    check_specifications(settings.evaluate.specifications, settings.protocol)
    _check_stated(settings.specifications, settings.evaluate.specifications, "evaluate")
    if settings.twin is not None:
        loop = getattr(getattr(sources["twin"], "table", None), "loop", None)
        stated = getattr(loop, "specifications", {})
        _check_stated(settings.twin.specifications, stated, "table.loop of the input 'twin'")


def _check_stated(limits: Mapping[str, Any], stated: Mapping[str, str], where: str) -> None:
    for name in limits:
        if name not in stated:
            raise HandoffError(
                f"gate: there is a limit for the specification '{name}', but {where} states no formula of that name. "
                "Add it to specifications there."
            )


def incumbent_digest(given: str) -> str:
    """Returns the sha256 of the exported policy that is replaced, for the cache key."""
    from flows.gating.outcome import incumbent_bundle
    from flows.runner.artifact import file_digest
    from robots.contract import ONNX_FILE

    return file_digest(incumbent_bundle(given) / ONNX_FILE)
