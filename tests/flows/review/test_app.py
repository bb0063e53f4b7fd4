"""The requests of a page: who may ask, what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flows.review import app as app_module
from flows.review.app import review_app
from flows.review.session import ReviewSession

TOKEN = "a-token-of-the-tests"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
ASKED = ("/data", "/changes", "/episode/0", "/picture/0/0/0")
SENT: dict[str, dict[str, Any]] = {
    "/change": {"name": "ada", "episode": 0, "what": "verdict", "value": "failure"},
    "/undo": {"name": "ada"},
    "/write": {"name": "ada"},
}


@pytest.fixture
def client(session: ReviewSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(app_module, "WRONG_TOKEN_SECONDS", 0.01)
    with TestClient(review_app(session, TOKEN), base_url="http://127.0.0.1:8720") as client:
        yield client


def revision(client: TestClient) -> int:
    return client.get("/changes", headers=SHOWN).json()["revision"]


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
def test_nothing_is_given_or_changed_without_the_token(
    client: TestClient, given: dict[str, str]
) -> None:
    answers = [client.get(path, headers=given) for path in ASKED]
    answers += [client.post(path, json=message, headers=given) for path, message in SENT.items()]
    assert {answer.status_code for answer in answers} == {401}
    assert answers[0].json()["why"].startswith("Wrong token.")
    assert revision(client) == 0


def test_the_token_is_in_no_file_of_the_page(client: TestClient) -> None:
    files = ("", "static/review.js", "static/server.js", "console/look.css", "console/keys.js")
    answers = [client.get(f"/{name}") for name in files]
    assert {answer.status_code for answer in answers} == {200}
    assert all(TOKEN not in answer.text for answer in answers)
    policy = answers[0].headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


def test_other_sites_and_other_names_of_this_computer_are_refused(client: TestClient) -> None:
    other = {**SHOWN, "Origin": "https://evil.example"}
    assert client.post("/change", json=SENT["/change"], headers=other).status_code == 403
    assert client.get("/data", headers=other).status_code == 403
    assert client.get("/data", headers={**SHOWN, "Host": "evil.example"}).status_code == 421
    own = {**SHOWN, "Origin": "http://127.0.0.1:8720"}
    assert client.post("/change", json=SENT["/change"], headers=own).json() == {"changed": True}
    assert revision(client) == 1


@pytest.mark.parametrize("path", ["/static/../session.py", "/static/%2e%2e/session.py", "/etc"])
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{" * 4000, "not JSON"),
        (b"[1]", "no map"),
        (b"x" * 5000, "more than 4096 bytes"),
        (b"{}", "without an episode"),
        (b'{"episode": true, "what": "note"}', "without an episode"),
        (b'{"episode": 0, "what": "note", "value": "x"}', "'name' is no printable text"),
        (b'{"episode": 0, "what": "note", "value": "x", "name": " "}', "Enter your name"),
        (b'{"episode": 0, "what": "note", "value": "x", "name": "\\n"}', "'name'"),
        (b'{"episode": 99, "what": "note", "value": "x", "name": "ada"}', "no episode 99"),
    ],
)
def test_a_message_that_cannot_be_understood_is_refused_in_words(
    client: TestClient, body: bytes, why: str
) -> None:
    answer = client.post("/change", content=body, headers=SHOWN)
    assert answer.status_code == 422
    assert why in answer.json()["why"]
    assert revision(client) == 0


def test_places_that_do_not_exist_are_named(client: TestClient) -> None:
    for path, why in (
        ("/episode/9", "no episode 9"),
        ("/picture/0/7/0", "no camera 7, the data set has 2"),
        ("/picture/0/0/30", "no step 30 in episode 0, which has 30"),
    ):
        answer = client.get(path, headers=SHOWN)
        assert (answer.status_code, why in answer.json()["why"]) == (422, True)


def test_a_page_labels_undoes_and_writes(client: TestClient) -> None:
    assert client.post("/change", json=SENT["/change"], headers=SHOWN).json() == {"changed": True}
    assert client.post("/change", json=SENT["/change"], headers=SHOWN).json() == {"changed": False}
    other = {"name": "eve", "episode": 1, "what": "trim", "value": [2, 9]}
    client.post("/change", json=other, headers=SHOWN)
    changes = client.get("/changes", headers=SHOWN).json()
    assert changes["decisions"]["1"]["trim"]["value"] == [2, 9]
    assert changes["pending"] == [0, 1]
    undone = client.post("/undo", json={"name": "eve"}, headers=SHOWN).json()
    assert undone == {"undone": {"episode": 1, "what": "trim"}}
    assert client.post("/undo", json={"name": "eve"}, headers=SHOWN).json() == {"undone": None}
    answer = client.post("/write", json={"name": "ada"}, headers=SHOWN)
    assert answer.json() == {"store": "reviewed-1.zarr"}
    while client.get("/changes", headers=SHOWN).json()["copy"]["running"]:
        pass
    assert client.get("/changes", headers=SHOWN).json()["written"] == "reviewed-1.zarr"
    lines = (Path("picks_review") / "review.jsonl").read_text().splitlines()
    assert [(json.loads(line)["by"], json.loads(line)["what"]) for line in lines] == [
        ("ada", "verdict"),
        ("eve", "trim"),
        ("eve", "undo"),
        ("ada", "write"),
    ]


def test_a_picture_is_a_jpeg_that_nobody_keeps(client: TestClient) -> None:
    answer = client.get("/picture/0/0/0", headers=SHOWN)
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content[:2] == b"\xff\xd8"
