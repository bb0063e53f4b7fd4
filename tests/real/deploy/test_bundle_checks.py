import numpy as np
import pytest

from real.deploy.bundle_checks import (
    LatencyConfig,
    draw_latencies,
    golden_parity,
    measure_latency,
    read_golden,
    robot_actions,
)
from real.deploy.onnx_policy import OnnxPolicy
from robots.errors import HandoffError, SafetyError
from robots.interfaces import no_progress
from tests.real.onnx_models import save_policy

SCALE = np.tile([0.25, 0.5], (16, 1))
SHORT = LatencyConfig(repeats=40, warmup=2)


@pytest.fixture
def bundle(tmp_path):
    save_policy(tmp_path / "policy.onnx")
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(5, 2, 20)).astype(np.float32)
    noise = generator.normal(size=(5, 16, 2)).astype(np.float32)
    action = OnnxPolicy(tmp_path / "policy.onnx")(observation, noise)
    np.savez(
        tmp_path / "golden.npz",
        observation=observation,
        noise=noise,
        action=action,
        action_scale=SCALE,
    )
    return tmp_path


def change_golden(bundle, **arrays):
    golden = {**np.load(bundle / "golden.npz"), **arrays}
    kept = {name: array for name, array in golden.items() if array is not None}
    np.savez(bundle / "golden.npz", **kept)


def parity(bundle):
    return golden_parity(OnnxPolicy(bundle / "policy.onnx"), read_golden(bundle / "golden.npz"))


def test_an_unchanged_policy_agrees(bundle):
    assert parity(bundle).normalised <= 1e-6


def test_differences_are_in_normalised_units_and_per_entry_in_physical_ones(bundle):
    action = np.load(bundle / "golden.npz")["action"].copy()
    action[2, 3, 0] += 0.0025
    change_golden(bundle, action=action)
    measured = parity(bundle)
    assert measured.normalised == pytest.approx(0.01, rel=1e-3)
    assert measured.physical == pytest.approx([0.0025, 0.0], abs=1e-6)


def test_changed_weights_differ(bundle):
    save_policy(bundle / "policy.onnx", scale=0.0101)
    assert parity(bundle).normalised > 1e-5


def test_weights_that_are_not_numbers_are_named(bundle):
    save_policy(bundle / "policy.onnx", scale=float("nan"))
    with pytest.raises(SafetyError, match=r"action\[0, 0, 0\] is nan, expected finite"):
        parity(bundle)


def test_latencies_of_bundle_and_reference(bundle):
    save_policy(bundle / "slow.onnx", sampler="ddim-10", loops=10)
    times = measure_latency(
        SHORT,
        OnnxPolicy(bundle / "policy.onnx"),
        OnnxPolicy(bundle / "slow.onnx"),
        read_golden(bundle / "golden.npz"),
        no_progress,
    )
    assert (len(times.bundle), len(times.reference)) == (40, 8)
    assert (times.bundle > 0.0).all()
    draw_latencies(times, 1.0, bundle / "latency.png")
    assert (bundle / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_the_process_of_a_robot_infers_recorded_observations(bundle):
    generator = np.random.default_rng(1)
    fields = {
        "agent": generator.normal(size=(11, 2)).astype(np.float32),
        "keypoints": generator.normal(size=(11, 9, 2)).astype(np.float32),
    }
    first, second = robot_actions(bundle / "policy.onnx", [3, 4], [fields, fields])
    assert first.shape == (11, 2)
    # Chunks of eight actions begin at steps 0 and 8, and hold the agent's position there.
    assert np.abs(first[:8] - fields["agent"][0]).max() < 0.06
    assert np.abs(first[8:] - fields["agent"][8]).max() < 0.06
    assert not np.array_equal(first, second)


def test_an_error_in_the_process_of_a_robot_is_raised_here(bundle):
    with pytest.raises(HandoffError, match=r"lacks \['keypoints'\]"):
        robot_actions(bundle / "policy.onnx", [3], [{"agent": np.zeros((2, 2), np.float32)}])


def test_examples_that_are_not_numbers_are_refused(bundle):
    change_golden(bundle, action=np.full((5, 16, 2), np.nan, np.float32))
    with pytest.raises(HandoffError, match="action is empty or not finite"):
        parity(bundle)


def test_a_missing_array_is_named(bundle):
    change_golden(bundle, noise=None)
    with pytest.raises(HandoffError, match=r"lacks \['noise'\]"):
        parity(bundle)


def test_a_bad_action_scale_is_refused(bundle):
    change_golden(bundle, action_scale=0.0 * SCALE)
    with pytest.raises(
        HandoffError, match=r"smallest entry of 0, expected \(16, 2\) positive numbers"
    ):
        parity(bundle)
