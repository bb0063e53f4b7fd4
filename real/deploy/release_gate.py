"""Decides whether a bundle is released to the arm: ONNX Runtime must agree with torch and be fast
enough."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from real.deploy.onnx_policy import OnnxPolicy
from robots.config import Count, Positive, Whole, config
from robots.contract import ONNX_FILE
from robots.errors import GateError, HandoffError
from robots.interfaces import PolicyInput, Progress
from robots.language.text import INSTRUCTION, decode

FIGURES = "gate.json"
LATENCIES = "latency.png"
VERDICT = "verdict.json"
REPEATABLE = ("parity", "golden", "sampler", "reference_sampler", "passed")
"""Figures that are the same whenever the gate is repeated."""


@config
class GateConfig:
    """Thresholds of the release, and how often the latency is measured."""

    tolerance: float = 1e-5
    """Largest absolute difference between ONNX Runtime and torch [normalised action units]."""
    p99_ms: Positive = 1.0
    """Largest 99th percentile of the time of one inference of one observation [ms]."""
    warmup: Whole = 100
    """Number of inferences of the bundle before measuring."""
    repeats: Count = 2000
    """Number of measured inferences of the bundle."""
    block: Count = 50
    """Number of the bundle's inferences in a row between those of the reference, so that each is
    timed as if it ran alone."""
    reference_every: Count = 5
    """Number of the bundle's inferences per inference of the (slow) reference."""
    min_speedup: float | None = 8.0
    """Smallest ratio of the reference's median time to the bundle's; None requires none, as for a
    policy that was distilled from no other."""


def gate(
    config: GateConfig, bundle: Path, reference: Path | None, out: Path, progress: Progress
) -> dict[str, Any]:
    """Replays the golden vectors and times `bundle`, beside `reference` if there is one.

    Args:
        config: thresholds.
        bundle: directory with `policy.onnx` and `golden.npz` (`observation` (N, T, O), `noise` and
            `action` (N, H, A) as torch computed it, `action_scale` (H, A) physical units per
            normalised unit; if either policy is language-conditioned, `instruction` (N, bytes) in
            the encoding of `robots.language.text`, and the tokenizer).
        reference: directory with the `policy.onnx` that the bundle was distilled from; None without
            a teacher, which `min_speedup` then must not require.
        out: directory for `gate.json`, `latency.png` and `verdict.json`, which has no latencies.
        progress: called with the number of inferences done.

    Returns:
        The measured figures, `passed` (True) and the failed checks (none).

    Raises:
        GateError: a threshold was missed; `gate.json` and the picture are written first.
        HandoffError: a file is missing, broken or of another shape.
    """
    check_reference(config, given=reference is not None)
    policy = OnnxPolicy(bundle / ONNX_FILE)
    teacher = None if reference is None else OnnxPolicy(reference / ONNX_FILE)
    golden = _read_golden(bundle / "golden.npz")
    for model in (policy, teacher):
        if model is not None and model.contract.instruction and INSTRUCTION not in golden:
            raise HandoffError(
                f"gate: {model.path} is language-conditioned, {bundle / 'golden.npz'} lacks '{INSTRUCTION}'."
            )
    parity = _parity(policy, golden)
    bundle_ms, reference_ms = _time_in_turns(config, policy, teacher, golden, progress)
    p50, p99 = (float(value) for value in np.percentile(bundle_ms, [50, 99]))
    figures = {
        "parity": parity,
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "golden": len(golden["observation"]),
        "repeats": len(bundle_ms),
        "sampler": policy.contract.sampler,
    }
    if teacher is not None:
        slow_p50, slow_p99 = (float(value) for value in np.percentile(reference_ms, [50, 99]))
        figures |= {
            "reference_p50_ms": slow_p50,
            "reference_p99_ms": slow_p99,
            "speedup": slow_p50 / p50,
            "reference_sampler": teacher.contract.sampler,
        }
    problems = _problems(config, figures)
    verdict = {**figures, "passed": not problems, "failed": problems}
    (out / FIGURES).write_text(json.dumps(verdict, indent=2) + "\n")
    repeatable = {key: verdict[key] for key in REPEATABLE if key in verdict}
    (out / VERDICT).write_text(json.dumps(repeatable, indent=2) + "\n")
    _draw(bundle_ms, reference_ms, config, out / LATENCIES)
    if problems:
        raise GateError(f"gate: {bundle.name} was not released: " + "; ".join(problems))
    return verdict


def check_reference(config: GateConfig, *, given: bool) -> None:
    """Refuses a required speed-up without a reference to compare with.

    Raises:
        HandoffError: there is none.
    """
    if not given and config.min_speedup is not None:
        raise HandoffError(
            f"gate: min_speedup is {config.min_speedup:g}, but there is no reference. Give the bundle of the "
            "teacher as the input 'reference', or set min_speedup: null."
        )


