"""Measures what hints cost in a correction session.

    python -m tests.benchmarks.hints --json

hint_ms: values of the proposed action, limits and hint, per step, behind the policy's decision.
hint_p95_ms: the same, which 95 % of the steps take at most.
hint_ms_cpu: the same by the thread's processor time, which a busy machine stretches less.
decision_ms: the policy's decision itself, in NumPy.
policy_bytes, critics_bytes: size of a published policy, and of the critics that come with it.
publish_ms, publish_critics_ms: the learner packs it; receive_ms, receive_critics_ms: the actor
    unpacks and checks it, in a thread beside the loop.

Times are medians [ms] on one thread, of the networks of `--recipe` with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies.rl.off_policy.sac import Sac

OBSERVATION = 35
"""Entries of the observation vector: joints and their speeds, poses, target and goal."""
ACTION = 7


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--recipe", default="hil/reach", help="recipe with a stage `corrected`")
    parser.add_argument("--critics", type=int, default=None, help="critics; default: the recipe's")
    parser.add_argument("--steps", type=int, default=2000, help="measured steps")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    found = measure(learner(arguments.recipe, arguments.critics), arguments.steps)
    print(
        json.dumps(found)
        if arguments.json
        else "\n".join(f"{name:22s} {value}" for name, value in found.items())
    )


def learner(recipe: str, critics: int | None) -> Sac:
    """The learner of the recipe's session, with other critics if given."""
    from dataclasses import replace

    from policies.rl.off_policy.sac_bc import sac_learner
    from policies.rl.replay.transitions import Sizes
    from tests.benchmarks.session_pictures import corrected

    algorithm = corrected(recipe).algorithm
    assert algorithm.kind == "hil_serl"
    sac = algorithm.sac
    if critics is not None:
        sac = replace(sac, critics=critics, subset=None)
    return sac_learner(sac, Sizes(observation=OBSERVATION, action=ACTION), 0)


def measure(sac: Sac, steps: int) -> dict[str, Any]:
    """All figures, by name."""
    import numpy as np

    from policies.rl.actor_export import sac_actor, sac_actor_and_critics
    from real.hil.actor_policy import ActorPolicy
    from real.hil.hints import ActorHints
    from real.hints.config import CorrectionHints, HintSource, ValueDropSource
    from robots.wire.learner import Parameters, decode, encode

    plain = encode(Parameters(1, *sac_actor(sac)))
    critics = encode(Parameters(1, *sac_actor_and_critics(sac)))
    message = decode(critics)
    assert isinstance(message, Parameters)
    policy = ActorPolicy(message)
    config = CorrectionHints(
        value=ValueDropSource(), disagreement=HintSource(), novelty=HintSource(), least=1
    )
    hints = ActorHints(config, 10.0, None, lambda text: None)
    rng = np.random.default_rng(0)
    nobody = np.zeros(1, bool)
    decisions: list[float] = []
    whole: list[float] = []
    processor: list[float] = []
    for step in range(steps):
        vector = rng.standard_normal((1, OBSERVATION)).astype(np.float32)
        begun = time.perf_counter()
        action = policy.act(vector, rng)
        decided, cpu = time.perf_counter(), time.thread_time()
        hints(policy, vector, {}, action, nobody)
        whole.append(1e3 * (time.perf_counter() - decided))
        processor.append(1e3 * (time.thread_time() - cpu))
        decisions.append(1e3 * (decided - begun))
        if step % 50 == 49:
            hints.monitor.end(solved=True)
    return {
        "critics": sac.config.critics,
        "hint_ms": statistics.median(whole),
        "hint_p95_ms": float(np.quantile(whole, 0.95)),
        "hint_ms_cpu": statistics.median(processor),
        "decision_ms": statistics.median(decisions),
        "policy_bytes": len(plain),
        "critics_bytes": len(critics) - len(plain),
        "publish_ms": _median(lambda: encode(Parameters(1, *sac_actor(sac)))),
        "publish_critics_ms": _median(lambda: encode(Parameters(1, *sac_actor_and_critics(sac)))),
        "receive_ms": _median(lambda: decode(plain)),
        "receive_critics_ms": _median(lambda: decode(critics)),
    }


def _median(call: Callable[[], object], repeats: int = 50) -> float:
    """Median time of a call [ms]."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


if __name__ == "__main__":
    main()
