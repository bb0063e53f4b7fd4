"""Measures how long an evaluated policy takes for one observation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.speed import INFERENCE
from flows.runner.artifact import write_json

if TYPE_CHECKING:
    from policies.card import PolicyCard
    from robots.interfaces import PolicyInput

WARM_UP = 3
"""Calls before the first that is measured."""
CALLS = 100
"""Most calls that are measured."""
FEWEST = 5
"""Calls that are measured however long they take."""
SECONDS = 2.0
"""Time after which no more calls are measured [s]."""


def write_inference_time(
    policy: Path, steps: int | None, instruction: str | None, device: str, out: Path
) -> None:
    """Times single observations of a saved policy in torch, on one thread, and writes `INFERENCE`.

    The observations are zeros in the policy's units, since the time does not depend on their
    values.

    Args:
        policy: folder of the policy.
        steps: sampler steps; None keeps the policy's own.
        instruction: instruction for a language-conditioned policy.
        device: device of the policy: `cpu`, `cuda`, or `auto`.
        out: folder of the evaluation.
    """
    import numpy as np

    from policies.checkpoint import read_card
    from policies.load import load_policy
    from policies.training.loop import resolve_device, torch_threads

    card = read_card(policy)
    resolved = resolve_device(device)
    own_steps = card.model.sampler_steps
    if own_steps is None:
        steps = None
    infer = load_policy(policy, steps, str(resolved))
    noise = np.zeros((1, card.model.horizon, card.action_size), np.float32)
    inputs = _zeros(card, instruction)
    with torch_threads(1):
        times = _times(lambda: infer(inputs, noise))
    entry: dict[str, Any] = {
        "runtime": "torch",
        "device": resolved.type,
        "denoising_steps": steps or own_steps,
        "calls": len(times),
        "p50_ms": float(np.percentile(times, 50)),
        "p99_ms": float(np.percentile(times, 99)),
    }
    write_json(out / INFERENCE, entry)


def _times(infer: Callable[[], Any]) -> list[float]:
    """Times of calls [ms]."""
    for _ in range(WARM_UP):
        infer()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < CALLS:
        begin = time.perf_counter()
        infer()
        end = time.perf_counter()
        times.append((end - begin) * 1e3)
        if len(times) >= FEWEST and end - started > SECONDS:
            break
    return times


def _zeros(card: PolicyCard, instruction: str | None) -> PolicyInput:
    """One observation of the policy, all zeros."""
    import numpy as np

    from robots.interfaces import PolicyInput

    steps = card.model.n_obs_steps
    sensors = {
        name: np.zeros((1, steps, *spec.shape), spec.dtype) for name, spec in card.sensors.items()
    }
    vector = np.zeros((1, steps, card.shapes.observation), np.float32)
    return PolicyInput(vector, sensors, () if instruction is None else (instruction,))
