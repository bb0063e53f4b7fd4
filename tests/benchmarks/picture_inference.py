"""Measures the time of a decision of exported policies that see two cameras, on one thread.

    python -m tests.benchmarks.picture_inference --json

One row per kind of image encoder and size of the pictures, `KIND_SIZE`; `resnet_small` is the
encoder `resnet` with a quarter of the channels.

decision_ms: the exported file as the robot's process calls it (`real.deploy.onnx_policy`), on one
    observed step of two cameras: median; `_p95` the 95th percentile.
rendered_ms: the same after a process has rendered the pictures of both cameras from the scene of
    `pick_cube`, as at the twin.
..._cpu: the same by the processor time of this process, which a busy machine stretches less;
    without that of the process that renders.
limit_ms, rendered_limit_ms: limits of both, where there are any.

Policies are those of `configs/pick_cube_cameras.yaml` with two cameras and the newest step alone:
regression, three layers of 512 units, 9 actions. Weights are untrained, but for those of a
pretrained trunk, since the time does not depend on them. Pictures reach the encoder in their own
size (`resize`), cropped as by default. The contenders take turns in short blocks, each after one
call that is not measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from policies.networks.config import PicturePartConfig
    from robots.interfaces import PolicyInput
    from sim.rendering.scene_renderer import SceneRenderer

CAMERAS = ("front", "wrist")
TASK, ROBOT = "pick_cube", "fr3"
SMALL = "resnet_small"
LIMITS = {"cnn": 2.0, SMALL: 2.0, "efficientnet_lite0": 5.0}
"""Limit of a decision by the kind of the encoder [ms]."""
RENDERED_LIMIT = 10.0
"""Limit of a decision and the rendering of its pictures [ms]."""
STATES = 64
"""Number of states of the scene that are rendered in turn."""


class Spent(NamedTuple):
    """Times of one contender [ms]."""

    wall: list[float]
    cpu: list[float]


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 128], help="pictures [px]")
    parser.add_argument("--kinds", nargs="+", help="kinds of encoders; default: all")
    parser.add_argument("--rounds", type=int, default=20, help="blocks of every contender")
    parser.add_argument("--block", type=int, default=15, help="calls in a block")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            encoders(arguments.kinds),
            arguments.sizes,
            arguments.rounds,
            arguments.block,
            Path(folder),
        )
    for name, figures in found.items():
        print(f"{name:26s} " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    if arguments.json:
        print(json.dumps(found))


def encoders(kinds: Sequence[str] | None) -> dict[str, PicturePartConfig]:
    """Options of every kind of image encoder but the one of a folder, whose size is that of the
    model in it, by name.

    Args:
        kinds: names to choose; None chooses all.

    Raises:
        SystemExit: an unknown name.
    """
    from policies.networks.config import (
        FolderEncoderConfig,
        ImageEncoderConfig,
        ResnetEncoderConfig,
    )
    from robots.config import classes_of

    whole = ResnetEncoderConfig()
    small = replace(whole, channels=tuple(width // 4 for width in whole.channels))
    own = [cls for cls in classes_of(ImageEncoderConfig) if cls is not FolderEncoderConfig]
    known: dict[str, Any] = {cls.kind: cls() for cls in own}  # type: ignore[attr-defined]
    known[SMALL] = small
    chosen = known if kinds is None else kinds
    unknown = sorted(set(chosen) - known.keys())
    if unknown:
        raise SystemExit(f"--kinds: no encoder {unknown}, expected some of {sorted(known)}.")
    return {name: known[name] for name in chosen}


def measure(
    configs: Mapping[str, PicturePartConfig],
    sizes: Sequence[int],
    rounds: int,
    block: int,
    folder: Path,
) -> dict[str, dict[str, Any]]:
    """Figures of every contender, by name."""
    from sim.rendering.scene_renderer import SceneRenderer

    calls: dict[str, Callable[[], Any]] = {}
    with ExitStack() as stack:
        for size in sizes:
            sized: dict[str, tuple[int, int]] = dict.fromkeys(CAMERAS, (size, size))
            renderer = stack.enter_context(SceneRenderer(TASK, ROBOT, sized))
            for kind, config in configs.items():
                path = folder / f"{kind}_{size}.onnx"
                save_policy(path, replace(config, resize=size), size)
                decide, with_rendering = contender(path, renderer)
                calls[f"{kind}_{size} decision"] = decide
                calls[f"{kind}_{size} rendered"] = with_rendering
        times = in_turn(calls, rounds, block)
    return {
        f"{kind}_{size}": {
            **figures("decision", times[f"{kind}_{size} decision"], LIMITS.get(kind)),
            **figures("rendered", times[f"{kind}_{size} rendered"], RENDERED_LIMIT),
        }
        for size in sizes
        for kind in configs
    }


def save_policy(path: Path, encoder: Any, size: int, cameras: Sequence[str] = CAMERAS) -> None:
    """Exports an untrained policy with that encoder and square pictures of `size` px."""
    import torch

    from policies.card import PolicyCard
    from policies.export.contract import ActionMeaning, contract_of
    from policies.export.graph import to_onnx
    from policies.load import new_module
    from policies.policy_config import BehaviourCloningConfig
    from robots.contract import CONTRACT_KEY
    from robots.control.actions import CartesianDelta, with_gripper
    from robots.control.proprioception import proprioception_fields
    from robots.franka import find_robot
    from robots.spec import FieldSpec
    from robots.storage.onnx_file import with_digest
    from sim.make import find_task

    torch.manual_seed(0)
    torch.set_num_threads(1)
    robot = find_robot(ROBOT)
    observed = proprioception_fields(robot, True)
    names = tuple(f"image_{name}" for name in cameras)
    config = BehaviourCloningConfig(
        head="l1",
        hidden=(512, 512, 512),
        observation_fields=tuple(observed),
        image_fields=names,
        anchor_field=None,
        n_obs_steps=1,
        horizon=9,
        n_action_steps=4,
        image_encoder=encoder,
    )
    task = find_task(TASK, robot=ROBOT)
    assert isinstance(task.actions, CartesianDelta)
    card = PolicyCard(
        task=TASK,
        rate_hz=20.0,
        observation=observed,
        sensors=dict.fromkeys(names, FieldSpec(shape=(size, size, 3), dtype="uint8", unit="u8")),
        action=with_gripper(task.actions.spec(robot)).field_spec(),
        model=config,
    )
    module = new_module(config, card.shapes).eval()
    model = to_onnx(module, 20)
    entry = model.metadata_props.add()
    entry.key = CONTRACT_KEY
    meaning = ActionMeaning(task.actions.kind, task.actions)
    contract = contract_of(card, meaning, module.sampler, policy="", training_data="")
    entry.value = contract.to_json()
    path.write_bytes(with_digest(model.SerializeToString()))


def contender(path: Path, renderer: SceneRenderer) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A decision of an exported policy on rendered pictures, and one that first renders them."""
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path)
    contract = policy.contract
    rng = np.random.default_rng(0)
    vector = np.zeros((1, contract.n_obs_steps, contract.observation_size), np.float32)
    action = (contract.horizon, int(np.prod(contract.action.shape)))
    noise = rng.standard_normal((1, *action), dtype=np.float32)
    states = scene_states(rng)

    def observed() -> PolicyInput:
        from robots.interfaces import PolicyInput

        qpos, goal = next(states)
        pictures = {name: renderer.render(name, qpos, goal)[None, None] for name in CAMERAS}
        return PolicyInput(vector, {f"image_{name}": each for name, each in pictures.items()})

    known = itertools.cycle([observed() for _ in range(STATES)])
    return lambda: policy(next(known), noise), lambda: policy(observed(), noise)


