"""Deployments: one per recipe, and the documented commands from a Prefect server to a finished
run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.config.files import recipes
from flows.runner.stage import Stage
from policies.rl.finetuning.config import VlaFinetuneConfig
from tests.flows.recipe_stages import declared

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RUN_SECONDS = 400
"""Time for the whole flow run; it takes 80 s on two busy cores [s]."""
SMALL = [
    "pretrained.policy.inference_steps=2",
    "pretrained.training.steps=20",
    "pretrained.training.warmup_steps=5",
    "teacher.num_envs=2",
    "teacher.rollouts=1",
    "teacher.decisions=2",
    "teacher.algorithm.updates=2",
    "teacher.algorithm.imitation.steps=5",
    "protocol.episodes=2",
    "protocol.max_steps=16",
    "evaluate.videos=0",
    "student.algorithm.training.steps=20",
    "student.algorithm.training.warmup_steps=5",
    "student.algorithm.targets=512",
    "bundle.golden=8",
    "reference.golden=8",
    "gate.repeats=20",
    "gate.min_speedup=0",
    "gate.p99_ms=60000",
    "twin.table.starts=1",
    "twin.table.videos=0",
    "twin.table.loop.max_steps=3",
    "twin.table.twin.host=127.0.77.3",
]
"""Overrides that shorten `smoke`, for a test of the worker."""
TASKS = {
    "gym_pusht/PushT-v0": "Push-T",
    "push_t": "Push-T",
    "pick_cube": "Pick up a cube",
    "pick_by_name": "Pick up the named one of four cubes",
    "flip_switch": "Flip a switch",
    "open_drawer": "Open a drawer",
    "reach": "Reach a point",
    "reach_by_name": "Reach the named one of four markers",
}
"""First words of a description, by the protocol's task."""
METHODS = {
    "best_of_n": "best-of-N",
    "dppo": "DPPO",
    "expo": "EXPO",
    "q_chunking": "Q-chunking",
    "rl100": "RL-100",
    "vla": "PPO",
    "fast_td3": "FastTD3",
    "pql": "PQL",
    "ppo": "PPO",
    "ppo_lagrangian": "PPO-Lagrangian",
    "rlpd": "RLPD",
    "sac": "SAC",
    "cal_ql": "Cal-QL",
    "edp": "EDP",
    "f_dvl": "f-DVL",
    "iql": "IQL",
    "offline_ppo": "offline-PPO",
    "trajectory_weighting": "trajectory-weighting",
    "xql": "XQL",
}
"""Name of an RL algorithm in a description, by its kind."""
ENDS = {
    "deploy": "FR3 twin",
    "evaluate": "ends with the evaluation",
    "compare": "ends with the comparison",
    "gate": "ends with the gate",
}
"""Words of a description for the kind of the last stage."""


def deployments() -> list[dict[str, Any]]:
    import yaml

    return yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


def named_recipes() -> list[str]:
    """Recipes that a worker can run; the others need a person."""
    return [name for name in recipes() if not name.startswith("hil/")]


def methods(declared: Mapping[str, Stage]) -> set[str]:
    """The RL methods that a description must name."""
    found: set[str] = set()
    for stage in declared.values():
        if stage.uses in ("finetune", "offline", "reinforce"):
            algorithm = stage.config.algorithm
            grouped = isinstance(algorithm, VlaFinetuneConfig) and algorithm.group is not None
            found.add("GRPO" if grouped else METHODS[algorithm.kind])
    return found


def test_every_recipe_has_one_deployment_of_its_name() -> None:
    assert sorted(deployment["name"] for deployment in deployments()) == sorted(named_recipes())
    parameters = [deployment["parameters"] for deployment in deployments()]
    names = [deployment["name"] for deployment in deployments()]
    assert parameters == [{"config_name": name, "overrides": []} for name in names]
    assert len({deployment["description"] for deployment in deployments()}) == len(names)


