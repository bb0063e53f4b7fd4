import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.card import Shapes
from policies.checkpoint import read_card, read_weights
from policies.families.lora import adapters
from policies.families.vla import VlaPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.networks.action_expert import time_embedding
from policies.networks.config import BackboneConfig, LoraConfig
from policies.networks.vlm import Prefix, prefix_mask, rotated
from policies.policy import Batch, ObservationTensors
from policies.policy_config import VlaConfig
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.seeing import write_seeing_demonstrations
from tests.policies.vlm_fixture import write_backbone, write_tokenizer

SIZE = (20, 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


def policy(folder: Path, cameras: int = 1, **options: Any) -> VlaPolicy:
    names = tuple(f"camera{number}" for number in range(cameras))
    backbone = BackboneConfig(folder=str(folder))
    sizes = VlaConfig(
        backbone=backbone,
        observation_fields=("s",),
        image_fields=names,
        anchor_field=None,
        horizon=4,
        n_action_steps=4,
    )
    torch.manual_seed(0)
    shapes = Shapes({"s": (0, 3)}, 2, None, dict.fromkeys(names, (*SIZE, 3)))
    return VlaPolicy(replace(sizes, **options), shapes)


def obs(
    rows: int, cameras: int = 1, words: str = "open the drawer", seed: int = 0
) -> ObservationTensors:
    draw = torch.Generator().manual_seed(seed)
    names = [f"camera{number}" for number in range(cameras)]
    shape = (rows, 1, *SIZE, 3)
    observation = {
        name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw) for name in names
    }
    return ObservationTensors(torch.randn(rows, 1, 3, generator=draw), observation, (words,) * rows)


def noise(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 4, 2, generator=torch.Generator().manual_seed(seed))


def batch(rows: int = 4) -> Batch:
    return Batch(obs(rows), noise(rows, 1), torch.zeros(rows, 4, dtype=torch.bool))


def train_adapters(module: VlaPolicy) -> None:
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)


def heads(projected: Tensor) -> Tensor:
    return projected.unflatten(-1, (-1, 8)).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    key, value = (
        part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value)
    )
    score = (query @ key.mT / 8**0.5).masked_fill(~allowed[:, None], -torch.inf)
    return (score.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)


