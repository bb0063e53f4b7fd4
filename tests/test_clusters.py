"""The files that start Handoff on several machines fit each other, the documentation and the
tests."""

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from tests.flows.orchestration.test_ray_machines import VARIABLES

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "configs/clusters"
SLURM = FOLDER / "slurm.sh"
GUIDE = (ROOT / "docs/guides/clusters.md").read_text()
CHECKS = {name: value for name, value in VARIABLES.items() if name.startswith("RAY_health")}


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """The objects of Kubernetes by kind and name."""
    documents = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def containers(objects: dict[tuple[str, str], Any]) -> list[dict[str, Any]]:
    templates = [
        each["spec"]["template"] for each in objects.values() if "template" in each.get("spec", ())
    ]
    assert len(templates) == 2, "the head and the nodes"
    return [container for each in templates for container in each["spec"]["containers"]]


def test_a_lost_node_is_noticed_as_in_the_tests_everywhere(
    objects: dict[tuple[str, str], Any],
) -> None:
    def exported(text: str) -> dict[str, str]:
        return dict(re.findall(r"(RAY_health_\w+)=(\d+)", text))

    data = objects["ConfigMap", "handoff"]["data"]
    assert {name: data[name] for name in CHECKS} == CHECKS
    assert exported(SLURM.read_text()) == CHECKS
    assert exported(GUIDE) == CHECKS
    assert data["RAY_AUTH_MODE"] == "token"


def test_every_container_has_the_variables_and_the_token(
    objects: dict[tuple[str, str], Any],
) -> None:
    for container in containers(objects):
        assert container["envFrom"] == [{"configMapRef": {"name": "handoff"}}]
        [token] = [each for each in container["env"] if each["name"] == "RAY_AUTH_TOKEN"]
        reference = token["valueFrom"]["secretKeyRef"]
        assert f"secret generic {reference['name']} --from-literal={reference['key']}=" in GUIDE
        assert not reference.get("optional"), "a pod without the token does not start"


def test_the_names_and_labels_of_the_objects_fit_each_other(
    objects: dict[tuple[str, str], Any],
) -> None:
    labels = {
        kind: objects[kind, name]["spec"]["template"]["metadata"]["labels"]
        for kind, name in (("Job", "handoff"), ("StatefulSet", "handoff-node"))
    }
    nodes = objects["StatefulSet", "handoff-node"]["spec"]
    assert nodes["selector"]["matchLabels"] == labels["StatefulSet"]
    assert objects["Service", nodes["serviceName"]]["spec"]["selector"] == labels["StatefulSet"]
    head = objects["Service", "handoff-head"]
    assert head["spec"]["selector"] == labels["Job"]
    address = objects["ConfigMap", "handoff"]["data"]["RAY_ADDRESS"]
    assert address == f"handoff-head:{head['spec']['ports'][0]['port']}"
    policy = objects["NetworkPolicy", "handoff"]["spec"]
    chosen = policy["podSelector"]["matchLabels"].items()
    assert all(chosen <= each.items() for each in labels.values())


def test_the_commands_of_the_containers_exist(objects: dict[tuple[str, str], Any]) -> None:
    node, head = (container["args"][0] for container in containers(objects))
    port = objects["Service", "handoff-head"]["spec"]["ports"][0]["port"]
    assert f"--port={port}" in shlex.split(head)
    assert "ray start --address=" in node
    check_run(shlex.split(head.partition("handoff ")[2]))
    for container in containers(objects):
        room = container["resources"]["requests"]
        assert f"--num-cpus={room['cpu']}" in container["args"][0]


@pytest.mark.parametrize("text", [GUIDE, SLURM.read_text()], ids=["guide", "script"])
def test_the_documented_slurm_command_names_a_recipe(text: str) -> None:
    joined = re.sub(r"\\\n#?\s*", "", text)
    [command] = re.findall(r"sbatch .*?slurm\.sh (run .*)", joined)
    check_run(shlex.split(command))


def check_run(command: list[str]) -> None:
    """Checks the arguments of `handoff`: a recipe, and options that it has."""
    assert command[0] == "run"
    recipe = read_recipe(command[1], [each for each in command[2:] if not each.startswith("runs=")])
    [config] = [stage.config for stage in stages(recipe) if stage.name == "teacher"]
    assert config.placement.cluster is not None


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("code", [0, 7])
def test_the_slurm_script_starts_the_nodes_and_returns_the_code_of_the_command(
    tmp_path: Path, code: int
) -> None:
    """On substitutes of Slurm and Ray that write down how they are called."""
    log = tmp_path / "log"
    write = f'echo "$(basename "$0") $* token=${{#RAY_AUTH_TOKEN}}" >> {log}'
    program(tmp_path, "scontrol", "printf '%s\\n' one two three")
    program(tmp_path, "getent", "echo '192.0.2.1 STREAM one'")
    program(tmp_path, "ray", f"{write}; exec sleep 600")
    program(tmp_path, "srun", f"{write}; exec sleep 1")
    program(tmp_path, "handoff", f"{write}; exit {code}")
    program(tmp_path, "python", 'case "$*" in *secrets*) printf "%064d" 0;; *) sleep 0.5;; esac')
    variables = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_CPUS_PER_TASK": "4",
    }
    command = ["bash", str(SLURM), "run", "smoke"]
    done = subprocess.run(command, env=variables, timeout=60.0, check=False, capture_output=True)
    assert done.returncode == code, done.stderr.decode()
    called = {line.split()[0]: line for line in log.read_text().splitlines()}
    assert "start --head --node-ip-address=192.0.2.1 --port=23456 --num-cpus=4" in called["ray"]
    assert "--ntasks=2" in called["srun"]
    assert "--exclude=one ray start --address=192.0.2.1:23456 --num-cpus=4" in called["srun"]
    assert called["handoff"].startswith("handoff run smoke ")
    assert all(line.endswith("token=64") for line in called.values()), "all have one token"


def test_a_signal_before_the_time_limit_reaches_the_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program(tmp_path, "scontrol", "echo one")
    program(tmp_path, "getent", "echo '192.0.2.1 STREAM one'")
    program(tmp_path, "ray", "exec sleep 600")
    program(tmp_path, "python", "true")
    saving = f"trap 'echo saved >> {log}; exit 5' TERM; echo begun >> {log}"
    program(tmp_path, "handoff", f"{saving}; while true; do sleep 0.1; done")
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    process = subprocess.Popen(
        ["bash", str(SLURM), "run", "smoke"], env={**variables, "SLURM_JOB_NODELIST": "one"}
    )
    try:
        while not log.exists():
            assert process.poll() is None
        process.terminate()
        assert process.wait(30.0) == 5
    finally:
        process.kill()
    assert log.read_text().split() == ["begun", "saved"]
