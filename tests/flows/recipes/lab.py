"""Writes a package outside Handoff for tests: a stage, a task, a robot, a policy family and a format
of its own, beside a recipe that uses all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.franka.fr3 import FR3

STAGES = '''
"""A stage that keeps the shortest episodes."""

from pathlib import Path

import numpy as np

from flows.artifacts import Episodes, Output
from robots.config import config
from robots.episodes.store import EpisodeStore
from robots.interfaces import Progress


@config
class ShortestConfig:
    """Selection of episodes by length."""

    keep: int = 2
    """Number of episodes to keep."""


def run(
    config: ShortestConfig, out: Path, progress: Progress, *, demos: Episodes
) -> Output[Episodes]:
    """Keeps the shortest episodes."""
    source = EpisodeStore.open(demos / "store.zarr")
    order = np.argsort(np.diff(source.ends("policy"), prepend=0), kind="stable")[: config.keep]
    with EpisodeStore.create(out / "store.zarr", source.schema) as store:
        for episode in sorted(int(i) for i in order):
            streams = {
                name: source.read(episode, name, list(spec.fields))
                for name, spec in source.schema.streams.items()
            }
            store.append(streams, source.metadata(episode))
        return Output({"episodes": store.num_episodes})
'''

TASKS = '''
"""A task that is solved near a point above the table."""

from dataclasses import replace

from robots.franka.robot import Robot
from sim.tasks import reach
from sim.tasks.task import Task

from .terms import near_enough


def wipe(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return replace(reach.task(robot), success=near_enough, max_steps=30)
'''

TERMS = '''
"""Terms of the task."""

import numpy as np

TOLERANCE = 0.05


def near_enough(view):
    return np.linalg.norm(view.grasp_position - view.goal, axis=1) < TOLERANCE
'''

ROBOT = '''
"""An arm with stronger springs."""

from dataclasses import replace
from pathlib import Path

from robots.franka.fr3 import FR3

ROBOT = replace(FR3, name="arm", armature=0.2, model_xml=Path(__file__).with_name("arm.xml"))
'''

FAMILY = '''
"""A policy that always returns one learned chunk."""

from __future__ import annotations

import torch

from policies.chunk_policy_config import ChunkPolicyConfig
from policies.policy import ChunkPolicy
from robots.config import config


@config
class ConstantConfig(ChunkPolicyConfig):
    """A constant chunk."""

    family = "my_lab.constant:ConstantPolicy"
    kind: str = "my_lab.constant:ConstantConfig"
    start: float = 0.5
    """Initial value of every entry [normalised units]."""


class ConstantPolicy(ChunkPolicy):
    """A constant chunk."""

    def __init__(self, config, shapes):
        super().__init__(config, shapes)
        self.chunk = torch.nn.Parameter(torch.full(self.chunk_shape, config.start))

    def sample(self, obs, noise_BHA):
        return self.chunk + 0.0 * noise_BHA

    def loss(self, batch, generator):
        return ((self.chunk - batch.chunk_BHA) ** 2).mean()
'''

FORMAT = '''
"""Demonstrations in one NumPy archive."""

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.spec import FieldSpec


class Archive:
    def __init__(self, path):
        with np.load(path, allow_pickle=False) as archive:
            self.waves = archive["waves"]
        field = FieldSpec(shape=self.waves.shape[2:], dtype="float32", unit="rad")
        stream = StreamSpec(rate_hz=20.0, fields={"q": field, "action": field})
        self.schema = EpisodeSchema(name="wave", streams={"policy": stream})
        self.num_episodes = len(self.waves)

    def episodes(self, first, stop):
        for i in range(first, stop):
            yield {"policy": {"q": self.waves[i], "action": self.waves[i]}}, {"source_episode": i}


def open_demonstrations(path, images):
    return Archive(path)
'''

PROTOCOL = """
name: wipe
engine: mujoco
task: my_lab.tasks:wipe
options: {robot: my_lab.arm}
episodes: 2
max_steps: 6
"""

ENTRY_POINTS = """
[handoff.stages]
shortest = my_lab.stages
[handoff.tasks]
wipe = my_lab.tasks:wipe
[handoff.robots]
lab_arm = my_lab.arm:ROBOT
[handoff.families]
constant = my_lab.constant:ConstantConfig
[handoff.formats]
archive = my_lab.archive
"""

RECIPE = """
name: lab
shared:
  policy:
    kind: my_lab.constant:ConstantConfig
    observation_fields: [goal]
    anchor_field: null
    horizon: 2
    n_action_steps: 2
  training: {steps: 4, warmup_steps: 1, batch_size: 8}
stages:
  waves: {uses: ingest, with: {data: DATA, format: my_lab.archive}}
  demos:
    uses: scripted
    with: {task: "my_lab.tasks:wipe", robot: my_lab.arm, episodes: 3}
  short: {uses: my_lab.stages, inputs: {demos: demos}}
  policy: {uses: pretrain, inputs: {demos: short}}
  scores:
    uses: evaluate
    inputs: {policy: policy}
    with: {protocol: wipe, evaluate: {workers: 2, batch: 1, videos: 0}}
"""


def write_lab(root: Path) -> Path:
    """Writes the package, its data and its protocol to a folder; returns the path of the recipe."""
    files = {
        "my_lab/__init__.py": '"""A package outside Handoff."""',
        "my_lab/stages.py": STAGES,
        "my_lab/tasks.py": TASKS,
        "my_lab/terms.py": TERMS,
        "my_lab/arm.py": ROBOT,
        "my_lab/arm.xml": FR3.model_xml.read_text().replace("fr3", "arm"),
        "my_lab/constant.py": FAMILY,
        "my_lab/archive.py": FORMAT,
        "protocol/wipe.yaml": PROTOCOL,
        "my_lab-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n",
        "my_lab-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "lab.yaml": RECIPE.replace("DATA", str(root / "waves.npz")),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    waves = np.linspace(0.0, 1.0, 2 * 12 * 3, dtype=np.float32).reshape(2, 12, 3)
    np.savez(root / "waves.npz", waves=waves)
    return root / "lab.yaml"
