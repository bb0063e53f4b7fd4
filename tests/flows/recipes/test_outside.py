"""A recipe outside the repository uses a stage, a task, a robot, a policy family and a format of its
own, which lie beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flows.commands.catalog import outside_rows, stage_rows
from flows.commands.listing import listings
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.stage import Stage, identity
from policies.checkpoint import CARD
from policies.imitation.config import PretrainConfig
from robots import outside
from robots.code_version import ROOT, code_version, reachable
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.catalog import robot_module
from sim.make import EnvConfig, find_task, is_task, make_vec_env, task_module
from sim.processes.ray_process import _Actor
from tests.flows.recipes.lab import write_lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recipe of a package that no other test has imported."""
    recipe = write_lab(tmp_path / "lab")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield recipe
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]
    clear_caches()


def clear_caches() -> None:
    """Forgets what was read of modules that have changed since."""
    import flows.runner.signature
    import robots.code_version
    import robots.franka.catalog
    import sim.make

    for function in (
        flows.runner.signature.read_kind,
        outside.entry_targets,
        robots.code_version.code_version,
        robots.code_version._file_version,
        robots.code_version._imports,
        robots.code_version._outside_source,
        robots.franka.catalog._outside_robot,
        sim.make._task,
    ):
        function.cache_clear()


def declared(recipe: Path, *overrides: str) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages(read_recipe(str(recipe), overrides))}


def test_it_runs_from_another_working_directory(tmp_path: Path) -> None:
    """Worker processes of environments import the task as well."""
    write_lab(tmp_path / "lab")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "flows", "run", "../lab/lab.yaml", "runs=runs"],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    folder = elsewhere / "runs" / "lab"
    rows = json.loads((folder / "summary.json").read_text())["stages"]
    episodes = {name: rows[name]["metrics"].get("episodes") for name in ("waves", "short")}
    assert episodes == {"waves": 2, "short": 2}
    assert rows["scores"]["metrics"]["success"]["n"] == 2
    card = json.loads((folder / "policy" / CARD).read_text())
    assert card["model"]["kind"] == "my_lab.constant:ConstantConfig"
    assert (card["task"], card["robot"]) == ("my_lab.tasks:wipe", "my_lab.arm")
    manifest = json.loads((folder / "demos" / "artifact.json").read_text())
    assert sorted(manifest["outside_code"]) == ["my_lab.arm", "my_lab.tasks"]
    protocol = json.loads((folder / "scores" / "artifact.json").read_text())["outside_code"]
    assert "my_lab.tasks" in protocol


def test_an_own_family_is_read_back_from_plain_values(lab: Path) -> None:
    config = declared(lab)["policy"].config
    plain = to_plain(config)
    assert plain["policy"]["kind"] == "my_lab.constant:ConstantConfig"
    assert plain["policy"]["start"] == 0.5
    again = validate(PretrainConfig, json.loads(json.dumps(plain)))
    assert again == config
    assert type(again.policy).__name__ == "ConstantConfig"


BEHIND_DEMOS = {"demos", "policy", "scores", "short"}
"""The stages that take the demonstrations, directly or not, and may load what made them."""


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("tasks.py", "max_steps=30", "max_steps=31", BEHIND_DEMOS),
        # The task imports it relatively.
        ("terms.py", "0.05", "0.06", BEHIND_DEMOS),
        ("arm.py", "0.2", "0.3", BEHIND_DEMOS),
        ("constant.py", "0.0 * noise", "0.1 * noise", {"policy", "scores"}),
        ("archive.py", "20.0", "10.0", {"waves"}),
        ("stages.py", "kind=", "kind=" + "None or ", {"policy", "scores", "short"}),
        ("stages.py", "Keeps the shortest", "Keeps the very shortest", set()),
    ],
)
def test_its_code_is_part_of_the_cache_keys(
    lab: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    def keys() -> dict[str, object]:
        clear_caches()
        found = {}
        for name, stage in declared(lab).items():
            record = identity(stage, {})
            found[name] = (record["code"], record.get("outside_code"))
        return found

    before = keys()
    module = lab.parent / "my_lab" / file
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))
    after = keys()
    assert {name for name in before if before[name] != after[name]} == changed


