import numpy as np
import onnx
import pytest

from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import CONTRACT_KEY
from robots.control.training_range import input_range
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


def board_range(low=0.0, high=0.5):
    rows = np.array([[low] * 18, [high] * 18], np.float32)
    return {"keypoints": input_range("m", rows), "agent": input_range("m", rows[:, :2])}


def test_metres_by_the_billion_are_refused_in_place_of_an_action(tmp_path):
    save_policy(tmp_path / "policy.onnx", training_range=board_range())
    policy = OnnxPolicy(tmp_path / "policy.onnx")
    observation, noise = np.full((1, 2, 20), 0.2, np.float32), np.zeros((1, 16, 2), np.float32)
    policy(observation, noise)
    observation[0, 1, 3] = 1e9
    with pytest.raises(
        SafetyError, match=r"keypoints\[1, 1\] is 1e\+09 m, .* it was 0 to 0.5, limits"
    ):
        policy(observation, noise)


def test_pixels_in_place_of_metres_are_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", training_range=board_range())
    with pytest.raises(SafetyError, match="Is it in other units, such as pixels"):
        OnnxPolicy(tmp_path / "policy.onnx")(
            np.full((1, 2, 20), 250.0, np.float32), np.zeros((1, 16, 2), np.float32)
        )


def change_weights(path):
    """Doubles every weight, as a tool would that keeps the metadata."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = 2.0 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, path)


def test_a_file_that_was_changed_after_its_export_is_refused(policy_file):
    change_weights(policy_file)
    with pytest.raises(HandoffError, match=r"was changed after its export: it states the digest"):
        OnnxPolicy(policy_file)


def test_a_file_without_a_digest_is_refused(policy_file):
    model = onnx.load(policy_file)
    del model.metadata_props[-1]
    onnx.save(model, policy_file)
    with pytest.raises(HandoffError, match="it states the digest none"):
        OnnxPolicy(policy_file)


def test_a_changed_file_that_is_asked_for_never_has_the_name_of_the_original(policy_file):
    original = OnnxPolicy(policy_file)
    change_weights(policy_file)
    changed = OnnxPolicy(policy_file, allow_changed=True)
    assert (original.changed, original.name) == (False, original.contract.policy)
    assert (changed.changed, changed.name) == (True, f"changed-{changed.digest}")
    assert changed.digest != original.digest


def test_a_contract_of_the_first_version_asks_for_another_export(policy_file):
    model = onnx.load(policy_file)
    entry = next(entry for entry in model.metadata_props if entry.key == CONTRACT_KEY)
    entry.value = entry.value.replace('"version": 2', '"version": 1')
    onnx.save(model, policy_file)
    with pytest.raises(
        HandoffError, match=r"version 1, this build reads 2\. Export the policy again"
    ):
        OnnxPolicy(policy_file, allow_changed=True)
