"""Measures what pictures cost in a correction session whose frozen trunk runs in the actor.

    python -m tests.benchmarks.session_pictures --json

trunk_ms: the trunk on the pictures of all cameras of one step, in ONNX Runtime.
decision_ms: the same with the published actor in NumPy behind it.
update_ms: one update of the learner on stored feature maps (`--recipe`, stage `corrected`).
pictures_update_ms: the same with convolutions that are trained on the pictures themselves.
entry_bytes: size of an entry of the actor's journal, which is sent to the learner, per step of an
    episode.
replay_bytes: size of the pictures of a step in the learner's replay.
raw_bytes: size of the pictures of a step.
..._cpu: the same times by the thread's processor time, which a busy machine stretches less.

Times are medians [ms] on one thread; weights, pictures and minibatches are random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from flows.correction.config import CorrectConfig
    from policies.rl.off_policy.sac import Sac
    from policies.rl.replay.transitions import Sizes, Transitions
    from real.hil.trunk import OnnxTrunk

OBSERVATION = 14
"""Entries of the observation vector: pose, offset of its target, opening and its target."""
ACTION = 5
EPISODE = 40
"""Steps of an episode whose entries are measured."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--recipe", default="hil/lift_cube", help="recipe with a stage `corrected`")
    parser.add_argument("--decisions", type=int, default=200, help="measured decisions")
    parser.add_argument("--updates", type=int, default=30, help="measured updates of each kind")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    config = corrected(arguments.recipe)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(config, Path(folder), arguments.decisions, arguments.updates)
    print(
        json.dumps(found)
        if arguments.json
        else "\n".join(f"{name:22s} {value}" for name, value in found.items())
    )


def corrected(recipe: str) -> CorrectConfig:
    """Options of the recipe's stage `corrected`."""
    from flows.recipes.graph import stages
    from flows.recipes.recipe import read_recipe

    return next(
        stage for stage in stages(read_recipe(recipe, ())) if stage.name == "corrected"
    ).config


def measure(config: CorrectConfig, folder: Path, decisions: int, updates: int) -> dict[str, Any]:
    """All figures, by name."""
    import numpy as np
    import torch

    from policies.export.trunk import trunk_to_onnx
    from policies.networks.images.efficientnet_lite import pretrained_trunk
    from policies.rl.actor_export import sac_actor
    from policies.rl.replay.transitions import Sizes
    from real.hil.actor_policy import ActorPolicy
    from real.hil.trunk import OnnxTrunk
    from robots.wire.learner import Parameters

    torch.set_num_threads(1)
    cameras = config.env.cameras
    assert cameras is not None
    height, width = cameras.height, cameras.width
    path = folder / "trunk.onnx"
    model = trunk_to_onnx(pretrained_trunk(config.trunk.stride), height, width)
    path.write_bytes(model.SerializeToString())
    trunk = OnnxTrunk(path, config.actor.pictures)
    rng = np.random.default_rng(0)
    seen = {name: random_picture(rng, 1, height, width) for name in config.actor.pictures}
    sizes = Sizes(observation=OBSERVATION, action=ACTION, maps=trunk.maps)
    raw = Sizes(
        observation=OBSERVATION,
        action=ACTION,
        pictures=tuple((name, height, width) for name in config.actor.pictures),
    )
    learner = new_learner(config, sizes)
    policy = ActorPolicy(Parameters(0, *sac_actor(learner)))
    vector = np.zeros((1, OBSERVATION), np.float32)
    found = timed("trunk", lambda: trunk(seen), decisions)
    found |= timed("decision", lambda: policy.act(vector, rng, trunk(seen)), decisions)
    for name, one in (("update", learner), ("pictures_update", new_learner(config, raw))):
        batches = minibatches(config, one.sizes)
        found |= timed(name, lambda one=one, batches=batches: one.update(batches), updates)
    found["entry_bytes"] = entry_bytes(folder / "journal", trunk, height, width)
    found["replay_bytes"] = sum(map_bytes(trunk))
    found["raw_bytes"] = len(seen) * height * width * 3
    return found


