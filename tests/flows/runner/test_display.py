"""What a run shows on a terminal."""

from __future__ import annotations

import pytest

from flows.runner.display import Display

REASON = (
    "rollouts: the policy succeeded in 0 of 48 episodes, least_success is 0.2. Keep failed ones."
)


def test_a_failure_is_shown_in_full_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Rich reads these; neither standard stream is a terminal here.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    with Display() as display:
        for copy in ("rollouts@skill=reach", "rollouts@skill=pick_cube"):
            display.started(copy)
            display.finished(copy, REASON, "✗")
    shown = capsys.readouterr().err
    for copy in ("rollouts@skill=reach", "rollouts@skill=pick_cube"):
        assert f"✗ {copy}  {REASON}" in shown
