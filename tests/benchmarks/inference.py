"""Measures the inference time of a one-step student under ONNX Runtime, relative to its many-step
teacher in torch and to its own matrix products.

    python -m tests.benchmarks.inference --json
    python -m tests.benchmarks.inference --json --run runs/demo

student: the exported file as the robot's process calls it (`real.deploy.onnx_policy`), with its
    checks of inputs and outputs.
graph: the same file under ONNX Runtime alone, without those checks.
teacher_100, teacher_10: the teacher in torch with DDIM in 100 and in 10 steps, as evaluations call
    it; of a flow, Euler's method.
products: the matrix products of the student alone, one row each, with weights of the same shapes,
    by the fastest of NumPy's and torch's routines (`products_by` names it and has all of them).

speedup_100, speedup_10: median time of a teacher relative to the student's; `_p99` the same of the
    99th percentiles.
product_ratio, graph_product_ratio: median time of the student, or of its graph alone, relative to
    that of its products; `_p99` likewise, and `_rounds` is the median over rounds of the ratio of
    the medians within a round.
..._cpu: the same medians by the thread's processor time, which a busy machine stretches less.
success: with --run, success of student and teacher on the same starts, and the paired difference
    with its interval.

Everything runs in one process on one thread. The contenders take turns in short blocks, each after
one call that is not measured, so that a slow phase of the machine affects all of them. Without
--run the weights are untrained and of the demo's sizes, since the time does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from policies.policy import ChunkPolicy

Call = Callable[[], Any]

STUDENT, GRAPH, PRODUCTS = "student", "graph", "products_"
STEPS = (100, 10)
"""Sampler steps of the teacher."""
ENOUGH = 200
"""Smallest number of starts of a comparison of successes."""


class Product(NamedTuple):
    """Shape of a matrix product of a pass through a network."""

    rows: int
    inputs: int
    outputs: int


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--run", type=Path, help="folder of a run with the stages named below")
    parser.add_argument("--bundle", default="bundle", help="stage of the exported student")
    parser.add_argument("--teacher", default="teacher", help="stage of the teacher")
    parser.add_argument(
        "--scores",
        nargs=2,
        default=("scores@teacher", "scores@student"),
        help="evaluations of teacher and student",
    )
    parser.add_argument("--rounds", type=int, default=40, help="blocks of every contender")
    parser.add_argument("--block", type=int, default=50, help="calls in a block of the student")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    with tempfile.TemporaryDirectory() as folder:
        if arguments.run is None:
            student, teacher = untrained(Path(folder))
        else:
            student = arguments.run / arguments.bundle / "policy.onnx"
            teacher = arguments.run / arguments.teacher
        calls = contenders(student, teacher)
        times = measure(calls, arguments.rounds, arguments.block)
    found = figures(times)
    if arguments.run is not None:
        found["success"] = successes(*(arguments.run / name for name in arguments.scores))
    print(
        json.dumps(found)
        if arguments.json
        else "\n".join(f"{name:22s} {value}" for name, value in found.items())
    )


def untrained(folder: Path) -> tuple[Path, Path]:
    """An exported one-step student and the folder of a teacher, of the demo's sizes."""
    import torch

    from policies.card import PolicyCard
    from policies.checkpoint import save_policy
    from policies.export.contract import ActionMeaning, contract_of
    from policies.export.graph import to_onnx
    from policies.families.diffusion import DiffusionPolicy
    from policies.policy_config import DiffusionPolicyConfig
    from robots.contract import CONTRACT_KEY
    from robots.control.actions import PD_TARGET
    from robots.spec import FieldSpec
    from robots.storage.onnx_file import with_digest

    torch.manual_seed(0)
    config = DiffusionPolicyConfig()
    card = PolicyCard(
        task="push_t",
        rate_hz=10.0,
        observation={"keypoints": FieldSpec(shape=(9, 2)), "agent": FieldSpec(shape=(2,))},
        sensors={},
        action=FieldSpec(shape=(2,), unit="m"),
        model=config,
    )
    module = DiffusionPolicy(config, card.shapes).eval()
    with torch.no_grad():
        # The last layer begins at 0, which a runtime could leave out.
        for parameter in module.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape))
    teacher = folder / "teacher"
    teacher.mkdir()
    save_policy(teacher, card, module.state_dict())
    module.set_sampler_steps(1)
    model = to_onnx(module, 20)
    entry = model.metadata_props.add()
    entry.key = CONTRACT_KEY
    entry.value = contract_of(
        card, ActionMeaning(PD_TARGET), module.sampler, policy="", training_data=""
    ).to_json()
    student = folder / "policy.onnx"
    student.write_bytes(with_digest(model.SerializeToString()))
    return student, teacher


