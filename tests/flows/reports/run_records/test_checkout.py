"""Uncommitted changes of tracked files are kept, those of files with secrets are not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.reports.run_records import checkout
from flows.reports.run_records.checkout import is_secret, record_checkout


def git(root: Path, *arguments: str) -> None:
    names = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "-C", str(root), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A checkout with the tracked files `a.py` and `lab/.env.local`."""
    root = tmp_path / "code"
    (root / "lab").mkdir(parents=True)
    (root / "a.py").write_text("one = 1\n")
    (root / "lab" / ".env.local").write_text("TOKEN=old\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_clean_checkout_has_a_commit_and_no_diff(code: Path, tmp_path: Path) -> None:
    (tmp_path / "diff.patch").write_text("of an earlier run")
    found = record_checkout(tmp_path, code)
    assert len(found["commit"]) == 40
    assert (found["dirty"], found["diff"]) == (False, None)
    assert not (tmp_path / "diff.patch").exists()


def test_the_diff_restores_the_changed_files(code: Path, tmp_path: Path) -> None:
    (code / "a.py").write_text("one = 2\n")
    (code / "untracked.py").write_text("three = 3\n")
    found = record_checkout(tmp_path, code)
    text = (tmp_path / "diff.patch").read_text()
    assert (found["dirty"], found["diff"]["complete"]) == (True, True)
    assert found["diff"]["bytes"] == len(text)
    assert "untracked" not in text
    git(code, "checkout", "-q", "a.py")
    git(code, "apply", str(tmp_path / "diff.patch"))
    assert (code / "a.py").read_text() == "one = 2\n"


def test_files_with_secrets_are_left_out_and_named(code: Path, tmp_path: Path) -> None:
    (code / "a.py").write_text("one = 2\n")
    (code / "lab" / ".env.local").write_text("TOKEN=new\n")
    found = record_checkout(tmp_path, code)
    text = (tmp_path / "diff.patch").read_text()
    assert found["diff"]["left_out"] == ["lab/.env.local"]
    assert "one = 2" in text
    assert "TOKEN" not in text


def test_a_diff_of_secrets_alone_is_empty(code: Path, tmp_path: Path) -> None:
    (code / "lab" / ".env.local").write_text("TOKEN=new\n")
    assert record_checkout(tmp_path, code)["dirty"] is True
    assert (tmp_path / "diff.patch").read_bytes() == b""


def test_a_long_diff_is_cut_and_says_so(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "MOST_BYTES", 50)
    (code / "a.py").write_text("one = 2\n")
    found = record_checkout(tmp_path, code)["diff"]
    assert found["complete"] is False
    assert found["bytes"] > 50
    assert (tmp_path / "diff.patch").stat().st_size == 50


@pytest.mark.parametrize(
    ("address", "recorded"),
    [
        ("https://ada:secret@example.org/lab/code.git", "https://example.org/lab/code.git"),
        ("git@example.org:lab/code.git", "git@example.org:lab/code.git"),
        ("/home/ada/code", None),
    ],
)
def test_the_address_of_the_repository_has_no_password(
    code: Path, tmp_path: Path, address: str, recorded: str | None
) -> None:
    git(code, "remote", "add", "origin", address)
    assert record_checkout(tmp_path, code)["origin"] == recorded


def test_code_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    found = record_checkout(tmp_path, tmp_path)
    assert found == {"commit": "unknown (not a git checkout)", "dirty": None, "diff": None}


@pytest.mark.parametrize(
    ("name", "secret"),
    [(".env", True), ("lab/.env/a.txt", True), ("a.pem", True), ("env.py", False), ("a.py", False)],
)
def test_secrets_are_recognised_by_name(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
