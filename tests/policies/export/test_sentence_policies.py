"""Policies with a sentence encoder: trained, saved with the encoder, exported with it, distilled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch

from policies.card import Shapes
from policies.chunk_policy_config import EncodedPolicyConfig, InstructedPolicyConfig
from policies.distillation.config import DistilConfig
from policies.distillation.one_step import distil
from policies.export.graph import to_onnx
from policies.export.onnx import ExportConfig, export
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.language.config import SentenceEncoderConfig
from policies.language.sentence_encoder import SentenceEncoder
from policies.load import load_module, load_policy, new_module
from policies.networks.config import MlpConfig, ResnetEncoderConfig
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
)
from policies.rl.finetuning.config import RewardShaping
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.offline.config import EdpConfig
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import Precision
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.documents import ROOT, blocks
from tests.nightly import in_every_run
from tests.policies.export.test_language import BLUE, FIELDS, RED, TRAINING, write_asked
from tests.policies.sentence_fixture import MEAN, write_encoder

LANGUAGE = SentenceEncoderConfig(features=6, max_tokens=16)
COMMON = {
    "observation_fields": tuple(FIELDS),
    "anchor_field": None,
    "horizon": 3,
    "n_action_steps": 3,
    "language": LANGUAGE,
}
SMALL = MlpConfig(width=16, blocks=1, time_embedding=8)
FLOW = DiffusionPolicyConfig(objective="flow", inference_steps=1, network=SMALL, **COMMON)
FAMILIES: dict[str, PolicyConfig] = {
    "flow": replace(FLOW, instruction=BLUE),
    "diffusion": DiffusionPolicyConfig(inference_steps=2, network=SMALL, **COMMON),
    "bc": BehaviourCloningConfig(hidden=(16,), modes=2, **COMMON),
    "act": ActConfig(
        width=16, heads=2, feedforward=16, latent_layers=1, encoder_layers=1, latent=4, **COMMON
    ),
}


class Exported(NamedTuple):
    """A briefly trained policy, its demonstrations and its bundle; the encoder's folder is gone."""

    policy: Path
    demos: Path
    bundle: Path


def with_encoder(config: PolicyConfig, folder: Path) -> PolicyConfig:
    assert isinstance(config, InstructedPolicyConfig)
    return replace(config, language=replace(LANGUAGE, folder=str(folder)))


def write_bundle(policy: Path, demos: Path, bundle: Path, precision: Precision = "float32") -> Path:
    bundle.mkdir()
    config = ExportConfig(action_interface="pd_target", golden=20, precision=precision)
    export(config, policy, demos, bundle, no_progress, "p" * 64, "d" * 64)
    return bundle


@pytest.fixture(scope="module", params=in_every_run(FAMILIES, "flow", "bc"))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    demos, policy = write_asked(folder / "demos"), folder / "policy"
    # Tracing takes seconds per layer; one has every kind of node.
    encoder = write_encoder(folder / "encoder", MEAN, layers=1)
    policy.mkdir()
    config = with_encoder(FAMILIES[request.param], encoder)
    training = PretrainConfig(policy=config, training=TRAINING, validation_fraction=0.0)
    pretrain(training, demos, policy, no_progress)
    shutil.rmtree(encoder)
    return Exported(policy, demos, write_bundle(policy, demos, folder / "bundle"))


def policy_input(*instructions: str, rows: int = 0) -> tuple[PolicyInput, np.ndarray]:
    rng, rows = np.random.default_rng(1), rows or len(instructions)
    vector = rng.uniform(-0.3, 0.3, (rows, 1, 9)).astype(np.float32)
    return PolicyInput(vector, {}, instructions), rng.standard_normal((rows, 3, 2), np.float32)


def test_a_saved_policy_has_its_encoder_beside_its_weights(exported: Exported) -> None:
    module, _ = load_module(exported.policy)
    assert module.sentences is not None
    assert (exported.policy / "language/model.safetensors").is_file()
    encoder = module.sentences.model.state_dict()
    assert "transformer.embeddings.word_embeddings.weight" in encoder
    assert not any("word_embeddings" in name for name in module.state_dict())


def test_the_bundle_agrees_with_training(exported: Exported) -> None:
    golden = read_golden(exported.bundle / "golden.npz")
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    assert policy.contract.instruction
    assert golden_parity(policy, golden).normalised <= 1e-5


def test_the_graph_answers_as_torch_to_sentences_of_any_length(exported: Exported) -> None:
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(RED, "go", "lift the crimson block, now", BLUE, "")
    scale = load_module(exported.policy)[0].normalize_action.scale.numpy()
    trained = load_policy(exported.policy)(given, noise)
    assert (np.abs(policy(given, noise) - trained) / scale).max() <= 1e-5


def test_two_sentences_give_two_actions(exported: Exported) -> None:
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(RED, RED)
    other = given._replace(instructions=(BLUE, BLUE))
    assert np.abs(policy(given, noise) - policy(other, noise)).max() > 1e-3


def test_a_runtime_needs_the_graph_and_the_tokenizer_alone(exported: Exported) -> None:
    (page,) = [
        block
        for block in blocks((ROOT / "docs" / "concepts" / "contract.md").read_text())
        if block.title == "tokens.py"
    ]
    scope: dict = {}
    exec(page.text, scope)
    session = onnxruntime.InferenceSession(exported.bundle / "policy.onnx")
    given, noise = policy_input(BLUE)
    tensors = scope["tokens"](exported.bundle, BLUE)
    answer = session.run(["action"], tensors | {"observation": given.vector, "noise": noise})[0]
    expected = OnnxPolicy(exported.bundle / "policy.onnx")(given, noise)
    np.testing.assert_array_equal(answer, expected)


