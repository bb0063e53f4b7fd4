"""Time of one observation of an evaluated policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.evaluation.inference_time import CALLS, write_inference_time
from flows.reports.speed import INFERENCE
from policies.policy_config import BehaviourCloningConfig
from tests.flows.evaluation.test_evaluate import PLAIN, save_untrained


def timed(policy: Path, steps: int | None, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    write_inference_time(policy, steps, None, "cpu", folder)
    return json.loads((folder / INFERENCE).read_text())


def test_twenty_steps_take_longer_than_one(tmp_path: Path) -> None:
    policy = save_untrained(tmp_path / "policy", PLAIN)
    one, own, many = (timed(policy, steps, tmp_path / f"{steps}") for steps in (1, None, 20))
    assert [each["denoising_steps"] for each in (one, own, many)] == [1, 2, 20]
    assert (one["runtime"], one["device"], one["calls"]) == ("torch", "cpu", CALLS)
    assert many["p50_ms"] > 3.0 * one["p50_ms"] > 0.0
    assert one["p99_ms"] >= one["p50_ms"]


@pytest.mark.parametrize("cameras", [(), ("image",)])
def test_a_policy_without_a_sampler_has_no_steps(cameras: tuple[str, ...], tmp_path: Path) -> None:
    model = replace(BehaviourCloningConfig(hidden=(8,)), image_fields=cameras)
    if cameras:
        encoder = replace(model.image_encoder, channels=(16, 16, 16, 16), crop=(40, 40))
        model = replace(model, image_encoder=encoder)
    found = timed(save_untrained(tmp_path / "policy", model), 1, tmp_path / "out")
    assert found["denoising_steps"] is None
    assert found["p50_ms"] > 0.0
