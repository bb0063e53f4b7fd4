"""Throws random inputs at the governor and at the frames of every socket.

    python -m tests.benchmarks.fuzz --inputs 1000000 --json

governor: ticks of `real.deploy.governor.ReferenceGovernor` with random limits, targets, speeds,
    braking, joint bounds and measured positions, among them nan, infinity and 1e300. Every answer
    must keep box, speed, acceleration and jerk; every other outcome must be a `SafetyError`, after
    which the reference stands where it stood.
frames: random bytes, damaged frames, and well-formed values of wrong types, decoded as the policy
    server (`robots.wire.policy`) and the learner (`robots.wire.learner`) do. Every outcome but a
    value must be a `HandoffError`.

Per part: inputs, those that were accepted and refused, violations, crashes by type (both must be
none), and seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

EXTREMES = (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, 0.0)
JERK = 4500.0
"""Limit of jerk of the governor and of the robot [m/s^3]."""
TICKS = 200
"""Ticks of one governor, each with limits of its own."""
SLACK = 1e-9
"""Relative rounding error of a limit."""


@dataclass
class Outcome:
    """What became of the inputs of one part."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        """JSON-ready entries."""
        entries = {**vars(self), "seconds": round(self.seconds, 1)}
        return entries | {"violations": dict(self.violations), "crashes": dict(self.crashes)}


def main() -> None:
    """Runs both parts and prints what became of the inputs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"seed": arguments.seed}
    for name, part in {"governor": fuzz_governor, "frames": fuzz_frames}.items():
        found[name] = part(arguments.inputs, arguments.seed).to_plain()
    print(json.dumps(found) if arguments.json else json.dumps(found, indent=2))


