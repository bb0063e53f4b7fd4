"""The command `handoff robustness`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.evaluation.robustness import robustness_command
from robots.errors import HandoffError

SHORT = ("protocol.episodes=2", "protocol.max_steps=3", "sweep.camera_shift=[0.02]")


@pytest.mark.needs("opengl")
def test_agents_are_measured_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = (*SHORT, "sweep.light=[]", "sweep.clutter=[]")
    robustness_command("pick_cube_cameras", overrides, ["expert", "random"], tmp_path)
    found = json.loads((tmp_path / "robustness.json").read_text())
    assert [row["name"] for row in found["conditions"]] == ["nominal", "camera_shift=0.02"]
    assert found["protocol"]["episodes"] == 2
    printed = capsys.readouterr().out
    assert "against expert" in printed
    assert "report.html" in printed


def test_what_the_command_cannot_do_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(HandoffError, match="needs the engine mujoco"):
        robustness_command("reach", (), ["expert"], out)
    with pytest.raises(HandoffError, match=r"protocol\.sampling\.denoising_steps"):
        robustness_command("pick_cube_cameras", ["denoising_steps=2"], ["expert"], out)
    assert not out.exists()
