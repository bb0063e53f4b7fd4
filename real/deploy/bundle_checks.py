"""Measures whether an exported policy acts as torch computed it and as the robot's process runs
it, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from real.deploy.inference import ChunkInference, InlineExecutor
from real.deploy.onnx_policy import OnnxPolicy
from robots.config import Count, Whole, config
from robots.contract import GOLDEN_FILE, GOLDEN_SENSORS, PREFIX_INPUT
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, Progress
from robots.language.text import INSTRUCTION, decode
from robots.processes import Child


@config
class LatencyConfig:
    """Measurement of the inference time."""

    warmup: Whole = 100
    """Number of inferences of the bundle before measuring."""
    repeats: Count = 2000
    """Number of measured inferences of the bundle."""
    block: Count = 50
    """Number of the bundle's inferences in a row between those of the reference, so that each is
    timed as if it ran alone."""
    reference_every: Count = 5
    """Number of the bundle's inferences per inference of the (slow) reference."""


class Parity(NamedTuple):
    """Largest absolute differences between two computations of the same actions."""

    normalised: float
    """Largest of all entries [normalised action units]."""
    physical: list[float]
    """(A,) per entry of an action [the contract's action unit]."""


class Latencies(NamedTuple):
    """Times of single inferences of one observation [ms]."""

    bundle: np.ndarray
    reference: np.ndarray
    """Empty without a reference."""


def read_golden(path: Path) -> dict[str, np.ndarray]:
    """Reads the golden examples of a bundle.

    Args:
        path: `golden.npz` with `observation` (N, T, O), `noise` and `action` (N, H, A) as torch
            computed it, `action_scale` (H, A) physical units per normalised unit; if the policy is
            language-conditioned, `instruction` (N, bytes) in the encoding of
            `robots.language.text`.

    Raises:
        HandoffError: no such file, an array that is missing, empty or not finite.
    """
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


def golden_parity(policy: OnnxPolicy, golden: Mapping[str, np.ndarray]) -> Parity:
    """Difference between ONNX Runtime and torch on the golden examples, in one batch and row by
    row, since the robot infers single rows.

    Raises:
        HandoffError: the policy does not fit the examples.
        SafetyError: the policy returns values that are not finite.
    """
    check_instruction(policy, golden)
    noise = golden["noise"]
    rows = [
        policy(_policy_input(policy, golden, slice(i, i + 1)), noise[i : i + 1])
        for i in range(len(noise))
    ]
    actions = np.stack([batch_actions(policy, golden), np.concatenate(rows)])
    if actions.shape[1:] != golden["action"].shape:
        raise HandoffError(
            f"gate: the policy returns {actions.shape[1:]}, {GOLDEN_FILE} has {golden['action'].shape}."
        )
    return difference(actions, golden["action"], golden["action_scale"])


def batch_actions(policy: OnnxPolicy, golden: Mapping[str, np.ndarray]) -> np.ndarray:
    """(N, H, A) actions of the golden examples, computed in one batch."""
    return policy(_policy_input(policy, golden, slice(None)), golden["noise"])


