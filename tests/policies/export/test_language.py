"""Export of language-conditioned policies: a graph with token inputs, its tokenizer, and the
deployment gate."""

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
from policies.export.graph import to_onnx
from policies.export.language import LARGEST_GRAPH, export_program, tokenizer_spec
from policies.export.onnx import ExportConfig, export
from policies.families.vision_language import VisionLanguagePolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy, new_module
from policies.networks.config import BackboneConfig, LoraConfig, ScratchConfig
from policies.networks.vlm import load_backbone
from policies.policy_config import TokenVlaConfig, VlaConfig
from policies.training.config import TrainingConfig
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.language.text import INSTRUCTION, decode, encode
from robots.language.tokenizer import SentenceTokenizer, tokenizer_digest
from robots.spec import FieldSpec
from tests.documents import ROOT, blocks
from tests.nightly import in_every_run
from tests.policies.vlm_fixture import write_backbone

RED, BLUE = "pick up the red cube", "pick up the blue cube"
# Tracing takes seconds per layer; one has every kind of node.
SCRATCH = ScratchConfig(sentences=(RED, BLUE), width=32, layers=1, heads=4, feedforward=48)
FIELDS = {name: FieldSpec(shape=(3,), unit="m") for name in ("hand", "red", "blue")}
SENTENCES = (
    RED,
    f"{BLUE}\n",
    "lift the crimson block, now!",
    "go",
    "",
    " two  spaces ",
    "two\nlines\n\n",
    "hebe den größten Würfel",
    "拿起 🔴",
)
TRAINING = TrainingConfig(
    steps=40, learning_rate=1e-2, batch_size=8, precision="fp32", preflight_seconds=0.0
)


def small(
    family: type[TokenVlaConfig] | type[VlaConfig], said: str | None = None
) -> TokenVlaConfig | VlaConfig:
    return family(
        backbone=BackboneConfig(scratch=SCRATCH, instruction_tokens=24),
        train_backbone="all",
        observation_fields=tuple(FIELDS),
        anchor_field=None,
        horizon=3,
        n_action_steps=3,
        instruction=said,
    )


TOKENS, FLOW = small(TokenVlaConfig), replace(small(VlaConfig), inference_steps=2)
assert isinstance(TOKENS, TokenVlaConfig)
DRAWN = replace(
    TOKENS,
    decoding="autoregressive",
    temperature=0.7,
    horizon=1,
    n_action_steps=1,
    instruction=BLUE,
)


def write_asked(demos: Path) -> Path:
    """Eight episodes whose action moves to the cube named by the instruction."""
    demos.mkdir(parents=True)
    rng = np.random.default_rng(0)
    fields = {**FIELDS, "action": FieldSpec(shape=(2,), unit="m")}
    schema = EpisodeSchema(
        name="asked", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for number in range(8):
            vectors = {name: rng.uniform(-0.3, 0.3, (6, 3)) for name in FIELDS}
            name, words = (("red", RED), ("blue", BLUE))[number % 2]
            writer.append(
                {"policy": {**vectors, "action": vectors[name][:, :2]}}, {INSTRUCTION: words}
            )
    return demos


class Exported(NamedTuple):
    """A briefly trained policy and its bundle."""

    policy: Path
    bundle: Path


@pytest.fixture(
    scope="module",
    params=in_every_run([TOKENS, DRAWN, FLOW], TOKENS, FLOW),
    ids=["tokens", "autoregressive", "flow"],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    demos, policy, bundle = write_asked(folder / "demos"), folder / "policy", folder / "bundle"
    policy.mkdir()
    bundle.mkdir()
    pretrain(
        PretrainConfig(policy=request.param, training=TRAINING, validation_fraction=0.0),
        demos,
        policy,
        no_progress,
    )
    config = ExportConfig(action_interface="pd_target", golden=20)
    export(
        config,
        policy,
        demos,
        bundle,
        no_progress,
        "p" * 64,
        "d" * 64,
    )
    return Exported(policy, bundle)


def policy_input(
    policy: OnnxPolicy, *instructions: str, rows: int = 0
) -> tuple[PolicyInput, np.ndarray]:
    rng, rows = np.random.default_rng(1), rows or len(instructions)
    vector = rng.uniform(-0.3, 0.3, (rows, 1, 9)).astype(np.float32)
    noise = rng.standard_normal((rows, policy.contract.horizon, 2), dtype=np.float32)
    return PolicyInput(vector, {}, instructions), noise


def test_the_graph_answers_as_torch_to_sentences_of_any_length(exported: Exported):
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, RED, "go", "lift the crimson block", BLUE)
    scale = load_module(exported.policy)[0].normalize_action.scale.numpy()
    assert (
        np.abs(policy(given, noise) - load_policy(exported.policy)(given, noise)) / scale
    ).max() <= 1e-5


def test_a_row_alone_is_answered_as_among_longer_sentences(exported: Exported):
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, "go", "lift the crimson block")
    alone = policy(PolicyInput(given.vector[:1], {}, ("go",)), noise[:1])
    np.testing.assert_allclose(alone, policy(given, noise)[:1], atol=1e-6)