def contenders(student: Path, teacher: Path) -> dict[str, tuple[Call, float]]:
    """Every contender, and the share of a block's calls that it makes.

    Args:
        student: exported policy.
        teacher: folder of its teacher, whose networks have the student's sizes.
    """
    import numpy as np
    import torch

    from policies.load import load_module, load_policy
    from real.deploy.onnx_policy import OnnxPolicy

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    module, _ = load_module(teacher, 1)
    observation = generator.uniform(0.0, 512.0, (1, *module.observation_shape)).astype(np.float32)
    noise = generator.standard_normal((1, *module.chunk_shape), dtype=np.float32)
    exported = OnnxPolicy(student)
    calls: dict[str, tuple[Call, float]] = {STUDENT: (lambda: exported(observation, noise), 1.0)}
    session, feed = single_thread(student), {"observation": observation, "noise": noise}
    calls[GRAPH] = (lambda: session.run(["action"], feed), 1.0)
    for steps in STEPS:
        policy = load_policy(teacher, steps)
        calls[f"teacher_{steps}"] = (
            lambda policy=policy: policy(observation, noise),
            max(0.02, 1.0 / steps),
        )
    for name, products in product_calls(matrix_products(module, observation, noise)).items():
        calls[PRODUCTS + name] = (products, 1.0)
    return calls


def single_thread(path: Path) -> Any:
    """A session of ONNX Runtime with the threads of `real.deploy.onnx_policy`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        path.read_bytes(), options, providers=["CPUExecutionProvider"]
    )


def matrix_products(
    module: ChunkPolicy, observation: np.ndarray, noise: np.ndarray
) -> list[Product]:
    """The matrix products of one pass through the policy.

    Raises:
        SystemExit: weights of another kind than linear layers have.
    """
    import torch
    from torch import nn

    found: list[Product] = []
    seen: set[int] = set()

    def note(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        outputs, columns = layer.weight.shape
        found.append(Product(output.numel() // outputs, columns, outputs))
        seen.add(id(layer.weight))

    hooks = [
        layer.register_forward_hook(note)
        for layer in module.modules()
        if isinstance(layer, nn.Linear)
    ]
    with torch.no_grad():
        module(torch.from_numpy(observation), torch.from_numpy(noise))
    for hook in hooks:
        hook.remove()
    others = [
        name
        for name, weight in module.named_parameters()
        if weight.ndim > 1 and id(weight) not in seen
    ]
    if others:
        raise SystemExit(f"products: {others} are weights of no linear layer, expected none.")
    return found


def product_calls(products: Sequence[Product]) -> dict[str, Call]:
    """Ways to compute the products alone, by name; weights are (outputs, inputs) as in torch, or
    transposed beforehand (`_t`)."""
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    rows = [generator.standard_normal(each[:2], dtype=np.float32) for each in products]
    weights = [
        generator.standard_normal((each.outputs, each.inputs), dtype=np.float32)
        for each in products
    ]
    transposed = [np.ascontiguousarray(weight.T) for weight in weights]
    made = [np.empty((each.rows, each.outputs), np.float32) for each in products]
    tensors = [
        tuple(torch.from_numpy(array) for array in arrays)
        for arrays in zip(rows, weights, transposed, made, strict=True)
    ]

    def by_numpy() -> None:
        for row, weight, out in zip(rows, weights, made, strict=True):
            np.dot(row, weight.T, out=out)

    def by_numpy_t() -> None:
        for row, weight, out in zip(rows, transposed, made, strict=True):
            np.dot(row, weight, out=out)

    def by_torch() -> None:
        for row, weight, _, out in tensors:
            torch.mm(row, weight.T, out=out)

    def by_torch_t() -> None:
        for row, _, weight, out in tensors:
            torch.mm(row, weight, out=out)

    return {
        "numpy": by_numpy,
        "numpy_t": by_numpy_t,
        "torch": by_torch,
        "torch_t": by_torch_t,
    }


class Times(NamedTuple):
    """Times of a contender's calls in a round [ms]."""

    wall: list[float]
    cpu: list[float]


