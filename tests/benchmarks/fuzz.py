"""Random inputs to the governor and to every reader of messages: does a limit break, does anything
but a refusal come out?

    python -m tests.benchmarks.fuzz --inputs 1000000 --json

Governor: random limits of 2, 3, 6 or 7 coordinates; every input is one tick with a random request (a
plausible one, a jump, a huge number, a number that is none), a random measured position, sometimes
random bounds of the joints' velocities and torques, or a braking tick. The reference must keep its
box, speed, acceleration and jerk, and the bounds as far as braking can, or the governor must refuse
with a `SafetyError`, behind which it must still be sound.

Messages: valid ones of every kind, changed at random (bits, bytes, lengths, pieces of others) and
random bytes; a reader must return a value or raise a `HandoffError`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from real.console.control.commands import STILL, ControlCommand, Mode
from real.console.messages import command_message, read_command, read_inputs, read_message
from real.deploy import object_tracker
from real.deploy.tracked_field import TrackerConfig, board_field
from real.franka.joint_limits import VelocityBounds
from real.motion.governor import GovernorConfig, ReferenceGovernor
from robots.control.actions import Motion
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.interfaces import Label
from robots.wire import learner
from robots.wire.policy import pack, read_observation, unpack
from tests.real.fakes import contract
from tests.real.hil.made import parameters, steps

FR3 = find_robot("fr3")
BOARD = board_field(TrackerConfig())
NUMBERS = (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e9, -1e9, 5e-324, 0.0, -0.0)
"""Numbers that are none, and extreme ones."""
TICKS = 200
"""Largest number of ticks under the same limits."""
ROUNDING = 1e-9
"""Share by which rounding may exceed a limit."""


class ViolationError(AssertionError):
    """A limit broke, or a reader raised something else than a refusal."""


# Governor


def fuzz_governor(inputs: int, seed: int) -> dict[str, int]:
    """Feeds a number of inputs to governors; returns how many there were of each outcome.

    Raises:
        ViolationError: a limit broke.
    """
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    while outcomes.total() < inputs:
        config, period = _limits(rng)
        low, high = np.array(config.low), np.array(config.high)
        begin = rng.uniform(low, high)
        governor = ReferenceGovernor(config, period, begin, FR3)
        last = Motion(begin, np.zeros_like(begin), np.zeros_like(begin))
        arm = begin.copy()
        for _ in range(min(int(rng.integers(1, TICKS)), inputs - outcomes.total())):
            bounds = None
            if rng.random() < 0.3:
                rows = rng.normal(size=(21, low.size)) * 10.0 ** rng.uniform(-3, 3, (21, 1))
                bounds = VelocityBounds(rows, rng.choice([0.0, 0.5, 3.0]) * rng.normal(size=21))
            arm = _arm(rng, arm, last.position)
            try:
                if rng.random() < 0.1:
                    moved = governor.brake(arm, bounds)
                else:
                    moved = governor.step(_request(rng, low, high, last), arm, bounds)
            except SafetyError as error:
                outcomes[f"refused: {str(error).split(' is ')[0].split(' has ')[0]}"] += 1
                # As after a fault: the arm is found again where it is.
                arm = last.position.copy()
                continue
            _check(config, period, last, moved, bounds)
            outcomes["moved"] += 1
            last = moved
    return dict(outcomes)


def _limits(rng: np.random.Generator) -> tuple[GovernorConfig, float]:
    """Random limits that are accepted, and the period of a tick [s]."""
    while True:
        size = int(rng.choice([2, 3, 6, 7]))
        low = rng.uniform(-1.0, 0.5, size)
        period = float(rng.choice([0.001, 0.002, 0.004, 0.005, 0.01, 0.05]))
        max_lag = 10.0 ** rng.uniform(-4, -0.8)
        try:
            config = GovernorConfig(
                low=tuple(low.tolist()),
                high=tuple((low + 10.0 ** rng.uniform(-4, 0, size)).tolist()),
                max_speed=10.0 ** rng.uniform(-3, 0.47),
                max_acceleration=10.0 ** rng.uniform(-2, 0.95),
                max_lag=max_lag,
                fault_lag=max_lag * rng.uniform(1.01, 3.0),
                blocked_seconds=10.0 ** rng.uniform(-2, 0.5),
                catch_up_rate=10.0 ** rng.uniform(-1, 2.9),
            )
            ReferenceGovernor(config, period, low, FR3)
        except HandoffError:
            continue
        return config, period


def _request(rng: np.random.Generator, low: np.ndarray, high: np.ndarray, last: Motion) -> Motion:
    """A random request: mostly plausible, sometimes far away, sometimes no numbers."""
    kind, size = rng.random(), low.size
    position = last.position + rng.normal(size=size) * 0.02
    velocity = rng.normal(size=size) * 0.5
    if kind < 0.3:
        position = rng.uniform(2.0 * low - high, 2.0 * high - low)
        velocity = rng.normal(size=size) * 10.0 ** rng.uniform(-3, 3)
    elif kind < 0.4:
        position = rng.choice(NUMBERS[3:], size)
        velocity = rng.choice(NUMBERS[3:], size)
    elif kind < 0.43:
        position[rng.integers(size)] = rng.choice(NUMBERS)
    elif kind < 0.45:
        velocity[rng.integers(size)] = rng.choice(NUMBERS)
    elif kind < 0.46:
        position = np.zeros(int(rng.integers(0, 9)))
    return Motion(position, velocity, np.zeros(size))


def _arm(rng: np.random.Generator, arm: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Next measured position: the arm follows, stands, is noisy, jumps, or is measured wrongly."""
    kind = rng.random()
    if kind < 0.85:
        return arm + (reference - arm) * rng.uniform(0.2, 1.0)
    if kind < 0.95:
        return arm
    if kind < 0.98:
        return reference + rng.normal(size=arm.size) * 10.0 ** rng.uniform(-5, -1)
    wrong = arm.copy()
    wrong[rng.integers(arm.size)] = rng.choice(NUMBERS)
    return wrong


