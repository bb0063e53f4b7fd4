"""Measures the speed of soft actor-critic on one processor core, relative to peers and to its own
matrix products.

    python -m tests.benchmarks.rl --json --peers PEERS/bin/python

An update is one critic step, one actor step and one temperature step on 256 transitions (state of
20 entries, action of 7) with networks of 256 and 256 units in float32. The plain form is SAC as in
the peers: ReLU without LayerNorm, two critics, the entropy in the target, the critics' minimum for
the actor.

sbx_ratio, sb3_ratio: updates per second relative to SBX (JAX) and stable-baselines3 (PyTorch), each
    with minibatches from its own replay buffer and one call per update, as used by default and
    needed at a robot; null with a reason if they are not installed.
sbx_loop_ratio: relative to SBX with all updates of a turn in one call, compiled to one loop, for
    many updates per environment step.
matmul_share: updates per second of the plain form relative to its matrix products alone: the same
    shapes and transpositions, forward and backward, one after another by `torch.mm`.
matmul_share_fastest: the same with every product by the faster of `torch.mm` and the learner's own,
    which is twice as fast on some processors: the stricter of the two.
ensemble_speedup: ten critics, two of them used for the target, relative to the same update in a
    loop over ten single critics of torch's own layers, each with its loss, its fused Adam and its
    target; the default form, with tanh and LayerNorm in all networks.
ensemble_speedup_rlpd: the same with ReLU, and LayerNorm only in the critics.
adam_speedup: updates per second relative to `torch.optim.Adam(fused=True)` instead of ours, in the
    plain form.
adam_speedup_hil_serl: the same in the default form.
compile_speedup: relative to the same losses under `torch.compile`, in the plain form; null without
    --compiled, because compiling takes a minute or two.
compile_speedup_hil_serl: the same in the default form.
ensemble_speedup_joint: the default form relative to ten networks in a loop with one loss and one
    Adam: a stricter comparison.
updates_per_s: updates per second of every contender.

Each contender is a process on the same core with one thread; they take turns in short rounds, and a
figure is the median over rounds of the ratio within a round, so that load affects all equally.
Rates are per second of processor time; those that end in `_wall` are by the clock.

The peers need a separate environment:

    python3.11 -m venv PEERS
    PEERS/bin/pip install torch==2.13.0 stable-baselines3==2.9.2 sbx-rl==0.28.0
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "rl_contenders.py"
OWN = (
    "handoff",
    "handoff_hil_serl",
    "handoff_alone",
    "handoff_hil_serl_alone",
    "handoff_ten",
    "handoff_ten_rlpd",
)
OTHER = (
    "products",
    "products_mm",
    "torch_adam",
    "torch_adam_hil_serl",
    "loop_ten",
    "loop_ten_rlpd",
    "loop_ten_joint",
)
COMPILED = ("compiled", "compiled_hil_serl")
PEERS = ("sbx", "sbx_loop", "sb3")
RATIOS = {
    "sbx_ratio": ("handoff", "sbx"),
    "sbx_loop_ratio": ("handoff", "sbx_loop"),
    "sb3_ratio": ("handoff", "sb3"),
    "matmul_share": ("handoff_alone", "products_mm"),
    "matmul_share_fastest": ("handoff_alone", "products"),
    "adam_speedup": ("handoff_alone", "torch_adam"),
    "adam_speedup_hil_serl": ("handoff_hil_serl_alone", "torch_adam_hil_serl"),
    "compile_speedup": ("handoff_alone", "compiled"),
    "compile_speedup_hil_serl": ("handoff_hil_serl_alone", "compiled_hil_serl"),
    "ensemble_speedup": ("handoff_ten", "loop_ten"),
    "ensemble_speedup_rlpd": ("handoff_ten_rlpd", "loop_ten_rlpd"),
    "ensemble_speedup_joint": ("handoff_ten", "loop_ten_joint"),
}


class Contender:
    """A process that makes updates on request.

    Args:
        name: see `tests.benchmarks.rl_contenders`.
        python: the interpreter of its environment; None is this one.
    """

    def __init__(self, name: str, python: Path | None = None) -> None:
        own = [sys.executable, "-m", "tests.benchmarks.rl_contenders", name]
        self.process = subprocess.Popen(
            own if python is None else [str(python), str(SCRIPT), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.cpu: list[float] = []
        """Seconds of every round's updates."""
        self.wall: list[float] = []

    def failure(self) -> str | None:
        """Waits until it is ready; returns None, or the last line of its error."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() == "ready":
            return None
        lines = self.process.communicate()[1].strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"

    def advance(self, updates: int) -> None:
        """Makes updates and records their time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(updates, file=self.process.stdin, flush=True)
        spent = json.loads(self.process.stdout.readline())
        self.cpu.append(spent["cpu"])
        self.wall.append(spent["wall"])

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--rounds", type=int, default=15, help="turns that every contender has")
    parser.add_argument("--updates", type=int, default=20, help="updates of a turn")
    parser.add_argument("--peers", type=Path, help="Python of the environment that holds the peers")
    parser.add_argument("--compiled", action="store_true", help="compare with torch.compile too")
    arguments = parser.parse_args()
    contenders, reasons = start(arguments.peers, arguments.compiled)
    try:
        for _ in range(arguments.rounds + 1):
            for contender in contenders.values():
                contender.advance(arguments.updates)
    finally:
        for contender in contenders.values():
            contender.close()
    found = figures(contenders, arguments.updates) | {"reasons": reasons}
    print(
        json.dumps(found)
        if arguments.json
        else "\n".join(f"{name:28s} {v}" for name, v in found.items())
    )


def start(peers: Path | None, compiled: bool) -> tuple[dict[str, Contender], dict[str, str]]:
    """Starts all contenders one after another; returns those that run, and the reasons for others.

    Args:
        peers: the interpreter of the peers' environment.
        compiled: whether those under `torch.compile` are among them.
    """
    contenders: dict[str, Contender] = {}
    reasons = {name: "no --peers given" for name in PEERS if peers is None}
    others = (*(COMPILED if compiled else ()), *(PEERS if peers is not None else ()))
    for name in (*OWN, *OTHER, *others):
        contender = Contender(name, peers if name in PEERS else None)
        failure = contender.failure()
        if failure is None:
            contenders[name] = contender
        elif name in PEERS:
            reasons[name] = failure
        else:
            raise SystemExit(f"{name}: {failure}")
        print(f"{name}: {failure or 'ready'}", file=sys.stderr)
    return contenders, reasons


def figures(contenders: dict[str, Contender], updates: int) -> dict[str, Any]:
    """Ratios and rates by name, without the first round, which warms up."""
    found: dict[str, Any] = {}
    for clock, suffix in (("cpu", ""), ("wall", "_wall")):
        seconds = {name: getattr(contender, clock)[1:] for name, contender in contenders.items()}
        for name, (own, other) in RATIOS.items():
            pairs = zip(seconds[own], seconds.get(other, []), strict=False)
            ratios = [theirs / ours for ours, theirs in pairs]
            found[name + suffix] = round(statistics.median(ratios), 3) if ratios else None
        rates = {
            name: round(updates / statistics.median(spent), 1) for name, spent in seconds.items()
        }
        found["updates_per_s" + suffix] = rates
    return found


if __name__ == "__main__":
    main()