def test_entry_points_name_the_same_things(lab: Path) -> None:
    by_path = declared(lab)
    sys.path.insert(0, str(lab.parent))
    clear_caches()
    by_name = declared(
        lab,
        "waves.format=archive",
        "short.uses=shortest",
        "demos.task=wipe",
        "demos.robot=lab_arm",
        "shared.policy.kind=constant",
    )
    assert by_name["short"].module == by_path["short"].module == "my_lab.stages"
    assert type(by_name["policy"].config.policy).__name__ == "ConstantConfig"
    for name in ("waves", "demos", "policy"):
        expected = identity(by_path[name], {})["outside_code"]
        assert identity(by_name[name], {})["outside_code"] == expected
    assert find_robot("lab_arm").config_name == "lab_arm"
    assert (task_module("wipe"), robot_module("lab_arm")) == ("my_lab.tasks", "my_lab.arm")
    listed = {
        topic: {row[0]: row[1:] for row in listings()[topic].rows()}
        for topic in ("stages", "tasks", "robots", "policies", "formats")
    }
    assert listed["stages"]["shortest"] == ("demos", "episodes", "Keeps the shortest episodes")
    assert listed["tasks"]["wipe"] == ("A task that is solved near a point above the table",)
    assert listed["robots"]["lab_arm"] == ("An arm with stronger springs",)
    assert listed["policies"]["constant"] == ("A policy that always returns one learned chunk",)
    assert "archive" in listed["formats"]


def test_an_entry_point_that_leads_nowhere_is_listed_with_its_target(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"gone": "my_lab.gone:wipe"}
    with monkeypatch.context() as patched:
        patched.setattr(outside, "entry_targets", lambda group: gone)
        tasks = list(outside_rows(outside.TASKS))
        (stage,) = [row for row in stage_rows() if row[0] == "gone"]
    assert tasks == [("gone", "my_lab.gone:wipe, which cannot be found")]
    assert "my_lab" in stage[-1]


def test_a_task_and_a_robot_are_called_by_the_name_that_finds_them(lab: Path) -> None:
    declared(lab)
    task = find_task("my_lab.tasks.wipe", robot="my_lab.arm")
    assert (task.name, task.max_steps) == ("my_lab.tasks.wipe", 30)
    assert task.robot is find_robot("my_lab.arm")
    assert (task.robot.name, task.robot.config_name) == ("arm", "my_lab.arm")
    assert task.robot.armature == 0.2
    np.testing.assert_array_equal(task.robot.q_home, find_robot("fr3").q_home)
    assert is_task("my_lab.tasks.wipe")
    assert not is_task("wipe_the_table")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "demos.robot=fr4",
            "'demos.robot' is 'fr4': did you mean 'fr3'? (or the dotted path of a robot",
        ),
        ("demos.task=reech", "'demos.task' is 'reech': did you mean 'reach'? (or the dotted path"),
        ("scores.protocol.task=dry", "task: 'dry' is not known, there are reach, reach_by_name"),
        ("waves.format=parquet", "format 'parquet': expected one of aloha"),
        (
            "shared.policy.kind=my_lab.constant:Wrong",
            "my_lab.constant has no configuration class W",
        ),
        ("shared.policy.kind=my_lab.stages:ShortestConfig", "the class has no `kind: str`"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    lab: Path, override: str, message: str
) -> None:
    with pytest.raises(HandoffError) as caught:
        declared(lab, override)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my_lab.nowhere:wipe",
            "there is no module my_lab.nowhere. It must be installed, or lie b",
        ),
        ("my_lab.tasks:dry", "the module my_lab.tasks has no function dry"),
        ("my_lab.tasks:replace", "its function makes a Robot, expected a Task"),
        ("dry", "task: 'dry' is not known"),
    ],
)
def test_a_task_that_does_not_exist_is_named(lab: Path, name: str, message: str) -> None:
    declared(lab)
    with pytest.raises(HandoffError) as caught:
        find_task(name)
    assert message in str(caught.value)


def test_an_actor_of_ray_finds_the_task_where_its_caller_does(lab: Path) -> None:
    """Ray passes the working directory on, but not the folder of the recipe."""
    make = partial(make_vec_env, EnvConfig(task="my_lab.tasks:wipe"))
    assert "no module my_lab" in _Actor(make, [1], [])._error
    clear_caches()
    assert _Actor(make, [1], [str(lab.parent), "/no/such/folder"])._error == ""


def test_relative_imports_are_followed(lab: Path) -> None:
    declared(lab)
    assert {"my_lab", "my_lab.tasks", "my_lab.terms"} <= reachable("my_lab.tasks")
    assert len(code_version("my_lab.tasks")) == 64