def _check(
    config: GovernorConfig,
    period: float,
    last: Motion,
    moved: Motion,
    bounds: VelocityBounds | None,
) -> None:
    """Checks one tick against the limits, worked out here once more.

    Raises:
        ViolationError: a limit is broken.
    """
    change = config.max_acceleration * period / math.sqrt(last.velocity.size)
    braked = np.sign(last.velocity) * np.maximum(np.abs(last.velocity) - change, 0.0)
    speed = float(np.linalg.norm(moved.velocity))
    acceleration = float(np.linalg.norm(moved.velocity - last.velocity)) / period
    jerk = float(np.linalg.norm(moved.acceleration - last.acceleration)) / period
    travelled = (moved.velocity + last.velocity) / 2.0 * period
    kept = {
        "finite": all(np.isfinite(part).all() for part in moved),
        "box": bool((moved.position >= config.low).all() and (moved.position <= config.high).all()),
        "speed": speed <= config.max_speed * (1.0 + ROUNDING),
        "acceleration": acceleration <= config.max_acceleration * (1.0 + ROUNDING),
        "jerk": jerk <= config.max_jerk * (1.0 + ROUNDING),
        "continuity": bool(
            np.allclose(moved.position - last.position, travelled, rtol=0.0, atol=1e-12)
        ),
    }
    if bounds is not None:
        most = np.maximum(1.0, np.abs(bounds.rows @ braked + bounds.offset))
        reached = np.abs(bounds.rows @ moved.velocity + bounds.offset)
        kept["joints"] = bool((reached <= most * (1.0 + 1e-6)).all())
    broken = [name for name, held in kept.items() if not held]
    if broken:
        raise ViolationError(f"governor: {broken} with {config}, {period} s, {last}, {moved}")


# Messages


def _told(frame: bytes) -> Any:
    return unpack(frame)


def _page(frame: bytes) -> Any:
    message = read_message(frame.decode("utf-8", "replace"))
    return read_inputs(message) if message["kind"] == "inputs" else message