def difference(actions: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> Parity:
    """Largest differences of actions (..., A) from expected ones; `scale` are the physical units
    per normalised unit, of a shape that broadcasts."""
    off = np.abs(actions.astype(np.float64) - expected)
    return Parity(
        float((off / scale).max()),
        [float(value) for value in off.reshape(-1, off.shape[-1]).max(axis=0)],
    )


def check_instruction(policy: OnnxPolicy, golden: Mapping[str, np.ndarray]) -> None:
    """Refuses golden examples without instructions for a language-conditioned policy."""
    if policy.contract.instruction and INSTRUCTION not in golden:
        raise HandoffError(
            f"gate: {policy.path} is language-conditioned, {GOLDEN_FILE} lacks '{INSTRUCTION}'."
        )


def robot_actions(
    policy: Path, seeds: Sequence[int], observations: Sequence[Mapping[str, np.ndarray]]
) -> list[np.ndarray]:
    """Actions of the robot's inference code in a process of its own.

    Args:
        policy: path of the ONNX file.
        seeds: seed of each episode's noise.
        observations: per episode the observations of all policy steps, by field `(steps, ...)`.

    Returns:
        Per episode the actions `(steps, A)`.

    Raises:
        HandoffError: an error of the policy, or the process died.
    """
    child = Child(
        "handoff-robot-inference",
        _infer_episodes,
        (policy, tuple(seeds), tuple(observations)),
        daemon=True,
    )
    actions = child.receive()
    child.process.join()
    return actions


def _infer_episodes(
    policy: Path,
    seeds: Sequence[int],
    observations: Sequence[Mapping[str, np.ndarray]],
    pipe: Connection,
) -> None:
    loaded = OnnxPolicy(policy)
    actions = []
    for seed, fields in zip(seeds, observations, strict=True):
        robot = ChunkInference(
            loaded, loaded.contract, InlineExecutor(), seed=seed, wait=True, inference_ms=[]
        )
        steps = len(next(iter(fields.values())))
        rows = ({name: values[step] for name, values in fields.items()} for step in range(steps))
        actions.append(np.stack([robot.next_action(row, step) for step, row in enumerate(rows)]))
    pipe.send(actions)


def _policy_input(
    model: OnnxPolicy, golden: Mapping[str, np.ndarray], rows: slice
) -> np.ndarray | PolicyInput:
    """Input of `model` for the golden examples `rows`, with the sensors and instructions that it
    takes."""
    vector = golden["observation"][rows]
    contract = model.contract
    sensors = {name: golden[GOLDEN_SENSORS + name][rows] for name in contract.sensors}
    prefix = golden[PREFIX_INPUT][rows] if contract.prefix else None
    if not sensors and not contract.instruction and prefix is None:
        return vector
    texts = decode(golden[INSTRUCTION][rows]) if contract.instruction else ()
    return PolicyInput(vector, sensors, texts, prefix=prefix)


def measure_latency(
    config: LatencyConfig,
    policy: OnnxPolicy,
    reference: OnnxPolicy | None,
    golden: Mapping[str, np.ndarray],
    progress: Progress,
) -> Latencies:
    """Times single rows of the golden examples on the one thread of `OnnxPolicy`, in blocks by
    turns, so that a slow phase of the machine affects both policies.

    Args:
        config: number of inferences.
        policy: the bundle's policy.
        reference: a policy to compare with, which takes the same observations; None without one.
        golden: golden examples of the bundle.
        progress: called with the number of inferences done.

    Raises:
        HandoffError: a policy does not fit the examples.
    """
    for model in (policy, reference):
        if model is not None:
            check_instruction(model, golden)
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
        if reference is not None and i % config.reference_every == 0:
            once(reference, i)
    bundle: list[float] = []
    slow: list[float] = []
    for first in range(0, config.repeats, config.block):
        turn = range(first, min(first + config.block, config.repeats))
        bundle += [once(policy, i) for i in turn]
        if reference is not None:
            slow += [once(reference, i) for i in turn[:: config.reference_every]]
        progress(turn.stop, config.repeats, f"{bundle[-1]:.2f} ms")
    return Latencies(np.array(bundle), np.array(slow))


def draw_latencies(latencies: Latencies, limit_ms: float, path: Path) -> None:
    """Draws histograms of the times beside the limit of the 99th percentile [ms]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    both = np.concatenate(latencies)
    edges = np.geomspace(both.min(), both.max(), 80)
    for label, times in latencies._asdict().items():
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
        limit_ms, color="black", linestyle="--", linewidth=1, label="p99 limit of the bundle"
    )
    axes.set(xscale="log", xlabel="time of one inference [ms]", ylabel="share of inferences")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
