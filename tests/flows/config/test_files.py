"""Files in `configs/` and elsewhere are found by name or path, and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config.files import CONFIGS, available, find_file, read_options, read_yaml, recipes
from flows.config.options import build_session
from flows.deployment.config import DeploySession
from robots.errors import HandoffError


def test_the_shipped_groups_list_their_files() -> None:
    assert {"demo", "smoke", "hil/reach"} <= set(recipes())
    assert available("deploy") == ["push_t", "record", "task"]


def test_a_file_that_others_extend_is_no_recipe() -> None:
    assert [name for name in recipes() if "_task" in name or "_session" in name] == []
    assert find_file("_task").is_file()


def test_a_recipe_is_found_by_name_by_path_and_beside_the_one_that_extends_it(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("stages: {}")
    assert find_file("demo") == CONFIGS / "demo.yaml"
    assert find_file(str(mine)) == mine
    assert find_file("mine", [tmp_path]) == mine


@pytest.mark.parametrize(
    ("name", "message"),
    [("dem", "did you mean 'demo'"), ("nowhere/demo.yaml", "nowhere/demo.yaml does not exist")],
)
def test_a_missing_recipe_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        find_file(name)


def test_own_options_come_before_those_of_handoff(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "reach.yaml").write_text("name: mine")
    folders = [tmp_path, CONFIGS]
    assert read_options("protocol", "reach", folders, "protocol") == {"name": "mine"}
    assert read_options("protocol", "reach", [CONFIGS], "protocol")["name"] == "reach"


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("protocol", "raech", "protocol 'raech' does not exist, did you mean 'reach'"),
        ("denoising", "fast", "'teacher.denoising' is 'fast', expected keys and values"),
        ("protocol", "nowhere.yaml", r"protocol nowhere\.yaml does not exist"),
    ],
)
def test_a_missing_option_is_answered_with_those_that_exist(
    group: str, name: str, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        read_options(group, name, [CONFIGS], f"teacher.{group}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "holds a list"),
        ("{a: ]", r"not YAML \(line 1, column 5: "),
        ("{a: 1, a: 2}", "not YAML"),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(HandoffError, match=message) as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_options_of_a_session_at_an_arm_are_overridden() -> None:
    session = build_session(DeploySession, "push_t", ["loop.max_steps=7"])
    assert session.loop.max_steps == 7
    assert session.supervision == build_session(DeploySession, "push_t").supervision


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "supervision.sped=0.1",
            "unknown key 'supervision.sped', did you mean 'speed'?",
        ),
        ("supervision.speed=fast", "'supervision.speed' is 'fast'"),
        ("supervision.speed", "has no '='"),
    ],
)
def test_an_invalid_override_of_a_session_is_named_by_its_path(override: str, message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        build_session(DeploySession, "push_t", [override])
    assert message in str(caught.value)


def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"none\.yaml: no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_a_folder_is_no_file_of_options(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"cannot be read \(Is a directory\)"):
        read_yaml(tmp_path)