def _tracker(frame: bytes) -> Any:
    message = object_tracker._read(frame)
    values = {"pose": BOARD.read(message.get("pose"))}
    return BOARD.impossible(values["pose"], None, 0.0), object_tracker._news_of(message, values)


def _command(frame: bytes) -> Any:
    return read_command(_map(frame))


def _observation(frame: bytes) -> Any:
    return read_observation(contract(), _map(frame))


def _map(frame: bytes) -> Mapping[str, Any]:
    """The map in a frame, as every server checks that it is one."""
    message = unpack(frame)
    if not isinstance(message, dict):
        raise HandoffError("no map")
    return message


def _valid() -> dict[str, tuple[Callable[[bytes], Any], list[bytes]]]:
    """Readers by name, each with valid frames."""
    journal = "0123456789abcdef"
    command = ControlCommand(Mode.PERSON, STILL, "ada", 7, Label.SUCCESS, 2)
    inputs = {"kind": "inputs", "keys": ["KeyW"], "axes": [0.5, -1.0], "buttons": [1.0]}
    inputs |= {"held": [], "stick": [0.0, 0.1, 0.2, 0.3], "sequence": 5, "visible": True}
    learner_messages = [
        learner.Hello(journal, 3),
        learner.JournalEntry(journal, 5, steps()),
        learner.Acknowledgement(8),
        parameters(),
        learner.Pause(True),
    ]
    observation = {
        "keypoints": np.zeros((2, 9, 2), np.float32),
        "agent": np.zeros((2, 2), np.float32),
    }
    return {
        "any": (
            _told,
            [pack({"a": [1, 2.5, "x", b"y", None, True], "b": np.arange(6).reshape(2, 3)})],
        ),
        "learner": (learner.decode, [learner.encode(each) for each in learner_messages]),
        "observation": (_observation, [pack(observation)]),
        "command": (_command, [pack(command_message(command))]),
        "page": (_page, [json.dumps(inputs).encode(), b'{"kind": "press", "action": "success"}']),
        "tracker": (_tracker, [pack({"pose": [0.1, 0.2, 0.3], "frame": 5, "age": 0.01})]),
    }


def fuzz_messages(inputs: int, seed: int) -> dict[str, int]:
    """Feeds a number of frames to readers; returns how many there were of each outcome.

    Raises:
        ViolationError: a reader raised something else than a `HandoffError`.
    """
    rng, outcomes = random.Random(seed), Counter[str]()
    readers = _valid()
    names, everything = list(readers), [frame for _, all_ in readers.values() for frame in all_]
    for read, frames in readers.values():
        for frame in frames:
            read(frame)
    for _ in range(inputs):
        name = rng.choice(names)
        read, frames = readers[name]
        frame = _changed(rng, rng.choice(frames), everything)
        try:
            read(frame)
        except HandoffError:
            outcomes[f"{name}: refused"] += 1
        except Exception as error:
            raise ViolationError(f"{name}: {frame!r} raised {error!r}") from error
        else:
            outcomes[f"{name}: read"] += 1
    return dict(outcomes)


def _changed(rng: random.Random, frame: bytes, others: list[bytes]) -> bytes:
    """A frame with random changes."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 0x7F, 0x80, 0xC0, 0xC1, 0xDF, 0xFF, rng.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(9)]
            case 4:
                other = rng.choice(others)
                piece = rng.randrange(len(other))
                data[at:at] = other[piece : piece + rng.randrange(30)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def main() -> None:
    """Runs both, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="to each of the two")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"inputs": arguments.inputs, "seed": arguments.seed}
    for name, fuzz in (("governor", fuzz_governor), ("messages", fuzz_messages)):
        began = time.perf_counter()
        outcomes = fuzz(arguments.inputs, arguments.seed)
        figures[name] = {
            "seconds": round(time.perf_counter() - began, 1),
            "violations": 0,
            "outcomes": dict(sorted(outcomes.items())),
        }
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
