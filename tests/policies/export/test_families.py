"""Every policy family exports, and ONNX Runtime computes from its file what torch does."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch

from policies.card import PolicyCard
from policies.checkpoint import save_policy
from policies.data.demonstrations import read_demonstrations
from policies.export.onnx import ExportConfig, export
from policies.families.coarse_to_fine import CoarseToFinePolicy
from policies.families.rl_actor import save_actor
from policies.load import load_module, new_module
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.networks.config import (
    PointEncoderConfig,
    ResnetEncoderConfig,
    TransformerConfig,
    UnetConfig,
)
from policies.normalize import MinMaxStatistics
from policies.policy_config import (
    BehaviourCloningConfig,
    CoarseToFinePolicyConfig,
    LearnedActorConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from policies.rl.actor_export import fast_td3_actor, gsde_actor, mrq_actor, sac_actor, stream_actor
from policies.rl.mrq.config import MrqConfig, MrqEncoderConfig
from policies.rl.mrq.learner import Mrq
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, GsdeConfig, SacConfig
from policies.rl.off_policy.fast_td3 import FastTd3
from policies.rl.off_policy.fast_td3_config import FastTd3Config
from policies.rl.off_policy.gsde import GsdeSac
from policies.rl.off_policy.sac import Sac
from policies.rl.offline.config import IqlConfig
from policies.rl.offline.iql import Iql
from policies.rl.offline.saved_learner import in_sample_actor
from policies.rl.replay.transitions import Sizes
from policies.rl.streaming.config import StreamAcOptions
from policies.rl.streaming.stream_ac import StreamAc
from real.deploy.onnx_policy import OnnxPolicy
from robots.config import classes_of
from robots.contract import GOLDEN_SENSORS, Precision
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.spec import FieldSpec
from robots.wire.learner import Parameters
from tests.nightly import in_every_run
from tests.policies.conftest import TINY
from tests.policies.families import test_act, test_beso

EDGE = 32
POINT = FieldSpec(shape=(2,), unit="m")
FIELDS = {
    "goal": POINT,
    "agent": POINT,
    "width_target": FieldSpec(shape=(1,), unit="m"),
    "camera": FieldSpec(shape=(EDGE, EDGE, 3), dtype="uint8", unit="u8"),
    "cloud": FieldSpec(shape=(6, 3), unit="m"),
    "action": replace(POINT, interface="pd_target"),
    "steps": FieldSpec(shape=(3,), interface="cartesian_delta"),
}
ONE = replace(TINY, inference_steps=1)
FLOW = replace(TINY, objective="flow", inference_steps=2)
SEEING = replace(
    TINY,
    observation_fields=("agent",),
    image_fields=("camera",),
    inference_steps=2,
    image_encoder=ResnetEncoderConfig(channels=(16, 16), crop=(28, 28), keypoints=4, features=8),
    point_encoder=PointEncoderConfig(widths=(8, 8), features=8),
)
ACT = replace(test_act.TINY, temporal_ensemble=0.01)
BC = BehaviourCloningConfig(
    observation_fields=("goal", "agent"), horizon=4, n_action_steps=2, hidden=(16, 16), modes=3
)
BESO = replace(test_beso.FIELD, sampling_steps=1, layers=1)
FAMILIES: dict[str, PolicyConfig] = {
    "diffusion_mlp": replace(TINY, inference_steps=2),
    "diffusion_unet": replace(
        TINY, inference_steps=2, network=UnetConfig(widths=(8, 16), groups=2, time_embedding=8)
    ),
    "diffusion_transformer": replace(
        TINY, inference_steps=2, network=TransformerConfig(width=16, layers=1, heads=2)
    ),
    "diffusion_pictures": SEEING,
    "diffusion_points": replace(SEEING, image_fields=(), point_fields=("cloud",)),
    "flow": FLOW,
    "act": ACT,
    "bc": BC,
    "bc_mse": replace(BC, head="mse"),
    "beso": BESO,
    "coarse_to_fine": CoarseToFinePolicyConfig(
        observation_fields=("goal", "agent"),
        horizon=3,
        critic=CoarseToFineConfig(levels=2, bins=3, atoms=5, features=6, units=8),
    ),
}
MLP = MlpSizes(hidden=(8, 8))
SIZES = Sizes(observation=5, action=3)
SMALL_ENCODER = MrqEncoderConfig(state_size=8, action_size=4, pair_size=8, units=8)
ACTORS: dict[str, Callable[[], tuple]] = {
    "sac": lambda: sac_actor(Sac(SacConfig(critic=MLP, actor=MLP), SIZES, seed=0)),
    "sac_gripper": lambda: sac_actor(
        Sac(SacConfig(critic=MLP, actor=MLP, gripper=GripperConfig(network=MLP)), SIZES, seed=0)
    ),
    "gsde": lambda: gsde_actor(
        GsdeSac(SacConfig(critic=MLP, actor=MLP), GsdeConfig(), SIZES, seed=0)
    ),
    "fast_td3": lambda: fast_td3_actor(
        FastTd3(FastTd3Config(critic=MLP, actor=MLP), SIZES, num_envs=1)
    ),
    "mrq": lambda: mrq_actor(Mrq(MrqConfig(encoder=SMALL_ENCODER, policy_units=8), SIZES, 1)),
    "stream_ac": lambda: stream_actor(StreamAc(StreamAcOptions(hidden=(8, 8)), SIZES, seed=0)),
    "iql": lambda: in_sample_actor(Iql(IqlConfig(critic=MLP, actor=MLP), SIZES, 0)),
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes of eight steps with all fields."""
    folder, draw = tmp_path_factory.mktemp("demos"), np.random.default_rng(0)
    schema = EpisodeSchema(
        name="point", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)}
    )
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for _ in range(4):
            values = {
                name: draw.integers(0, 256, (8, *spec.shape), dtype=np.uint8)
                if spec.unit == "u8"
                else draw.uniform(0.0, 0.5, (8, *spec.shape)).astype(np.float32)
                for name, spec in FIELDS.items()
            }
            writer.append({"policy": values}, {})
    return folder


