"""What is wrong at the command line ends in one line: no traceback, nothing unexpected, no silence,
and never with success."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.commands.app import main
from robots.errors import describe
from tests.real.onnx_models import save_policy

ROOT = Path(__file__).resolve().parents[3]
HUGE = "1" + 23 * "0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are not what they should be."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "garbage.zip").write_bytes(bytes(range(256)) * 20)
    with zipfile.ZipFile(folder / "whole.zip", "w") as archive:
        archive.writestr("data/.zgroup", "{}")
        archive.writestr("data/block", os.urandom(20_000))
    whole = (folder / "whole.zip").read_bytes()
    (folder / "cut.zip").write_bytes(whole[:8000])
    (folder / "flipped.zip").write_bytes(whole[:9000] + b"\xff" + whole[9001:])
    (folder / "loop").symlink_to("loop")
    manifests = {"latin": b"\xff\xfe{}", "list": b"[]", "empty": b"{}", "text": b"hello"}
    manifests["null"] = b'{"kind": "gate", "files": null}'
    for name, text in manifests.items():
        (folder / name).mkdir()
        (folder / name / "artifact.json").write_bytes(text)
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "exported").mkdir()
    save_policy(folder / "exported" / "policy.onnx", scale=0.0)
    cut = (folder / "exported" / "policy.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(cut[: len(cut) // 2])
    (folder / "evil.yaml").write_text(
        'name: x\nenv: !!python/object/apply:os.system ["touch pwned"]\n'
    )
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "file").write_text("a file")
    return folder


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HANDOFF_TOKEN", raising=False)
    yield
    assert not (folder / "pwned").exists()


BAD: dict[str, str] = {
    # Recipes and overrides.
    "plan demoo": "did you mean 'demo'?",
    "plan .": "recipe '.' does not exist",
    "plan /dev/null": "does not exist",
    "plan binary.yaml": "not YAML",
    "plan evil.yaml": "not YAML",
    "plan demo teacher.trainin.steps=5": "unknown key 'teacher.trainin",
    "plan demo nothing": "has no '='",
    "plan demo =5": "unknown key ''",
    "plan demo ~nope": "'nope' is no stage",
    "plan demo teacher.training.steps=[1,2": "override",
    "plan demo teacher.training.steps=abc": "'teacher.training.steps' is 'abc'",
    "plan demo teacher.training.steps=1e400": "'teacher.training.steps' is inf",
    "plan demo name=名前/x": "must be quoted",
    "plan demo name='../../x'": "expected the name of a folder below `runs`",
    "plan demo name='/etc/x'": "expected the name of a folder below `runs`",
    "plan demo runs=/dev/null": "/dev/null is a file, expected a folder",
    "plan demo runs=file/below": "is a file, expected a folder",
    f"plan demo seed={HUGE}": "expected 0 to 4294967295",
    "plan demo seed=-1": "seed is -1",
    "run demoo": "did you mean 'demo'?",
    "run demo runs=/dev/null": "/dev/null is a file, expected a folder",
    # Data.
    "plan demo demos.data=/nope/x.zip": "no such file or folder",
    "plan demo demos.data=garbage.zip": "cannot be read as a zip",
    "plan demo demos.data=cut.zip": "cannot be read as a zip",
    "plan demo demos.data=flipped.zip": "no format of demonstrations that is known",
    "plan demo demos.data=loop": "no such file or folder",
    "plan demo demos.data=/etc/passwd": "no format of demonstrations that is known",
    "plan demo demos.max_episodes=0": "'demos.max_episodes' is 0",
    # Artifacts.
    "explain loop": "does not exist",
    "explain /etc/passwd": "is not part of an artifact",
    "explain latin": "is not UTF-8",
    "explain list": "holds a list",
    "explain empty": "'kind' is missing",
    "explain text": "is not JSON",
    "explain null": "expected",
    "show nope": "does not exist",
    "reproduce nope": "does not exist",
    "fetch /nope": "is not an artifact",
    # Deployments.
    "deploy /tmp": "is not part of an artifact",
    "deploy exported": "is not part of an artifact",
    "deploy list": "holds a list",
    "deploy loop": "leads to no artifact",
    "deploy nope --tracker cube=ws://x": "nope does not exist",
    "record reach --arm 127.0.0.99 loop.max_steps=-3": "'loop.max_steps' is -3",
    "record reach --arm 127.0.0.99 loop.watchdog.fault_seconds=nan": "'loop.watchdog.fault_seconds' is nan",
    "deploy . --episodes 0": "Must be >= 1",
    # Servers.
    "serve /nope": "neither an .onnx file nor a directory",
    "serve loop": "neither an .onnx file nor a directory",
    "serve empty.onnx": "cannot be loaded",
    "serve cut.onnx": "cannot be loaded",
    "serve exported --host 0.0.0.0": "a token must be given",
    "serve exported --port 99999": "Must be <= 65535",
    # People.
    "console pick_cubee": "did you mean 'pick_cube'?",
    "console pick_cube --host 0.0.0.0": "needs a token",
    "console pick_cube --port 99999": "Must be <= 65535",
    "hil nope": "does not exist",
    "hil reach --steps -1": "Must be >= 1",
    f"hil reach --seed {HUGE}": "expected 0 to 4294967295",
    "hil reach --until nope": "'nope' is not in the recipe",
    "approve nope": "waits for no approval",
    "clear-fault 127.0.88.1 --person a --cause b": "no fault is kept",
    # Evaluations.
    "evaluate nope --policy random --out x": "nope",
    "evaluate evil.yaml --policy random --out x": "not YAML",
    "evaluate push_t_published --policy /nope --out x": "/nope",
    "evaluate push_t_published --policy random --out x --batch -1": "Must be >= ",
    "evaluate push_t_published --policy random --out x --workers 0": "Must be >= ",
    "evaluate push_t_published --policy random --out x --videos -1": "Must be >= ",
    "evaluate push_t_published --policy random --out /dev/null": "/dev/null",
    "compare /nope": "cannot read /nope",
    "tune nope": "no such episode store",
    "new recipe ../x": "expected a name of small letters",
}


@pytest.mark.parametrize("words", BAD)
def test_it_ends_in_one_line(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) in (1, 2)
    said = capfd.readouterr().err
    assert BAD[words] in said
    assert said.startswith("handoff: ")
    assert said.count("\n") == 1
    assert "unexpected" not in said
    assert "Traceback" not in said


def test_there_are_enough() -> None:
    assert len(BAD) >= 50


@pytest.mark.parametrize("name", ["O'Brien, Anna", "名前", "a\\", "${x}", "[x]", ""])
def test_any_name_of_a_person_is_taken_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows.config.overrides import parse_overrides
    from robots.errors import HandoffError

    def run(recipe: str, overrides: list[str], **options: object) -> None:
        values = {".".join(each.keys): each.value for each in parse_overrides(overrides)}
        assert values["shared.operator.person"] == name
        raise HandoffError("reached")

    monkeypatch.setattr("flows.attended.run_attended", run)
    assert main(["hil", "reach", "--person", name]) == 1
    assert capfd.readouterr().err == "handoff: reached\n"


def test_a_path_that_cannot_be_written_is_expected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        (tmp_path / "file" / "below").mkdir()
    assert describe(caught.value).endswith("Is the path right, and may it be written?")
    assert "unexpected" not in describe(caught.value)
