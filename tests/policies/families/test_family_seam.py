"""A new family needs a class, a module, a case in `policies.load` and a file in `configs/policy`;
no other module depends on a family by name."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policies.policy_config import families
from tests.policies.conftest import write_demonstrations

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("flows", "policies", "sim", "real", "robots")
HOMES = ("policies/policy_config.py", "policies/load.py", "policies/families/")
ALLOWED = {
    "policies/networks/act.py": "the networks of ACT alone",
    "policies/networks/goal_transformer.py": "the network of BESO alone",
    "policies/imitation/config.py": "the family of a pipeline that names none",
    "policies/rl/from_scratch/run.py": "publishes the actor that it learned",
    "policies/rl/hil/make_learner.py": "publishes the actor that it learned",
    "policies/rl/offline/config.py": "EDP improves diffusion policies",
    "policies/rl/offline/saved_learner.py": "publishes the actor that it learned",
    "policies/rl/offline/train_diffusion.py": "EDP improves diffusion policies",
    "policies/rl/offline/train_offline.py": "weights the episodes of behaviour cloning",
}
"""Modules outside `HOMES` that name a family, and why they may."""

CONFIG = '''
@config
class ToyConfig(ChunkPolicyConfig):
    """A linear policy that halves its noise at every step."""

    kind: Literal["toy"] = "toy"
    halvings: int = 2

    @property
    def sampler(self) -> str:
        return "halving"

    @property
    def sampler_steps(self) -> int:
        return self.halvings

    def with_sampler_steps(self, steps: int) -> Self:
        return replace(self, halvings=steps)

    @property
    def ensemble(self) -> float | None:
        return 0.05


'''
FAMILY = '''
"""A linear policy that halves its noise at every step."""

from __future__ import annotations

from math import prod

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from policies.card import Shapes
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import ToyConfig


class ToyPolicy(ChunkPolicy):
    def __init__(self, config: ToyConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.config = config
        self.steps = config.halvings
        self.mean = nn.Linear(prod(self.observation_shape), prod(self.chunk_shape))

    @property
    def sampler_steps(self) -> int:
        return self.steps

    def set_sampler_steps(self, steps: int) -> None:
        self.steps = steps

    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        mean_BHA = self.mean(observed.vector_BTO.flatten(1)).unflatten(1, self.chunk_shape)
        return mean_BHA + 0.5**self.steps * noise_BHA

    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        mean_BHA = self.mean(batch.obs.vector_BTO.flatten(1)).unflatten(1, self.chunk_shape)
        return mse_loss(mean_BHA, batch.chunk_BHA)
'''
CASE = """        case ToyConfig():
            from policies.families.toy import ToyPolicy

            return ToyPolicy(config, shapes)
"""
YAML = """# A family for tests.
kind: toy
"""
STAGES = '''
"""Asks of the toy family what the stages of a pipeline ask, and writes the answers."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from flows.config.protocols import push_t_published
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.serve import open_policy
from flows.evaluation.agents import checkpoint_agent, chunking_of
from policies.data.demonstrations import read_demonstrations
from policies.export.onnx import ExportConfig, export
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from real.deploy.onnx_policy import OnnxPolicy
from robots.interfaces import no_progress
from sim.evaluation.agent import Chunking

