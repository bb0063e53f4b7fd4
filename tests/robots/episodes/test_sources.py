import hashlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from robots.episodes import sources
from robots.episodes.formats.pusht import content_digest, pusht_schema
from robots.episodes.pack import pack_store
from robots.episodes.sources import default_cache, find_demonstrations, source_digest
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.robots.episodes.replay_buffer import arrays, write_folder, write_zip
from tests.robots.episodes.test_pusht import OFFICIAL

NAME = "pusht_cchi_v7_replay.zarr.zip"


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> Path:
    return write_zip(tmp_path_factory.mktemp("official") / NAME, arrays())


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """A working directory from which nothing is found."""
    work = tmp_path / "repository"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("HANDOFF_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def shipped(tmp_path) -> Path:
    EpisodeStore.create(tmp_path / "s.zarr", pusht_schema(images=False)).close()
    digest = pack_store(tmp_path / "s.zarr", tmp_path / "rollouts.zarr.zip")
    (tmp_path / "rollouts.json").write_text(json.dumps({"sha256": digest}))
    return tmp_path / "rollouts.zarr.zip"


@pytest.fixture
def serve():
    """Serves one answer on loopback and gives its address."""
    servers = []

    def start(body: bytes, status: int = 200, length: int | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format, *args):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/pusht.zip"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def unreachable() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/pusht.zip"


def place(official: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    os.link(official, folder / NAME)
    return folder / NAME


def test_the_order_is_argument_environment_cache_download_shipped(
    empty, official, shipped, serve, monkeypatch
):
    def kind(**arguments):
        return find_demonstrations(shipped=shipped, timeout_s=1.0, **arguments).kind

    assert kind(url=unreachable()) == "shipped"
    assert kind(download=False) == "shipped"
    assert kind(url=serve(official.read_bytes())) == "download"
    assert kind(url=unreachable()) == "cache"
    monkeypatch.setenv("HANDOFF_DATA", str(place(official, empty / "env/pusht").parent.parent))
    assert kind() == "environment"
    assert kind(data=official) == "argument"


def test_a_file_and_the_folders_that_hold_it_are_all_understood(empty, official, shipped):
    folder = place(official, empty / "mine/pusht").parent
    for data in (official, folder, folder.parent, write_folder(empty / "plain.zarr", arrays())):
        assert find_demonstrations(data=data, shipped=shipped).kind == "argument"


@pytest.mark.parametrize("named", ["argument", "environment"])
def test_a_named_place_that_is_missing_or_empty_is_an_error(empty, shipped, monkeypatch, named):
    (empty / "void").mkdir()
    for folder, message in (
        (empty / "absent", "no such file or folder"),
        (empty / "void", "no format of demonstrations"),
    ):
        data = folder if named == "argument" else None
        monkeypatch.setenv("HANDOFF_DATA", str(folder))
        with pytest.raises(HandoffError, match=message):
            find_demonstrations(data=data, shipped=shipped)


def test_no_folder_near_the_working_directory_is_searched(empty, official, shipped):
    """Started in a folder like /tmp, anybody could have made it."""
    for near in ("shared/data/pusht", "repository/shared/data/pusht", "repository/pusht"):
        place(official, empty / near)
    assert find_demonstrations(shipped=shipped, download=False).kind == "shipped"


def test_a_download_must_be_the_published_one(empty, official, shipped, serve, monkeypatch):
    url = serve(official.read_bytes())
    monkeypatch.setitem(sources.PUBLISHED, url, content_digest(official))
    assert find_demonstrations(shipped=shipped, url=url).kind == "download"
    other = write_zip(empty / "other.zip", arrays(seed=1))
    url = serve(other.read_bytes())
    monkeypatch.setitem(sources.PUBLISHED, url, content_digest(official))
    (default_cache() / "pusht.zip").unlink()
    source = find_demonstrations(shipped=shipped, url=url)
    assert source.kind == "shipped"
    assert "its files have the sha256" in source.line
    assert not (default_cache() / "pusht.zip").exists()


@pytest.mark.parametrize("stated", [True, False])
def test_a_download_is_bounded_in_size(empty, official, shipped, serve, monkeypatch, stated):
    monkeypatch.setattr(sources, "LARGEST_DOWNLOAD", 1000)
    url = serve(official.read_bytes(), length=None if stated else 10)
    source = find_demonstrations(shipped=shipped, url=url)
    assert source.kind == "shipped"
    assert ("at most 1000 are read" if stated else "cut short") in source.line or not stated


def test_the_published_archive_is_known_by_its_files(official):
    assert set(sources.PUBLISHED) == {sources.PUSHT_URL}
    if not OFFICIAL.exists():
        pytest.skip(f"{OFFICIAL} is not here")
    assert content_digest(OFFICIAL) == sources.PUBLISHED[sources.PUSHT_URL]


def test_the_digest_of_the_content_does_not_depend_on_how_it_is_packed(tmp_path, official):
    nested = write_zip(tmp_path / "nested.zip", arrays(), "pusht/pusht_cchi_v7_replay.zarr/")
    assert content_digest(nested) == content_digest(official)
    assert nested.read_bytes() != official.read_bytes()


@pytest.mark.parametrize("broken", ["cut", "page", "missing"])
def test_a_failed_download_leaves_no_file_and_the_line_says_why(
    empty, official, shipped, serve, broken
):
    body = official.read_bytes()
    url, reason = {
        "cut": lambda: (serve(body[:5000], length=len(body)), "cut short"),
        "page": lambda: (serve(b"<html>log in</html>"), "not a zip"),
        "missing": lambda: (serve(b"", status=404), "Not Found"),
    }[broken]()
    source = find_demonstrations(shipped=shipped, url=url, timeout_s=5.0)
    assert source.kind == "shipped"
    assert reason in source.line
    assert [file for file in default_cache().rglob("*") if file.is_file()] == []


def test_a_download_counts_its_bytes(empty, official, shipped, serve):
    calls = []
    url = serve(official.read_bytes())
    find_demonstrations(
        shipped=shipped, url=url, progress=lambda done, total, note="": calls.append((done, total))
    )
    assert calls[-1] == (official.stat().st_size, official.stat().st_size)


def test_when_nothing_is_found_the_error_lists_what_was_tried(empty):
    with pytest.raises(HandoffError) as caught:
        find_demonstrations(shipped=empty / "absent.zarr.zip", download=False)
    for tried in (
        "data=",
        "$HANDOFF_DATA",
        "handoff",
        "download",
        "absent.zarr.zip",
    ):
        assert tried in str(caught.value)


def test_a_shipped_set_that_differs_from_its_manifest_is_refused(empty, shipped):
    shipped.with_name("rollouts.json").write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(HandoffError, match="its manifest says 0000"):
        find_demonstrations(shipped=shipped, download=False)


def test_the_digest_of_a_file_is_its_sha256_and_follows_its_content(empty, official, shipped):
    copy = empty / "copy.zip"
    copy.write_bytes(official.read_bytes())
    source = find_demonstrations(data=copy, shipped=shipped)
    expected = hashlib.sha256(official.read_bytes()).hexdigest()
    assert source_digest(source) == source_digest(source) == expected
    write_zip(copy.with_name("other.zip"), arrays(seed=1)).replace(copy)
    assert source_digest(source) == hashlib.sha256(copy.read_bytes()).hexdigest() != expected


def test_a_repeated_digest_does_not_read_the_file_again(empty, official, shipped, monkeypatch):
    source = find_demonstrations(data=official, shipped=shipped)
    digest = source_digest(source)
    monkeypatch.setattr("robots.episodes.sources.hashlib.file_digest", None)
    assert source_digest(source) == digest


def test_the_digest_of_a_folder_follows_every_file_in_it(empty, shipped):
    folder = write_folder(empty / "plain.zarr", arrays())
    source = find_demonstrations(data=folder, shipped=shipped)
    before = source_digest(source)
    (folder / "data/action/.zattrs").write_text('{"note": 1}')
    assert source_digest(source) != before


def test_a_damaged_digest_memory_is_ignored(empty, official, shipped):
    source = find_demonstrations(data=official, shipped=shipped)
    digest = source_digest(source)
    (default_cache() / "digests.json").write_text("{")
    assert source_digest(source) == digest
