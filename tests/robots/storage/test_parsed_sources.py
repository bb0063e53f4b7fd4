"""The cache of parsed sources gives what parsing gives, and never an outdated answer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from robots.storage import parsed_sources
from robots.storage.parsed_sources import ParsedSources, parse_source

CODE = "import a.b\n\n\ndef f():\n    from c import d\n    return d\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source file."""
    file = tmp_path / "root" / "module.py"
    file.parent.mkdir()
    file.write_text(CODE)
    return file


def cache(source: Path) -> ParsedSources:
    return ParsedSources(source.parent, source.parents[1] / "cache")


def cache_file(source: Path) -> Path:
    [file] = (source.parents[1] / "cache").iterdir()
    return file


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets files of any age be cached."""
    monkeypatch.setattr(parsed_sources, "SETTLED_SECONDS", -1.0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed."""
    parsed: list[Path] = []

    def parse(source: Path) -> parsed_sources.ParsedSource:
        parsed.append(source)
        return parse_source(source)

    monkeypatch.setattr(parsed_sources, "parse_source", parse)
    return parsed


def test_imports_are_absolute_names_of_modules_and_of_what_they_define(source: Path) -> None:
    assert parse_source(source).imports == ("a.b", "c", "c.d")


def test_comments_and_docstrings_do_not_change_the_digest(source: Path) -> None:
    before = parse_source(source)
    source.write_text('"""New."""\n' + CODE.replace("def f():", 'def f():\n    """Newer."""'))
    assert parse_source(source) == before
    source.write_text(CODE.replace("return d", "return 2"))
    assert parse_source(source).digest != before.digest


def test_a_second_process_reads_the_cache(source: Path, settled: None, counted: list[Path]) -> None:
    first = cache(source)
    parsed = first.parsed(source)
    first.save()
    assert cache(source).parsed(source) == parsed
    assert counted == [source]


def test_a_change_of_the_same_size_and_time_is_noticed(
    source: Path, settled: None, counted: list[Path]
) -> None:
    first = cache(source)
    before = first.parsed(source)
    first.save()
    times = source.stat()
    source.write_text(CODE.replace("a.b", "a.e"))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.stat().st_size == times.st_size
    assert source.stat().st_mtime_ns == times.st_mtime_ns
    assert cache(source).parsed(source) == parse_source(source) != before


def test_a_file_that_was_just_written_is_not_cached(source: Path) -> None:
    first = cache(source)
    first.parsed(source)
    first.save()
    assert not (source.parents[1] / "cache").exists()
    assert time.time() - source.stat().st_mtime < parsed_sources.SETTLED_SECONDS


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"made_by": 1}', b'{"made_by": [1], "entries": []}', b"\xff"],
)
def test_a_damaged_cache_costs_time_only(
    content: bytes, source: Path, settled: None, counted: list[Path]
) -> None:
    first = cache(source)
    parsed = first.parsed(source)
    first.save()
    cache_file(source).write_bytes(content)
    assert cache(source).parsed(source) == parsed
    assert len(counted) == 2


def test_an_entry_of_another_shape_is_not_used(source: Path, settled: None) -> None:
    first = cache(source)
    parsed = first.parsed(source)
    first.save()
    file = cache_file(source)
    stored = json.loads(file.read_text())
    stored["entries"][str(source)][1] = "a.b"
    file.write_text(json.dumps(stored))
    assert cache(source).parsed(source) == parsed


def test_a_cache_of_another_python_is_not_used(
    source: Path, settled: None, counted: list[Path]
) -> None:
    first = cache(source)
    first.parsed(source)
    first.save()
    file = cache_file(source)
    stored = json.loads(file.read_text())
    stored["made_by"][2] += 1
    file.write_text(json.dumps(stored))
    cache(source).parsed(source)
    assert len(counted) == 2


def test_files_that_are_gone_leave_the_cache(source: Path, settled: None) -> None:
    gone = source.with_name("gone.py")
    gone.write_text("x = 1\n")
    first = cache(source)
    first.parsed(source)
    first.parsed(gone)
    gone.unlink()
    first.save()
    assert list(json.loads(cache_file(source).read_text())["entries"]) == [str(source)]
    assert cache_file(source).name.endswith(".json"), "no temporary file is left"


def test_a_folder_that_cannot_be_written_costs_time_only(
    source: Path, settled: None, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    first = ParsedSources(source.parent, tmp_path / "file" / "cache")
    assert first.parsed(source) == parse_source(source)
    first.save()
    assert (tmp_path / "file").read_bytes() == b""
