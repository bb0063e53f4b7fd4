"""Policies with a memory of the observed steps: what they remember, trained and exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from policies.card import Shapes
from policies.export.graph import to_onnx
from policies.export.onnx import ExportConfig, export
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy, new_module
from policies.networks.config import (
    BackboneConfig,
    CnnEncoderConfig,
    MemoryConfig,
    MlpConfig,
    ScratchConfig,
)
from policies.networks.memory import WindowMemory
from policies.policy import Batch, ObservationTensors
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    BesoConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from policies.training.config import TrainingConfig
from real.deploy.onnx_policy import OnnxPolicy
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress

KINDS = ("gru", "attention", "mean")
SAID = "reach the goal"
STEPS = 5
WINDOW: dict[str, Any] = {
    "observation_fields": ("goal", "agent"),
    "n_obs_steps": STEPS,
    "horizon": 8,
    "n_action_steps": 2,
    "memory": MemoryConfig(features=8),
}
SHAPES = Shapes({"goal": (0, 2), "agent": (2, 4)}, 2, None, {})
SEEN = Shapes({"goal": (0, 2), "agent": (2, 4)}, 2, None, {"camera": (24, 24, 3)})
BC = BehaviourCloningConfig(head="mse", hidden=(32,), **WINDOW)
DIFFUSION = DiffusionPolicyConfig(
    train_timesteps=20, inference_steps=1, network=MlpConfig(width=16, blocks=1), **WINDOW
)
ACT = ActConfig(
    width=16,
    heads=2,
    feedforward=32,
    latent_layers=1,
    encoder_layers=1,
    latent=4,
    dropout=0.0,
    **WINDOW,
)


def small_vla(family: type[VlaConfig] | type[TokenVlaConfig], **sizes: Any) -> PolicyConfig:
    scratch = ScratchConfig(sentences=(SAID,), width=32, layers=1, heads=4, feedforward=48)
    backbone = BackboneConfig(scratch=scratch, instruction_tokens=8)
    return family(backbone=backbone, train_backbone="all", instruction=SAID, **{**WINDOW, **sizes})


FAMILIES: dict[str, PolicyConfig] = {
    "bc": BC,
    "diffusion": DIFFUSION,
    "flow": replace(DIFFUSION, objective="flow"),
    "beso": BesoConfig(
        goal_fields=("agent",), layers=1, heads=2, width=16, sampling_steps=1, **WINDOW
    ),
    "act": ACT,
    "vla": small_vla(VlaConfig, expert_width=0.5, expert_layers=1, inference_steps=1),
    "token_vla": small_vla(TokenVlaConfig),
}


def of_kind(config: Any, kind: str, **changes: Any) -> Any:
    return replace(config, memory=MemoryConfig(kind=kind, features=8), **changes)  # type: ignore[arg-type]


def windows(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, STEPS, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_step_stays_and_the_summary_follows_it(kind: str):
    memory = WindowMemory(MemoryConfig(kind=kind, features=8), STEPS, 4)  # type: ignore[arg-type]
    window = windows(3)
    encoded = memory(window)
    assert encoded.shape == (3, 1, 4 + 8)
    assert torch.equal(encoded[:, 0, :4], window[:, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_observed_step_counts_and_so_does_their_order(kind: str):
    torch.manual_seed(0)
    memory = WindowMemory(MemoryConfig(kind=kind, features=8), STEPS, 4)  # type: ignore[arg-type]
    window = windows(1)
    before = memory(window)[0, 0, 4:]
    for step in range(STEPS):
        changed = window.clone()
        changed[:, step] += 1.0
        assert (memory(changed)[0, 0, 4:] - before).abs().max() > 1e-4, step
    turned = torch.cat([window[:, :-1].flip(1), window[:, -1:]], dim=1)
    assert (memory(turned)[0, 0, 4:] - before).abs().max() > 1e-4


def test_running_means_of_a_constant_are_its_projection_and_rates_cover_the_window():
    memory = WindowMemory(MemoryConfig(kind="mean", features=8), STEPS, 4)
    constant = torch.ones(1, STEPS, 4)
    summary = memory.summary
    expected = summary.embed(constant[:, 0])  # type: ignore[operator]
    assert torch.allclose(memory(constant)[:, 0, 4:], expected, atol=1e-6)
    rates = torch.nn.functional.softplus(summary.rate_M)  # type: ignore[arg-type]
    assert (rates[0].item(), rates[-1].item()) == pytest.approx((2.0, 2.0 / STEPS), rel=1e-4)


def answers_of(module: Any, observation: ObservationTensors, noise: Tensor) -> tuple[Any, Any]:
    """What torch and ONNX Runtime compute."""
    module = module.eval().requires_grad_(False)
    graph = to_onnx(module, 20).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    given = {"observation": observation.vector_BTO, "noise": noise, **observation.sensors}
    (action,) = session.run(["action"], {name: part.numpy() for name, part in given.items()})
    expected = module(observation.vector_BTO, noise, observation.sensors or None)
    return expected.numpy(), np.asarray(action)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_exported_with_pictures_as_torch_computes(kind: str):
    torch.manual_seed(0)
    seeing = of_kind(
        BC,
        kind,
        image_fields=("camera",),
        image_encoder=CnnEncoderConfig(channels=(16,), kernel=3, keypoints=4, features=8),
    )
    draw = torch.Generator().manual_seed(0)
    shape = (3, STEPS, 24, 24, 3)
    pictures = {"camera": torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)}
    observation = ObservationTensors(windows(3), pictures)
    expected, action = answers_of(new_module(seeing, SEEN), observation, torch.zeros(3, 8, 2))
    np.testing.assert_allclose(action, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["diffusion", "flow", "beso", "act"])
def test_other_families_are_exported_with_a_memory(family: str):
    torch.manual_seed(0)
    noise = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(1))
    module = new_module(FAMILIES[family], SHAPES)
    expected, action = answers_of(module, ObservationTensors(windows(3)), noise)
    np.testing.assert_allclose(action, expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_with_a_memory_is_trained_saved_and_read(family: str, demos: Path, tmp_path: Path):
    training = TrainingConfig(
        steps=3, learning_rate=1e-3, batch_size=4, precision="fp32", preflight_seconds=0.0
    )
    policy = replace(FAMILIES[family], anchor_field=None)
    pretrain(
        PretrainConfig(policy=policy, training=training, validation_fraction=0.0),
        demos,
        tmp_path,
        no_progress,
    )
    module, card = load_module(tmp_path)
    assert card.model == policy
    assert any(".memory." in name or "memories." in name for name in module.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_from_the_oldest_observed_step(family: str):
    torch.manual_seed(0)
    module = new_module(FAMILIES[family], SHAPES).eval().requires_grad_(False)
    examples = cue_examples(3, 0)
    before = module.loss(examples, np.random.default_rng(0))
    examples.obs.vector_BTO[:, 0] += 1.0
    assert (module.loss(examples, np.random.default_rng(0)) - before).abs().max() > 1e-5


@pytest.mark.nightly  # In every run it is exported with one observed step.
@pytest.mark.parametrize("state_tokens", ["one", "field"])
def test_a_vla_with_a_memory_is_exported(state_tokens: str, demos: Path, tmp_path: Path):
    policy, bundle = tmp_path / "policy", tmp_path / "bundle"
    policy.mkdir()
    bundle.mkdir()
    config = replace(FAMILIES["vla"], anchor_field=None, state_tokens=state_tokens)  # type: ignore[arg-type]
    training = TrainingConfig(
        steps=3, learning_rate=1e-3, batch_size=4, precision="fp32", preflight_seconds=0.0
    )
    pretrain(
        PretrainConfig(policy=config, training=training, validation_fraction=0.0),
        demos,
        policy,
        no_progress,
    )
    export(
        ExportConfig(action_interface="pd_target", golden=20),
        policy,
        demos,
        bundle,
        no_progress,
        "p" * 64,
        "d" * 64,
    )
    exported = OnnxPolicy(bundle / "policy.onnx")
    given = PolicyInput(windows(3).numpy(), {}, (SAID,) * 3)
    noise = np.random.default_rng(1).standard_normal((3, 8, 2), dtype=np.float32)
    expected = load_policy(policy)(given, noise)
    np.testing.assert_allclose(exported(given, noise), expected, atol=1e-4)


def test_the_recurrent_memory_is_torchs():
    torch.manual_seed(0)
    summary, cell = WindowMemory(MemoryConfig(features=8), STEPS, 4).summary, torch.nn.GRUCell(4, 8)
    own = {"weight_ih": "inputs.weight", "bias_ih": "inputs.bias"}
    own |= {"weight_hh": "states.weight", "bias_hh": "states.bias"}
    summary.load_state_dict({own[name]: part for name, part in cell.state_dict().items()})
    state, window = torch.zeros(3, 8), windows(3)
    for step in window.unbind(1):
        state = cell(step, state)
    assert torch.allclose(summary(window), state, atol=1e-6)


def cue_examples(rows: int, seed: int) -> Batch:
    """Chunks that repeat two entries of the first observed step, which no later one shows."""
    window = windows(rows, seed)
    chunk = window[:, :1, :2].expand(-1, 8, -1).clone()
    return Batch(ObservationTensors(window), chunk, torch.zeros(rows, 8, dtype=torch.bool))


def slow_examples(rows: int, seed: int) -> Batch:
    """Chunks that repeat a quantity which every step shows with as much noise."""
    slow = 2**-0.5 * torch.randn(rows, 1, 4, generator=torch.Generator().manual_seed(seed))
    window = slow + 2**-0.5 * windows(rows, seed + 1)
    chunk = slow[..., :2].expand(-1, 8, -1).clone()
    return Batch(ObservationTensors(window), chunk, torch.zeros(rows, 8, dtype=torch.bool))


def error_after_training(
    config: PolicyConfig,
    examples_of: Callable[[int, int], Batch] = cue_examples,
    rate: float = 1e-2,
) -> float:
    """Mean squared error on new windows."""
    torch.manual_seed(0)
    module, steps = new_module(config, SHAPES), config.n_obs_steps
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    rng = np.random.default_rng(0)

    def shown(examples: Batch) -> Batch:
        vector = examples.obs.vector_BTO[:, -steps:]
        return examples._replace(obs=examples.obs._replace(vector_BTO=vector))

    for update in range(200):
        optimizer.zero_grad()
        module.loss(shown(examples_of(64, 7 * update)), rng).backward()
        optimizer.step()
    examples = shown(examples_of(500, 10_000))
    with torch.no_grad():
        predicted = module.eval().sample(examples.obs, torch.zeros_like(examples.chunk_BHA))
    return (predicted - examples.chunk_BHA).square().mean().item()


NEWEST = replace(BC, n_obs_steps=1, memory=None)


@pytest.mark.parametrize(
    ("config", "kind", "rate"),
    [(BC, "gru", 1e-2), (BC, "attention", 1e-2), (ACT, "attention", 3e-3)],
    ids=["bc-gru", "bc-attention", "act-attention"],
)
def test_it_learns_to_remember_what_the_first_step_showed(
    config: PolicyConfig, kind: str, rate: float
):
    assert error_after_training(of_kind(config, kind), rate=rate) < 0.3


def test_the_newest_step_does_not_tell_what_the_first_showed():
    assert error_after_training(NEWEST) > 0.8


def test_running_means_tell_a_slow_quantity_from_noise():
    # Five steps with noise of 0.5 leave an error of 0.5 / 6, the newest one of 0.25.
    assert error_after_training(of_kind(BC, "mean"), slow_examples) < 0.13
    assert error_after_training(NEWEST, slow_examples) > 0.22


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("bc", {"n_obs_steps": 1}, "memory is set, but n_obs_steps is 1"),
        ("vla", {"n_obs_steps": 1}, "memory is set, but n_obs_steps is 1"),
        (
            "beso",
            {"goal": "field", "goal_fields": ("goal",)},
            "memory would show the goal fields",
        ),
        ("act", {"memory": None}, r"n_obs_steps is 5, expected 1.*policy\.memory\.kind"),
        ("act", {"observation_fields": ()}, "memory is set, but observation_fields is empty"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(family: str, changes: dict[str, Any], said: str):
    shapes = SHAPES if changes.get("observation_fields", True) else Shapes({}, 2, None, {})
    with pytest.raises(HandoffError, match=said):
        new_module(replace(FAMILIES[family], **changes), shapes)


def test_attention_needs_features_for_all_heads():
    with pytest.raises(HandoffError, match=r"memory\.features is 6, expected a multiple of 4"):
        MemoryConfig(kind="attention", features=6)
