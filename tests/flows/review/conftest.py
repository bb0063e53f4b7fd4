"""A recording and its review."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flows.review.data_set import ReviewedStore
from flows.review.review_log import ReviewLog
from flows.review.session import ReviewSession
from tests.flows.review.recordings import make_store


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("recording") / "picks.zarr")


@pytest.fixture
def store(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recording in the working directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recording, "picks.zarr")
    return Path("picks.zarr")


@pytest.fixture
def session(store: Path) -> Iterator[ReviewSession]:
    with closing(ReviewLog(Path("picks_review"))) as log:
        yield ReviewSession(store, ReviewedStore(store), log, "", "all")
