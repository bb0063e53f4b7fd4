"""`handoff episodes review` at the terminal: addresses, folders, and kills while a store is
written."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from flows.__main__ import main
from flows.commands.parameters import ReviewList
from flows.review.command import default_folder
from flows.review.data_set import ReviewedStore
from flows.review.episode_rows import SHOWN
from flows.review.review_log import ReviewLog
from flows.review.session import ReviewSession
from robots.episodes.store import EpisodeStore
from robots.wire.policy import TOKEN_VARIABLE

ROOT = Path(__file__).resolve().parents[3]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["episodes", "review", *words]) == 1
    return capsys.readouterr().err


def test_the_lists_of_the_command_line_are_those_of_the_page() -> None:
    assert get_args(ReviewList) == SHOWN
    page = (ROOT / "flows" / "review" / "static" / "index.html").read_text()
    assert [name for name in SHOWN if f'<option value="{name}">' not in page] == []


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("runs/demos.zarr", "demos_review"),
        ("set.zarr.zip", "set_review"),
        ("runs/demo/demos", "demos_review"),
        ("data.hdf5", "data.hdf5_review"),
    ],
)
def test_the_folder_of_a_review_is_named_after_the_data_set(path: str, folder: str) -> None:
    assert default_folder(Path(path)) == Path(folder)


def test_an_address_that_others_reach_needs_a_token(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert "needs a token in $HANDOFF_TOKEN" in refused(
        capsys, "picks.zarr", "--host", "0.0.0.0", "--port", "0"
    )
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    assert "token: 5 characters" in refused(capsys, "picks.zarr", "--port", "0")
    assert not Path("picks_review").exists()


def test_a_port_that_is_taken_and_a_missing_data_set_are_one_line(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}" in refused(
            capsys, "picks.zarr", "--port", str(port)
        )
    assert "no such file or folder" in refused(capsys, "nothing.zarr")


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from flows.review import session as session_module
from flows.review.data_set import ReviewedStore
from flows.review.review_log import ReviewLog

edit = session_module.edit
def killed(*arguments, progress, **options):
    def then(done, total, note=""):
        if done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return edit(*arguments, progress=then, **options)
session_module.edit = killed
store = Path("picks.zarr")
log = ReviewLog(Path("picks_review"))
session = session_module.ReviewSession(store, ReviewedStore(store), log, "", "all")
session.change("ada", 0, "verdict", "failure")
session.write("ada").join()
"""


def test_a_kill_while_a_store_is_written_leaves_the_changes_and_no_part_of_it(
    store: Path,
) -> None:
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    ended = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert list(Path("picks_review").glob("*.zarr")) == []
    assert len(list(Path("picks_review").glob(".*.partial"))) == 1
    with closing(ReviewLog(Path("picks_review"))) as log:
        assert list(Path("picks_review").glob(".*.partial")) == []
        session = ReviewSession(store, ReviewedStore(store), log, "", "all")
        assert session.changes()["pending"] == [0]
        session.write("ada").join()
        assert session.copy.trouble == ""
    copy = EpisodeStore.open(Path("picks_review/reviewed-1.zarr"))
    assert (copy.num_episodes, copy.metadata(0)["success"]) == (5, False)
