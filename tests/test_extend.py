"""Every page of `docs/extend/` works: its files and changes are made in a copy of the repository,
and its own commands are run there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.documents import DOCS, ROOT, Block, blocks, spans
from tests.nightly import in_every_run

PAGES = sorted(page for page in (DOCS / "extend").glob("*.md") if page.name != "index.md")
RULES = "tests/test_architecture.py"
"""Every page ends with it."""
COPIED = (
    "flows",
    "policies",
    "real",
    "robots",
    "sim",
    "configs",
    "tests",
    "pyproject.toml",
    "README.md",
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def apply(block: Block, root: Path) -> None:
    """Writes the file that the block holds, or makes the changes that it states as a diff.

    A diff has no line numbers: the lines of a hunk that stay or go stand in the file exactly once.
    Hunks are parted by lines that begin with `@@`.
    """
    path = root / block.title
    if block.language != "diff":
        assert not path.exists(), f"{block.title} exists already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        return
    text = path.read_text()
    for hunk in re.split(r"^@@.*\n", block.text, flags=re.MULTILINE):
        if hunk:
            old = lines_marked(hunk, " -")
            assert text.count(old) == 1, f"{block.title} has {text.count(old)} times:\n{old}"
            text = text.replace(old, lines_marked(hunk, " +"))
    path.write_text(text)


def lines_marked(hunk: str, marks: str) -> str:
    """The lines of a hunk that begin with one of `marks`, without it; an empty line stays."""
    lines = [line or " " for line in hunk.splitlines()]
    assert all(line[0] in " +-" for line in lines), f"a line without a mark in:\n{hunk}"
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in marks)


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command of a page in the copy, with the packages of the copy."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    words = command.replace(".venv/bin/pytest", f"{sys.executable} -m pytest -p no:cacheprovider")
    return subprocess.run(
        ["bash", "-c", words],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )


def copied(root: Path) -> Path:
    """A copy of the packages, configurations and tests."""
    root.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            # With the compiled files, which stay valid: times are copied too.
            shutil.copytree(source, root / name)
        else:
            shutil.copy(source, root / name)
    return root


def steps(page: Path) -> list[Block | str]:
    """What a reader of the page does, in order: files, changes, and commands."""
    found: list[Block | str] = []
    for block in blocks(page.read_text()):
        if block.title:
            found.append(block)
        elif not block.language:
            found += [line for line in block.text.splitlines() if is_run(line)]
    return found


def is_run(line: str) -> bool:
    """Whether the test runs a line; those of `handoff` show what is possible afterwards, and the
    rules of the house are checked once, for all pages together."""
    return line.startswith((".venv/bin/pytest ", "sed ")) and RULES not in line


@pytest.mark.parametrize(
    "page",
    in_every_run(PAGES, *(page for page in PAGES if page.stem in ("recipe", "stage", "task"))),
    ids=lambda page: page.stem,
)
def test_what_the_page_adds_works(page: Path, tmp_path: Path) -> None:
    root = copied(tmp_path / "copy")
    tested = 0
    for step in steps(page):
        if isinstance(step, Block):
            apply(step, root)
            continue
        result = run(step, root)
        assert result.returncode == 0, f"{step}\n{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
        tested += "pytest" in step and " passed" in result.stdout
    assert tested > 0


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the files and changes of all pages are made."""
    root = copied(tmp_path_factory.mktemp("together") / "copy")
    for step in [step for page in PAGES for step in steps(page)]:
        if isinstance(step, Block):
            apply(step, root)
        elif step.startswith("sed "):
            assert run(step, root).returncode == 0, step
    return root


def test_the_changes_of_all_pages_fit_their_files_and_one_another(together: Path) -> None:
    made = [block for page in PAGES for block in blocks(page.read_text()) if block.title]
    assert [block.title for block in made if not (together / block.title).is_file()] == []


@pytest.mark.nightly
def test_the_pages_together_keep_the_rules_of_the_house(together: Path) -> None:
    assert [page.stem for page in PAGES if RULES not in page.read_text()] == []
    result = run(f".venv/bin/pytest {RULES}", together)
    assert result.returncode == 0, result.stdout[-6000:]


@pytest.fixture(scope="module")
def failed_without_changes(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Files of tests of all pages that fail where only these files are written: what they test is
    missing."""
    root = copied(tmp_path_factory.mktemp("bare") / "copy")
    files = [block for page in PAGES for block in written_tests(page)]
    for block in files:
        apply(block, root)
    names = " ".join(sorted({block.title for block in files}))
    options = "-q -rfE --continue-on-collection-errors"
    result = run(f".venv/bin/pytest {options} {names}", root)
    return frozenset(re.findall(r"^(?:FAILED|ERROR) ([\w/]+\.py)", result.stdout, re.MULTILINE))


@pytest.mark.nightly
@every_page
def test_the_tests_of_the_page_fail_without_its_changes(
    page: Path, failed_without_changes: frozenset[str]
) -> None:
    assert {block.title for block in written_tests(page)} & failed_without_changes


def written_tests(page: Path) -> list[Block]:
    """The files of tests that the page writes."""
    return [step for step in steps(page) if isinstance(step, Block) and is_test(step)]


def is_test(block: Block) -> bool:
    """Whether a block is a file of tests."""
    return block.title.startswith("tests/") and block.language == "python"


@every_page
def test_the_code_of_the_page_keeps_the_style_of_the_repository(page: Path, tmp_path: Path) -> None:
    files = [block for block in blocks(page.read_text()) if block.title.endswith(".py")]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    written = [block for block in files if block.language != "diff"]
    for block in written:
        apply(block, tmp_path)
    names = [block.title for block in written]
    for arguments in (["check", "--quiet"], ["format", "--check", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, *names]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{shlex.join(arguments)}\n{result.stdout}{result.stderr}"


@cache
def identifiers() -> frozenset[str]:
    """Every word of the sources of the packages, of their tests and of the configurations."""
    folders = [ROOT / name for name in COPIED if (ROOT / name).is_dir()]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@every_page
def test_every_name_in_the_text_of_the_page_is_one_of_the_code(page: Path) -> None:
    text = page.read_text()
    own = {word for block in blocks(text) for word in re.findall(r"\w+", block.text + block.title)}
    named = [span for span in spans(text) if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", span)]
    assert [name for name in named if name not in own | identifiers()] == []


@pytest.mark.parametrize(
    ("hunk", "message"),
    [(" one\n+two\n", "has 0 times"), (" a\n+b\n", "has 2 times"), ("a\n", "without a mark")],
)
def test_a_change_that_does_not_fit_its_file_is_noticed(
    hunk: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file.py").write_text("a\nb\na\n")
    with pytest.raises(AssertionError, match=message):
        apply(Block("diff", hunk, "file.py"), tmp_path)


def test_a_change_is_made_where_its_lines_stand(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a\nb\n\nc\n")
    apply(Block("diff", "@@\n a\n-b\n+B\n@@ and here\n\n c\n+d\n", "file.py"), tmp_path)
    assert (tmp_path / "file.py").read_text() == "a\nB\n\nc\nd\n"