def test_without_instruction_it_uses_its_default_or_raises(exported: Exported) -> None:
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(rows=2)
    default = load_module(exported.policy)[0].default_instruction
    if default is None:
        with pytest.raises(HandoffError, match="0 instructions for 2 observations"):
            policy(given.vector, noise)
        with pytest.raises(HandoffError, match="0 instructions for 2 observations"):
            load_policy(exported.policy)(given.vector, noise)
    else:
        said = given._replace(instructions=(default, default))
        np.testing.assert_array_equal(policy(given.vector, noise), policy(said, noise))


def test_a_sentence_too_long_for_the_policy_is_refused(exported: Exported) -> None:
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input("q " * 20)
    for answer in (policy, load_policy(exported.policy)):
        with pytest.raises(HandoffError, match="has 22 tokens, limit 16"):
            answer(given, noise)


@pytest.mark.parametrize("exported", ["flow"], indirect=True)
@pytest.mark.parametrize(
    ("precision", "bound"), in_every_run([("float16", 0.02), ("int8", 0.2)], ("int8", 0.2))
)
def test_smaller_number_types_have_the_encoder_too(
    exported: Exported, tmp_path: Path, precision: Precision, bound: float
) -> None:
    bundle = write_bundle(exported.policy, exported.demos, tmp_path / "bundle", precision)
    golden = read_golden(bundle / "golden.npz")
    assert golden_parity(OnnxPolicy(bundle / "policy.onnx"), golden).normalised <= bound
    sizes = [(folder / "policy.onnx").stat().st_size for folder in (exported.bundle, bundle)]
    assert sizes[1] < sizes[0]


@pytest.mark.nightly
@pytest.mark.parametrize("exported", ["diffusion"], indirect=True)
def test_a_one_step_student_reads_the_same_instructions(exported: Exported, tmp_path: Path) -> None:
    student, bundle = tmp_path / "student", tmp_path / "bundle"
    student.mkdir()
    config = DistilConfig(targets=64, training=replace(TRAINING, steps=4))
    distil(config, exported.policy, exported.demos, student, no_progress)
    module, _ = load_module(student)
    assert module.sentences is not None
    assert module.sampler_steps == 1
    write_bundle(student, exported.demos, bundle)
    golden = read_golden(bundle / "golden.npz")
    assert golden_parity(OnnxPolicy(bundle / "policy.onnx"), golden).normalised <= 1e-5


@pytest.mark.nightly
def test_pictures_and_instructions_are_encoded_side_by_side(tmp_path: Path) -> None:
    config = replace(
        FLOW,
        image_fields=("front",),
        n_obs_steps=2,
        n_action_steps=2,
        image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=4, features=5),
    )
    config = with_encoder(config, write_encoder(tmp_path / "encoder", layers=1))
    torch.manual_seed(0)
    shapes = Shapes({"hand": (0, 9)}, 2, None, {"front": (24, 32, 3)})
    module = new_module(config, shapes).eval().requires_grad_(False)
    vector, noise = torch.randn(3, 2, 9), torch.randn(3, 3, 2)
    front = torch.randint(0, 256, (3, 2, 24, 32, 3), dtype=torch.uint8)
    instructions = (RED, BLUE, "go")
    encoded = module.encode(ObservationTensors(vector, {"front": front}, instructions))
    assert encoded is not None
    assert encoded.shape == (3, 2, 14)
    obs = ObservationTensors(encoded, {}, instructions)
    whole = ObservationTensors(vector, {"front": front}, instructions)
    torch.testing.assert_close(module.sample(obs, noise), module.sample(whole, noise))
    session = onnxruntime.InferenceSession(to_onnx(module, 20).SerializeToString())
    assert module.sentences is not None
    tokens = module.sentences.tokenizer.tokens(instructions, 3)
    given = {"observation": vector.numpy(), "noise": noise.numpy(), "front": front.numpy()}
    given |= {"tokens": tokens.token_BL, "tokens_mask": tokens.mask_BL}
    (answer,) = session.run(["action"], given)
    expected = module(vector, noise, {"front": front}, instructions).numpy()
    np.testing.assert_allclose(np.asarray(answer), expected, atol=1e-5)


def test_an_encoder_that_no_family_hands_over_is_missed() -> None:
    config = EncodedPolicyConfig(language=LANGUAGE)
    with pytest.raises(HandoffError, match="was given no sentence encoder"):
        ObservationEncoder(config, Shapes({"hand": (0, 9)}, 2, None, {}))


def test_trainings_that_observe_the_vector_alone_refuse_an_encoder(tmp_path: Path) -> None:
    config = with_encoder(FLOW, write_encoder(tmp_path / "encoder"))
    module = new_module(config, Shapes({"hand": (0, 9)}, 2, None, {}))
    assert isinstance(config, DiffusionPolicyConfig)
    setup = FinetuneSetup(module, config, None, 0, RewardShaping(), None)  # type: ignore[arg-type]
    with pytest.raises(HandoffError, match="language-conditioned through a sentence encoder"):
        setup.diffusion_policy()
    with pytest.raises(HandoffError, match=r"policy\.language is set"):
        EdpConfig(policy=replace(config, objective="diffusion"))


def test_an_instruction_without_an_encoder_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"the instruction 'go' for a policy without"):
        DiffusionPolicyConfig(instruction="go")


def test_training_reads_the_encoders_folder(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    config = with_encoder(FLOW, folder)
    assert config.external_folders == {"sentence encoder": str(folder)}
    assert DiffusionPolicyConfig().external_folders == {}
    assert SentenceEncoder(LANGUAGE, folder).width == 24
