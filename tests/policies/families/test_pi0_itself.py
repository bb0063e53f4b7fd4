"""LeRobot's pi0 and a `vla` that starts from what it saves answer with equal numbers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.families.vla_checkpoint import padded_noise
from tests.policies.families.pi0_fixture import (
    ACTION,
    STATE,
    TINY_EXPERT,
    TINY_VLM,
    VLM,
    pi0_shapes,
    write_paligemma,
)
from tests.policies.families.test_smolvla_itself import (
    CAMERAS,
    SENTENCES,
    Compared,
    observation,
    velocity_loss,
)
from tests.policies.families.test_vla import noise, policy
from tests.policies.vlm_fixture import VISION
from tests.robots.episodes.formats.lerobot_environment import install, lacking

pytestmark = [
    pytest.mark.peers,
    pytest.mark.needs("index"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

# Its sizes are fixed in its code: the variants of Gemma by name, the vocabulary, and the vision
# tower by the defaults of transformers.
ANSWER = """
import json
import sys
from pathlib import Path
import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.pi0 import configuration_pi0, modeling_pi0
from transformers import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig

folder, sizes = Path(sys.argv[1]), json.loads(sys.argv[2])


def keep(kind, *names):
    # A configuration that is fixed ignores new values of these entries.
    plain = kind.__setattr__

    def assign(self, name, value):
        if not (name in names and self.__dict__.get("fixed")):
            plain(self, name, value)

    kind.__setattr__ = assign


def tiny_paligemma():
    config = PaliGemmaConfig(projection_dim=sizes["vlm"][0])
    config.vision_config = SiglipVisionConfig(**sizes["vision"], projection_dim=sizes["vlm"][0])
    config.text_config.vocab_size = sizes["vocabulary"]
    config.vision_config.fixed = config.text_config.fixed = True
    return config


keep(SiglipVisionConfig, "intermediate_size", "projection_dim")
keep(GemmaConfig, "vocab_size")


class Kinds(dict):
    def __getitem__(self, name):
        return tiny_paligemma if name == "paligemma" else super().__getitem__(name)


modeling_pi0.CONFIG_MAPPING = Kinds({"gemma": modeling_pi0.CONFIG_MAPPING["gemma"]})
variants = {
    "gemma_2b": modeling_pi0.GemmaConfig(*sizes["vlm"]),
    "gemma_300m": modeling_pi0.GemmaConfig(*sizes["expert"]),
}
modeling_pi0.get_gemma_config = variants.__getitem__
given = {name: torch.from_numpy(part) for name, part in np.load(folder / "given.npz").items()}
cameras = sorted(name for name in given if name.startswith("camera"))
features = {
    f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, tuple(given[name].shape[1:]))
    for name in cameras
}
features["observation.state"] = PolicyFeature(FeatureType.STATE, (given["state"].shape[1],))
horizon, entries = given["actions"].shape[1:]
config = configuration_pi0.PI0Config(
    input_features=features,
    output_features={"action": PolicyFeature(FeatureType.ACTION, (entries,))},
    chunk_size=horizon,
    n_action_steps=horizon,
    max_state_dim=sizes["state"],
    max_action_dim=sizes["action"],
    image_resolution=(sizes["vision"]["image_size"],) * 2,
    device="cpu",
    push_to_hub=False,
)
torch.manual_seed(0)
policy = modeling_pi0.PI0Policy(config).float().eval()
with torch.no_grad():
    for name, part in policy.named_parameters():
        # Their initialisation at 0 would hide a forgotten one, and small weights a rotary one.
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
    images, image_masks = policy._preprocess_images(batch)
    batch["action"] = given["actions"]
    loss = policy.model.forward(
        images,
        image_masks,
        given["tokens"],
        given["mask"],
        policy.prepare_state(batch),
        policy.prepare_action(batch),
        given["noise"],
        given["time"],
    )
    answers["loss"] = loss[:, :, :entries].mean(dim=-1)[~given["padded"]].mean()
np.savez(folder / "answers.npz", **{name: part.numpy() for name, part in answers.items()})
"""


def sizes(vocabulary: int) -> str:
    import json

    def gemma(variant: Any) -> list[int]:
        order = ("width", "layers", "inner", "heads", "kv_heads", "head_dim")
        return [getattr(variant, name) for name in order]

    return json.dumps(
        {
            "vlm": gemma(TINY_VLM),
            "expert": gemma(TINY_EXPERT),
            "vision": {**VISION, "vision_use_head": False},
            "state": STATE,
            "action": ACTION,
            "vocabulary": vocabulary,
        }
    )


def compared(python: Path, folder: Path) -> Compared:
    """Lets LeRobot write a tiny checkpoint of random weights and answer, then answers from it."""
    backbone = write_paligemma(folder / "backbone")
    words = policy(backbone)
    tokens = words.tokens(SENTENCES)
    vocabulary = words.backbone.text.embed_tokens.num_embeddings
    given, rows = observation(), len(SENTENCES)
    clean, time = noise(rows, 1), torch.tensor([0.3, 0.9])
    padded = torch.tensor([[False] * 4, [False, False, True, True]])
    wide = padded_noise(noise(rows), ACTION)
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
    subprocess.run([python, "-c", ANSWER, folder, sizes(vocabulary)], check=True)
    with np.load(folder / "answers.npz") as answers:
        lerobot = dict(answers)
    module = policy(
        backbone, CAMERAS, checkpoint=str(folder), expert_width=0.5, self_attention_every=1
    ).eval()
    with torch.no_grad():
        # The chunk of the flow has half the deviation that LeRobot's has.
        own = {"chunk": 2.0 * module.sample(given, noise(rows))}
        own["loss"] = velocity_loss(module, clean, wide, time, padded)
    return Compared(lerobot, {name: part.numpy() for name, part in own.items()})


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    python = install(tmp_path_factory.mktemp("lerobot"), "lerobot[pi]==0.6.1")
    folder = tmp_path_factory.mktemp("checkpoint")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "policies.families.pi0.VARIANTS", {"gemma_2b": TINY_VLM, "gemma_300m": TINY_EXPERT}
        )
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
    own = {
        name: tuple(part.shape)
        for name, part in found.items()
        if VLM not in name and "lm_head" not in name
    }
    assert own == pi0_shapes(TINY_EXPERT, STATE, ACTION)
