"""Programs that know nothing of Handoff run its bundles: the script of the documentation, LEAPP's
and Physical AI Studio's loaders, and old releases of ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from flows.evaluation.agents import make_agent
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import CONTRACT_KEY
from robots.storage.onnx_file import onnx_metadata
from sim.engines.gym_push_t import PushTVecEnv
from tests.documents import ROOT, blocks
from tests.flows.evaluation.test_evaluate import push_t_published
from tests.policies.export.push_t_bundle import write_push_t_bundle

PAGE = ROOT / "docs" / "concepts" / "contract.md"
STEPS = 30
LEAPP = """
import sys, numpy, torch
from leapp import InferenceManager
bundle = sys.argv[1]
golden = numpy.load(bundle + "/golden.npz")
policy = InferenceManager(bundle + "/leapp.yaml")
assert policy.inputs == ["policy/observation", "policy/noise"], policy.inputs
for i in range(len(golden["action"])):
    inputs = {f"policy/{n}": torch.from_numpy(golden[n][i:i + 1]) for n in ("observation", "noise")}
    action = policy(inputs)["policy/action"].numpy()
    assert abs((action - golden["action"][i:i + 1]) / golden["action_scale"]).max() <= 1e-5
print("equal", len(golden["action"]))
"""
STUDIO = """
import sys, numpy
from physicalai.inference import InferenceModel
bundle = sys.argv[1]
golden = numpy.load(bundle + "/golden.npz")
policy = InferenceModel(bundle)
executed = policy.manifest.contract["n_action_steps"]
for i in range(len(golden["action"])):
    given = {name: golden[name][i:i + 1] for name in ("observation", "noise")}
    scale = golden["action_scale"]
    expected = golden["action"][i]
    chunk = policy.predict_action_chunk(given)
    assert abs((chunk - expected[:executed]) / scale[:executed]).max() <= 1e-5
    policy.reset()
    for step in range(executed):
        action = policy.select_action(given)
        assert abs((action - expected[step]) / scale[step]).max() <= 1e-5
print("equal", len(golden["action"]))
"""


def script(title: str) -> str:
    (found,) = (block for block in blocks(PAGE.read_text()) if block.title == title)
    return found.text


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_push_t_bundle(tmp_path_factory.mktemp("one_step") / "made")


@pytest.fixture(scope="module")
def with_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_push_t_bundle(tmp_path_factory.mktemp("two_steps") / "made", n_obs_steps=2)


def evaluated_actions(bundle: Path, seed: int) -> np.ndarray:
    """Actions of `handoff evaluate` in an episode, without what it records."""
    agent_of = make_agent(str(bundle), push_t_published()).load()
    env = PushTVecEnv(1)
    agent, observation, actions = agent_of(env), env.reset([seed]), []
    agent.reset([seed])
    for _ in range(STEPS):
        actions.append(agent.act(observation, np.ones(1, bool)))
        observation = env.step(actions[-1]).observation
    env.close()
    return np.concatenate(actions)


@pytest.mark.parametrize("name", ["bundle", "with_history"])
def test_the_script_of_the_documentation_acts_as_the_evaluation(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(name)
    program = script("act.py")
    assert "handoff" not in "".join(line for line in program.splitlines() if "import" in line), (
        "it must do without Handoff"
    )
    (tmp_path / "act.py").write_text(program)
    command = [sys.executable, "-I", tmp_path / "act.py", folder / "policy.onnx", "7", str(STEPS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    acted = np.array([json.loads(line) for line in ran.stdout.splitlines() if line[0] == "["])
    np.testing.assert_allclose(acted, evaluated_actions(folder, 7), atol=1e-5)


def test_the_script_refuses_what_the_evaluation_refuses(bundle: Path, tmp_path: Path) -> None:
    program = script("act.py").replace("state[:4] / 1000", "state[:4]")
    (tmp_path / "act.py").write_text(program)
    command = [sys.executable, tmp_path / "act.py", bundle / "policy.onnx", "7", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "AssertionError: far outside the training data" in ran.stderr


def test_the_contract_states_the_points_of_the_t_and_the_agents_dynamics(bundle: Path) -> None:
    contract = json.loads(onnx_metadata((bundle / "policy.onnx").read_bytes())[CONTRACT_KEY])
    keypoints = contract["observation"]["keypoints"]
    assert len(keypoints["points"]) == 9
    assert keypoints["names"][1] == ["x", "y"]
    assert contract["dynamics"] == {"k_p": 100.0, "k_v": 20.0, "rate_hz": 100.0}
    assert "origin in the upper left corner" in contract["frames"]["board"]
    known = contract["training_range"]["agent"]
    assert 0.05 <= min(known["low"]) < max(known["high"]) <= 0.45
    assert contract["action_range"]["q01"] < contract["action_range"]["q99"]


def test_a_bundle_of_default_options_has_the_versions_of_onnx_runtime_1_17(bundle: Path) -> None:
    model = onnx.load(bundle / "policy.onnx")
    assert model.ir_version <= 9
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]


def test_leapp_names_every_tensor_of_the_graph(with_history: Path) -> None:
    described = yaml.safe_load((with_history / "leapp.yaml").read_text())
    assert set(described) == {"models", "pipeline", "system information"}
    node = described["models"]["policy"]
    model = onnx.load(with_history / "policy.onnx")
    assert [entry["name"] for entry in node["inputs"]] == [i.name for i in model.graph.input]
    (action,) = node["outputs"]
    assert (action["first_executed"], action["executed"]) == (1, 4)
    assert action["element_names"] == [None, "__temporal_axis__", ["action.x", "action.y"]]
    assert described["pipeline"]["configs"]["frequency"] == 10.0


def test_studio_gets_no_manifest_of_a_policy_that_it_would_execute_one_step_late(
    bundle: Path, with_history: Path
) -> None:
    assert (bundle / "manifest.json").is_file()
    assert not (with_history / "manifest.json").exists()
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("policy_package", "1.0")
    order = manifest["hardware"]["robots"][0]["state"]["order"]
    assert (order[0], order[-1], len(order)) == ("keypoints.point0.x", "agent.y", 20)


def test_the_bundle_is_the_same_whenever_it_is_exported(bundle: Path, tmp_path: Path) -> None:
    again = write_push_t_bundle(tmp_path / "again")
    assert OnnxPolicy(again / "policy.onnx").digest == OnnxPolicy(bundle / "policy.onnx").digest
    for name in ("leapp.yaml", "manifest.json"):
        assert (again / name).read_bytes() == (bundle / name).read_bytes()


@pytest.mark.peers
@pytest.mark.needs("index")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("packages", "program", "names"),
    [
        (["leapp==0.7.2", "fast-sugiyama"], LEAPP, ["bundle", "with_history"]),
        (
            [
                "physicalai==0.3.0",
                "loguru",
                "jsonargparse",
                "docstring-parser",
                "typeshed-client",
                "importlib-resources",
            ],
            STUDIO,
            ["bundle"],
        ),
    ],
    ids=["leapp", "physicalai"],
)
def test_another_runtimes_loader_computes_the_golden_actions(
    packages: list[str],
    program: str,
    names: list[str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    # The loader without what it requires for other purposes; the rest comes from this environment.
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    ran = subprocess.run([*install, *packages], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "outside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (tmp_path / "load.py").write_text(program)
    for name in names:
        command = [python, tmp_path / "load.py", request.getfixturevalue(name)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert "equal 8" in ran.stdout