def _problems(config: GateConfig, figures: dict[str, Any]) -> list[str]:
    problems = []
    if not figures["parity"] <= config.tolerance:
        problems.append(
            f"ONNX Runtime differs from torch by {figures['parity']:.2e} normalised units, limit "
            f"{config.tolerance:.0e} (were the weights changed after the golden vectors were made?)"
        )
    if not figures["latency_p99_ms"] <= config.p99_ms:
        problems.append(
            f"p99 latency is {figures['latency_p99_ms']:.3f} ms, limit {config.p99_ms} ms (p50 "
            f"{figures['latency_p50_ms']:.3f} ms; is the machine busy?)"
        )
    if config.min_speedup is not None and not figures["speedup"] >= config.min_speedup:
        problems.append(
            f"it is {figures['speedup']:.1f} times as fast as {figures['reference_sampler']}, at least "
            f"{config.min_speedup:g} required (was the student exported with its one-step sampler?)"
        )
    return problems


def _read_golden(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise HandoffError(f"gate: {path} does not exist. Is the bundle complete?")
    with np.load(path) as archive:
        missing = {"observation", "noise", "action", "action_scale"} - set(archive.files)
        if missing:
            raise HandoffError(
                f"gate: {path} lacks {sorted(missing)}; it has {sorted(archive.files)}."
            )
        golden = {name: archive[name] for name in archive.files}
    for name, array in golden.items():
        if not array.size or not np.isfinite(array).all():
            raise HandoffError(
                f"gate: {path}: {name} is empty or not finite. Did the export diverge?"
            )
    scale, chunk = golden["action_scale"], golden["action"].shape[1:]
    if scale.shape != chunk or not (scale > 0.0).all():
        raise HandoffError(
            f"gate: {path}: action_scale has shape {scale.shape} and a smallest entry of {scale.min():g}, "
            f"expected {chunk} positive numbers (physical units per normalised unit)."
        )
    return golden


def _parity(policy: OnnxPolicy, golden: dict[str, np.ndarray]) -> float:
    """Largest absolute difference from torch [normalised units], in one batch and row by row, since
    the robot infers single rows."""
    noise = golden["noise"]
    rows = [
        policy(_policy_input(policy, golden, slice(i, i + 1)), noise[i : i + 1])
        for i in range(len(noise))
    ]
    batch = policy(_policy_input(policy, golden, slice(None)), noise)
    actions = np.stack([batch, np.concatenate(rows)])
    if actions.shape[1:] != golden["action"].shape:
        raise HandoffError(
            f"gate: the policy returns {actions.shape[1:]}, golden.npz has {golden['action'].shape}."
        )
    return float(
        (np.abs(actions.astype(np.float64) - golden["action"]) / golden["action_scale"]).max()
    )


def _policy_input(
    model: OnnxPolicy, golden: dict[str, np.ndarray], rows: slice
) -> np.ndarray | PolicyInput:
    """Input of `model` for the golden examples `rows`, with instructions if it is
    language-conditioned."""
    vector = golden["observation"][rows]
    return (
        PolicyInput(vector, {}, decode(golden[INSTRUCTION][rows]))
        if model.contract.instruction
        else vector
    )


def _time_in_turns(
    config: GateConfig,
    policy: OnnxPolicy,
    teacher: OnnxPolicy | None,
    golden: dict[str, np.ndarray],
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """Times of single rows [ms], measured in blocks by turns, so that a slow phase of the machine
    affects both."""
    rows = len(golden["observation"])

    def once(model: OnnxPolicy, i: int) -> float:
        row = slice(i % rows, i % rows + 1)
        policy_input = _policy_input(model, golden, row)
        noise = golden["noise"][row]
        begin = time.perf_counter()
        model(policy_input, noise)
        return (time.perf_counter() - begin) * 1e3

    for i in range(config.warmup):
        once(policy, i)
        if teacher is not None and i % config.reference_every == 0:
            once(teacher, i)
    bundle, reference = [], []
    for first in range(0, config.repeats, config.block):
        turn = range(first, min(first + config.block, config.repeats))
        bundle += [once(policy, i) for i in turn]
        if teacher is not None:
            reference += [once(teacher, i) for i in turn[:: config.reference_every]]
        progress(turn.stop, config.repeats, f"{bundle[-1]:.2f} ms")
    return np.array(bundle), np.array(reference)


def _draw(bundle_ms: np.ndarray, reference_ms: np.ndarray, config: GateConfig, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    both = np.concatenate([bundle_ms, reference_ms])
    edges = np.geomspace(both.min(), both.max(), 80)
    for times, label in ((bundle_ms, "bundle"), (reference_ms, "reference")):
        if not len(times):
            continue
        share = np.full(len(times), 1.0 / len(times))
        axes.hist(
            times,
            bins=edges.tolist(),
            weights=share,
            alpha=0.7,
            label=f"{label}, median {np.median(times):.2f} ms",
        )
    axes.axvline(
        config.p99_ms, color="black", linestyle="--", linewidth=1, label="p99 limit of the bundle"
    )
    axes.set(xscale="log", xlabel="time of one inference [ms]", ylabel="share of inferences")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
