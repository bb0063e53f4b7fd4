"""The server of results: what it serves, and to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flows.orchestration.serving.results_app import AUTH, results_app
from flows.orchestration.serving.server import ServerOptions, serve_prefect
from robots.errors import HandoffError
from robots.wire.web_server import guarded


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    (folder / "artifacts" / "gate-1").mkdir(parents=True)
    (folder / "artifacts" / "gate-1" / "latency.png").write_bytes(b"0123456789")
    (folder / "demo").mkdir()
    (folder / "demo" / "gate").symlink_to("../artifacts/gate-1")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "demo" / "away").symlink_to(tmp_path / "secret.txt")
    return folder


def client(runs: Path) -> TestClient:
    app: Any = results_app(runs)
    return TestClient(app)


def test_files_are_served_also_through_the_links_of_a_run_and_in_parts(runs: Path) -> None:
    page = client(runs)
    assert page.get("/demo/gate/latency.png").content == b"0123456789"
    part = page.get("/demo/gate/latency.png", headers={"range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    assert "latency.png" in page.get("/demo/gate/").text


def test_only_a_name_of_this_computer_is_served(runs: Path) -> None:
    served: Any = guarded(results_app(runs))
    own, foreign = (
        TestClient(served, base_url=f"http://{name}:4201") for name in ("127.0.0.1", "evil.example")
    )
    assert own.get("/").status_code == 200
    assert foreign.get("/").status_code == 421


def test_nothing_outside_the_folder_is_served(runs: Path) -> None:
    page = client(runs)
    for path in ("/demo/away", "/%2e%2e/secret.txt", "/demo/%2e%2e/%2e%2e/secret.txt", "/nothing"):
        assert page.get(path).status_code == 404, path


def test_a_password_is_asked_for_where_there_is_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUTH, "anna:word")
    page = client(runs)
    assert page.get("/demo/gate/latency.png").status_code == 401
    assert page.get("/demo/gate/latency.png", auth=("anna", "other")).status_code == 401
    assert page.get("/demo/gate/latency.png", auth=("anna", "word")).status_code == 200


def test_a_server_that_others_reach_needs_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH, raising=False)
    with pytest.raises(HandoffError, match=f"Set {AUTH}=USER:PASSWORD"):
        serve_prefect(ServerOptions(host="0.0.0.0"), lambda line: None)
