"""LeRobot's SmolVLA and a `vla` that starts from what it saves answer with equal numbers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.families.vla import VlaPolicy
from policies.families.vla_checkpoint import padded_noise
from policies.policy import ObservationTensors
from policies.samplers.flow_matching import flow_example
from tests.policies.families.smolvla_fixture import TINY, VLM_PREFIX, smolvla_shapes
from tests.policies.families.test_vla import noise, obs, policy
from tests.policies.vlm_fixture import write_backbone
from tests.robots.episodes.formats.lerobot_environment import install, lacking

pytestmark = [
    pytest.mark.peers,
    pytest.mark.needs("index"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

SENTENCES = ("go", "lift the cup and put it on the plate")
CAMERAS = 2

# Its processor would want files that hold nothing which changes a number here: tokens are given.
# Its cache is cut to a length, which transformers refuses since 5.24.
ANSWER = """
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
given = {name: torch.from_numpy(part) for name, part in np.load(folder / "given.npz").items()}
cameras = sorted(name for name in given if name.startswith("camera"))
features = {
    f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, tuple(given[name].shape[1:]))
    for name in cameras
}
features["observation.state"] = PolicyFeature(FeatureType.STATE, (given["state"].shape[1],))
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
with torch.no_grad():
    for name, part in policy.named_parameters():
        # Their initialisation at 0 and 1 would hide a forgotten one, and small weights a rotary one.
        if part.ndim == 1:
            part.add_(0.1 * torch.randn_like(part))
        elif "embed" not in name and part.ndim == 2:
            part.normal_(std=1.5 * part.shape[1] ** -0.5)
policy.save_pretrained(folder)
batch = {f"observation.images.{name}": given[name].float() / 255.0 for name in cameras}
batch["observation.state"] = given["state"]
batch["observation.language.tokens"] = given["tokens"]
batch["observation.language.attention_mask"] = given["mask"]
answers = {}
with torch.no_grad():
    answers["chunk"] = policy.predict_action_chunk(dict(batch), noise=given["noise"])
    batch["action"] = given["actions"]
    batch["action_is_pad"] = given["padded"]
    loss, _ = policy.forward(batch, noise=given["noise"], time=given["time"])
    answers["loss"] = loss
np.savez(folder / "answers.npz", **{name: part.numpy() for name, part in answers.items()})
"""


class Compared(NamedTuple):
    """Answers of LeRobot and of a policy that starts from its checkpoint."""

    lerobot: dict[str, np.ndarray]
    own: dict[str, np.ndarray]

    def largest_difference(self) -> dict[str, float]:
        return {
            name: float(np.abs(part - self.own[name]).max()) for name, part in self.lerobot.items()
        }


def observation() -> ObservationTensors:
    return obs(len(SENTENCES), CAMERAS)._replace(instructions=SENTENCES)


def compared(python: Path, folder: Path) -> Compared:
    """Lets LeRobot write a tiny checkpoint of random weights and answer, then answers from it."""
    backbone = write_backbone(folder / "backbone", rope_parameters=ROTARY)
    tokens = policy(backbone).tokens(SENTENCES)
    given, rows = observation(), len(SENTENCES)
    clean, time = noise(rows, 1), torch.tensor([0.3, 0.9])
    padded = torch.tensor([[False] * 4, [False, False, True, True]])
    wide = padded_noise(noise(rows), TINY.action)
    arrays: dict[str, Any] = {
        "state": given.vector_BTO[:, 0],
        "tokens": tokens.token_BL,
        "mask": tokens.mask_BL,
        "noise": wide,
        "actions": clean,
        "padded": padded,
        "time": time,
    }
    arrays |= {name: part[:, -1].movedim(-1, 1) for name, part in given.sensors.items()}
    np.savez(folder / "given.npz", **{name: part.numpy() for name, part in arrays.items()})
    sizes = [str(size) for size in (TINY.state, TINY.action, TINY.layers, 32)]
    subprocess.run([python, "-c", ANSWER, folder, backbone, *sizes], check=True)
    with np.load(folder / "answers.npz") as answers:
        lerobot = dict(answers)
    module = policy(backbone, CAMERAS, checkpoint=str(folder)).eval()
    with torch.no_grad():
        # The chunk of the flow has half the deviation that LeRobot's has.
        own = {"chunk": 2.0 * module.sample(given, noise(rows))}
        own["loss"] = velocity_loss(module, clean, wide, time, padded)
    return Compared(lerobot, {name: part.numpy() for name, part in own.items()})


ROTARY = {"rope_type": "default", "rope_theta": 1e5}
"""As SmolVLM2's, which LeRobot's code does not use."""


def velocity_loss(
    module: VlaPolicy, clean: Tensor, wide: Tensor, time: Tensor, padded: Tensor
) -> Tensor:
    """The mean squared error of the velocity, as `VlaPolicy.loss` computes it, for given noise."""
    entries = (0, wide.shape[2] - clean.shape[2])
    noisy, velocity = flow_example(torch.nn.functional.pad(clean, entries), wide, time)
    error = module.denoise(module.expert_context(observation()))(noisy, time) - velocity
    return error[..., : clean.shape[2]].square().mean(dim=-1)[~padded].mean()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    python = install(tmp_path_factory.mktemp("lerobot"), "lerobot[smolvla]==0.6.1")
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, compared(python, folder)


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
