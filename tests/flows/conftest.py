"""One Prefect server for all flow tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flows import run as runner
from flows.orchestration import flow
from flows.recipes.recipe import Recipe
from flows.runner.stage import Stage


def use_stages(monkeypatch: pytest.MonkeyPatch, runs: Path, declared: Sequence[Stage]) -> None:
    """Replaces all recipes by one of these stages."""
    for module in (runner, flow):
        monkeypatch.setattr(
            module, "read_recipe", lambda name, overrides: Recipe(name, {}, runs=str(runs))
        )
        monkeypatch.setattr(module, "stages", lambda recipe: list(declared))


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prefect server with a temporary database and home folder, which ends with
    the tests."""
    flow.prepare_prefect()
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    home = tmp_path_factory.mktemp("prefect")
    with temporary_settings({PREFECT_HOME: home}), prefect_test_harness(server_startup_timeout=120):
        yield PREFECT_API_URL.value()
