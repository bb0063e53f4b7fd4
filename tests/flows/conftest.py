"""One Prefect server for all flow tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prefect server with a temporary database and home folder, which ends with
    the tests."""
    from flows.run import prepare_prefect

    prepare_prefect()
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    home = tmp_path_factory.mktemp("prefect")
    with temporary_settings({PREFECT_HOME: home}), prefect_test_harness(server_startup_timeout=120):
        yield PREFECT_API_URL.value()
