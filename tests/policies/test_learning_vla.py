"""Learning check of the VLA with a negative control: two instructions that want opposite actions.

Both are demonstrated from the same pictures and the same state, so only the instruction determines
the action. A policy with the same instruction for both can only predict the mean, which is 1 away
on the average of 0 and 2.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.card import Shapes
from policies.families.vla import VlaPolicy
from policies.networks.config import BackboneConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import VlaConfig
from tests.policies.vlm_fixture import write_backbone

pytestmark = pytest.mark.slow

LEFT, RIGHT = "push the red block to the left", "push the blue block to the right"
ROWS, STEPS = 16, 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


def examples(first: str, second: str) -> Batch:
    """Rows that differ in the instruction only: action +1 for the first, -1 for the second."""
    draw = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (1, 1, 20, 30, 3), dtype=torch.uint8, generator=draw)
    state = torch.randn(1, 1, 3, generator=draw)
    words = (first, second) * (ROWS // 2)
    looks = ObservationTensors(
        state.expand(ROWS, -1, -1), {"camera": picture.expand(ROWS, -1, -1, -1, -1)}, words
    )
    chunk = torch.tensor([1.0, -1.0]).repeat(ROWS // 2)[:, None, None].expand(ROWS, 4, 2)
    return Batch(looks, chunk, torch.zeros(ROWS, 4, dtype=torch.bool))


def learned(folder: Path, batch: Batch) -> VlaPolicy:
    config = VlaConfig(
        backbone=BackboneConfig(folder=str(folder)),
        image_fields=("camera",),
        anchor_field=None,
        horizon=4,
        n_action_steps=4,
    )
    torch.manual_seed(0)
    module = VlaPolicy(config, Shapes({"state": (0, 3)}, 2, None, {"camera": (20, 30, 3)}))
    trained = [part for part in module.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    for step in range(STEPS):
        loss = module.loss(batch, np.random.default_rng(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval()


@torch.no_grad()
def distance(module: VlaPolicy, looks: ObservationTensors, chunk: Tensor) -> float:
    """Mean distance of the sampled chunks from `chunk`."""
    noise = torch.randn(chunk.shape, generator=torch.Generator().manual_seed(7))
    return (module.sample(looks, noise) - chunk).abs().mean().item()


def test_it_learns_which_instruction_wants_which_action(folder: Path):
    batch = examples(LEFT, RIGHT)
    module = learned(folder, batch)
    assert distance(module, batch.obs, batch.chunk_BHA) < 0.2
    turned = batch.obs._replace(instructions=(RIGHT, LEFT) * (ROWS // 2))
    assert distance(module, turned, -batch.chunk_BHA) < 0.2


def test_it_cannot_when_both_instructions_are_the_same(folder: Path):
    batch = examples(LEFT, LEFT)
    assert distance(learned(folder, batch), batch.obs, batch.chunk_BHA) > 0.6
