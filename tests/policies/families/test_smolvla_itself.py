"""LeRobot's SmolVLA and a `vla` that starts from what it saves answer with equal numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.families.lerobot_answers import GIVEN, SAVED, Compared, compared
from tests.policies.families.smolvla_fixture import TINY, VLM_PREFIX, smolvla_shapes
from tests.policies.vlm_fixture import write_backbone
from tests.robots.episodes.formats.lerobot_environment import install, lacking

pytestmark = [
    pytest.mark.peers,
    pytest.mark.needs("index"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

# Its processor would want files that hold nothing which changes a number here: tokens are given.
# Its cache is cut to a length, which transformers refuses since 5.24.
ANSWER = (
    """
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

folder, backbone, sizes = Path(sys.argv[1]), sys.argv[2], [int(size) for size in sys.argv[3:]]
tokenizer = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
smolvlm_with_expert.AutoProcessor = SimpleNamespace(
    from_pretrained=lambda name: SimpleNamespace(tokenizer=tokenizer)
)
class Cache(smolvlm_with_expert.DynamicCache):
    def crop(self, length):
        for layer in self.layers:
            layer.keys = layer.keys[:, :, :length]
            layer.values = layer.values[:, :, :length]


smolvlm_with_expert.DynamicCache = Cache
"""
    + GIVEN
    + """
actions = PolicyFeature(FeatureType.ACTION, (given["actions"].shape[2],))
config = SmolVLAConfig(
    input_features=features,
    output_features={"action": actions},
    chunk_size=given["actions"].shape[1],
    n_action_steps=given["actions"].shape[1],
    max_state_dim=sizes[0],
    max_action_dim=sizes[1],
    num_vlm_layers=sizes[2],
    resize_imgs_with_padding=(sizes[3], sizes[3]),
    vlm_model_name=backbone,
    load_vlm_weights=False,
    device="cpu",
    push_to_hub=False,
)
torch.manual_seed(0)
policy = SmolVLAPolicy(config).float().eval()
"""
    + SAVED
    + """
answers = {}
with torch.no_grad():
    answers["chunk"] = policy.predict_action_chunk(dict(batch), noise=given["noise"])
    batch["action"] = given["actions"]
    batch["action_is_pad"] = given["padded"]
    loss, _ = policy.forward(batch, noise=given["noise"], time=given["time"])
    answers["loss"] = loss
np.savez(folder / "answers.npz", **{name: part.numpy() for name, part in answers.items()})
"""
)


ROTARY = {"rope_type": "default", "rope_theta": 1e5}
"""As SmolVLM2's, which LeRobot's code does not use."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    python = install(tmp_path_factory.mktemp("lerobot"), "lerobot[smolvla]==0.6.1")
    folder = tmp_path_factory.mktemp("checkpoint")
    backbone = write_backbone(folder / "backbone", rope_parameters=ROTARY)
    sizes = [str(size) for size in (TINY.state, TINY.action, TINY.layers, 32)]
    return folder, compared(python, ANSWER, [str(backbone), *sizes], folder, TINY.action)


def test_chunk_and_loss_are_those_of_lerobot(answers: tuple[Path, Compared]):
    differences = answers[1].largest_difference()
    assert max(differences.values()) <= 1e-4, differences
    assert answers[1].lerobot["chunk"].std() > 0.1


def test_the_fixture_has_the_names_and_shapes_that_lerobot_writes(
    answers: tuple[Path, Compared],
):
    from safetensors.torch import load_file

    found = load_file(answers[0] / "model.safetensors")
    own = {name: tuple(part.shape) for name, part in found.items() if VLM_PREFIX not in name}
    assert own == smolvla_shapes(TINY)