def save_untrained(folder: Path, model: PolicyConfig, demos: Path) -> None:
    """A policy with random weights, whose normalisers are fitted to the demonstrations."""
    torch.manual_seed(0)
    data = read_demonstrations(demos, model)
    module = new_module(model, data.card.shapes)
    if isinstance(module, CoarseToFinePolicy):
        # Untrained, all bins are equally good.
        for stream in (module.critic.value, module.critic.advantage):
            torch.nn.init.normal_(stream.head.weight)
    statistics = MinMaxStatistics(data.card.observation_size)
    statistics.update(data.observation_MO)
    module.normalize_observation.fit(statistics)
    module.normalize_action.scale.fill_(0.2)
    save_policy(folder, data.card, module.state_dict(), module.extra_files())


def save_learned(folder: Path, actor: tuple, demos: Path) -> None:
    """The actor of an untrained learner."""
    card, arrays = actor
    fields = ("goal", "agent", "width_target")
    model = LearnedActorConfig(observation_fields=fields, action_field="steps", card=card)
    policy = PolicyCard(
        task="point",
        rate_hz=10.0,
        observation={name: FIELDS[name] for name in fields},
        action=FIELDS["steps"],
        model=model,
    )
    save_actor(folder, policy, Parameters(0, card, arrays))


def deviation(bundle: Path) -> float:
    """Largest difference from torch over the golden examples [normalised units]."""
    golden = dict(np.load(bundle / "golden.npz"))
    sensors = {
        name.removeprefix(GOLDEN_SENSORS): array
        for name, array in golden.items()
        if name.startswith(GOLDEN_SENSORS)
    }
    given = PolicyInput(golden["observation"], sensors)
    action = OnnxPolicy(bundle / "policy.onnx")(given, golden["noise"])
    return float((np.abs(action - golden["action"]) / golden["action_scale"]).max())


def exported(folder: Path, demos: Path, **options) -> Path:
    config = ExportConfig(golden=6, **options)
    export(config, folder, demos, folder, no_progress, "p" * 64, "d" * 64)
    return folder


class Whole(NamedTuple):
    """An untrained policy and its bundle in float32, in one folder."""

    folder: Path
    warnings: tuple[str, ...]
    """What its export logged."""