def scene_states(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Generalised positions of the scene near those that it begins with, and goals, for ever."""
    from sim.engines.mujoco import build_model
    from sim.make import find_task

    task = find_task(TASK, robot=ROBOT)
    home = build_model(task, task.actions).qpos0.copy()
    joints = task.robot.num_joints
    home[:joints] = task.robot.q_home
    moves = rng.uniform(-0.05, 0.05, (STATES, joints))
    for move in itertools.cycle(moves):
        qpos = home.copy()
        qpos[:joints] += move
        yield qpos, np.zeros(3)


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int, block: int) -> dict[str, Spent]:
    """Times of every contender, without a first round that warms up."""
    times = {name: Spent([], []) for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            call()
            for _ in range(block if number else 2):
                began, used = time.perf_counter(), time.process_time()
                call()
                took, worked = time.perf_counter() - began, time.process_time() - used
                if number:
                    times[name].wall.append(1e3 * took)
                    times[name].cpu.append(1e3 * worked)
    return times


def figures(name: str, spent: Spent, limit: float | None) -> dict[str, float]:
    """Medians and the 95th percentile [ms], and the limit where there is one."""
    found = {
        f"{name}_ms": round(float(np.median(spent.wall)), 2),
        f"{name}_ms_p95": round(float(np.percentile(spent.wall, 95)), 2),
        f"{name}_ms_cpu": round(float(np.median(spent.cpu)), 2),
        f"{name}_ms_cpu_p95": round(float(np.percentile(spent.cpu, 95)), 2),
    }
    prefix = "" if name == "decision" else f"{name}_"
    return found if limit is None else {**found, f"{prefix}limit_ms": limit}


if __name__ == "__main__":
    main()
