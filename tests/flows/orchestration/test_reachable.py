"""Where Prefect cannot keep its database, the reason is found at once, before it is started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.orchestration.reachable import check_prefect


def reason(home: Path) -> str | None:
    with temporary_settings({PREFECT_HOME: str(home)}, restore_defaults={PREFECT_API_URL}):
        return check_prefect()


def test_a_home_that_can_be_written_is_no_obstacle(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    assert reason(home) is None
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("parent", ["/proc/none", "file"])
def test_a_home_that_cannot_be_written_is_one_reason_even_for_root(
    tmp_path: Path, parent: str
) -> None:
    """A superuser's permissions do not tell that a file system refuses new folders."""
    (tmp_path / "file").write_text("")
    home = tmp_path / parent / ".prefect"
    began = time.monotonic()
    found = reason(home)
    assert found is not None
    assert found.startswith(f"its folder {home} cannot be written (")
    assert found.endswith("; PREFECT_HOME names another one")
    assert time.monotonic() - began < 5.0
