import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.card import Shapes
from policies.checkpoint import read_weights
from policies.families.token_vla import TokenVlaPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy, new_module
from policies.networks.config import BackboneConfig, LoraConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import TokenVlaConfig
from policies.training.config import TrainingConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.spec import FieldSpec
from tests.policies.vlm_fixture import write_backbone

INSTRUCTIONS = ("push the red block to the left", "push the blue block to the right")
CAMERAS = ("front", "left", "wrist")
PICTURE = (24, 32, 3)
BOTH = pytest.mark.parametrize("decoding", ["parallel", "autoregressive"])


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


def small(backbone: Path, decoding: str = "parallel", cameras: int = 1) -> TokenVlaConfig:
    """Three steps of two entries, eight bins each."""
    return TokenVlaConfig(
        backbone=BackboneConfig(folder=str(backbone)),
        observation_fields=("agent",),
        image_fields=CAMERAS[:cameras],
        anchor_field=None,
        horizon=3,
        n_action_steps=3,
        bins=8,
        decoding=decoding,  # type: ignore[arg-type]
    )


def untrained(config: TokenVlaConfig) -> TokenVlaPolicy:
    """With logits large enough to matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = new_module(
            config, Shapes({"agent": (0, 2)}, 2, None, dict.fromkeys(config.image_fields, PICTURE))
        )
        assert isinstance(module, TokenVlaPolicy)
        torch.nn.init.normal_(module.query_NW)
        torch.nn.init.normal_(module.head.weight, std=0.3)
        if module.embedding is not None:
            torch.nn.init.normal_(module.embedding.weight)
    return module.eval().requires_grad_(False)


def observe(
    rows: int, cameras: int = 1, instructions: tuple[str, ...] = INSTRUCTIONS
) -> ObservationTensors:
    """Observations with different states and images, and alternating instructions."""
    rng = np.random.default_rng(0)
    vector = torch.from_numpy(rng.uniform(-1, 1, (rows, 1, 2)).astype(np.float32))
    pictures = torch.from_numpy(rng.integers(0, 256, (cameras, rows, 1, *PICTURE), dtype=np.uint8))
    words = tuple(instructions[row % len(instructions)] for row in range(rows))
    return ObservationTensors(vector, dict(zip(CAMERAS, pictures, strict=False)), words)


def same(rows: int) -> ObservationTensors:
    """The same row again and again."""
    one = observe(1)
    sensors = {name: picture.expand(rows, -1, -1, -1, -1) for name, picture in one.sensors.items()}
    return ObservationTensors(one.vector_BTO.expand(rows, -1, -1), sensors, one.instructions * rows)


def noise(rows: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).standard_normal((rows, 3, 2), dtype=np.float32)
    )


@BOTH
@pytest.mark.parametrize("cameras", [1, 2, 3])
def test_one_to_three_cameras_all_have_a_say(backbone: Path, decoding: str, cameras: int):
    module, obs = untrained(small(backbone, decoding, cameras)), observe(4, cameras)
    tokens = module.act(obs, noise(4)).tokens_BHA
    logits = module.logits(obs, tokens)
    assert logits.shape == (4, 3, 2, 8)
    for name, picture in obs.sensors.items():
        other = obs._replace(sensors={**obs.sensors, name: 255 - picture})
        assert (module.logits(other, tokens) - logits).abs().max() > 1e-3


@BOTH
def test_at_temperature_zero_noise_has_no_influence_on_the_chunk(backbone: Path, decoding: str):
    module = untrained(small(backbone, decoding))
    assert torch.equal(
        module.sample(observe(4), noise(4, 1)), module.sample(observe(4), noise(4, 2))
    )


@BOTH
def test_above_it_the_same_noise_gives_the_same_chunk_and_other_noise_another(
    backbone: Path, decoding: str
):
    module = untrained(replace(small(backbone, decoding), temperature=1.0))
    chunk = module.sample(observe(4), noise(4, 1))
    assert torch.equal(chunk, module.sample(observe(4), noise(4, 1)))
    assert not torch.equal(chunk, module.sample(observe(4), noise(4, 2)))


@BOTH
def test_a_sampled_chunk_is_that_of_the_tokens_drawn_by_the_same_noise(
    backbone: Path, decoding: str
):
    module = untrained(replace(small(backbone, decoding), temperature=0.7))
    tokens = module.act(observe(4), noise(4), 0.7).tokens_BHA
    assert torch.equal(module.sample(observe(4), noise(4)), (2 * tokens - 7) / 8)


@BOTH
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_recomputed_log_probabilities_are_the_stored_ones(
    backbone: Path, decoding: str, temperature: float
):
    module, obs = untrained(small(backbone, decoding)), observe(16)
    drawn = module.act(obs, noise(16), temperature)
    again = module.log_prob(obs, drawn.tokens_BHA, temperature)
    assert (again - drawn.log_prob_BHA).abs().max() < 1e-5
    assert drawn.log_prob_BHA.std() > 0.1


def test_decoding_with_a_cache_gives_the_logits_of_one_pass_without(backbone: Path):
    module, obs = untrained(small(backbone, "autoregressive")), observe(8)
    tokens, cached = module._decode(obs, noise(8), 1.0)
    assert (module.logits(obs, tokens) - cached).abs().max() < 1e-5
    assert (module.logits(obs, (tokens + 1) % 8) - cached).abs().max() > 1e-2


@BOTH
def test_drawn_chunks_are_as_frequent_as_their_log_probability_says(backbone: Path, decoding: str):
    module = untrained(replace(small(backbone, decoding), horizon=1, n_action_steps=1, bins=3))
    draws = torch.from_numpy(
        np.random.default_rng(0).standard_normal((5000, 1, 2), dtype=np.float32)
    )
    tokens = torch.cat([module.act(same(1000), part, 0.6).tokens_BHA for part in draws.split(1000)])
    share = torch.bincount(3 * tokens[:, 0, 0] + tokens[:, 0, 1], minlength=9) / 5000
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3))[:, None]
    probability = module.log_prob(same(9), every, 0.6).sum(dim=(1, 2)).exp()
    assert probability.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert (share - probability).abs().max() < 0.03  # four deviations of a share of one half


@BOTH
def test_entropy_is_the_mean_surprise_over_all_bins(backbone: Path, decoding: str):
    module = untrained(small(backbone, decoding))
    tokens = torch.zeros(8, 3, 2, dtype=torch.long)
    tokens[:, 2, 1] = torch.arange(8)
    log_prob = module.log_prob(same(8), tokens, 1.5)[:, 2, 1]
    entropy = module.entropy(same(8), tokens, 1.5)[0, 2, 1]
    assert entropy.item() == pytest.approx(-(log_prob.exp() * log_prob).sum().item(), abs=1e-5)


def test_an_autoregressive_token_depends_on_those_before_it_alone(backbone: Path):
    module = untrained(small(backbone, "autoregressive"))
    tokens = module.act(observe(4), noise(4)).tokens_BHA
    other = tokens.clone()
    other[:, 1, 0] = (other[:, 1, 0] + 1) % 8
    change_BN = (
        (module.logits(observe(4), other) - module.logits(observe(4), tokens))
        .abs()
        .amax(dim=-1)
        .flatten(1)
    )
    assert change_BN[:, :3].max() == 0.0
    assert change_BN[:, 3:].amin() > 1e-3


@pytest.mark.parametrize(("decoding", "sees"), [("parallel", True), ("autoregressive", False)])
def test_tokens_decoded_in_parallel_see_later_places_too(backbone: Path, decoding: str, sees: bool):
    module, tokens = untrained(small(backbone, decoding)), torch.zeros(4, 3, 2, dtype=torch.long)
    before = module.logits(observe(4), tokens)[:, 0, 0]
    module.query_NW[-1] += 1.0
    change = (module.logits(observe(4), tokens)[:, 0, 0] - before).abs().max().item()
    assert (change > 1e-3) == sees


@BOTH
def test_padding_of_a_shorter_instruction_does_not_change_the_answer(backbone: Path, decoding: str):
    module = untrained(small(backbone, decoding))
    short = observe(
        2, instructions=("open the drawer", "push the blue block to the right and open the drawer")
    )
    tokens = module.act(short, noise(2)).tokens_BHA
    alone = ObservationTensors(
        short.vector_BTO[:1],
        {name: part[:1] for name, part in short.sensors.items()},
        short.instructions[:1],
    )
    assert (module.logits(short, tokens)[:1] - module.logits(alone, tokens[:1])).abs().max() < 1e-5


def test_a_policy_that_expects_every_bin_alike_loses_the_logarithm_of_their_number(backbone: Path):
    module = untrained(small(backbone))
    module.head.weight.zero_()
    batch = Batch(observe(4), noise(4), torch.zeros(4, 3, dtype=torch.bool))
    assert module.loss(batch, np.random.default_rng(0)).item() == pytest.approx(np.log(8), abs=1e-6)


@BOTH
def test_the_loss_is_the_mean_surprise_at_the_actions_inside_their_episode(
    backbone: Path, decoding: str
):
    module, obs = untrained(small(backbone, decoding)), observe(4)
    tokens = torch.arange(24).reshape(4, 3, 2) % 8
    padded = torch.tensor([[False, False, True]] * 3 + [[False, True, True]])
    chunk = torch.where(padded[..., None], 0.9, module.values(tokens))
    loss = module.loss(Batch(obs, chunk, padded), np.random.default_rng(0))
    expected = -module.log_prob(obs, tokens)[~padded].mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_bins_start_from_the_last_entries_of_the_vocabulary(tmp_path: Path, tied: bool):
    folder = write_backbone(tmp_path, tied=tied)
    config = replace(small(folder, "autoregressive"), tokens="vocabulary")
    module = new_module(config, Shapes({"agent": (0, 2)}, 2, None, {"front": PICTURE}))
    assert isinstance(module, TokenVlaPolicy)
    assert module.embedding is not None
    words = module.backbone.text.embed_tokens.weight
    assert torch.equal(module.embedding.weight, words[-8:].flip(0))
    assert torch.equal(module.head.weight, module.embedding.weight) == tied
    assert "backbone.head.weight" not in module.state_dict()


def test_more_bins_than_vocabulary_entries_are_refused(backbone: Path):
    with pytest.raises(HandoffError, match="smaller than the 1000 bins"):
        untrained(replace(small(backbone), tokens="vocabulary", bins=1000))


@pytest.mark.parametrize(
    ("train", "trained"),
    [
        ("none", {"query_NW", "head", "backbone.state_projections"}),
        ("lora", {"query_NW", "head", "backbone.state_projections", "backbone.text.layers"}),
        (
            "all",
            {
                "query_NW",
                "head",
                "backbone.state_projections",
                "backbone.text",
                "backbone.vision",
                "backbone.conn",
            },
        ),
    ],
)
def test_what_the_configuration_trains_gets_a_gradient_and_nothing_else(
    backbone: Path, train: str, trained: set[str]
):
    config = replace(small(backbone), train_backbone=train)  # type: ignore[arg-type]
    module = new_module(config, Shapes({"agent": (0, 2)}, 2, None, {"front": PICTURE}))
    batch = Batch(observe(4), noise(4), torch.zeros(4, 3, dtype=torch.bool))
    module.loss(batch, np.random.default_rng(0)).backward()
    moved = {name for name, value in module.named_parameters() if value.grad is not None}
    assert {name for name, value in module.named_parameters() if value.requires_grad} == moved
    assert all(any(name.startswith(part) for part in trained) for name in moved)
    assert all(any(name.startswith(part) for name in moved) for part in trained)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bins": 1}, "bins is 1, expected at least 2"),
        ({"temperature": -0.5}, "temperature is -0.5, expected at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"quantile": 0.7}, "quantile is 0.7"),
        ({"backbone": BackboneConfig()}, "folder is None and scratch not given"),
    ],
)
def test_sizes_that_make_no_policy_are_named(backbone: Path, changes: dict, message: str):
    with pytest.raises(HandoffError, match=message):
        untrained(replace(small(backbone), **changes))


def test_an_autoregressive_policy_has_no_logits_without_tokens(backbone: Path):
    with pytest.raises(HandoffError, match="needs tokens to compute logits"):
        untrained(small(backbone, "autoregressive")).logits(observe(1))


def test_the_likeliest_tokens_are_not_given_log_probabilities(backbone: Path):
    with pytest.raises(HandoffError, match="expected more than 0"):
        untrained(small(backbone)).act(observe(1), noise(1), 0.0)


def write_instructed(demos: Path) -> Path:
    """Two episodes per instruction (left, right), one with dark images (down) and one with light
    ones (up)."""
    fields = {
        "agent": FieldSpec(shape=(2,), unit="m", frame="board"),
        "front": FieldSpec(shape=PICTURE, dtype="uint8", unit="u8"),
        "action": FieldSpec(shape=(2,), unit="m", frame="board"),
    }
    demos.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    schema = EpisodeSchema(
        name="instructed", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for side, words in enumerate(INSTRUCTIONS):
            for light in (0, 1):
                action = np.tile([0.1 * side, 0.3 * light], (4, 1))
                picture = np.full((4, *PICTURE), 40 + 160 * light, np.uint8)
                values = {
                    "agent": rng.uniform(-1.0, 1.0, (4, 2)),
                    "front": picture,
                    "action": action,
                }
                writer.append({"policy": values}, {"instruction": words})
    return demos


TRAINING = TrainingConfig(
    steps=120,
    learning_rate=1e-2,
    batch_size=8,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
    preflight_seconds=0.0,
)


class TrainedPolicy(NamedTuple):
    """A policy trained on `write_instructed`, and its chunks for dark and light images and both
    instructions."""

    out: Path
    chunks: np.ndarray
    """(4, 3, 2) in the order of the episodes."""


def asked(out: Path) -> np.ndarray:
    pictures = np.stack([np.full((1, *PICTURE), level, np.uint8) for level in (40, 200)] * 2)
    words = tuple(np.repeat(INSTRUCTIONS, 2).tolist())
    question = PolicyInput(np.zeros((4, 1, 2), np.float32), {"front": pictures}, words)
    return load_policy(out)(question, np.zeros((4, 3, 2), np.float32))


@pytest.fixture(scope="module", params=["parallel", "autoregressive"])
def trained_policy(
    request: pytest.FixtureRequest, backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedPolicy:
    """Trained with 256 bins and a frozen backbone, whose folder is then removed."""
    folder = tmp_path_factory.mktemp("instructed")
    shutil.copytree(backbone, folder / "backbone")
    config = replace(small(folder / "backbone", request.param), bins=256)
    demos, out = write_instructed(folder / "demos"), folder / "policy"
    out.mkdir()
    pretrain(
        PretrainConfig(policy=config, training=TRAINING, validation_fraction=0.0),
        demos,
        out,
        no_progress,
    )
    shutil.rmtree(folder / "backbone")
    return TrainedPolicy(out, asked(out))


def test_it_answers_two_instructions_and_two_pictures_with_four_chunks(
    trained_policy: TrainedPolicy,
):
    expected = np.array([[0.0, 0.0], [0.0, 0.3], [0.1, 0.0], [0.1, 0.3]])
    # The range of an entry has 256 bins, so its centres are within 1/512 of it.
    assert np.abs(trained_policy.chunks - expected[:, None]).max(axis=(0, 1)) == pytest.approx(
        [0.1 / 512, 0.3 / 512], rel=1e-3
    )


def test_a_saved_policy_answers_the_same_whenever_it_is_loaded(trained_policy: TrainedPolicy):
    assert np.array_equal(asked(trained_policy.out), trained_policy.chunks)


def test_without_instructions_there_is_no_answer(trained_policy: TrainedPolicy):
    question = PolicyInput(
        np.zeros((1, 1, 2), np.float32), {"front": np.zeros((1, 1, *PICTURE), np.uint8)}
    )
    with pytest.raises(HandoffError, match="0 instructions for 1 observations"):
        load_policy(trained_policy.out)(question, np.zeros((1, 3, 2), np.float32))


def test_an_interrupted_training_with_adapters_and_dropout_ends_with_the_same_weights(
    backbone: Path, tmp_path: Path
):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 17:
            raise StopError

    sizes = replace(
        small(backbone),
        train_backbone="lora",
        lora=LoraConfig(rank=2, dropout=0.3),
        tokens="vocabulary",
    )
    config = PretrainConfig(
        policy=sizes, training=replace(TRAINING, steps=30), validation_fraction=0.0
    )
    demos, whole, parts = (
        write_instructed(tmp_path / "demos"),
        tmp_path / "whole",
        tmp_path / "parts",
    )
    for out in (whole, parts):
        out.mkdir()
    with pytest.raises(StopError):
        pretrain(config, demos, parts, stop)
    torch.randn(5)
    for out in (whole, parts):
        pretrain(config, demos, out, no_progress)
    weights, others = read_weights(whole), read_weights(parts)
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
