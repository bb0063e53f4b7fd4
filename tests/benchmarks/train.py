"""Measures the training speed of a diffusion policy on one processor core, and its memory.

    python -m tests.benchmarks.train --json

steps_per_s: updates of the state policy: U-Net of 63.6 million parameters (widths 256, 512, 1024,
    embedding 128), batch 64, in the loop of `pretrain` (including AdamW and the moving average).
image_steps_per_s: the same with images: ResNet-18 on 96x96 px cropped to 84x84, two observed steps,
    batch 8.
plain_steps_per_s: the state policy written in the usual way: the same sizes with torch's `Conv1d`,
    in float32.
image_plain_steps_per_s: the image policy written in the same way.
peak_memory_gb: peak resident memory of the process that trains the state policy.
image_peak_memory_gb: peak resident memory of the process that trains the image policy.

Rates are per second of processor time of one thread, medians, and hence the same on a busy machine
except for caches; those that end in `_wall` are by the clock. Every policy is trained in a separate
process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from policies.policy import Batch
    from policies.training.loop import Objective

OBSERVATION, ACTION, STEPS, HORIZON = 20, 2, 2, 16
STATE_BATCH, IMAGE_BATCH, PIXELS, WARM_UP = 64, 8, 96, 2


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--updates", type=int, default=10, help="measured updates of each policy")
    parser.add_argument(
        "--precision", choices=("auto", "bf16", "fp32"), default="auto", help="of the products"
    )
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for pictures in (False, True):
        for plain in (False, True):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                precision = "fp32" if plain else arguments.precision
                figures |= process.submit(
                    measure, pictures, plain, precision, arguments.updates
                ).result()
            print(", ".join(f"{name} {value}" for name, value in figures.items()), file=sys.stderr)
    print(
        json.dumps(figures)
        if arguments.json
        else "\n".join(f"{name:30s} {v}" for name, v in figures.items())
    )


def measure(pictures: bool, plain: bool, precision: str, updates: int) -> dict[str, Any]:
    """Trains one policy for a few updates.

    Args:
        pictures: whether it observes pictures.
        plain: whether its convolutions are torch's.
        precision: of `TrainingConfig`.
        updates: measured ones.
    """
    import torch

    from policies.training.config import TrainingConfig
    from policies.training.loop import _Training, resolve_precision

    torch.set_num_threads(1)
    torch.manual_seed(0)
    resolved = resolve_precision(precision, torch.device("cpu"))
    model, objective = _policy(pictures, plain, resolved)
    config = TrainingConfig(steps=10**6, learning_rate=1e-4, log_every=10**6)
    cpu, wall = [], []
    with tempfile.TemporaryDirectory() as folder:
        run = _Training(config, model, "benchmark", Path(folder))
        for _ in range(WARM_UP + updates):
            began, clock = time.process_time(), time.perf_counter()
            run.update(objective)
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - clock)
    prefix = ("image_" if pictures else "") + ("plain_" if plain else "")
    return {
        f"{prefix}steps_per_s": round(1.0 / statistics.median(cpu[WARM_UP:]), 3),
        f"{prefix}steps_per_s_wall": round(1.0 / statistics.median(wall[WARM_UP:]), 3),
        f"{prefix}peak_memory_gb": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2
        ),
        f"{prefix}parameters": sum(parameter.numel() for parameter in model.parameters()),
        f"{prefix}precision": resolved,
    }


def _policy(pictures: bool, plain: bool, precision: str) -> tuple[nn.Module, Objective[Batch]]:
    import torch

    from policies.card import Shapes
    from policies.data.frames import Frames
    from policies.data.windows import Windows
    from policies.families.diffusion import DiffusionPolicy
    from policies.imitation.objective import imitation_objective
    from policies.networks.config import UnetConfig
    from policies.policy_config import DiffusionPolicyConfig

    sizes = DiffusionPolicyConfig(
        image_fields=("image",) if pictures else (),
        n_obs_steps=STEPS,
        horizon=HORIZON,
        network=UnetConfig(time_embedding=128),
    )
    count, size = (256, ACTION) if pictures else (1024, OBSERVATION)
    picture = (PIXELS, PIXELS, 3)
    shapes = Shapes.of_vector(size, ACTION, None)._replace(
        sensors={"image": picture} if pictures else {}
    )
    module = DiffusionPolicy(sizes, shapes)
    if plain:
        _make_plain(module)
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    windows = Windows(
        torch.rand(count, size),
        torch.arange(count)[:, None].expand(count, STEPS),
        torch.randn(count, HORIZON, ACTION),
        torch.zeros(count, HORIZON, dtype=torch.bool),
        {"image": Frames([torch.randint(0, 256, (count, *picture), dtype=torch.uint8)])}
        if pictures
        else {},
    )
    return module, imitation_objective(
        module, windows, IMAGE_BATCH if pictures else STATE_BATCH, 0, precision
    )


def _make_plain(model: nn.Module) -> None:
    """Puts torch's own convolutions, of the same sizes, in the place of the U-Net's."""
    from torch import Tensor, nn

    from policies.networks.unet import Convolution, Upsample

    class StepsFirst(nn.Module):
        """A convolution over (B, L, C)."""

        def __init__(self, convolution: nn.Module) -> None:
            super().__init__()
            self.convolution = convolution

        def forward(self, hidden_BLC: Tensor) -> Tensor:
            return self.convolution(hidden_BLC.transpose(1, 2)).transpose(1, 2)

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Convolution):
                inputs, kernel = child.in_features // child.kernel, child.kernel
                own = nn.Conv1d(inputs, child.out_features, kernel, child.stride, kernel // 2)
                setattr(parent, name, StepsFirst(own))
            elif isinstance(child, Upsample):
                width = len(child.bias)
                setattr(parent, name, StepsFirst(nn.ConvTranspose1d(width, width, 4, 2, 1)))


if __name__ == "__main__":
    main()
