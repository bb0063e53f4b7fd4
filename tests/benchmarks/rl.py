"""How fast soft actor-critic learns on one processor core, against peers and against its own matrix
products.

    python -m tests.benchmarks.rl --json --peers PEERS/bin/python

An update is one critic step, one actor step and one of the temperature on 256 transitions (state of
20 entries, action of 7), networks of 256 and 256 units, in float32. The plain form is SAC as the
peers have it: ReLU without LayerNorm, two critics, the entropy in the target, the critics' minimum
for the actor.

sbx_ratio, sb3_ratio    updates per second against SBX (JAX) and stable-baselines3 (PyTorch),
minibatches drawn from a
                        replay by each and a call per update, as both are used by default and a
                        robot needs it; null with a reason where they are not installed
sbx_loop_ratio          against SBX with all updates of a turn in one call, compiled to one loop:
for many updates per
                        step of the environment
matmul_share            updates per second of the plain form over those that its matrix products
alone would allow: the
                        same shapes, transposed alike, forward and backward, back to back by
                        `torch.mm`
matmul_share_fastest    likewise, every product by the faster of `torch.mm` and the one that the
learner uses, which on
                        some processors is twice as fast: the stricter of the two
ensemble_speedup        ten critics, two of them asked for the target, against the same update in a
loop over ten
                        single critics of torch's own layers, each with its loss, its fused Adam and
                        its target; the default form, tanh and LayerNorm in all networks
ensemble_speedup_rlpd   likewise with ReLU, and LayerNorm in the critics only
adam_speedup            updates per second over those with `torch.optim.Adam(fused=True)` in place
of ours, the plain form
adam_speedup_hil_serl   likewise the default form
compile_speedup         over those of the same losses under `torch.compile`, the plain form; null
                        without --compiled, for compiling takes a minute or two
compile_speedup_hil_serl likewise the default form
ensemble_speedup_joint  the default form against ten networks asked in a loop, with one loss and one
Adam: a harder bar updates_per_s           of every contender

Each contender is a process on the same core with one thread; they take turns in short rounds, and a
figure is the median over rounds of the ratio within a round, so a busy machine harms all alike.
Rates are per second of processor time; those that end in `_wall` are by the clock.

The peers need an environment of their own:

    python3.11 -m venv PEERS && PEERS/bin/pip install torch==2.13.0 stable-baselines3==2.9.2
    sbx-rl==0.28.0
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
    """A process that makes updates when told to.

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
        """Waits until it is ready; else the last line that it wrote about why not."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() == "ready":
            return None
        lines = self.process.communicate()[1].strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"

    def advance(self, updates: int) -> None:
        """Lets it make updates, and keeps the time."""
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
    """All contenders that run, one after another made ready, and why others do not.

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
    """Ratios and rates by name; the first round, which warms up, is left out."""
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
