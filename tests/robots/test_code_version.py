"""The code version follows imports in the syntax tree and ignores comments and docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from robots import code_version as versions


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    folder = tmp_path / "robots"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "a.py").write_text("def f():\n    from robots import b\n    return b.x\n")
    (folder / "b.py").write_text("x = 1\n")
    (folder / "c.py").write_text("import robots.a\n")
    forget()
    yield folder
    forget()


def forget() -> None:
    for function in (versions.code_version, versions._imports, versions._file_version):
        function.cache_clear()


def version_of(name: str) -> str:
    forget()
    return versions.code_version(name)


def test_imports_inside_functions_count(package: Path) -> None:
    assert versions.reachable("robots.c") == {"robots", "robots.a", "robots.b", "robots.c"}


def test_change_in_a_reached_module_changes_the_version(package: Path) -> None:
    before = version_of("robots.c")
    (package / "b.py").write_text("x = 2\n")
    assert version_of("robots.c") != before


def test_change_in_an_unreached_module_does_not(package: Path) -> None:
    before = version_of("robots.b")
    (package / "c.py").write_text("import robots.a\ny = 3\n")
    assert version_of("robots.b") == before


def test_comments_and_docstrings_do_not_count(package: Path) -> None:
    before = version_of("robots.c")
    (package / "a.py").write_text(
        '"""New."""\ndef f():\n    """Newer."""\n    from robots import b  # why\n    return b.x\n'
    )
    assert version_of("robots.c") == before


def test_data_beside_a_module_counts(package: Path) -> None:
    before = version_of("robots.c")
    (package / "b.xml").write_text("<model/>")
    assert version_of("robots.c") != before
