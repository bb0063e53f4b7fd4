import numpy as np
import pytest

from real.deploy.onnx_policy import OnnxPolicy
from robots.errors import HandoffError, SafetyError
from tests.real.fakes import contract
from tests.real.onnx_models import save_policy


@pytest.fixture
def policy_file(tmp_path):
    save_policy(tmp_path / "policy.onnx")
    return tmp_path / "policy.onnx"


def test_chunk_is_what_the_graph_computes(policy_file):
    observation = np.zeros((3, 2, 20), np.float32)
    observation[:, 1, 18:] = [0.2, 0.3]
    noise = np.ones((3, 16, 2), np.float32)
    action = OnnxPolicy(policy_file)(observation, noise)
    np.testing.assert_allclose(action, np.broadcast_to([0.21, 0.31], (3, 16, 2)), rtol=1e-6)


def test_contract_travels_inside_the_file(policy_file):
    assert OnnxPolicy(policy_file).contract == contract()


def test_missing_file_is_named(tmp_path):
    with pytest.raises(HandoffError, match=r"nothing\.onnx does not exist"):
        OnnxPolicy(tmp_path / "nothing.onnx")


def test_truncated_file_is_one_clear_error(policy_file):
    policy_file.write_bytes(policy_file.read_bytes()[:200])
    with pytest.raises(HandoffError, match="cannot be loaded"):
        OnnxPolicy(policy_file)


def test_file_without_contract_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", with_contract=False)
    with pytest.raises(HandoffError, match="contains no contract"):
        OnnxPolicy(tmp_path / "policy.onnx")


def test_graph_of_another_horizon_than_its_contract_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", horizon=12)
    with pytest.raises(
        HandoffError, match=r"'noise' is \(batch, 12, 2\), its contract says \(batch, 16, 2\)"
    ):
        OnnxPolicy(tmp_path / "policy.onnx")


def test_wrong_shaped_observation_is_refused(policy_file):
    with pytest.raises(
        HandoffError, match=r"observation has shape \(1, 2, 19\), expected \(batch, 2, 20\)"
    ):
        OnnxPolicy(policy_file)(np.zeros((1, 2, 19), np.float32), np.zeros((1, 16, 2), np.float32))


def test_rows_of_noise_and_observation_must_agree(policy_file):
    with pytest.raises(HandoffError, match="2 observations but 1 noise rows"):
        OnnxPolicy(policy_file)(np.zeros((2, 2, 20), np.float32), np.zeros((1, 16, 2), np.float32))


def test_nan_observation_is_refused(policy_file):
    observation = np.zeros((1, 2, 20), np.float32)
    observation[0, 1, 3] = np.nan
    with pytest.raises(SafetyError, match=r"observation at index \(0, 1, 3\) is nan"):
        OnnxPolicy(policy_file)(observation, np.zeros((1, 16, 2), np.float32))


def test_nan_action_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", scale=np.nan)
    with pytest.raises(SafetyError, match=r"action\[0, 0, 0\] is nan, expected finite"):
        OnnxPolicy(tmp_path / "policy.onnx")(
            np.zeros((1, 2, 20), np.float32), np.zeros((1, 16, 2), np.float32)
        )
