"""Runs of FPO and ReinFlow from saved policy to saved policy: resumption, cards, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.load import load_module
from policies.rl.finetuning.config import FinetuneConfig
from policies.rl.finetuning.finetune import STATE
from robots.errors import HandoffError
from tests.policies.rl.finetuning.denoising.flow_actors import FPO, FPO_PLUS_PLUS, REINFLOW
from tests.policies.rl.finetuning.test_finetune import (
    SMALL,
    KilledError,
    curve,
    killing,
    run_finetuning,
    write_policy,
)

CONFIGS = pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, algorithm=FPO),
        replace(SMALL, algorithm=replace(FPO_PLUS_PLUS, steps=5)),
        replace(SMALL, algorithm=replace(REINFLOW, steps=5)),
    ],
    ids=["fpo", "fpo++", "reinflow"],
)


@CONFIGS
def test_a_killed_run_goes_on_and_learns_as_much_as_an_uninterrupted_one(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    """New episodes begin where it goes on, so the weights differ, but not by more than learning
    changes them."""
    policy = write_policy(tmp_path, "flow")
    run_finetuning(policy, tmp_path / "whole", config)
    with pytest.raises(KilledError):
        run_finetuning(policy, tmp_path / "killed", config, progress=killing(3))
    before = curve(tmp_path / "killed")
    assert (tmp_path / "killed" / STATE).exists()
    run_finetuning(policy, tmp_path / "killed", config)
    after = curve(tmp_path / "killed")
    assert after[:3] == before
    assert [entry["rollout"] for entry in after] == [1, 2, 3, 4]
    for entry, other in zip(before, curve(tmp_path / "whole")[:3], strict=True):
        assert {**entry, "cpu_seconds": 0} == {**other, "cpu_seconds": 0}
    weights = [
        load_module(folder)[0].state_dict()
        for folder in (policy, tmp_path / "whole", tmp_path / "killed")
    ]
    moved, apart = (
        float(sum((weights[a][name] - weights[b][name]).square().sum() for name in weights[0]))
        for a, b in ((1, 0), (2, 1))
    )
    assert 0.0 < apart < moved
    steps = getattr(config.algorithm, "steps", None)
    module, card = load_module(tmp_path / "killed")
    assert module.sampler_steps == (steps or 10)
    assert card.model.inference_steps == (steps or 10)  # type: ignore[union-attr]
    assert torch.isfinite(torch.tensor([entry["kl"] for entry in after])).all()


@pytest.mark.parametrize("algorithm", [FPO, REINFLOW], ids=["fpo", "reinflow"])
def test_a_diffusion_policy_is_refused(algorithm, tmp_path: Path) -> None:
    policy = write_policy(tmp_path)
    with pytest.raises(HandoffError, match="with objective 'diffusion', expected a flow policy"):
        run_finetuning(policy, tmp_path / "out", replace(SMALL, algorithm=algorithm))
