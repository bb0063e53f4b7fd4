"""Measures the training speed of a policy that sees pictures beside LeRobot's of the same sizes.

    python -m tests.benchmarks.picture_training --json --lerobot PYTHON

PYTHON is that of an environment with LeRobot. Both train a diffusion policy on one thread: ResNet-18
with GroupNorm and spatial softmax on pictures of 96 px cropped to 84, two observed steps, a U-Net of
widths 256, 512 and 1024 over 16 actions, AdamW or Adam with clipped gradients. Ours runs in the loop
of `pretrain`, from stored uint8 pictures; LeRobot's gets pictures that are float32 already.

ours, ours_fp32: samples per second of ours in the precision `auto` (`precision` names it), and in
    float32.
lerobot, lerobot_bf16: the same of LeRobot's `DiffusionPolicy` as it comes, in float32, and under
    torch's autocast to bfloat16.
ratio, ratio_fp32: ours, and ours in float32, relative to `lerobot`: median over the rounds. Limit:
    1.3. ratio_bf16: ours relative to `lerobot_bf16`.
parameters: number of parameters of both.

Rates are per second of processor time, which a busy machine stretches less; `_wall` by the clock.
Every contender has a process of its own, and they take turns in rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tests.benchmarks.train import ACTION, HORIZON, PIXELS, STEPS

LIMIT = 1.3
BATCH = 8
"""Samples of an update, as in `tests.benchmarks.train`."""

LEROBOT = """
import contextlib, json, sys, time
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
batch, pixels, action, steps, horizon, precision, updates = json.loads(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
camera, state = "observation.images.image", "observation.state"
config = DiffusionConfig(
    n_obs_steps=steps, horizon=horizon, n_action_steps=horizon // 2, device="cpu",
    input_features={
        camera: PolicyFeature(type=FeatureType.VISUAL, shape=(3, pixels, pixels)),
        state: PolicyFeature(type=FeatureType.STATE, shape=(action,)),
    },
    output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(action,))},
    crop_shape=(84, 84), pretrained_backbone_weights=None, use_group_norm=True,
    down_dims=(256, 512, 1024), diffusion_step_embed_dim=128,
)
policy = DiffusionPolicy(config).train()
optimizer = torch.optim.Adam(
    policy.parameters(), lr=config.optimizer_lr, betas=config.optimizer_betas,
    eps=config.optimizer_eps, weight_decay=config.optimizer_weight_decay,
)
data = {
    camera: torch.rand(batch, steps, 3, pixels, pixels),
    state: torch.rand(batch, steps, action),
    "action": torch.randn(batch, horizon, action).clamp(-1, 1),
    "action_is_pad": torch.zeros(batch, horizon, dtype=torch.bool),
}
def update():
    cast = precision == "bf16"
    with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
        loss, _ = policy.forward(dict(data))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.isfinite(loss)
update()
update()
count = sum(parameter.numel() for parameter in policy.parameters())
print(json.dumps([count, "bf16" if precision == "bf16" else "fp32"]), flush=True)
for line in sys.stdin:
    used, began = time.process_time(), time.perf_counter()
    for _ in range(updates):
        update()
    spent = time.process_time() - used, time.perf_counter() - began
    print(json.dumps([batch * updates / seconds for seconds in spent]), flush=True)
"""
"""Run by LeRobot's Python: one round per line of its input."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--lerobot", required=True, help="Python of an environment with LeRobot")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=3, help="of every contender in a round")
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours is not None:
        train(arguments.ours, arguments.updates)
        return
    found = measure(arguments.lerobot, arguments.rounds, arguments.updates)
    for name, value in found.items():
        print(f"{name:20s} {value}")
    if arguments.json:
        print(json.dumps(found))


def measure(python: str, rounds: int, updates: int) -> dict[str, Any]:
    """All figures, by name."""
    sizes = [BATCH, PIXELS, ACTION, STEPS, HORIZON]
    module = "tests.benchmarks.picture_training"

    def own(precision: str) -> list[str]:
        options = ["--lerobot", python, "--updates", str(updates), "--ours", precision]
        return [sys.executable, "-m", module, *options]

    def theirs(precision: str) -> list[str]:
        return [python, "-c", LEROBOT, json.dumps([*sizes, precision, updates])]

    commands = {
        "ours": own("auto"),
        "lerobot": theirs("fp32"),
        "ours_fp32": own("fp32"),
        "lerobot_bf16": theirs("bf16"),
    }
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(closing(Trainer(command, foreign="lerobot" in name)))
            for name, command in commands.items()
        }
        rates: dict[str, list[list[float]]] = {name: [] for name in trainers}
        for _ in range(rounds):
            for name, trainer in trainers.items():
                rates[name].append(trainer.round())
    return {**summarised(rates), **about(trainers), "limit": LIMIT, "rounds": rounds}


class Trainer:
    """A policy that is trained in a process of its own, one round at a time."""

    def __init__(self, command: list[str], *, foreign: bool) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if foreign:
            environment |= {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.parameters, self.precision = self._answer()

    def round(self) -> list[float]:
        """Samples per second of processor time and of wall time."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the training ended with exit code {self._process.wait()}.")
        return json.loads(line)


def summarised(rates: dict[str, list[list[float]]]) -> dict[str, float]:
    """Medians of the rates, and of their ratios within a round."""
    found = {}
    for place, suffix in enumerate(("", "_wall")):
        each = {name: [pair[place] for pair in pairs] for name, pairs in rates.items()}
        for name, values in each.items():
            found[f"{name}{suffix}"] = round(statistics.median(values), 2)
        for name, ours, theirs in (
            ("ratio", "ours", "lerobot"),
            ("ratio_fp32", "ours_fp32", "lerobot"),
            ("ratio_bf16", "ours", "lerobot_bf16"),
        ):
            ratios = [a / b for a, b in zip(each[ours], each[theirs], strict=True)]
            found[f"{name}{suffix}"] = round(statistics.median(ratios), 2)
    return found


def about(trainers: dict[str, Trainer]) -> dict[str, Any]:
    """Numbers of parameters of both policies, and the precision of ours."""
    return {
        "parameters": [trainers["ours"].parameters, trainers["lerobot"].parameters],
        "precision": trainers["ours"].precision,
    }


def train(precision: str, updates: int) -> None:
    """Trains our policy: one round per line of standard input, see `LEROBOT`."""
    import torch

    from policies.training.config import TrainingConfig
    from policies.training.loop import _Training, resolve_precision
    from tests.benchmarks.train import _policy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    resolved = resolve_precision(precision, torch.device("cpu"))
    model, objective = _policy(True, False, resolved)
    config = TrainingConfig(steps=10**6, learning_rate=1e-4, log_every=10**6)
    with tempfile.TemporaryDirectory() as folder:
        run = _Training(config, model, "benchmark", Path(folder))
        for _ in range(2):
            run.update(objective)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(json.dumps([count, resolved]), flush=True)
        for _ in sys.stdin:
            used, began = time.process_time(), time.perf_counter()
            for _ in range(updates):
                run.update(objective)
            spent = time.process_time() - used, time.perf_counter() - began
            print(json.dumps([BATCH * updates / seconds for seconds in spent]), flush=True)


if __name__ == "__main__":
    main()
