"""Implements `handoff gate`: the release gate for an exported policy outside a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config.options import build
from flows.config.overrides import parse_overrides, set_value
from flows.config.protocols import read_protocol
from flows.gating.ancestry import Ancestry, find_ancestry, note_policy, read_evaluations
from flows.gating.conditions import VERDICTS, number
from flows.gating.config import GateConfig
from flows.gating.gate import gate
from flows.gating.outcome import PAGE, Evidence, read_conditions
from robots.contract import ONNX_FILE
from robots.errors import GateError, HandoffError

if TYPE_CHECKING:
    from flows.runner.display import Display

EVALUATIONS = "evaluations"


def gate_command(
    bundle: Path,
    protocol: str,
    overrides: Sequence[str],
    out: Path,
    *,
    scores: Sequence[Path],
    reference: Path | None,
    twin: Path | None,
    incumbent: Path | None,
) -> None:
    """Runs `handoff gate`, whose parameters `flows.commands.evaluation.gate` describes.

    Raises:
        GateError: a condition is not met; the conditions are printed first.
        HandoffError: no such bundle, protocol or option, or an error of `flows.gating.gate.gate`.
    """
    from flows.runner.display import Display
    from real.deploy.onnx_policy import OnnxPolicy

    if not (bundle / ONNX_FILE).is_file():
        raise HandoffError(
            f"gate: {bundle} holds no {ONNX_FILE}. Give the folder of a bundle, such as runs/demo/bundle."
        )
    settings = _settings(protocol, overrides, incumbent)
    contract = OnnxPolicy(bundle / ONNX_FILE).contract
    out.mkdir(parents=True, exist_ok=True)
    with Display() as display:
        evaluations = [
            *scores,
            *_evaluate_ancestors(
                settings, find_ancestry(bundle, contract), scores, out / EVALUATIONS, display
            ),
        ]
        evidence = Evidence(reference, evaluations, twin)
        progress = display.started("gate")
        refusal: GateError | None = None
        try:
            gate(settings, bundle, evidence, out, progress)
            display.finished("gate", "released")
        except GateError as error:
            display.finished("gate", "not released", "✗")
            refusal = error
    _print_verdict(out)
    if refusal is not None:
        raise refusal


def _settings(protocol: str, overrides: Sequence[str], incumbent: Path | None) -> GateConfig:
    values: dict[str, Any] = {}
    for override in parse_overrides(overrides):
        set_value(values, override.keys, override.value)
    given = values.get("protocol")
    values["protocol"] = {"uses": protocol, **(given if isinstance(given, dict) else {})}
    read_protocol(protocol)
    if incumbent is not None:
        values["incumbent"] = str(incumbent)
    return build(GateConfig, values, "")


def _evaluate_ancestors(
    settings: GateConfig,
    ancestry: Ancestry,
    scores: Sequence[Path],
    out: Path,
    display: Display,
) -> Iterator[Path]:
    """Evaluates the exported policy, its teacher, and the teacher in one step, as far as their
    folders are known and no evaluation of them is given; yields the folders of the results."""
    from flows.evaluation.agents import checkpoint_agent
    from policies.checkpoint import read_card
    from sim.evaluation.evaluate import evaluate, make_env

    given = {(each.policy, each.denoising_steps) for each in read_evaluations(scores)}
    wanted: list[tuple[str, str, int | None]] = [("policy", ancestry.policy, None)]
    for teacher in ancestry.teachers or ():
        wanted += [("teacher", teacher, None), ("teacher-in-one-step", teacher, 1)]
    for name, policy, steps in wanted:
        folder = ancestry.folders.get(policy)
        done = any(policy == other and steps in (None, count) for other, count in given)
        if folder is None or done:
            continue
        if steps is not None and (read_card(folder).model.sampler_steps or steps) == steps:
            continue
        target = out / name
        target.mkdir(parents=True, exist_ok=True)
        load, execution = checkpoint_agent(
            folder, settings.protocol, steps, None, settings.evaluate.device
        )
        evaluate(
            settings.protocol,
            replace(settings.evaluate, videos=0),
            load,
            partial(make_env, settings.protocol),
            target,
            display.started(name),
            execution,
        )
        display.finished(name, "evaluated")
        note_policy(target, name, policy)
        yield target


def _print_verdict(out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("condition", "value", "limit", "verdict"):
        grid.add_column(heading)
    for each in read_conditions(out):
        value = "" if each.value is None else f"{number(each.value)} {each.unit}".strip()
        limit = "" if each.limit is None else f"{each.bound} {number(each.limit)}"
        grid.add_row(each.name, value, limit, VERDICTS[each.state])
    console = Console()
    console.print(grid)
    console.print(f"page  {out / PAGE}", highlight=False, soft_wrap=True, markup=False)