def measure(
    calls: dict[str, tuple[Call, float]], rounds: int, block: int
) -> dict[str, list[Times]]:
    """Times of every contender in every round, without a first round that warms up."""
    times: dict[str, list[Times]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, (call, share) in calls.items():
            call()
            spent = Times([], [])
            for _ in range(max(1, round(share * block))):
                begin_cpu, begin = time.thread_time(), time.perf_counter()
                call()
                end, end_cpu = time.perf_counter(), time.thread_time()
                spent.wall.append((end - begin) * 1e3)
                spent.cpu.append((end_cpu - begin_cpu) * 1e3)
            if number:
                times[name].append(spent)
    return times


def figures(times: dict[str, list[Times]]) -> dict[str, Any]:
    """Medians, 99th percentiles and their ratios by name; see the module's docstring."""
    import numpy as np

    def percentile(name: str, share: float, clock: str = "wall") -> float:
        spent = [getattr(block, clock) for block in times[name]]
        return float(np.percentile(np.concatenate(spent), share))

    ways = {name: percentile(name, 50, "cpu") for name in times if name.startswith(PRODUCTS)}
    products = min(ways, key=lambda name: ways[name])
    teachers = [f"teacher_{steps}" for steps in STEPS]
    found: dict[str, Any] = {}
    for name in (STUDENT, GRAPH, products, *teachers):
        label = "products" if name == products else name
        found[f"{label}_p50_ms"] = round(percentile(name, 50), 4)
        found[f"{label}_p99_ms"] = round(percentile(name, 99), 4)
        found[f"{label}_p50_ms_cpu"] = round(percentile(name, 50, "cpu"), 4)
    for suffix, share, clock in (("", 50, "wall"), ("_p99", 99, "wall"), ("_cpu", 50, "cpu")):
        own = percentile(STUDENT, share, clock)
        for steps, name in zip(STEPS, teachers, strict=True):
            found[f"speedup_{steps}{suffix}"] = round(percentile(name, share, clock) / own, 2)
        least = percentile(products, share, clock)
        found[f"product_ratio{suffix}"] = round(own / least, 3)
        found[f"graph_product_ratio{suffix}"] = round(percentile(GRAPH, share, clock) / least, 3)
    for suffix, clock in (("", "wall"), ("_cpu", "cpu")):
        rounds = zip(times[STUDENT], times[products], strict=True)
        ratios = [
            np.median(getattr(own, clock)) / np.median(getattr(other, clock))
            for own, other in rounds
        ]
        found[f"product_ratio_rounds{suffix}"] = round(float(np.median(ratios)), 3)
    found["products_by"] = {name.removeprefix(PRODUCTS): round(ways[name], 4) for name in ways}
    found["calls"] = {
        name: sum(len(each.wall) for each in blocks) for name, blocks in times.items()
    }
    return found


def successes(teacher: Path, student: Path) -> dict[str, Any]:
    """Success of teacher and student on the same starts, and the paired difference, student less
    teacher, with its 95 % interval.

    Raises:
        HandoffError: evaluations under different protocols.
    """
    from sim.evaluation import intervals
    from sim.evaluation.comparison import compare, read_result
    from sim.evaluation.evaluate import BOOTSTRAP_SEED

    first, second = read_result(teacher, "teacher"), read_result(student, "student")
    compared = compare(first, second)
    solved = [result.column("success") for result in (first, second)]
    return {
        "starts": len(solved[0]),
        "enough_starts": len(solved[0]) >= ENOUGH,
        "teacher": sum(solved[0]),
        "student": sum(solved[1]),
        "difference": intervals.paired_difference(solved[0], solved[1], BOOTSTRAP_SEED),
        "mcnemar": compared.success,
        "score_difference": compared.score,
    }


if __name__ == "__main__":
    main()