def fuzz_governor(inputs: int, seed: int) -> Outcome:
    """Runs governors with random limits for `inputs` ticks."""
    outcome = Outcome()
    generator = np.random.default_rng(seed)
    began = time.perf_counter()
    while outcome.inputs < inputs:
        _run_governor(generator, min(TICKS, inputs - outcome.inputs), outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _run_governor(generator: np.random.Generator, ticks: int, outcome: Outcome) -> None:
    from real.deploy.governor import GovernorConfig, ReferenceGovernor
    from robots.control.actions import Motion
    from robots.errors import SafetyError
    from robots.franka import find_robot

    axes = int(generator.integers(2, 4))
    period = float(generator.choice([0.001, 0.004, 0.005]))
    # The change from full speed-up to full braking within a tick must fit the limit of jerk.
    acceleration = float(generator.uniform(0.3, min(9.0, 0.45 * JERK * period)))
    low = generator.uniform(-1.0, 0.0, axes)
    high = low + generator.uniform(0.05, 1.0, axes)
    config = GovernorConfig(
        low=tuple(low),
        high=tuple(high),
        max_speed=float(generator.uniform(0.01, 0.25 * acceleration)),
        max_acceleration=acceleration,
        max_jerk=JERK,
        blocked_seconds=5.0,
    )
    position = generator.uniform(low, high)
    velocity, last = np.zeros(axes), np.zeros(axes)
    governor = ReferenceGovernor(config, period, position, find_robot("fr3"))
    scale = float(generator.choice([0.01, 0.3, 5.0]))
    for _ in range(ticks):
        outcome.inputs += 1
        target = position + scale * generator.standard_normal(axes)
        speed = scale * generator.standard_normal(axes)
        measured = position + 0.03 * generator.standard_normal(axes)
        bounds = None if generator.random() < 0.7 else 8.0 * generator.standard_normal((7, axes))
        for array in (target, speed, measured, *([] if bounds is None else [bounds[0]])):
            if generator.random() < 0.01:
                array[generator.integers(axes)] = generator.choice(EXTREMES)
        try:
            if generator.random() < 0.1:
                out = governor.brake(measured, bounds)
            else:
                out = governor.step(Motion(target, speed, np.zeros(axes)), measured, bounds)
        except SafetyError:
            outcome.refused += 1
            continue
        except Exception as error:  # noqa: BLE001  counted by type
            outcome.crashes[type(error).__name__] += 1
            continue
        outcome.accepted += 1
        limits = {
            "box": bool(((out.position < low) | (out.position > high)).any()),
            "speed": _above(out.velocity, config.max_speed),
            "acceleration": _above(out.velocity - velocity, config.max_acceleration * period),
            "jerk": _above(out.acceleration - last, config.max_jerk * period),
            "finite": not np.isfinite(np.concatenate(out)).all(),
            "motion": _above(
                out.position - position - (velocity + out.velocity) / 2.0 * period, 1e-12
            ),
        }
        outcome.violations.update(name for name, broken in limits.items() if broken)
        position, velocity, last = out


def _above(vector: np.ndarray, limit: float) -> bool:
    return not float(np.linalg.norm(vector)) <= limit * (1.0 + SLACK)


def fuzz_frames(inputs: int, seed: int) -> Outcome:
    """Decodes `inputs` random frames."""
    from robots.errors import HandoffError
    from robots.wire.learner import decode
    from robots.wire.policy import read_observation, unpack
    from tests.real.fakes import contract

    expected = contract()
    observation = {
        name: np.zeros((expected.n_obs_steps, *spec.shape), np.float32)
        for name, spec in expected.observation.items()
    }
    generator = np.random.default_rng(seed)
    outcome = Outcome()

    def ask(frame: bytes) -> None:
        request = unpack(frame)
        if not isinstance(request, dict):
            raise HandoffError("message: expected a map.")
        read_observation(expected, request)

    began = time.perf_counter()
    for number in range(inputs):
        frame = _frame(generator, observation)
        outcome.inputs += 1
        take: Callable[[bytes], Any] = decode if number % 3 == 2 else ask
        try:
            take(frame)
            outcome.accepted += 1
        except HandoffError:
            outcome.refused += 1
        except Exception as error:  # noqa: BLE001  counted by type
            outcome.crashes[f"{take.__name__}: {type(error).__name__}"] += 1
    outcome.seconds = time.perf_counter() - began
    return outcome


def _frame(generator: np.random.Generator, observation: dict[str, np.ndarray]) -> bytes:
    """Random bytes, a damaged valid frame, or a valid frame with a wrong value."""
    from robots.wire.policy import pack

    kind = generator.random()
    if kind < 0.05:
        return pack(observation)
    if kind < 0.2:
        return generator.bytes(int(generator.integers(0, 80)))
    request: dict[str, Any] = dict(observation)
    if kind < 0.6:
        request[str(generator.choice(list(request)))] = _value(generator, 3)
        return pack(request)
    frame = bytearray(pack(request))
    for _ in range(int(generator.integers(1, 5))):
        place = int(generator.integers(len(frame)))
        match int(generator.integers(4)):
            case 0:
                frame[place] ^= 1 << int(generator.integers(8))
            case 1:
                frame[place] = int(generator.integers(256))
            case 2:
                frame = frame[: max(1, place)]
            case _:
                frame[place:place] = generator.bytes(int(generator.integers(1, 4)))
    return bytes(frame)


def _value(generator: np.random.Generator, depth: int) -> Any:
    """A value that a frame can hold."""
    kind = int(generator.integers(9 if depth else 6))
    match kind:
        case 0:
            return None
        case 1:
            return int(generator.integers(-(2**63), 2**63 - 1))
        case 2:
            return float(generator.choice(EXTREMES))
        case 3:
            return "".join(map(chr, generator.integers(0, 0xD800, int(generator.integers(9)))))
        case 4:
            return generator.bytes(int(generator.integers(20)))
        case 5:
            shape = tuple(generator.integers(0, 4, int(generator.integers(0, 5))))
            types = ["<f4", "<f8", "<i8", "|u1", "<f2", "|b1"]
            return np.zeros(shape, str(generator.choice(types)))
        case 6:
            return [_value(generator, depth - 1) for _ in range(int(generator.integers(4)))]
        case 7:
            pairs = range(int(generator.integers(4)))
            return {str(i): _value(generator, depth - 1) for i in pairs}
        case _:
            return {"__ndarray__": True, "data": b"0", "dtype": "O", "shape": [1]}


if __name__ == "__main__":
    main()