demos, out = Path(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
removed = ["~scores", "~student", "~control", "~reference", "~bundle", "~gate", "~twin"]
settings = [
    *removed,
    "demos.download=false",
    "teacher.policy=toy",
    "teacher.policy.halvings=3",
    "teacher.policy.observation_fields=[goal,agent]",
    "teacher.policy.n_obs_steps=2",
    "teacher.policy.horizon=4",
    "teacher.policy.n_action_steps=2",
    "teacher.training={steps: 20, batch_size: 8, learning_rate: 0.01, warmup_steps: 0, device: cpu}",
]
declared = {stage.name: stage for stage in stages(read_recipe("demo", settings), fetch=False)}
answers = {"stages": list(declared)}
pretrain(declared["teacher"].config, demos, out, no_progress)
module, card = load_module(out)
chunking = chunking_of(out)
answers |= {
    "kind": card.model.kind,
    "module": type(module).__name__,
    "window": card.model.window,
    "chunk": module.chunk_shape,
    "sampler": module.sampler,
    "one step": load_module(out, steps=1)[0].sampler,
    "served": open_policy(out, "pd_target")[1].sampler,
    "ensemble": chunking.ensemble,
    "instruction": chunking.instruction,
    "steps": checkpoint_agent(out, push_t_published())[1]["denoising_steps"],
}
export(ExportConfig(action_interface="pd_target", golden=8), out, demos, out, no_progress, "a" * 64, "b" * 64)
golden, exported = np.load(out / "golden.npz"), OnnxPolicy(out / "policy.onnx")
actions = exported(golden["observation"], golden["noise"])
again = load_policy(out)(golden["observation"], golden["noise"])
silent = load_policy(out)(golden["observation"], 0.0 * golden["noise"])
answers |= {
    "exported": exported.contract.sampler,
    "parity": float(np.abs(actions - again).max()),
    "noise counts": bool(np.abs(again - silent).max() > 1e-3),
}
print(json.dumps(answers))
'''


def replaced(path: Path, old: str, new: str) -> None:
    """Writes `new` for `old` in the file, where it stands once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new))


@pytest.fixture
def with_toy(tmp_path: Path) -> Path:
    """A copy of the house in which the family `toy` was added as the header of `policy_config`
    says, and nothing else was changed."""
    house = tmp_path / "house"
    house.mkdir()
    for package in ("flows", "sim", "real", "robots"):
        (house / package).symlink_to(ROOT / package)
    for package in ("policies", "configs"):
        shutil.copytree(
            ROOT / package, house / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    policies = house / "policies"
    sizes = policies / "policy_config.py"
    replaced(
        sizes,
        "\nPolicyConfig = Annotated[\n",
        f"{CONFIG}PolicyConfig = Annotated[\n    ToyConfig |\n",
    )
    loads = policies / "load.py"
    replaced(
        loads,
        "from policies.policy_config import (\n",
        "from policies.policy_config import (\n    ToyConfig,\n",
    )
    replaced(loads, "        case _:\n", f"{CASE}        case _:\n")
    (policies / "families" / "toy.py").write_text(FAMILY.lstrip())
    (house / "configs" / "policy" / "toy.yaml").write_text(YAML)
    return house


def test_a_new_family_goes_through_every_stage(with_toy: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    walks = [np.cumsum(rng.normal(size=(length, 2)), axis=0) for length in range(8, 14)]
    demos, out = write_demonstrations(tmp_path / "demos", walks), tmp_path / "policy"
    out.mkdir()
    script = tmp_path / "stages.py"
    script.write_text(STAGES)
    environment = os.environ | {"PYTHONPATH": str(with_toy), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, str(script), str(demos), str(out)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers.pop("parity") < 1e-5
    assert answers == {
        "stages": ["demos", "teacher"],
        "kind": "toy",
        "module": "ToyPolicy",
        "window": [2, 4, 2, 1],
        "chunk": [4, 2],
        "sampler": "halving-3",
        "one step": "one-step",
        "served": "halving-3",
        "ensemble": 0.05,
        "instruction": None,
        "steps": 3,
        "exported": "halving-3",
        "noise counts": True,
    }


def named(tree: ast.AST) -> Iterator[str]:
    """All names that the source of a module writes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name


def naming_modules() -> set[str]:
    """Modules outside `HOMES` that name the configuration class of a family."""
    classes = {family.__name__ for family in families()}
    found = set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            place = file.relative_to(ROOT).as_posix()
            if place.startswith(HOMES):
                continue
            if classes & {*named(ast.parse(file.read_text()))}:
                found.add(place)
    return found


def test_families_are_named_at_home_and_where_one_is_truly_needed() -> None:
    assert naming_modules() == ALLOWED.keys()
