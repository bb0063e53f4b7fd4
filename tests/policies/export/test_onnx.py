from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from policies.export.onnx import ExportConfig, export
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.training.config import TrainingConfig
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import CONTRACT_KEY, Contract
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.conftest import TINY

CONFIG = ExportConfig(action_interface="pd_target", golden=32)


@pytest.fixture(scope="module")
def bundle(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained policy as one file, with its golden examples."""
    policy, out = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("bundle")
    training = TrainingConfig(steps=50, learning_rate=1e-2, batch_size=16, precision="fp32")
    pretrain(PretrainConfig(policy=TINY, training=training), demos, policy, no_progress)
    export(CONFIG, policy, demos, out, no_progress, "p" * 64, "d" * 64)
    return out


@pytest.fixture(scope="module")
def session(bundle: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        str(bundle / "policy.onnx"), providers=["CPUExecutionProvider"]
    )


def run(
    session: onnxruntime.InferenceSession, observation: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    (action,) = session.run(["action"], {"observation": observation, "noise": noise})
    return np.asarray(action)


def test_onnx_answers_as_torch_did(bundle: Path, session: onnxruntime.InferenceSession):
    golden = np.load(bundle / "golden.npz")
    action = run(session, golden["observation"], golden["noise"])
    assert np.abs((action - golden["action"]) / golden["action_scale"]).max() <= 1e-5


def test_the_batch_is_dynamic(bundle: Path, session: onnxruntime.InferenceSession):
    golden = np.load(bundle / "golden.npz")
    action = run(session, golden["observation"][:1], golden["noise"][:1])
    assert action.shape == (1, 4, 2)
    assert np.abs((action - golden["action"][:1]) / golden["action_scale"]).max() <= 1e-5


def test_a_flow_takes_batches_of_any_size(demos: Path, tmp_path: Path):
    training = TrainingConfig(steps=5, learning_rate=1e-2, batch_size=16, precision="fp32")
    flow = replace(TINY, objective="flow")
    pretrain(PretrainConfig(policy=flow, training=training), demos, tmp_path, no_progress)
    export(CONFIG, tmp_path, demos, tmp_path, no_progress, "p" * 64, "d" * 64)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"]
    )
    golden = np.load(tmp_path / "golden.npz")
    for rows in (1, 2, 32):
        action = run(session, golden["observation"][:rows], golden["noise"][:rows])
        difference = (action - golden["action"][:rows]) / golden["action_scale"]
        assert np.abs(difference).max() <= 1e-5


def test_the_noise_reaches_the_action(bundle: Path, session: onnxruntime.InferenceSession):
    golden = np.load(bundle / "golden.npz")
    action = run(session, golden["observation"], golden["noise"][::-1].copy())
    assert np.abs(action - golden["action"]).max() > 1e-3


def test_golden_examples_are_recorded_observations_in_physical_units(bundle: Path):
    golden = np.load(bundle / "golden.npz")
    assert golden["observation"].shape == (32, 2, 4)
    assert 0.0 <= golden["observation"].min() < golden["observation"].max() <= 0.4
    assert all(golden[name].dtype == np.float32 for name in golden)
    parts = [golden[f"fields/{name}"].reshape(32, 2, -1) for name in ("goal", "agent")]
    assert np.array_equal(np.concatenate(parts, axis=2), golden["observation"])
    assert golden["rate_hz"] == 10.0


def test_the_action_scale_belongs_to_each_entry_of_the_chunk(bundle: Path):
    scale = np.load(bundle / "golden.npz")["action_scale"]
    assert scale.shape == (4, 2)
    assert (scale > 0.0).all()


def test_the_file_carries_its_contract(session: onnxruntime.InferenceSession):
    contract = Contract.from_json(session.get_modelmeta().custom_metadata_map[CONTRACT_KEY])
    assert contract.sampler == "ddim-4"
    assert (contract.n_obs_steps, contract.horizon, contract.n_action_steps) == (2, 4, 2)
    assert list(contract.observation) == ["goal", "agent"]
    assert (contract.training_data, contract.policy) == ("d" * 64, "p" * 64)


def test_the_bundle_holds_graph_examples_and_descriptions_for_other_runtimes(bundle: Path):
    # manifest.json can describe policies of one observation step only.
    assert {path.name for path in bundle.iterdir()} == {"policy.onnx", "golden.npz", "leapp.yaml"}


def test_a_missing_policy_is_named(demos: Path, tmp_path: Path):
    with pytest.raises(HandoffError, match="no policy is here"):
        export(CONFIG, tmp_path / "nowhere", demos, tmp_path, no_progress, "", "")


def test_decided_actions_are_an_input_of_the_file(demos: Path, tmp_path: Path):
    training = TrainingConfig(steps=20, learning_rate=1e-2, batch_size=16, precision="fp32")
    deciding = replace(TINY, horizon=6, prefix=3)
    pretrain(PretrainConfig(policy=deciding, training=training), demos, tmp_path, no_progress)
    export(CONFIG, tmp_path, demos, tmp_path, no_progress, "p" * 64, "d" * 64)
    policy, golden = OnnxPolicy(tmp_path / "policy.onnx"), read_golden(tmp_path / "golden.npz")
    assert policy.contract.prefix == 3
    assert golden["prefix"].shape == (32, 3, 3)
    assert set(golden["prefix"][..., -1].sum(axis=1)) == {0.0, 1.0, 2.0, 3.0}
    assert golden_parity(policy, golden).normalised <= 1e-5
    # Without a prefix nothing is decided, by torch and in the file.
    torch_policy = load_policy(tmp_path)
    vector, noise = golden["observation"], golden["noise"]
    scale = golden["action_scale"]
    assert np.abs((policy(vector, noise) - torch_policy(vector, noise)) / scale).max() <= 1e-5
    given = PolicyInput(vector, prefix=golden["prefix"])
    assert np.abs((policy(given, noise) - torch_policy(given, noise)) / scale).max() <= 1e-5
    assert np.abs((policy(given, noise) - policy(vector, noise)) / scale).max() > 1e-3
    with pytest.raises(
        HandoffError, match=r"prefix has shape \(32, 2, 3\), expected \(batch, 3, 3\)"
    ):
        policy(PolicyInput(vector, prefix=golden["prefix"][:, 1:]), noise)


def test_a_policy_that_takes_no_decided_actions_refuses_them(bundle: Path):
    golden = np.load(bundle / "golden.npz")
    given = PolicyInput(golden["observation"], prefix=np.zeros((32, 1, 3), np.float32))
    with pytest.raises(HandoffError, match="received a prefix, which it does not take"):
        OnnxPolicy(bundle / "policy.onnx")(given, golden["noise"])
