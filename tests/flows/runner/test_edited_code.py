"""An artifact is of the code in its manifest, whatever is edited while its stage runs, and stays
valid as long as nothing that it imported changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.runner import stage_code
from flows.runner.plan import explain_miss
from flows.runner.stage import Stage, StageOutcome, find_cached, run_stage
from robots import code_version as versions
from robots.errors import HandoffError
from robots.interfaces import no_progress

STAGE = """
import time
from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.config import config
from robots.interfaces import Progress
from robots.processes import Child

from . import early


@config
class Options:
    folder: str = ""
    in_child: bool = False
    other: bool = False


def work(pipe):
    from . import late

    pipe.send(late.VALUE)


def run(config: Options, out: Path, progress: Progress) -> Output[Episodes]:
    folder = Path(config.folder)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    if config.other:
        from . import other
    if config.in_child:
        child = Child("late", work, daemon=True)
        value = child.receive()
        child.process.join()
    else:
        from . import late

        value = late.VALUE
    (out / "value.txt").write_text(f"{early.VALUE} {value}")
    return Output({})
"""
SECONDS = 60.0
"""Time limit of a wait [s], reached only by a defect."""


class Lab:
    """A package outside Handoff with a stage that waits before it imports one of its modules."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.package = root / name
        self.package.mkdir()
        for module, text in {"__init__": "", "stage": STAGE, "other": "VALUE = 0\n"}.items():
            (self.package / f"{module}.py").write_text(text)
        self.edit("early", 1)
        self.edit("late", 2)

    def edit(self, module: str, value: int | str) -> None:
        (self.package / f"{module}.py").write_text(f"VALUE = {value!r}\n")

    def stage(self, **options: Any) -> Stage:
        forget()
        module = __import__(f"{self.name}.stage", fromlist=["Options"])
        options = {"folder": str(self.root), **options}
        return Stage("wait", "episodes", f"{self.name}.stage", module.Options(**options))

    def run(self, stage: Stage, meanwhile: Callable[[], object] = lambda: None) -> StageOutcome:
        """Runs the stage; `meanwhile` is called while it waits."""
        for marker in ("begun", "go"):
            (self.root / marker).unlink(missing_ok=True)
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(run_stage(stage, {}, self.root / "runs", no_progress))
            except HandoffError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + SECONDS
        while not (self.root / "begun").exists() and not found:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        meanwhile()
        (self.root / "go").touch()
        thread.join(SECONDS)
        if isinstance(found[0], HandoffError):
            raise found[0]
        return found[0]


def forget() -> None:
    """Reads code and libraries again, as a new process does."""
    for function in (
        versions.code_version,
        versions._file_version,
        versions._imports,
        versions._outside_source,
        stage_code.library_version,
    ):
        function.cache_clear()


@pytest.fixture
def lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Lab(tmp_path, f"lab_{abs(hash(request.node.name))}")
    forget()


@pytest.mark.parametrize("in_child", [False, True])
def test_code_that_is_edited_before_it_is_imported_never_runs(lab: Lab, in_child: bool) -> None:
    """The flow determined the version of the code when it began; the edit comes before a module is
    imported, and is taken back afterwards."""
    stage = lab.stage(in_child=in_child)
    with pytest.raises(HandoffError, match=rf"code: {lab.name}\.late was edited after the stage"):
        lab.run(stage, lambda: lab.edit("late", "poison"))
    lab.edit("late", 2)
    assert find_cached(lab.root / "runs", lab.stage(in_child=in_child), {}) is None
    artifact = lab.run(lab.stage(in_child=in_child)).artifact
    assert (artifact.path / "value.txt").read_text() == "1 2"


def test_code_that_is_edited_before_the_stage_begins_is_refused(lab: Lab) -> None:
    stage = lab.stage()
    assert find_cached(lab.root / "runs", stage, {}) is None
    lab.edit("early", "edited")
    with pytest.raises(HandoffError, match="was edited after the run had begun"):
        lab.run(stage)


def test_edits_of_what_is_imported_already_and_of_comments_disturb_nothing(lab: Lab) -> None:
    def edit() -> None:
        lab.edit("early", "edited later")
        (lab.package / "late.py").write_text("# A comment.\nVALUE = 2\n")

    artifact = lab.run(lab.stage(), edit).artifact
    assert (artifact.path / "value.txt").read_text() == "1 2"
    # It is the artifact of the code that ran, not of the present one.
    assert find_cached(lab.root / "runs", lab.stage(), {}) is None
    lab.edit("early", 1)
    found = find_cached(lab.root / "runs", lab.stage(), {})
    assert found is not None
    assert found.path == artifact.path


@pytest.mark.parametrize("in_child", [False, True])
def test_an_artifact_depends_on_the_modules_that_were_imported(lab: Lab, in_child: bool) -> None:
    outcome = lab.run(lab.stage(in_child=in_child))
    sources = outcome.artifact.manifest["sources"]
    own = {name.partition(".")[2] for name in sources if name.startswith(lab.name)}
    assert own == {"", "stage", "early", "late"}
    assert "robots.config" in sources
    # A module that this artifact could have imported, and did not.
    lab.edit("other", "edited")
    again = lab.run(lab.stage(in_child=in_child))
    assert again.cached
    assert again.artifact == outcome.artifact
    lab.edit("late", "edited")
    stage = lab.stage(in_child=in_child)
    assert find_cached(lab.root / "runs", stage, {}) is None
    assert explain_miss(lab.root / "runs", stage, {}) == f"{lab.name}.late changed"


def test_an_artifact_depends_on_the_libraries_that_were_imported(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = lab.run(lab.stage())
    used = outcome.artifact.manifest["libraries"]
    assert "numpy" in used
    assert "torch" not in used
    installed = stage_code.version

    def upgraded(name: str) -> Callable[[str], str]:
        return lambda package: "99.0" if package == name else installed(package)

    monkeypatch.setattr(stage_code, "version", upgraded("torch"))
    assert find_cached(lab.root / "runs", lab.stage(), {}) is not None
    monkeypatch.setattr(stage_code, "version", upgraded("numpy"))
    assert find_cached(lab.root / "runs", stage := lab.stage(), {}) is None
    assert explain_miss(lab.root / "runs", stage, {}) == f"numpy {used['numpy']} → 99.0"


def test_a_data_file_that_is_edited_while_the_stage_runs_is_noticed(lab: Lab) -> None:
    (lab.package / "early.xml").write_text("<robot/>")
    with pytest.raises(HandoffError, match=rf"{lab.name}\.early, or a data file beside it, was ed"):
        lab.run(lab.stage(), lambda: (lab.package / "early.xml").write_text("<other/>"))


def test_a_module_that_no_import_statement_names_is_refused(lab: Lab) -> None:
    """Its code would not be part of the version."""
    (lab.package / "hidden.py").write_text("VALUE = 3\n")
    text = (lab.package / "stage.py").read_text()
    hidden = f"__import__('{lab.name}.' + 'hidden')\n    (out"
    (lab.package / "stage.py").write_text(text.replace("(out", hidden, 1))
    with pytest.raises(HandoffError, match=rf"imports {lab.name}\.hidden, which is not part of"):
        lab.run(lab.stage())
