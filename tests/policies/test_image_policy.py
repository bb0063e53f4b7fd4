"""Policies with images and point clouds: training, inference, export and serving, on a task to
reach a bright square."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from flows.serve import open_policy
from policies.card import Shapes
from policies.export.onnx import ExportConfig, export
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.networks.config import PointEncoderConfig, ResnetEncoderConfig
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import Batch, ObservationTensors
from policies.training.config import TrainingConfig
from policies.training.loop import autocast, rng
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import CONTRACT_KEY, Contract
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.spec import FieldSpec
from tests.policies.conftest import TINY
from tests.policies.served import ask, served

EDGE, CROP = 44, 40
SEEING = replace(
    TINY,
    observation_fields=("agent",),
    image_fields=("camera",),
    inference_steps=1,
    image_encoder=ResnetEncoderConfig(
        channels=(16, 32), crop=(CROP, CROP), keypoints=8, features=16
    ),
    point_encoder=PointEncoderConfig(widths=(8, 16), features=8),
)
TRAINING = TrainingConfig(
    steps=40,
    learning_rate=1e-3,
    batch_size=8,
    warmup_steps=5,
    log_every=10,
    precision="fp32",
    device="cpu",
)
CONFIG = PretrainConfig(policy=SEEING, training=TRAINING, validation_fraction=0.2)
PICTURES = Shapes({"agent": (0, 2)}, 2, 0, {"camera": (EDGE, EDGE, 3)})
CLOUDS = Shapes({"agent": (0, 2)}, 2, 0, {"cloud": (6, 3)})
POINTS = replace(SEEING, image_fields=(), point_fields=("cloud",))


def picture(goal: np.ndarray) -> np.ndarray:
    """A white square of 8 px on black, whose corner is at the position `goal`."""
    image = np.zeros((EDGE, EDGE, 3), np.uint8)
    row, column = (goal * (EDGE - 8)).astype(int)
    image[row : row + 8, column : column + 8] = 255
    return image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten reaches to a goal that is visible in the image only; cloud points are 5 m away."""
    demos = tmp_path_factory.mktemp("pictures")
    point = FieldSpec(shape=(2,), unit="m")
    camera = FieldSpec(shape=(EDGE, EDGE, 3), dtype="uint8", unit="u8")
    fields = {
        "agent": point,
        "action": point,
        "camera": camera,
        "cloud": FieldSpec(shape=(6, 3), unit="m"),
    }
    schema = EpisodeSchema(
        name="square", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    draw = np.random.default_rng(0)
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for _ in range(10):
            goal = draw.uniform(0.0, 1.0, 2)
            action = goal * np.linspace(0.1, 1.0, 12)[:, None]
            values = {
                "agent": np.concatenate([np.zeros((1, 2)), action[:-1]]),
                "action": action,
                "camera": np.broadcast_to(picture(goal), (12, EDGE, EDGE, 3)),
                "cloud": 5.0 + draw.uniform(-0.2, 0.2, (12, 6, 3)),
            }
            writer.append({"policy": values}, {})
    return demos


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("seeing")
    pretrain(CONFIG, pictures, out, no_progress)
    return out


def untrained(config=SEEING, shapes: Shapes = PICTURES) -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(config, shapes)


def camera(rows: int, seed: int = 0) -> np.ndarray:
    """Squares anywhere, on faint noise; (rows, 2, EDGE, EDGE, 3)."""
    draw = np.random.default_rng(seed)
    squares = np.stack([picture(draw.uniform(0.0, 1.0, 2)) for _ in range(2 * rows)])
    return np.maximum(squares, draw.integers(0, 30, squares.shape, dtype=np.uint8)).reshape(
        rows, 2, EDGE, EDGE, 3
    )


def policy_input(rows: int, seed: int = 0) -> tuple[PolicyInput, np.ndarray]:
    draw = np.random.default_rng(seed)
    vector = draw.uniform(0.0, 1.0, (rows, 2, 2)).astype(np.float32)
    return PolicyInput(vector, {"camera": camera(rows, seed)}), draw.standard_normal(
        (rows, 4, 2), dtype=np.float32
    )


def batch(rows: int = 4) -> Batch:
    draw = torch.Generator().manual_seed(0)
    obs = ObservationTensors(
        torch.rand(rows, 2, 2, generator=draw), {"camera": torch.from_numpy(camera(rows))}
    )
    return Batch(
        obs, torch.randn(rows, 4, 2, generator=draw), torch.zeros(rows, 4, dtype=torch.bool)
    )


def test_the_loss_falls(trained: Path):
    curve = [json.loads(line)["loss"] for line in (trained / "loss.jsonl").read_text().splitlines()]
    assert curve[-1] < 0.9 * curve[0]


def test_a_saved_policy_answers_as_the_module_it_was_loaded_into(trained: Path):
    given, noise = policy_input(3)
    module, _ = load_module(trained)
    with torch.no_grad():
        expected = module(
            torch.from_numpy(given.vector),
            torch.from_numpy(noise),
            {"camera": torch.from_numpy(given.sensors["camera"])},
        )
    np.testing.assert_array_equal(load_policy(trained)(given, noise), expected.numpy())


def test_a_policy_saved_before_crops_were_proportional_acts_as_it_did(
    trained: Path, tmp_path: Path
):
    old = shutil.copytree(trained, tmp_path / "old")
    card = json.loads((old / "config.json").read_text())
    encoder = card["model"]["image_encoder"]
    card["model"]["image_encoder"] = {
        name: encoder[name] for name in ("channels", "crop", "keypoints", "features")
    }
    (old / "config.json").write_text(json.dumps(card))
    assert load_module(old)[1] == load_module(trained)[1]
    given, noise = policy_input(3)
    np.testing.assert_array_equal(
        load_policy(old)(given, noise), load_policy(trained)(given, noise)
    )


def test_the_answer_depends_on_the_picture(trained: Path):
    given, noise = policy_input(2)
    other = given._replace(sensors={"camera": camera(2, seed=1)})
    policy = load_policy(trained)
    assert np.abs(policy(given, noise) - policy(other, noise)).max() > 1e-4


def test_only_the_middle_of_a_picture_is_looked_at_in_inference(trained: Path):
    given, noise = policy_input(2)
    framed = given.sensors["camera"].copy()
    edge = (EDGE - CROP) // 2
    framed[:, :, :edge] = framed[:, :, -edge:] = 255 - framed[:, :, :edge]
    policy = load_policy(trained)
    np.testing.assert_array_equal(
        policy(given, noise), policy(given._replace(sensors={"camera": framed}), noise)
    )


def test_a_training_that_stopped_ends_with_the_weights_it_would_have_had(
    pictures: Path, tmp_path: Path
):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 5:
            raise StopError

    training = replace(TRAINING, steps=8, log_every=2, checkpoint_seconds=0.0)
    config = replace(CONFIG, training=training)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    pretrain(config, pictures, whole, no_progress)
    with pytest.raises(StopError):
        pretrain(config, pictures, parts, stop)
    pretrain(config, pictures, parts, no_progress)
    assert (parts / "policy.safetensors").read_bytes() == (
        whole / "policy.safetensors"
    ).read_bytes()


def test_crops_of_an_update_come_from_its_own_random_numbers():
    encoder = untrained().encoder
    obs = batch().obs
    once, again, other, middle = (
        encoder(obs, draw) for draw in (rng(0, 1), rng(0, 1), rng(0, 2), None)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not torch.equal(once, middle)
    assert torch.equal(middle, encoder(obs))


def test_learning_crops_at_random_and_trying_out_in_the_middle():
    policy, rows = untrained(), batch()
    policy.eval()
    tried = policy.loss(rows, rng(0, 1))
    assert torch.equal(tried, policy.loss(rows, rng(0, 1)))
    policy.train()
    learned = policy.loss(rows, rng(0, 1))
    assert torch.equal(learned, policy.loss(rows, rng(0, 1)))
    assert not torch.equal(learned, tried)


def test_bf16_comes_close_and_leaves_the_gradients_in_fp32():
    policy, rows = untrained(), batch()
    full = policy.loss(rows, rng(0, 1))
    with autocast("bf16", policy.device):
        half = policy.loss(rows, rng(0, 1))
    half.backward()
    assert half.item() == pytest.approx(full.item(), rel=0.03)
    assert {p.grad.dtype for p in policy.parameters() if p.grad is not None} == {torch.float32}


def test_loaded_filters_keep_channels_last_in_memory(trained: Path):
    module, _ = load_module(trained)
    filters = [p for p in module.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[-1] > 1]
    assert len(filters) == 9
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in filters)


def test_a_policy_without_the_picture_is_refused(trained: Path):
    given, noise = policy_input(1)
    with pytest.raises(HandoffError, match=r"sensors are \[\], expected \['camera'\]"):
        load_policy(trained)(given.vector, noise)


def test_pictures_of_another_size_are_refused(trained: Path):
    given, noise = policy_input(1)
    larger = np.zeros((1, 2, EDGE + 1, EDGE + 1, 3), np.uint8)
    with pytest.raises(HandoffError, match=r"camera has shape \(1, 2, 45, 45, 3\)"):
        load_policy(trained)(given._replace(sensors={"camera": larger}), noise)


def test_a_crop_that_does_not_fit_is_refused_before_training():
    config = replace(SEEING, image_encoder=ResnetEncoderConfig(crop=(84, 84)))
    with pytest.raises(
        HandoffError, match=r"image_encoder\.crop: 84 x 84 px .* 'camera', which have 44 x 44 px"
    ):
        untrained(config)


def test_a_sensor_without_data_is_refused():
    with pytest.raises(
        HandoffError, match=r"no data for the sensors \['camera'\]; the data have \['cloud'\]"
    ):
        untrained(SEEING, CLOUDS)


def test_points_reach_the_encoder_between_minus_one_and_one():
    encoder = ObservationEncoder(POINTS, CLOUDS)
    low, high = np.array([4.0, -1.0, 0.0]), np.array([6.0, 1.0, 0.5])
    first, second = np.zeros((1, 1, 3)) + low, np.zeros((2, 1, 3)) + high
    encoder.fit_sensors([{"cloud": first, "camera": np.zeros((1, 2))}, {"cloud": second}])
    encoder_inputs = []
    encoder.points["cloud"].register_forward_pre_hook(
        lambda module, given: encoder_inputs.append(given[0])
    )
    cloud = torch.from_numpy(np.stack([low, (low + high) / 2, high])).float()[None, None]
    encoder(ObservationTensors(torch.zeros(1, 1, 2), {"cloud": cloud}))
    assert encoder_inputs[0][0, 0].tolist() == [
        [-1.0, -1.0, -1.0],
        [0.0, 0.0, 0.0],
        [1.0, 1.0, 1.0],
    ]


def test_the_range_of_the_points_is_saved_with_the_policy(pictures: Path, tmp_path: Path):
    config = replace(CONFIG, policy=POINTS, training=replace(TRAINING, steps=10))
    pretrain(config, pictures, tmp_path, no_progress)
    module, _ = load_module(tmp_path)
    centre = module.get_buffer("encoder.normalize_points.cloud.centre")
    assert (centre - 5.0).abs().max() < 0.05
    cloud = np.random.default_rng(0).uniform(4.8, 5.2, (3, 2, 6, 3)).astype(np.float32)
    given, noise = policy_input(3)
    assert np.isfinite(
        load_policy(tmp_path)(PolicyInput(given.vector, {"cloud": cloud}), noise)
    ).all()


@pytest.fixture(scope="module")
def bundle(trained: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle")
    config = ExportConfig(action_interface="pd_target", golden=5)
    export(
        config,
        trained,
        pictures,
        out,
        no_progress,
        "p" * 64,
        "d" * 64,
    )
    return out


@pytest.fixture(scope="module")
def session(bundle: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        str(bundle / "policy.onnx"), providers=["CPUExecutionProvider"]
    )


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [1, 3])
def test_onnx_answers_to_pictures_as_torch(
    trained: Path, session: onnxruntime.InferenceSession, rows: int
):
    assert [node.name for node in session.get_inputs()] == ["observation", "noise", "camera"]
    given, noise = policy_input(rows)
    (action,) = session.run(
        ["action"], {"observation": given.vector, "noise": noise, "camera": given.sensors["camera"]}
    )
    scale = load_module(trained)[0].normalize_action.scale.numpy()
    assert (np.abs(np.asarray(action) - load_policy(trained)(given, noise)) / scale).max() <= 1e-4


def test_golden_examples_hold_the_pictures(bundle: Path, session: onnxruntime.InferenceSession):
    golden = np.load(bundle / "golden.npz")
    contract = Contract.from_json(session.get_modelmeta().custom_metadata_map[CONTRACT_KEY])
    assert contract.sensors["camera"].shape == (EDGE, EDGE, 3)
    assert golden["sensors/camera"].shape == (5, 2, EDGE, EDGE, 3)
    given = {
        "observation": golden["observation"],
        "noise": golden["noise"],
        "camera": golden["sensors/camera"],
    }
    (action,) = session.run(["action"], given)
    assert (np.abs(np.asarray(action) - golden["action"]) / golden["action_scale"]).max() <= 1e-4


def test_the_exported_policy_takes_pictures_and_refuses_missing_scaled_or_turned_ones(bundle: Path):
    policy = OnnxPolicy(bundle / "policy.onnx")
    golden = np.load(bundle / "golden.npz")
    vector, noise, camera = (golden[name] for name in ("observation", "noise", "sensors/camera"))
    action = policy(PolicyInput(vector, {"camera": camera}), noise)
    assert (np.abs(action - golden["action"]) / golden["action_scale"]).max() <= 1e-4
    with pytest.raises(HandoffError, match="needs camera, which the observation lacks"):
        policy(vector, noise)
    with pytest.raises(HandoffError, match="camera is float32, expected uint8 from 0 to 255"):
        policy(PolicyInput(vector, {"camera": camera.astype(np.float32)}), noise)
    with pytest.raises(HandoffError, match="axes in another order"):
        policy(PolicyInput(vector, {"camera": np.moveaxis(camera, -1, 2)}), noise)


def request(given: PolicyInput, noise: np.ndarray) -> dict:
    return {"agent": given.vector[0], "camera": given.sensors["camera"][0], "noise": noise[0]}


def test_a_served_policy_sees_the_pictures_of_a_request(trained: Path):
    policy, contract = open_policy(trained, "pd_target")
    assert contract.sampler == load_module(trained)[0].sampler
    given, noise = policy_input(1)
    with served(policy, contract) as server, server.client() as connection:
        answer = ask(connection, request(given, noise))
        blind = ask(connection, {"agent": given.vector[0], "noise": noise[0]})
        scaled = ask(
            connection, request(given, noise) | {"camera": given.sensors["camera"][0] / 255.0}
        )
        short = ask(connection, request(given, noise) | {"camera": given.sensors["camera"][0, :1]})
    np.testing.assert_array_equal(answer["prediction"], load_policy(trained)(given, noise)[0])
    assert "missing ['camera']" in blind
    assert "camera: images are float64, expected uint8" in scaled
    assert "camera: 1 steps, expected" in short


def test_a_served_language_conditioned_policy_gets_the_prompt(trained: Path):
    instructions = []

    def policy(observation, noise):
        instructions.append(observation.instructions)
        return noise

    contract = replace(open_policy(trained, "pd_target")[1], instruction=True)
    given, noise = policy_input(1)
    with served(policy, contract) as server, server.client() as connection:
        ask(connection, request(given, noise) | {"prompt": "reach the square"})
        ask(connection, request(given, noise))
        wrong = ask(connection, request(given, noise) | {"prompt": 3})
    assert instructions == [("reach the square",), ()]
    assert "prompt: is of type int, expected text" in wrong
