import json
from dataclasses import replace

import numpy as np
import pytest

from real.deploy.onnx_policy import OnnxPolicy
from real.deploy.release_gate import GateConfig, gate
from robots.errors import GateError, HandoffError
from robots.interfaces import no_progress
from tests.real.onnx_models import save_policy

# Times of the tiny models say nothing: only the checks that a test is about are strict.
LENIENT = GateConfig(p99_ms=1e6, min_speedup=0.0, repeats=40, warmup=2)
SCALE = np.tile([0.25, 0.5], (16, 1))


@pytest.fixture
def bundles(tmp_path):
    for name in ("bundle", "reference", "out"):
        (tmp_path / name).mkdir()
    save_policy(tmp_path / "bundle" / "policy.onnx")
    save_policy(tmp_path / "reference" / "policy.onnx", sampler="ddim-10", loops=10)
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(5, 2, 20)).astype(np.float32)
    noise = generator.normal(size=(5, 16, 2)).astype(np.float32)
    action = OnnxPolicy(tmp_path / "bundle" / "policy.onnx")(observation, noise)
    np.savez(
        tmp_path / "bundle" / "golden.npz",
        observation=observation,
        noise=noise,
        action=action,
        action_scale=SCALE,
    )
    return tmp_path


def change_golden(bundles, **arrays):
    path = bundles / "bundle" / "golden.npz"
    golden = {**np.load(path), **arrays}
    np.savez(path, **{name: array for name, array in golden.items() if array is not None})


def run(bundles, config=LENIENT):
    return gate(config, bundles / "bundle", bundles / "reference", bundles / "out", no_progress)


def test_agreeing_bundle_passes_and_leaves_figures_and_picture(bundles):
    figures = run(bundles)
    assert figures["parity"] <= 1e-6
    assert figures["golden"] == 5
    assert figures["reference_sampler"] == "ddim-10"
    assert figures["speedup"] == figures["reference_p50_ms"] / figures["latency_p50_ms"]
    assert json.loads((bundles / "out" / "gate.json").read_text()) == figures
    assert (bundles / "out" / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_difference_is_measured_in_normalised_units(bundles):
    action = np.load(bundles / "bundle" / "golden.npz")["action"].copy()
    action[2, 3, 0] += 0.0025
    change_golden(bundles, action=action)
    assert run(bundles, replace(LENIENT, tolerance=0.0101))["parity"] == pytest.approx(
        0.01, rel=1e-3
    )


def test_changed_weights_are_not_released_and_the_figures_are_kept(bundles):
    save_policy(bundles / "bundle" / "policy.onnx", scale=0.0101)
    with pytest.raises(
        GateError,
        match=r"bundle was not released: ONNX Runtime differs from torch by .* limit 1e-05",
    ):
        run(bundles)
    verdict = json.loads((bundles / "out" / "gate.json").read_text())
    assert verdict["passed"] is False
    assert verdict["parity"] > 1e-5


def test_slow_bundle_is_not_released(bundles):
    with pytest.raises(GateError, match=r"p99 latency is .* ms, limit 0 ms"):
        run(bundles, replace(LENIENT, p99_ms=0))


def test_bundle_no_faster_than_its_reference_is_not_released(bundles):
    with pytest.raises(GateError, match="times as fast as ddim-10, at least 1e\\+06 required"):
        run(bundles, replace(LENIENT, min_speedup=1e6))


def test_every_missed_threshold_is_named(bundles):
    with pytest.raises(GateError) as raised:
        run(bundles, replace(LENIENT, p99_ms=0.0, min_speedup=1e6))
    assert len(json.loads((bundles / "out" / "gate.json").read_text())["failed"]) == 2
    assert "p99" in str(raised.value)
    assert "times as fast" in str(raised.value)


def test_nan_in_golden_does_not_pass(bundles):
    change_golden(bundles, action=np.full((5, 16, 2), np.nan, np.float32))
    with pytest.raises(HandoffError, match="action is empty or not finite"):
        run(bundles)


def test_missing_golden_array_is_named(bundles):
    change_golden(bundles, noise=None)
    with pytest.raises(HandoffError, match=r"lacks \['noise'\]"):
        run(bundles)


def test_bad_action_scale_is_refused(bundles):
    change_golden(bundles, action_scale=0.0 * SCALE)
    with pytest.raises(
        HandoffError, match=r"smallest entry of 0, expected \(16, 2\) positive numbers"
    ):
        run(bundles)
