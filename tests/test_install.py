"""The install for the computer of an arm, in a new virtual environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.runner.artifact import seal
from tests.flows.deployment.releases import MadeRuns
from tests.flows.deployment.test_release import MADE, gated
from tests.real.onnx_models import save_policy

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.install,
    pytest.mark.needs("index"),
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).resolve().parent.parent
MOST_DISTRIBUTIONS = 50
MOST_BYTES = 500_000_000
FORBIDDEN = {
    "torch",
    "diffusers",
    "accelerate",
    "prefect",
    "mujoco",
    "gymnasium",
    "opencv-python",
    "opencv-python-headless",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with `.[robot]`, installed as in the README."""
    folder = tmp_path_factory.mktemp("robot") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--use-pep517"]
    command = [python(folder), *install, "--constraint", "constraints.txt", ".[robot]"]
    installed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    return folder


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released push-T policy that keeps the pusher still."""
    folder = tmp_path_factory.mktemp("released")
    partial = folder / "bundle.partial"
    partial.mkdir()
    save_policy(partial / "policy.onnx", scale=0.0)
    record = {"stage": "export", "metrics": {}, "inputs": {}, "input_paths": {}, **MADE}
    bundle = seal(partial, folder / "bundle", "bundle", record)
    return gated(folder, bundle.digest, passed=True)


def python(environment: Path) -> Path:
    return environment / "bin" / "python"


def call(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder from which the checkout cannot be imported."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        words,
        cwd=folder,
        env={**bare, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def handoff(
    environment: Path, folder: Path, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    return call(folder, environment / "bin" / "handoff", *words)


def distributions(environment: Path) -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions by name, without those of an empty virtual environment."""
    (packages,) = (environment / "lib").glob("python3.*/site-packages")
    found = importlib.metadata.distributions(path=[str(packages)])
    named = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one for one in found}
    return {name: one for name, one in named.items() if name not in ("pip", "setuptools")}


def test_it_is_small_and_has_neither_torch_nor_prefect_nor_a_simulator(environment: Path) -> None:
    installed = distributions(environment)
    assert "handoff" in installed
    assert set(installed) & FORBIDDEN == set()
    assert len(installed) <= MOST_DISTRIBUTIONS
    (packages,) = (environment / "lib").glob("python3.*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size <= MOST_BYTES


def test_its_requirements_are_met(environment: Path) -> None:
    command = [python(environment), "-m", "pip", "check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    "words",
    ["--help", "deploy --help", "console --help", "hil --help", "evaluate --help", "plan smoke"],
)
def test_light_commands_work(environment: Path, tmp_path: Path, words: str) -> None:
    done = handoff(environment, tmp_path, *words.split())
    assert done.returncode == 0, done.stderr


def test_doctor_checks_a_machine_without_the_laptops_packages(
    environment: Path, tmp_path: Path
) -> None:
    done = handoff(environment, tmp_path, "doctor", "--seconds", "0", "--json")
    statuses = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    absent = {"torch", "OpenGL", "Vulkan", "Prefect", "packages"}
    assert {name for name, status in statuses.items() if status == "not checked"} >= absent
    assert statuses["requirements"] == "ok"


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("run smoke", "prefect"),
        ("console pick_cube", "mujoco"),
        ("serve {}", "torch"),
    ],
)
def test_other_commands_state_in_one_line_what_to_install(
    environment: Path, tmp_path: Path, words: str, package: str
) -> None:
    done = handoff(environment, tmp_path, *words.format(tmp_path).split())
    assert done.returncode == 1
    assert done.stderr == (
        f"handoff: {package} is not installed. Install it in the checkout: "
        "pip install -c constraints.txt -e '.[laptop]'.\n"
    )


def test_all_modules_for_an_arm_can_be_imported(environment: Path, tmp_path: Path) -> None:
    importing = (
        "import importlib, pkgutil, sys\n"
        "for name in sys.argv[1:]:\n"
        "    package = importlib.import_module(name)\n"
        "    for module in pkgutil.walk_packages(package.__path__, f'{name}.'):\n"
        "        importlib.import_module(module.name)\n"
    )
    packages = ("robots", "real", "flows.config", "flows.deployment", "flows.session")
    done = call(tmp_path, python(environment), "-c", importing, *packages)
    assert done.returncode == 0, done.stderr


def test_franky_reports_a_missing_arm(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    connecting = (
        "from real.franka.arm import FrankaArm, FrankaConfig\n"
        "from robots.errors import HandoffError\n"
        "try:\n"
        "    FrankaArm(FrankaConfig(host='127.0.0.1', realtime='ignore')).__enter__()\n"
        "except HandoffError as error:\n"
        "    print(error)\n"
    )
    done = call(tmp_path, python(environment), "-c", connecting)
    assert "127.0.0.1" in done.stdout, done.stderr


def test_a_released_policy_needs_the_simulator_without_an_arm(
    environment: Path, gate: Path, tmp_path: Path
) -> None:
    done = handoff(environment, tmp_path, "deploy", gate)
    assert done.returncode == 1
    assert done.stderr.startswith("handoff: deploy: a simulated arm needs mujoco, which is not")
    assert done.stderr.count("\n") == 1


def test_an_arm_takes_a_signed_release_and_no_gate(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_KEYS", str(tmp_path / "keys"))
    source = MadeRuns(tmp_path / "runs").runs / "lab" / "approval"
    handoff(environment, tmp_path, "keys", "new", "ada")
    handoff(environment, tmp_path, "keys", "trust", "keys/ada.pub")
    signed = handoff(environment, tmp_path, "sign", source, "--out", "release")
    assert signed.returncode == 0, signed.stderr
    assert handoff(environment, tmp_path, "verify", "release").returncode == 0
    arm = ("--arm", "192.0.2.1", "--port", "0")
    refused = handoff(environment, tmp_path, "deploy", source, *arm)
    assert "is not signed; a real arm takes a signed release alone" in refused.stderr
    # The next step, behind all checks of the release.
    taken = handoff(environment, tmp_path, "deploy", "release", *arm)
    assert "a real arm needs a tracker" in taken.stderr


def test_a_released_policy_connects_to_the_tracker_of_an_arm(
    environment: Path, gate: Path, tmp_path: Path
) -> None:
    tracker = ("--tracker", "ws://127.0.0.1:1", "--port", "0")
    done = handoff(environment, tmp_path, "deploy", gate, "--arm", "127.0.0.1", *tracker)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:1" in done.stderr