def timed(name: str, call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median wall time and processor time of a call [ms], after three that are not measured."""
    for _ in range(3):
        call()
    wall, processor = [], []
    for _ in range(repeats):
        begun, used = time.perf_counter(), time.thread_time()
        call()
        wall.append(time.perf_counter() - begun)
        processor.append(time.thread_time() - used)
    return {
        f"{name}_ms": round(1e3 * statistics.median(wall), 2),
        f"{name}_ms_cpu": round(1e3 * statistics.median(processor), 2),
    }


def new_learner(config: CorrectConfig, sizes: Sizes) -> Sac:
    """The learner of the session with random weights, with a gripper."""
    from policies.rl.hil.config import HilJsrlConfig, HilRlpdConfig, HilSerlConfig
    from policies.rl.hil.make_learner import with_gripper
    from policies.rl.off_policy.sac_bc import sac_learner

    algorithm = config.algorithm
    assert isinstance(algorithm, HilSerlConfig | HilRlpdConfig | HilJsrlConfig)
    return sac_learner(with_gripper(algorithm.sac), sizes)


def minibatches(config: CorrectConfig, sizes: Sizes) -> list[Transitions]:
    """Random minibatches of one update, half of whose rows are demonstrations."""
    import torch

    from policies.rl.replay.transitions import Observations, Transitions

    algorithm = config.algorithm
    assert algorithm.kind != "hg_dagger"
    rows = algorithm.online.batch_size
    torch.manual_seed(0)

    def observations() -> Observations:
        pictures = {name: torch.randn(rows, *shape).half() for name, *shape in sizes.maps}
        pictures |= {
            name: torch.randint(256, (rows, height, width, 3), dtype=torch.uint8)
            for name, height, width in sizes.pictures
        }
        return Observations(torch.randn(rows, sizes.observation), pictures)

    def minibatch() -> Transitions:
        demo_B = torch.arange(rows) < rows // 2
        action_BA = 2.0 * torch.rand(rows, sizes.action) - 1.0
        action_BA[:, -1] = action_BA[:, -1].round()
        return Transitions(
            observations(),
            action_BA,
            torch.rand(rows),
            torch.full((rows,), 0.97),
            observations(),
            demo_B,
            torch.zeros_like(demo_B),
            torch.zeros(rows),
        )

    return [minibatch() for _ in range(algorithm.online.minibatches)]


def entry_bytes(folder: Path, trunk: OnnxTrunk, height: int, width: int) -> float:
    """Bytes per step of the journal's entries of an episode, one step each."""
    import numpy as np

    from real.hil.journal import Journal
    from robots.wire.steps import plain_steps

    rng = np.random.default_rng(0)
    names = [name for name, *_ in trunk.maps]
    pictures = [
        {name: random_picture(rng, 1, height, width) for name in names} for _ in range(EPISODE + 1)
    ]
    maps = [trunk(seen) for seen in pictures]
    none, vector = np.zeros(1, bool), np.zeros((1, OBSERVATION), np.float32)
    with Journal(folder) as journal:
        for number in range(EPISODE):
            steps = plain_steps(
                np.zeros(1),
                np.array([number]),
                vector,
                np.zeros((1, ACTION)),
                none,
                vector,
                none,
                none,
            )
            journal.append(steps._replace(pictures=maps[number], next_pictures=maps[number + 1]))
        frames = [journal.frame(number) for number in range(EPISODE)]
    return round(sum(len(frame) for frame in frames) / EPISODE, 1)


def map_bytes(trunk: OnnxTrunk) -> list[int]:
    """Bytes of a map of each camera in half precision."""
    return [2 * channels * rows * columns for _, channels, rows, columns in trunk.maps]


def random_picture(rng: np.random.Generator, rows: int, height: int, width: int) -> np.ndarray:
    """(rows, height, width, 3) uint8."""
    return rng.integers(0, 256, (rows, height, width, 3), dtype="uint8")


if __name__ == "__main__":
    main()
