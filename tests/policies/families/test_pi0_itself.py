"""LeRobot's pi0 and a `vla` that starts from what it saves answer with equal numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.families.pi0 import GemmaSizes
from tests.policies.families.lerobot_answers import GIVEN, SAVED, Compared, compared
from tests.policies.families.pi0_fixture import (
    ACTION,
    STATE,
    TINY_EXPERT,
    TINY_VLM,
    VLM,
    pi0_shapes,
    write_paligemma,
)
from tests.policies.families.test_vla import policy
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
ANSWER = (
    """
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
"""
    + GIVEN
    + """
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
"""
    + SAVED
    + """
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
)


def sizes(vocabulary: int) -> str:
    def gemma(variant: GemmaSizes) -> list[int]:
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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    python = install(tmp_path_factory.mktemp("lerobot"), "lerobot[pi]==0.6.1")
    folder = tmp_path_factory.mktemp("checkpoint")
    words = policy(write_paligemma(folder / "backbone")).backbone.text.embed_tokens
    own = {"expert_width": 0.5, "self_attention_every": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "policies.families.pi0.VARIANTS", {"gemma_2b": TINY_VLM, "gemma_300m": TINY_EXPERT}
        )
        answered = compared(python, ANSWER, [sizes(words.num_embeddings)], folder, ACTION, **own)
    return folder, answered


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
