"""What the Tab key completes, by the program itself and in a shell."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands.app import main
from flows.deployment import verified_policy
from flows.deployment.release_folder import RELEASE_FILE
from real.franka.kept_faults import keep_fault


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """Candidates for the last word, with their descriptions."""
    assert main(["__complete", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    records = [line.split("\t") for line in lines if line and line[0] != "\x1f"]
    return {record[0]: record[1] if len(record) > 1 else "" for record in records}


@pytest.mark.parametrize(
    ("words", "name", "about"),
    [
        (("run", ""), "demo", "push-T demonstrations"),
        (("plan", "hil/"), "hil/reach", "reach a point"),
        (("profile", ""), "vla_ppo", "PPO of a VLA"),
        (("hil", ""), "pick_cube", "corrections"),
        (("evaluate", ""), "reach", "reaches a point"),
        (("console", ""), "open_drawer", "drawer"),
        (("run", "demo", "--until", ""), "teacher", "pretrain"),
        (("hil", "reach", "--until", ""), "corrected", "correct"),
        (("run", "demo", "~"), "~twin", "remove"),
        (("run", "fr3_rldg", "~demos.m"), "~demos.matrix.skill.reach", "remove a copy"),
        (("plan", "fr3_rldg", "demos.matrix."), "demos.matrix.skill.reach.noise=0.007", "matrix"),
        (("console", "reach", "--policy", ""), "still", "nobody but the person"),
        (("evaluate", "reach", "--policy", ""), "expert", "scripted expert"),
        (("twin", "--robot", ""), "panda", "Franka Emika Robot"),
        (("list", "stages", ""), "pretrain", "policy"),
        (("list", "stages", "pretrain."), "pretrain.training.steps", "updates"),
    ],
)
def test_names_are_completed_with_what_they_are(
    words: tuple[str, ...], name: str, about: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = completed(capsys, *words)
    assert about in found[name]
    assert not any(one.rpartition("/")[2].startswith("_") for one in found)


def test_an_option_is_completed_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    found = completed(capsys, "run", "demo", "teacher.training.st")
    assert found == {"teacher.training.steps=20000": "pretrain"}
    session = completed(capsys, "hil", "reach", "corrected.st")
    assert session == {"corrected.steps=4000": "correct"}
    assert completed(capsys, "run", "demo", "se") == {"seed=0": "seed of the recipe"}
    shared = completed(capsys, "run", "hil/reach", "shared.env.t")
    assert shared == {"shared.env.task=reach": "several stages"}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("record", "reach", "demos.ep"), "demos.episodes=20"),
        (("record", "reach", "shared.operator.kind=s"), "shared.operator.kind=simulated"),
        (("record", "reach", "--arm", "twin", "loop.max"), "loop.max_steps=1200"),
        (("record", "reach", "--arm", "twin", "arm.latch=k"), "arm.latch=kept"),
        # A release that cannot be read has the options of push-T.
        (("deploy", "no_such_release", "plane.orig"), "plane.origin=[0.776,0.256,0.0]"),
        (("deploy", "no_such_release", "nonsense", "loop.max_s"), "loop.max_steps=300"),
        (("robustness", "reach", "protocol.epi"), "protocol.episodes=200"),
        (("gate", "bundle", "reach", "min_suc"), "min_success=0.5"),
        (("tune", "store.zarr", "algorithm.kind=r"), "algorithm.kind=random"),
    ],
)
def test_an_option_of_a_command_with_one_configuration_is_completed(
    words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option in completed(capsys, *words)


def test_a_deployment_has_the_options_of_the_policy_of_its_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verified_policy, "task_of_release", lambda path: "pick_cube")
    found = completed(capsys, "deploy", "runs/pick_cube/gate", "")
    assert "gripper.force=15.0" in found
    assert not any(option.startswith("plane.") for option in found)


def test_what_can_be_deployed_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for stage, kind in (("gate", "gate"), ("approval", "approve"), ("teacher", "pretrain")):
        made = tmp_path / "runs" / "artifacts" / f"{stage}-0123"
        made.mkdir(parents=True)
        (made / "artifact.json").write_text(f'{{"uses": "{kind}"}}')
        (tmp_path / "runs" / "demo").mkdir(exist_ok=True)
        (tmp_path / "runs" / "demo" / stage).symlink_to(made)
    release = tmp_path / "runs" / "releases" / "demo"
    release.mkdir(parents=True)
    (release / RELEASE_FILE).write_text("{}")
    found = completed(capsys, "deploy", "runs/")
    offered = {name for name, about in found.items() if about != "folder"}
    assert offered == {"runs/demo/gate", "runs/demo/approval", "runs/releases/demo"}


def test_an_arm_with_a_kept_fault_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert completed(capsys, "clear-fault", "") == {}
    keep_fault("172.16.0.2", "fr3", "stopped")
    assert list(completed(capsys, "clear-fault", "")) == ["172.16.0.2"]


def test_options_are_those_of_what_was_chosen_before(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("plan", "own_data", "trained.policy.uses=bc")
    found = completed(capsys, *chosen, "trained.policy.he")
    assert found == {"trained.policy.head=gmm": "pretrain"}
    encoders = completed(capsys, *chosen, "trained.policy.image_encoder.kind=e")
    assert list(encoders) == ["trained.policy.image_encoder.kind=efficientnet_lite0"]
    # A word that cannot be read changes nothing.
    found = completed(capsys, "plan", "own_data", "nonsense", "trained.policy.hea")
    assert found == {"trained.policy.heads=8": "pretrain"}


def test_an_absent_block_is_completed_with_its_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory = "trained.policy.memory."
    found = completed(capsys, "run", "pick_cube_cameras", memory)
    assert found == {f"{memory}kind=gru": "pretrain", f"{memory}features=64": "pretrain"}
    kinds = completed(capsys, "run", "pick_cube_cameras", f"{memory}kind=")
    assert list(kinds) == [f"{memory}kind={kind}" for kind in ("gru", "attention", "mean")]


def test_files_and_finished_runs_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    recipe = (
        "# Reach, as we do it.\nname: own\nstages: {demos: {uses: scripted, with: {task: reach}}}\n"
    )
    (tmp_path / "mine" / "own.yaml").write_text(recipe)
    for run in ("runs/done", "runs/hil/reach"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "summary.json").write_text("{}")
    (tmp_path / "runs" / "begun").mkdir()
    recorded = {
        "state": "finished",
        "started": "2026-11-29T19:22:06Z",
        "ended": "2026-11-29T19:27:16Z",
        "computer": {"host": "here"},
        "recipe": {"name": "own"},
        "stages": {},
    }
    (tmp_path / "runs" / "done" / "run.json").write_text(json.dumps(recorded))
    assert "mine/" in completed(capsys, "run", "m")
    assert completed(capsys, "run", "mine/o")["mine/own.yaml"] == "Reach, as we do it"
    found = completed(capsys, "run", "mine/own.yaml", "demos.ep")
    assert [key.partition("=")[0] for key in found] == ["demos.episodes"]
    assert completed(capsys, "show", "") == {
        "done": "finished 2026-11-29 19:27, own",
        "hil/reach": "",
    }


def test_a_recipe_that_cannot_be_read_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed(capsys, "run", "no_such_recipe", "--until", "") == {}
    (tmp_path / "broken.yaml").write_text("stages: [")
    assert completed(capsys, "run", "broken.yaml", "a") == {}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("teacher.training.precision=", ["auto", "bf16", "fp32"]),
        ("teacher.policy.kind=b", ["bc", "beso"]),
        ("teacher.policy.uses=f", ["flow"]),
        ("shared.protocol=pick_c", ["pick_cube", "pick_cube_10hz", "pick_cube_cameras"]),
        ("demos.download=", ["false", "true"]),
        ("teacher.training.steps=", ["20000"]),
    ],
)
def test_the_values_that_an_option_can_have_are_completed(
    option: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    key = option.partition("=")[0]
    recipe = "smoke" if key.startswith("shared") else "demo"
    found = completed(capsys, "run", recipe, option)
    assert sorted(found) == [f"{key}={value}" for value in values]


def test_named_options_are_completed_that_the_stage_can_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = completed(capsys, "run", "hil/reach", "corrected.algorithm=")
    assert set(found) == {"corrected.algorithm=hil_serl"}, "vla_ppo is an option of fine-tuning"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["run", "smoke_off"], ["smoke_offline"]),
        # Bash gives KEY=VALUE as three words, and expects what comes behind the equals sign.
        (["run", "demo", "teacher.training.precision", "="], ["auto", "bf16", "fp32"]),
        (["run", "demo", "teacher.training.precision", "=", "b"], ["bf16"]),
        (["run", "demo", "teacher.training.st"], ["teacher.training.steps=20000"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: list[str], replies: list[str]) -> None:
    program = tmp_path / "handoff"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flows "$@"\n')
    program.chmod(0o755)
    typed = f"""
        source <("$0" completion bash)
        COMP_WORDS=("$0" {" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words)}
        "$(complete -p handoff | sed 's/.*-F //; s/ .*//')"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    shown = subprocess.run(
        ["bash", "-c", typed, str(program)], capture_output=True, text=True, timeout=120
    )
    assert sorted(shown.stdout.split()) == replies, shown.stderr


def test_artifacts_of_runs_are_completed_with_their_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "runs" / "artifacts" / "gate-0123"
    made.mkdir(parents=True)
    (made / "artifact.json").write_text('{"uses": "gate"}')
    for run in ("demo", "hil/reach"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "gate").symlink_to(made)
    for command in ("explain", "serve"):
        found = completed(capsys, command, "runs/")
        assert {name for name, about in found.items() if about == "gate"} == {
            "runs/demo/gate",
            "runs/hil/reach/gate",
        }


def test_policies_and_recordings_are_completed_without_what_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for stage, kind in (("teacher", "policy"), ("bundle", "bundle"), ("scores", "evaluation")):
        made = tmp_path / "runs" / "artifacts" / f"{stage}-0123"
        made.mkdir(parents=True)
        (made / "artifact.json").write_text(json.dumps({"uses": "own", "kind": kind}))
        (tmp_path / "runs" / "demo").mkdir(exist_ok=True)
        (tmp_path / "runs" / "demo" / stage).symlink_to(made)
    found = completed(capsys, "sensitivity", "reach", "--policy", "runs/")
    assert {name for name, about in found.items() if about == "own"} == {
        "runs/demo/teacher",
        "runs/demo/bundle",
    }
    for folder in ("deploy/store.zarr", "deploy/console", "imported/store.zarr"):
        (tmp_path / "runs" / folder).mkdir(parents=True)
    found = completed(capsys, "deploy", "runs/demo/gate", "--mode", "replay", "--recording", "")
    assert {name for name, about in found.items() if about == "session"} == {"runs/deploy"}


PROMPT = "ready$ "


def in_bash(folder: Path, typed: list[str]) -> list[str]:
    """What stands on the line of an interactive Bash in a folder after words and the Tab key."""
    program = folder / "bin" / "handoff"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flows "$@"\n')
    program.chmod(0o755)
    # Ctrl-G prints the line as it stands.
    (folder / "bin" / "start").write_text(
        "source <(handoff completion bash)\n"
        'bind -x \'"\\C-g": printf "<%s>" "$READLINE_LINE"\'\n'
        f"PS1='{PROMPT}'\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
        os.environ["TERM"] = "dumb"
        os.execvp("bash", ["bash", "--rcfile", "bin/start", "-i"])
    try:
        output_until(terminal, PROMPT)
        found = []
        for line in typed:
            os.write(terminal, f"\x15{line}\t\a".encode())
            shown = output_until(terminal, ">")
            found.append(shown.rpartition("<")[2].partition(">")[0])
            if PROMPT not in shown.rpartition(">")[2]:
                output_until(terminal, PROMPT)
        return found
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def output_until(terminal: int, end: str) -> str:
    """What a terminal shows until it shows `end`."""
    output = ""
    while end not in output:
        ready, _, _ = select.select([terminal], [], [], 20.0)
        assert ready, output
        output += os.read(terminal, 4096).decode()
    return output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_paths_are_completed_at_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "towel.zarr" / "segments").mkdir(parents=True)
    (tmp_path / "notes.hdf5").touch()
    found = in_bash(
        tmp_path,
        [
            "handoff episodes info to",
            "handoff episodes info towel.zarr/",
            "handoff episodes info no",
            "handoff run own_data demos.da",
            "handoff run own_data demos.data=tow",
        ],
    )
    assert found == [
        "handoff episodes info towel.zarr/",
        "handoff episodes info towel.zarr/segments/",
        "handoff episodes info notes.hdf5 ",
        "handoff run own_data demos.data=",
        "handoff run own_data demos.data=towel.zarr/",
    ]


def test_files_are_completed_as_the_value_of_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "towel.zarr").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert completed(capsys, "run", "own_data", "demos.da") == {"demos.data=": "ingest"}
    assert completed(capsys, "run", "own_data", "demos.data=") == {
        "demos.data=towel.zarr/": "folder"
    }
    assert completed(capsys, "episodes", "info", "") == {"towel.zarr/": "folder"}
