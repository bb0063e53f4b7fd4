"""Backbones from scratch, and language-conditioned policies with a state but without cameras."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.load import load_module, new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.networks.vlm import VisionLanguageModel, load_backbone
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError
from robots.spec import FieldSpec

SENTENCES = ("pick up the red cube", "pick up the blue cube")
SCRATCH = ScratchConfig(sentences=SENTENCES, width=32, layers=2, heads=4, feedforward=48)
FAMILIES = pytest.mark.parametrize("family", [TokenVlaConfig, VlaConfig])
SHAPES = Shapes({"hand": (0, 3), "red": (3, 6), "blue": (6, 9)}, 2, None, {})


def config(
    family: type[TokenVlaConfig] | type[VlaConfig],
    state_tokens: Literal["field", "object"] = "field",
) -> TokenVlaConfig | VlaConfig:
    return family(
        backbone=BackboneConfig(scratch=SCRATCH),
        train_backbone="all",
        observation_fields=("hand", "red", "blue"),
        anchor_field=None,
        horizon=3,
        n_action_steps=3,
        state_tokens=state_tokens,
    )


def policy(family: type[TokenVlaConfig] | type[VlaConfig]) -> ChunkPolicy:
    torch.manual_seed(0)
    return new_module(config(family), SHAPES)


def observed(rows: int) -> ObservationTensors:
    draw = torch.Generator().manual_seed(1)
    return ObservationTensors(
        torch.randn(rows, 1, 9, generator=draw),
        {},
        tuple(SENTENCES[row % 2] for row in range(rows)),
    )


def test_known_sentences_take_a_token_a_word_and_unknown_ones_more():
    backbone = load_backbone(BackboneConfig(scratch=SCRATCH), weights=True, keep_vision=False)
    known, unknown = backbone.tokens(SENTENCES[:1]), backbone.tokens(("lift the crimson block",))
    assert known.token_BL.shape == (1, 6)
    assert 6 < unknown.token_BL.shape[1] < 24


def test_without_sentences_a_token_is_a_byte():
    backbone = load_backbone(
        BackboneConfig(scratch=ScratchConfig()), weights=True, keep_vision=False
    )
    assert backbone.tokens(("abc",)).token_BL.shape == (1, 4)
    assert backbone.vision is None


def test_instructions_are_padded_to_the_longest_in_their_order():
    backbone = load_backbone(BackboneConfig(scratch=SCRATCH), weights=True, keep_vision=False)
    words = backbone.tokens(("go", SENTENCES[0], "go"))
    assert words.mask_BL.sum(dim=1).tolist() == [3, 6, 3]
    assert torch.equal(words.token_BL[0], words.token_BL[2])
    assert not torch.equal(words.token_BL[0], words.token_BL[1])


@FAMILIES
def test_every_field_is_a_token_of_its_own(family: type[TokenVlaConfig] | type[VlaConfig]):
    module = policy(family)
    assert module.prefix(observed(2)).state_tokens == 3  # type: ignore[operator]
    one = new_module(replace(config(family), state_tokens="one"), SHAPES)
    assert one.prefix(observed(2)).state_tokens == 1  # type: ignore[operator]


@FAMILIES
def test_the_instruction_and_every_field_affect_the_chunk(
    family: type[TokenVlaConfig] | type[VlaConfig],
):
    module, obs = policy(family), observed(8)
    chunk = torch.rand(8, 3, 2, generator=torch.Generator().manual_seed(3))

    def loss(inputs: ObservationTensors) -> float:
        batch = Batch(inputs, chunk, torch.zeros(8, 3, dtype=torch.bool))
        return module.loss(batch, np.random.default_rng(0)).item()

    usual = loss(obs)
    assert loss(obs) == usual
    assert loss(obs._replace(instructions=SENTENCES[::-1] * 4)) != usual
    for first, end in SHAPES.entries.values():
        vector = obs.vector_BTO.clone()
        vector[..., first:end] += 0.1
        assert loss(obs._replace(vector_BTO=vector)) != usual


def test_objects_of_one_size_share_a_projection_and_differ_by_name():
    torch.manual_seed(0)
    module = new_module(replace(config(TokenVlaConfig), state_tokens="object"), SHAPES).eval()
    backbone = module.backbone
    assert isinstance(backbone, VisionLanguageModel)
    assert len(backbone.state_projections) == 1
    obs, noise = observed(2), torch.zeros(2, 3, 2)
    swapped = torch.cat(
        [obs.vector_BTO[..., part] for part in (slice(3), slice(6, 9), slice(3, 6))], dim=-1
    )
    assert not torch.equal(module.logits(obs), module.logits(obs._replace(vector_BTO=swapped)))  # type: ignore[operator]
    assert module.sample(obs, noise).shape == (2, 3, 2)


def test_objects_of_another_form_have_a_projection_of_their_own():
    shapes = Shapes({"hand": (0, 3), "red": (3, 8), "blue": (8, 13)}, 2, None, {})
    module = new_module(replace(config(TokenVlaConfig), state_tokens="object"), shapes)
    assert len(module.backbone.state_projections) == 2  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("state_tokens", ["field", "object"])
@FAMILIES
def test_all_of_it_learns(
    family: type[TokenVlaConfig] | type[VlaConfig], state_tokens: Literal["field", "object"]
):
    module = new_module(config(family, state_tokens), SHAPES)
    batch = Batch(observed(4), torch.zeros(4, 3, 2), torch.zeros(4, 3, dtype=torch.bool))
    module.loss(batch, np.random.default_rng(0)).backward()
    wanting = [
        name for name, part in module.named_parameters() if part.requires_grad and part.grad is None
    ]
    assert wanting == []


@FAMILIES
def test_a_saved_one_answers_as_before(
    family: type[TokenVlaConfig] | type[VlaConfig], tmp_path: Path
):
    module = policy(family).eval()
    spec = {name: FieldSpec(shape=(3,)) for name in ("hand", "red", "blue")}
    card = PolicyCard(
        task="toy",
        rate_hz=10.0,
        observation=spec,
        sensors={},
        action=FieldSpec(shape=(2,)),
        model=config(family),
    )
    save_policy(tmp_path / "policy", card, module.state_dict(), module.extra_files())
    loaded, _ = load_module(tmp_path / "policy")
    noise = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(2))
    assert torch.equal(loaded.sample(observed(4), noise), module.sample(observed(4), noise))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 36, "heads": 8}, "a width that is a multiple of twice the heads"),
        ({"vocabulary": 100}, "a vocabulary of at least 260"),
        ({"picture": 40}, "that is a multiple of 16"),
        ({"layers": 0}, "at least 1 each"),
    ],
)
def test_sizes_that_make_no_backbone_are_refused(changes: dict, message: str):
    with pytest.raises(HandoffError, match=message):
        load_backbone(BackboneConfig(scratch=replace(SCRATCH, **changes)), weights=True)


def test_a_backbone_is_from_a_folder_or_from_scratch():
    for wrong in (BackboneConfig(), BackboneConfig(folder="there", scratch=SCRATCH)):
        with pytest.raises(HandoffError, match="expected one of them"):
            load_backbone(wrong, weights=True)


def test_one_from_scratch_must_learn():
    with pytest.raises(HandoffError, match="from scratch is untrained"):
        new_module(replace(config(VlaConfig), train_backbone="none"), SHAPES)