def whole_sequence(module: VlaPolicy, prefix: Prefix, noisy: Tensor, time: Tensor) -> Tensor:
    """The velocity by both streams layer after layer, without any cache, as SmolVLA's code
    trains."""
    backbone: Any = module.backbone
    expert: Any = module.expert
    length, present = prefix.mask_BL.shape[1], torch.ones(noisy.shape[:2], dtype=torch.bool)
    order = torch.cat([prefix.mask_BL, present], dim=1).long().cumsum(dim=1) - 1
    all_rotary, own_rotary = backbone.rotary(order), backbone.rotary(torch.arange(4)[None])
    word_rotary = all_rotary[0][:, :length], all_rotary[1][:, :length]
    seen_mask = torch.cat(
        [prefix_mask(prefix), torch.zeros(len(noisy), length, 4, dtype=torch.bool)], dim=2
    )
    own_mask = torch.cat([prefix.mask_BL, present], dim=1)[:, None].expand(-1, 4, -1)
    words, actions = prefix.embedding_BLW, expert.embed(noisy)
    times = time_embedding(time, actions.shape[-1])[:, None].expand_as(actions)
    first, second = expert.join
    actions = second(torch.nn.functional.silu(first(torch.cat([actions, times], dim=-1))))
    for layer, small in zip(backbone.text_layers(), expert.layers, strict=True):
        normed, attention = layer.input_layernorm(words), layer.self_attn
        query, key, value = (
            heads(p(normed)) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        own = small.attention_norm(actions)
        if small.cross:
            key = rotated(key, word_rotary)
            flat_key, flat_value = (part.transpose(1, 2).flatten(2) for part in (key, value))
            read = heads(small.k_proj(flat_key)), heads(small.v_proj(flat_value))
            mixed = attend(
                rotated(heads(small.q_proj(own)), own_rotary), *read, own_mask[:, :, :length]
            )
            query = rotated(query, word_rotary)
            words = words + attention.o_proj(attend(query, key, value, seen_mask[:, :, :length]))
        else:
            query, key, value = (
                torch.cat([part, heads(p(own))], dim=2)
                for part, p in ((query, small.q_proj), (key, small.k_proj), (value, small.v_proj))
            )
            query, key = rotated(query, all_rotary), rotated(key, all_rotary)
            joint = attend(query, key, value, torch.cat([seen_mask, own_mask], dim=1))
            words, mixed = words + attention.o_proj(joint[:, :length]), joint[:, length:]
        words = words + layer.mlp(layer.post_attention_layernorm(words))
        actions = actions + small.o_proj(mixed)
        own = small.feedforward_norm(actions)
        actions = actions + small.down_proj(
            torch.nn.functional.silu(small.gate_proj(own)) * small.up_proj(own)
        )
    return expert.out(expert.norm(actions))


@pytest.mark.parametrize(("family", "every"), [("smolvlm", 1), ("smolvlm", 2), ("paligemma", 2)])
def test_the_expert_answers_from_a_cache_as_from_the_whole_sequence(
    tmp_path: Path, family: str, every: int
):
    module = policy(write_backbone(tmp_path, family=family), self_attention_every=every).eval()
    instructions = ("go", "lift the cup")
    observation, time = obs(2)._replace(instructions=instructions), torch.tensor([0.3, 0.9])
    with torch.no_grad():
        cached = module.denoise(module.expert_context(observation))(noise(2), time)
        expected = whole_sequence(module, module.prefix(observation), noise(2), time)
    assert [layer.cross for layer in module.expert.layers] == (
        [False, False] if every == 1 else [False, True]
    )
    assert torch.allclose(cached, expected, atol=1e-5)
    assert expected.std() > 0.05


def test_a_chunk_is_ten_steps_of_euler_each_from_a_fresh_look(folder: Path):
    module, observation = policy(folder).eval(), obs(2)
    sample = noise(2)
    with torch.no_grad():
        for number in range(10):
            time = torch.full((2,), 1.0 - number / 10)
            sample = sample - module.denoise(module.expert_context(observation))(sample, time) / 10
        assert torch.allclose(module.sample(observation, noise(2)), sample, atol=1e-5)


def test_the_same_observation_instruction_and_noise_give_the_same_chunk(folder: Path):
    module, observation = policy(folder).eval(), obs(2)
    assert torch.equal(module.sample(observation, noise(2)), module.sample(observation, noise(2)))
    assert (
        module.sample(observation, noise(2)) - module.sample(observation, noise(2, 5))
    ).abs().max() > 1e-2


def test_a_row_does_not_depend_on_longer_instructions_beside_it(folder: Path):
    module, observation = policy(folder).eval(), obs(2)
    both = observation._replace(instructions=("go", "lift the cup and put it on the plate"))
    alone = ObservationTensors(
        observation.vector_BTO[:1],
        {name: part[:1] for name, part in observation.sensors.items()},
        ("go",),
    )
    with torch.no_grad():
        assert torch.allclose(
            module.sample(both, noise(2))[:1], module.sample(alone, noise(2)[:1]), atol=1e-5
        )


@pytest.mark.parametrize("cameras", [1, 2, 3])
def test_every_camera_affects_the_chunk(folder: Path, cameras: int):
    module, observation = policy(folder, cameras).eval(), obs(1, cameras)
    with torch.no_grad():
        chunk = module.sample(observation, noise(1))
        for name in observation.sensors:
            other = observation._replace(
                sensors={**observation.sensors, name: 255 - observation.sensors[name]}
            )
            assert (module.sample(other, noise(1)) - chunk).abs().max() > 1e-4


def test_the_instruction_and_the_state_affect_the_chunk(folder: Path):
    module, observation = policy(folder).eval(), obs(1)
    with torch.no_grad():
        chunk = module.sample(observation, noise(1))
        for other in (
            observation._replace(instructions=("go",)),
            observation._replace(vector_BTO=observation.vector_BTO + 1.0),
        ):
            assert (module.sample(other, noise(1)) - chunk).abs().max() > 1e-4


def test_time_is_embedded_by_sines_of_periods_from_four_thousandths_to_four():
    # A quarter of the longest period and a whole number of the shortest one.
    assert torch.allclose(
        time_embedding(torch.tensor([1.0]), 4), torch.tensor([[0.0, 1.0, 1.0, 0.0]]), atol=1e-5
    )


def test_the_loss_is_the_mean_over_the_actions_inside_their_episode(folder: Path):
    module = policy(folder)
    torch.nn.init.zeros_(module.expert.out.weight)
    torch.nn.init.zeros_(module.expert.out.bias)
    padded = torch.tensor([[False, False, True, True], [False, True, True, True]])
    rows = Batch(obs(2), noise(2, 1), padded)
    draw = np.random.default_rng(3)
    draw.random(2, dtype=np.float32)
    velocity = torch.from_numpy(draw.standard_normal((2, 4, 2), dtype=np.float32)) - rows.chunk_BHA
    expected = (velocity[0, :2].square().sum() + velocity[1, :1].square().sum()) / 6.0
    assert module.loss(rows, np.random.default_rng(3)).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_a_frozen_backbone_learns_nothing_but_the_projection_of_the_state(folder: Path):
    module = policy(folder)
    module.loss(batch(), np.random.default_rng(0)).backward()
    learned = {
        name
        for name, part in module.named_parameters()
        if part.grad is not None and part.grad.any()
    }
    of_backbone = {name for name in learned if name.startswith("backbone.")}
    assert of_backbone == {
        "backbone.state_projections.0.weight",
        "backbone.state_projections.0.bias",
    }
    assert learned - of_backbone == {
        f"expert.{name}" for name, _ in module.expert.named_parameters()
    }


@pytest.mark.parametrize("trained", ["lora", "all"])
def test_whatever_is_to_be_trained_gets_a_gradient(folder: Path, trained: str):
    module = policy(folder, train_backbone=trained)
    train_adapters(module)
    module.loss(batch(), np.random.default_rng(0)).backward()
    wanted = {name for name, part in module.named_parameters() if part.requires_grad}
    assert wanted == {
        name
        for name, part in module.named_parameters()
        if part.grad is not None and part.grad.any()
    }
    part = "lora_A" if trained == "lora" else "vision.embeddings.patch_embedding.weight"
    assert any(part in name for name in wanted)


def test_an_untrained_adapter_changes_no_answer(folder: Path):
    plain: Any = policy(folder).eval()
    adapted: Any = policy(folder, train_backbone="lora").eval()
    adapted.expert.load_state_dict(plain.expert.state_dict())
    adapted.backbone.state_projections.load_state_dict(
        plain.backbone.state_projections.state_dict()
    )
    with torch.no_grad():
        assert torch.equal(adapted.sample(obs(2), noise(2)), plain.sample(obs(2), noise(2)))


def test_dropped_units_are_those_of_the_draw(folder: Path):
    module = policy(folder, train_backbone="lora", lora=LoraConfig(dropout=0.5))
    train_adapters(module)
    once, again, otherwise = (
        module.loss(batch(), np.random.default_rng(seed)).item() for seed in (0, 0, 1)
    )
    assert once == again != otherwise


def test_half_precision_learns_from_almost_the_same_loss(folder: Path):
    module, rows = policy(folder, train_backbone="all"), batch()
    full = module.loss(rows, np.random.default_rng(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = module.loss(rows, np.random.default_rng(0))
    half.backward()
    assert half.item() == pytest.approx(full.item(), rel=0.03)
    gradients = [part.grad for part in module.parameters() if part.requires_grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_fewer_expert_layers_read_the_last_of_their_group(tmp_path: Path):
    module = policy(write_backbone(tmp_path, num_hidden_layers=4), expert_layers=2)
    assert (module.expert.source_layers, len(module.expert.layers)) == ((1, 3), 2)
    # Three quarters of 32.
    assert module.expert.out.in_features == 24


@pytest.mark.parametrize(
    "options", [{"expert_layers": 3}, {"expert_width": 0.1}, {"self_attention_every": 0}]
)
def test_an_expert_that_does_not_fit_is_refused(folder: Path, options: dict[str, Any]):
    with pytest.raises(HandoffError, match="expert: width"):
        policy(folder, **options)


def test_a_policy_that_sees_nothing_is_refused(folder: Path):
    sizes = VlaConfig(
        backbone=BackboneConfig(folder=str(folder)), observation_fields=(), anchor_field=None
    )
    with pytest.raises(HandoffError, match=r"image_fields are \[\], observation_fields \[\]"):
        VlaPolicy(sizes, Shapes({}, 2, None, {}))


def test_its_default_instruction_is_used_where_there_is_none(folder: Path):
    module, observation = policy(folder, instruction="open the drawer").eval(), obs(1)
    silent = observation._replace(instructions=())
    assert torch.equal(module.sample(silent, noise(1)), module.sample(observation, noise(1)))
    with pytest.raises(HandoffError, match="0 instructions for 1 observations"):
        policy(folder).sample(silent, noise(1))


def published_sizes(folder: Path) -> VlaPolicy:
    """An untrained policy of SmolVLA's sizes, without memory for its weights."""
    from transformers import AutoConfig

    (folder / "backbone").mkdir()
    write_tokenizer(folder / "backbone")
    words = {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
    }
    words |= {
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49280,
    }
    seeing = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    seeing |= {"image_size": 512, "patch_size": 16}
    published = AutoConfig.for_model(
        "smolvlm", text_config=words, vision_config=seeing, scale_factor=4
    )
    published.save_pretrained(folder / "backbone")
    sizes = VlaConfig(
        backbone=BackboneConfig(folder="", layers=16), image_fields=("camera",), anchor_field=None
    )
    with torch.device("meta"):
        return VlaPolicy(sizes, Shapes({"s": (0, 32)}, 32, None, {"camera": (480, 640, 3)}), folder)


def test_at_the_published_sizes_it_has_the_parameters_of_smolvla(tmp_path: Path):
    module = published_sizes(tmp_path)
    expert, whole = (
        sum(part.numel() for part in of.parameters()) for of in (module.expert, module)
    )
    # "450 million parameters, with around 100 million dedicated to the action expert", the unused
    # head among them.
    assert round(expert / 1e6) == 100
    assert round((whole + 49280 * 960) / 1e6) == 450
    assert (module.expert.out.in_features, module.backbone.image_tokens) == (720, 64)


TRAINING = TrainingConfig(
    steps=12,
    learning_rate=1e-3,
    batch_size=4,
    warmup_steps=2,
    log_every=2,
    checkpoint_seconds=0.0,
    precision="fp32",
)


def pretrain_config(folder: Path) -> PretrainConfig:
    sizes = VlaConfig(
        backbone=BackboneConfig(folder=str(folder), layers=1),
        observation_fields=("agent",),
        image_fields=("camera",),
        horizon=4,
        n_action_steps=2,
        inference_steps=2,
        instruction="follow the light",
        train_backbone="lora",
        lora=LoraConfig(rank=2, dropout=0.1),
    )
    return PretrainConfig(policy=sizes, training=TRAINING, validation_fraction=0.0)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_demonstrations(tmp_path_factory.mktemp("demos"))


@pytest.fixture(scope="module")
def moved(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy with adapters, moved to another folder after its backbone's folder was removed."""
    root = tmp_path_factory.mktemp("moved")
    write_backbone(root / "backbone", tied=True)
    (root / "saved").mkdir()
    pretrain(pretrain_config(root / "backbone"), demos, root / "saved", no_progress)
    shutil.rmtree(root / "backbone")
    return (root / "saved").rename(root / "elsewhere")


def policy_input() -> tuple[PolicyInput, np.ndarray]:
    draw = np.random.default_rng(0)
    camera = draw.integers(0, 256, (2, 1, 33, 64, 3), dtype=np.uint8)
    vector = draw.uniform(0, 0.4, (2, 1, 2)).astype(np.float32)
    return PolicyInput(vector, {"camera": camera}, ("follow the light",) * 2), noise(2).numpy()


def test_a_moved_policy_needs_no_other_folder(moved: Path):
    assert {path.name for path in (moved / "backbone").iterdir()} == {
        "config.json",
        "preprocessor_config.json",
        "tokenizer.json",
    }
    chunk = load_policy(moved)(*policy_input())
    assert chunk.shape == (2, 4, 2)
    assert np.isfinite(chunk).all()


def test_a_served_policy_is_merged_and_answers_as_the_trained_one(moved: Path):
    module, _ = load_module(moved)
    observation, draws = policy_input()
    vector, noises = torch.from_numpy(observation.vector), torch.from_numpy(draws)
    sensors = {"camera": torch.from_numpy(observation.sensors["camera"])}
    with torch.no_grad():
        expected = module(vector, noises, sensors, observation.instructions).numpy()
    assert len(adapters(module)) == 4
    assert read_weights(moved)[
        "backbone.text.layers.0.self_attn.k_proj.lora_B.default.weight"
    ].any()
    assert np.abs(load_policy(moved)(observation, draws) - expected).max() < 1e-5


def test_a_policy_copied_without_its_backbone_is_named(moved: Path, tmp_path: Path):
    shutil.copytree(moved, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "backbone")
    with pytest.raises(HandoffError, match="no folder 'backbone' next to the weights"):
        load_policy(tmp_path)


def test_the_card_names_the_family(moved: Path):
    model = read_card(moved).model
    assert isinstance(model, VlaConfig)
    assert (model.kind, model.lora.rank) == ("vla", 2)


def test_an_interrupted_training_ends_with_the_very_weights_it_would_have_had(
    folder: Path, demos: Path, tmp_path: Path
):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 7:
            raise StopError

    config = pretrain_config(folder)
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    pretrain(config, demos, tmp_path / "whole", no_progress)
    with pytest.raises(StopError):
        pretrain(config, demos, tmp_path / "resumed", stop)
    steps: list[int] = []
    pretrain(config, demos, tmp_path / "resumed", lambda done, total, note="": steps.append(done))
    assert steps[0] == 7
    one, other = read_weights(tmp_path / "whole"), read_weights(tmp_path / "resumed")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