def test_two_sentences_give_two_actions(exported: Exported):
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, RED, RED)
    other = given._replace(instructions=(BLUE, BLUE))
    assert np.abs(policy(given, noise) - policy(other, noise)).max() > 1e-3


def test_golden_examples_have_the_instructions_of_their_episodes(exported: Exported):
    golden = np.load(exported.bundle / "golden.npz")
    instructions, vectors = decode(golden[INSTRUCTION]), golden["observation"][:, 0]
    assert set(instructions) == {RED, BLUE}
    assert len(instructions) == len(vectors) == 20
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    answer = policy(PolicyInput(golden["observation"], {}, instructions), golden["noise"])
    assert (np.abs(answer - golden["action"]) / golden["action_scale"]).max() <= 1e-5


def test_the_bundle_names_its_tokenizer(exported: Exported):
    assert {path.name for path in exported.bundle.iterdir()} == {
        "policy.onnx",
        "golden.npz",
        "tokenizer.json",
        "leapp.yaml",
        "manifest.json",
    }
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    assert policy.contract.instruction
    assert policy.tokenizer is not None
    data = (exported.bundle / "tokenizer.json").read_bytes()
    assert policy.tokenizer.spec.tokenizer == tokenizer_digest(data)
    assert policy.tokenizer.spec.max_tokens == 24


def test_the_functions_of_the_documentation_tokenize_as_the_policy(exported: Exported):
    (page,) = [
        block
        for block in blocks((ROOT / "docs" / "concepts" / "contract.md").read_text())
        if block.title == "tokens.py"
    ]
    scope: dict = {}
    exec(page.text, scope)
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    assert policy.tokenizer is not None
    session = onnxruntime.InferenceSession(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, BLUE, f"{BLUE}\n", RED)
    for row, sentence in enumerate((BLUE, f"{BLUE}\n", RED)):
        tensors = scope["tokens"](exported.bundle, sentence)
        expected = policy.tokenizer.tokens((sentence,), 1)
        np.testing.assert_array_equal(tensors["tokens"], expected.token_BL)
        one = PolicyInput(given.vector[row : row + 1], {}, (sentence,))
        answer = policy(one, noise[row : row + 1])
        tensors |= {"observation": one.vector, "noise": noise[row : row + 1]}
        np.testing.assert_array_equal(session.run(["action"], tensors)[0], answer)


def test_without_instruction_it_uses_its_default_or_raises(exported: Exported):
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, rows=2)
    assert policy.tokenizer is not None
    if policy.tokenizer.spec.default_instruction is None:
        with pytest.raises(
            HandoffError, match="0 instructions for 2 observations, expected one each"
        ):
            policy(given.vector, noise)
    else:
        instructions = given._replace(instructions=(BLUE, BLUE))
        np.testing.assert_array_equal(policy(given.vector, noise), policy(instructions, noise))


def test_a_sentence_too_long_for_the_policy_is_refused(exported: Exported):
    policy = OnnxPolicy(exported.bundle / "policy.onnx")
    given, noise = policy_input(policy, RED, "q" * 30)
    with pytest.raises(HandoffError, match=r"instruction 'qqq.*' has 31 tokens, limit 24"):
        policy(given, noise)


def test_a_tokenizer_of_another_bundle_is_refused(exported: Exported, tmp_path: Path):
    bundle = shutil.copytree(exported.bundle, tmp_path / "bundle")
    other = load_backbone(
        BackboneConfig(scratch=replace(SCRATCH, sentences=("open the drawer",))), weights=True
    )
    (bundle / "tokenizer.json").write_bytes(other.files()["tokenizer.json"])
    with pytest.raises(HandoffError, match="Are graph and tokenizer from different bundles"):
        OnnxPolicy(bundle / "policy.onnx")


def parity(bundle: Path) -> float:
    golden = read_golden(bundle / "golden.npz")
    return golden_parity(OnnxPolicy(bundle / "policy.onnx"), golden).normalised