@pytest.mark.parametrize("deployment", deployments(), ids=lambda deployment: deployment["name"])
def test_description_names_the_recipes_task_method_device_and_end(
    deployment: dict[str, Any],
) -> None:
    built, description = declared(deployment["name"]), deployment["description"]
    scored = [stage.config.protocol for stage in built.values() if stage.uses == "evaluate"]
    assert description.startswith(TASKS[scored[0].task])
    words = re.split(r"[ ,;:.]+", description)
    named = {word for word in (*METHODS.values(), "GRPO") if word in words}
    assert named == methods(built)
    devices = {stage.config.training.device for stage in built.values() if stage.uses == "pretrain"}
    assert ("GPU" in description) == ("cuda" in devices)
    last = list(built.values())[-1].uses
    assert [kind for kind, words in ENDS.items() if words in description] == [last]


def test_entrypoint_is_the_flow_and_leaves_the_import_path_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect.flows import load_flow_from_entrypoint

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    for entrypoint in {deployment["entrypoint"] for deployment in deployments()}:
        flow = load_flow_from_entrypoint(entrypoint)
        assert flow.name == "handoff"
        assert set(flow.parameters.properties) == {"config_name", "overrides", "until"}
    assert sys.path == before


def documented_commands() -> list[list[str]]:
    """The words of each line of the documents' commands for a Prefect server, which all documents
    say alike."""
    documents = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    blocks = [part for document in documents for part in document.read_text().split("```")[1::2]]
    (block,) = {part for part in blocks if "prefect server start" in part}
    return [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]


def at_a_terminal(home: Path, server: str) -> dict[str, str]:
    """The environment of a person who has only said where the server is; Prefect asks its
    questions, if it has any."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    told = {
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_CLI_PROMPT": "true",
    }
    return {
        **own,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        **told,
    }


def called(words: list[str], environment: Mapping[str, str], seconds: float = 120) -> str:
    """What the command printed; it has succeeded, and nobody answered questions."""
    result = subprocess.run(
        _here(words),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout


@contextmanager
def at_work(words: list[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """A worker, and the end of it and of all that it started."""
    import psutil

    with log.open("w") as file:
        worker = psutil.Popen(
            _here(words),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        started = [worker, *worker.children(recursive=True)]
        worker.terminate()
        _, left = psutil.wait_procs(started, timeout=20)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=20)


def deployed() -> dict[str, str]:
    """By the name of each deployment on the server: the folder in which its runs take place."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_deployments()
    step = "prefect.deployments.steps.set_working_directory"
    return {
        deployment.name: (deployment.pull_steps or [])[0][step]["directory"] for deployment in found
    }


def run_states(deployment: str) -> tuple[str, dict[str, str]]:
    """The state of the deployment's only flow run, and by name those of its task runs."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(f"handoff/{deployment}")
        (run,) = [run for run in client.read_flow_runs() if run.deployment_id == found.id]
        tasks = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        )
    return str(run.state_name), {task.name: str(task.state_name) for task in tasks}


def _here(words: list[str]) -> list[str]:
    """The command with the programs of this environment, wherever it lies."""
    program = Path(words[0])
    assert program.parent == Path(".venv/bin")
    return [str(BIN / program.name), *words[1:]]


def test_documented_commands_lead_from_a_server_to_a_completed_run(
    prefect_server: str, tmp_path: Path
) -> None:
    serve, export, create, deploy, work, run, run_with = documented_commands()
    assert serve == [".venv/bin/prefect", "server", "start"]
    assert export == ["export", "PREFECT_API_URL=http://127.0.0.1:4200/api"]
    environment = at_a_terminal(tmp_path, prefect_server)
    called(create, environment)
    called(deploy, environment)
    assert deployed() == dict.fromkeys(named_recipes(), str(ROOT))
    assert run_with[-2] == "--param"
    key, _, overrides = run_with[-1].partition("=")
    asked = json.dumps([*json.loads(overrides), *SMALL, f"runs={tmp_path / 'runs'}"])
    log = tmp_path / "worker.log"
    with at_work(work, environment, log):
        try:
            called([*run, "--param", f"{key}={asked}"], environment, RUN_SECONDS)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{error}\n{log.read_text()[-6000:]}") from None
    expected = list(declared("smoke"))
    assert run_states("smoke") == ("Completed", dict.fromkeys(expected, "Completed"))
    summary = json.loads((tmp_path / "runs" / "smoke" / "summary.json").read_text())
    assert {name: row["status"] for name, row in summary["stages"].items()} == dict.fromkeys(
        expected, "done"
    )