@pytest.fixture(scope="module")
def whole(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The bundle of a family or learned actor, exported once, since that takes seconds."""

    @cache
    def bundle(name: str) -> Whole:
        folder = tmp_path_factory.mktemp(name)
        if name in ACTORS:
            save_learned(folder, ACTORS[name](), demos)
        else:
            save_untrained(folder, FAMILIES[name], demos)
        handler = BufferingHandler(capacity=1000)
        handler.setLevel(logging.WARNING)
        logging.getLogger().addHandler(handler)
        try:
            exported(folder, demos)
        finally:
            logging.getLogger().removeHandler(handler)
        return Whole(folder, tuple(record.getMessage() for record in handler.buffer))

    return bundle


@pytest.mark.parametrize(
    "name",
    in_every_run(
        FAMILIES,
        "diffusion_mlp",
        "diffusion_pictures",
        "flow",
        "act",
        "bc",
        "beso",
        "coarse_to_fine",
    ),
)
def test_a_family_computes_in_onnx_runtime_what_torch_does(
    name: str, whole: Callable[[str], Whole]
) -> None:
    folder, warnings = whole(name)
    assert deviation(folder) <= 1e-5
    assert warnings == ()
    assert OnnxPolicy(folder / "policy.onnx").contract.ensemble == FAMILIES[name].ensemble


@pytest.mark.parametrize("name", in_every_run(ACTORS, "sac", "sac_gripper", "iql"))
def test_a_learned_actor_computes_in_onnx_runtime_what_torch_does(
    name: str, whole: Callable[[str], Whole]
) -> None:
    assert deviation(whole(name).folder) <= 1e-5


def test_the_table_has_every_family() -> None:
    tested = {model.kind for model in FAMILIES.values()} | {LearnedActorConfig.kind}
    # Those with language are exported in test_language.py.
    tested |= {VlaConfig.kind, TokenVlaConfig.kind}
    assert tested == {cls.kind for cls in classes_of(PolicyConfig)}


@pytest.mark.nightly
def test_steps_of_a_sampler_share_their_weights(whole: Callable[[str], Whole]) -> None:
    folder = whole("diffusion_unet").folder
    module, _ = load_module(folder)
    assert module.sampler == "ddim-2"
    data = (folder / "policy.onnx").read_bytes()
    graph = onnx.load_from_string(data).graph
    assert sum(node.op_type == "Clip" for node in graph.node) == 2
    weights = sum(weight.nbytes for weight in module.parameters())
    stored = sum(onnx.numpy_helper.to_array(each).nbytes for each in graph.initializer)
    assert 0.9 * weights < stored < 1.2 * weights
    # Where the code of the policy lies is nobody's business.
    assert b"site-packages" not in data
    assert str(Path(__file__).parents[3]).encode() not in data


def smaller(bundle: Path, precision: Precision, demos: Path, folder: Path) -> onnx.ModelProto:
    """The graph of a policy in another precision, whose bundle, in `folder`, has the golden
    examples, inputs and outputs of that in float32."""
    shutil.copytree(bundle, folder, dirs_exist_ok=True)
    golden = (bundle / "golden.npz").read_bytes()
    exported(folder, demos, precision=precision)
    assert (folder / "golden.npz").read_bytes() == golden
    assert OnnxPolicy(folder / "policy.onnx").contract.precision == precision
    model = onnx.load(folder / "policy.onnx")
    tensors = (*model.graph.input, *model.graph.output)
    assert {entry.type.tensor_type.elem_type for entry in tensors} == {onnx.TensorProto.FLOAT}
    return model


def products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]


@pytest.mark.parametrize("name", in_every_run(["bc", "sac"], "bc"))
def test_half_precision_is_judged_by_the_examples_of_torch_in_float32(
    name: str, whole: Callable[[str], Whole], demos: Path, tmp_path: Path
) -> None:
    half = smaller(whole(name).folder, "float16", demos, tmp_path)
    assert 1e-5 < deviation(tmp_path) < 1e-2
    types = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    weights = {types[name] for node in products(half) for name in node.input if name in types}
    assert weights == {onnx.TensorProto.FLOAT16}
    # The normalisers, of which positions need more digits than half precision has.
    assert types["normalize_action.centre"] == onnx.TensorProto.FLOAT


# The steps of the last one share their weights.
@pytest.mark.parametrize("name", in_every_run(["bc", "sac", "diffusion_mlp"], "diffusion_mlp"))
def test_quantised_matrix_products_are_judged_by_the_examples_of_torch_in_float32(
    name: str, whole: Callable[[str], Whole], demos: Path, tmp_path: Path
) -> None:
    folder = whole(name).folder
    integer = smaller(folder, "int8", demos, tmp_path)
    assert 1e-5 < deviation(tmp_path) < 0.5
    quantised = sum(node.op_type == "MatMulInteger" for node in integer.graph.node)
    assert quantised == len(products(onnx.load(folder / "policy.onnx"))) > 0


def test_a_weight_that_half_precision_cannot_hold_is_refused(demos: Path, tmp_path: Path) -> None:
    save_untrained(tmp_path, ONE, demos)
    from policies.checkpoint import read_card, read_weights

    card, weights = read_card(tmp_path), read_weights(tmp_path)
    name = "denoiser.input.weight"
    weights[name] = torch.full_like(weights[name], 1e6)
    save_policy(tmp_path, card, weights)
    with pytest.raises(
        HandoffError, match=r"has a value of 1e\+06, the largest in float16 is 65504"
    ):
        exported(tmp_path, demos, precision="float16")