def test_the_bundle_agrees_with_training(exported: Exported):
    assert parity(exported.bundle) <= 1e-5


def test_other_sentences_differ_from_training(exported: Exported, tmp_path: Path):
    bundle = shutil.copytree(exported.bundle, tmp_path / "bundle")
    golden = dict(np.load(bundle / "golden.npz"))
    exchanged = [BLUE if line == RED else RED for line in decode(golden[INSTRUCTION])]
    golden[INSTRUCTION] = encode(exchanged, golden[INSTRUCTION].shape[1])
    np.savez(bundle / "golden.npz", **golden)
    assert parity(bundle) > 1e-3


@pytest.mark.parametrize("tokenizer", ["scratch", "bytes", "pretrained"])
def test_a_robot_makes_the_tokens_that_training_made(tokenizer: str, tmp_path: Path):
    match tokenizer:
        case "scratch":
            config = BackboneConfig(scratch=SCRATCH)
        case "bytes":
            config = BackboneConfig(scratch=ScratchConfig())
        case _:
            config = BackboneConfig(folder=str(write_backbone(tmp_path / "backbone")))
    torch.manual_seed(0)
    trained = replace(TOKENS, backbone=config)
    policy = new_module(
        trained, Shapes({"hand": (0, 3), "red": (3, 6), "blue": (6, 9)}, 2, None, {})
    )
    assert isinstance(policy, VisionLanguagePolicy)
    reading, data = tokenizer_spec(policy)
    (tmp_path / "tokenizer.json").write_bytes(data)
    reader = SentenceTokenizer(tmp_path / "tokenizer.json", reading)
    for instructions in (SENTENCES, *((line,) for line in SENTENCES)):
        words, tokens = (
            policy.backbone.tokens(instructions),
            reader.tokens(instructions, len(instructions)),
        )
        assert tokens.token_BL.dtype == np.int64
        np.testing.assert_array_equal(tokens.token_BL, words.token_BL.numpy())
        np.testing.assert_array_equal(tokens.mask_BL, words.mask_BL.numpy())


@pytest.mark.nightly  # In every run SmolVLA is exported with pictures.
def test_pictures_and_adapters_are_in_the_graph_too(tmp_path: Path):
    folder = write_backbone(tmp_path / "backbone", vision_layers=1, num_hidden_layers=1)
    backbone = BackboneConfig(folder=str(folder))
    config = replace(
        TOKENS,
        backbone=backbone,
        train_backbone="lora",
        lora=LoraConfig(rank=2),
        image_fields=("front",),
        bins=8,
    )
    torch.manual_seed(0)
    shapes = Shapes(
        {"hand": (0, 3), "red": (3, 6), "blue": (6, 9)}, 2, None, {"front": (24, 32, 3)}
    )
    module = new_module(config, shapes).eval().requires_grad_(False)
    assert isinstance(module, VisionLanguagePolicy)
    for name, parameter in module.named_parameters():
        if "lora_B" in name or name == "query_NW":
            torch.nn.init.normal_(parameter)
    graph = to_onnx(module, 21).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == [
        "observation",
        "noise",
        "tokens",
        "tokens_mask",
        "front",
    ]
    vector, noise = torch.randn(3, 1, 9), torch.randn(3, 3, 2)
    front = torch.randint(0, 256, (3, 1, 24, 32, 3), dtype=torch.uint8)
    instructions = (RED, BLUE, "go")
    words = module.backbone.tokens(instructions)
    given = {"observation": vector, "noise": noise, "front": front}
    given |= {"tokens": words.token_BL, "tokens_mask": words.mask_BL}
    (answer,) = session.run(["action"], {name: array.numpy() for name, array in given.items()})
    np.testing.assert_allclose(
        np.asarray(answer), module(vector, noise, {"front": front}, instructions).numpy(), atol=1e-5
    )


def test_weights_beyond_one_file_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch):
    assert LARGEST_GRAPH == 2_147_483_648
    monkeypatch.setattr("policies.export.language.LARGEST_GRAPH", 1000)
    torch.manual_seed(0)
    policy = new_module(
        TOKENS, Shapes({"hand": (0, 3), "red": (3, 6), "blue": (6, 9)}, 2, None, {})
    )
    assert isinstance(policy, VisionLanguagePolicy)
    with pytest.raises(HandoffError, match="one ONNX file holds less than 2"):
        export_program(policy, (torch.zeros(2, 1, 9), torch.zeros(2, 3, 2)), {}, {})
