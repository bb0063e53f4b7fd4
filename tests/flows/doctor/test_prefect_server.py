"""A Prefect server of the test, with the three answers that the check reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.doctor.prefect_server import prefect, setting


class FakeServer(HTTPServer):
    """Answers as a Prefect server with some work pools."""

    pools: list[dict[str, str]]
    password: str | None = None
    """Expected header of authorisation; None lets everybody in."""


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send("/api/admin/version", "3.8.8")

    def do_POST(self) -> None:
        assert isinstance(self.server, FakeServer)
        assert self.rfile.read(int(self.headers["Content-Length"])) == b"{}"
        self._send("/api/work_pools/filter", self.server.pools)

    def _send(self, path: str, content: Any) -> None:
        assert isinstance(self.server, FakeServer)
        allowed = self.server.password in (None, self.headers["Authorization"])
        self.send_response(200 if self.path == path and allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with FakeServer(("127.0.0.1", 0), _Answer) as running:
        running.pools = [{"name": "laptop"}, {"name": "gpu"}]
        thread = Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def configured(server: FakeServer) -> dict[str, str]:
    """Environment variables that name the server."""
    return {"PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}/api"}


def test_a_server_of_the_clients_version_is_ok_with_its_work_pools(server: FakeServer) -> None:
    check = prefect(configured(server), "3.8.8")
    assert check.status == "ok"
    assert check.found.endswith("/api, client 3.8.8, 2 work pools")
    assert check.values == {"work_pools": 2}


def test_another_version_is_a_warning(server: FakeServer) -> None:
    check = prefect(configured(server), "3.8.1")
    assert check.status == "warning"
    assert check.advice == "Give the server's environment `pip install prefect==3.8.1`."


def test_a_server_without_work_pools_says_what_needs_them(server: FakeServer) -> None:
    server.pools = []
    assert prefect(configured(server), "3.8.8").found.endswith(
        "no work pool, which deployments need"
    )


def test_a_server_with_a_password_gets_it(server: FakeServer) -> None:
    server.password = "Basic YWRhOnB3"
    assert prefect(configured(server), "3.8.8").status == "failed"
    named = configured(server) | {"PREFECT_API_AUTH_STRING": "ada:pw"}
    assert prefect(named, "3.8.8").status == "ok"


def test_a_server_that_does_not_answer_is_a_failure(server: FakeServer) -> None:
    environment = configured(server)
    server.server_close()
    check = prefect(environment, "3.8.8")
    assert check.status == "failed"
    assert check.found.startswith(f"no Prefect server answers at {environment['PREFECT_API_URL']}")


def test_an_address_that_is_no_prefect_server_is_a_failure(server: FakeServer) -> None:
    environment = {"PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}/other"}
    assert "(401 Unauthorized)" in prefect(environment, "3.8.8").found


def test_without_an_address_every_run_starts_its_own_server(tmp_path: Path) -> None:
    check = prefect({"PREFECT_HOME": str(tmp_path)}, "3.8.8")
    assert check.status == "ok"
    assert "is not set" in check.found


def test_the_active_profile_has_the_settings_that_the_environment_lacks(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").write_text(
        'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = "http://lab:4200/api"\n'
        '[profiles.home]\nPREFECT_API_URL = "http://home:4200/api"\n'
    )
    home = {"PREFECT_HOME": str(tmp_path)}
    assert setting("PREFECT_API_URL", home) == "http://lab:4200/api"
    assert setting("PREFECT_API_URL", home | {"PREFECT_PROFILE": "home"}) == "http://home:4200/api"
    assert setting("PREFECT_API_URL", home | {"PREFECT_API_URL": "x"}) == "x"
    assert setting("PREFECT_API_KEY", home) is None
