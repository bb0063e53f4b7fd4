"""Deployments are paired by start, and tuned values stand beside the true ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flows.identification.transfer as transfer
from flows.identification.config import CompareDeploymentsConfig
from flows.identification.transfer_report import write_transfer
from flows.stages.release import compare_deployments as stage
from robots.config import validate
from robots.errors import HandoffError
from sim.identification.report import FIGURES
from sim.scene.deviations import Deviations

TRUTH = validate(
    Deviations,
    {
        "arm": [
            {"what": "friction", "value": 0.6},
            {"what": "payload", "value": 0.8},
            {"what": "viscous", "joints": [1], "value": 2.0},
        ],
        "objects": [{"what": "mass", "names": ["cube"], "factor": 4.0}],
    },
    "",
)
TUNED = {
    "friction of all joints": {"value": 0.59, "interval_95": [0.5, 0.7], "determined": True},
    "payload": {"value": 0.6, "interval_95": [0.5, 0.7], "determined": False},
}


def deployment(name: str, solved: list[int], first_seed: int = 100) -> dict[str, Any]:
    starts = [
        {"seed": first_seed + i, "success": bool(each), "seconds": 2.0 + i}
        for i, each in enumerate(solved)
    ]
    return {"stage": name, "metrics": {"per_start": starts, "faults": 1}}


def compared(
    monkeypatch: pytest.MonkeyPatch, *manifests: dict[str, Any], tuning: Path | None = None
) -> dict[str, Any]:
    by_path = {Path(manifest["stage"]): manifest for manifest in manifests}
    monkeypatch.setattr(transfer, "read_manifest", lambda path: by_path[path])
    config = CompareDeploymentsConfig(deviations=TRUTH)
    return transfer.compare_deployments(list(by_path), tuning, config)


def test_starts_are_paired_by_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = compared(
        monkeypatch,
        deployment("before", [1, 0, 0, 0, 0, 0, 0, 1]),
        deployment("after", [0, 1, 1, 1, 1, 1, 1, 1]),
    )
    rates = [(row["name"], row["success"]["k"]) for row in figures["deployments"]]
    assert rates == [("before", 2), ("after", 7)]
    assert figures["deployments"][0]["seconds"] == pytest.approx(5.5)
    (pair,) = figures["pairs"]
    assert (pair["only_first"], pair["only_second"]) == (1, 6)
    # Binomial, seven starts, one against six: 2 (1 + 7) / 2^7.
    assert pair["p_value"] == pair["p_holm"] == pytest.approx(0.125)
    assert pair["mean"] == pytest.approx(5 / 8)
    assert pair["low"] < 5 / 8 < pair["high"]
    assert figures["parameters"] == []


def test_three_deployments_are_three_pairs_with_holms_correction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = compared(
        monkeypatch,
        deployment("before", [0] * 8),
        deployment("control", [0] * 8),
        deployment("after", [1] * 8),
    )
    pairs = {(pair["first"], pair["second"]): pair for pair in figures["pairs"]}
    assert pairs["before", "control"]["p_value"] == 1.0
    # 2 / 2^8, times 3 and times 2.
    assert pairs["before", "after"]["p_holm"] == pytest.approx(3 / 128)


def test_other_starts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HandoffError, match=r"differ in 2 starts, such as seed 100\. Give them"):
        compared(
            monkeypatch,
            deployment("before", [1, 1]),
            deployment("after", [1, 1], first_seed=101),
        )


def test_a_true_value_is_inside_or_beside_its_interval_or_was_not_tuned() -> None:
    rows, missing = transfer.identified(TRUTH, TUNED)
    assert [(row["name"], row["inside"], row["determined"]) for row in rows] == [
        ("friction of all joints", True, True),
        ("payload", False, False),
    ]
    assert rows[1]["true"] == 0.8
    assert missing == ["viscous of joint 1", "mass of cube"]


def test_the_page_has_the_rates_the_pairs_and_the_parameters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / FIGURES).write_text(json.dumps({"parameters": TUNED}))
    figures = compared(
        monkeypatch,
        deployment("before", [1, 0, 0, 0]),
        deployment("after", [1, 1, 1, 0]),
        tuning=tmp_path,
    )
    write_transfer(figures, tmp_path)
    page = (tmp_path / "report.html").read_text()
    for word in ("1 of 4", "3 of 4", "0.59", "payload", "Not tuned: viscous of joint 1"):
        assert word in page
    assert json.loads((tmp_path / "deployments.json").read_text())["pairs"][0]["only_second"] == 2
    assert (tmp_path / "deployments.png").stat().st_size > 1000


def test_a_single_deployment_is_refused() -> None:
    with pytest.raises(HandoffError, match="1 deployment, expected two"):
        stage.check(CompareDeploymentsConfig(), {"deployments": [object()]})
