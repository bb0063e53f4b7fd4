"""`handoff evaluate` and `handoff compare`, on short push-T episodes and small untrained
policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import flows.evaluation.evaluate
from flows.__main__ import main
from flows.config.protocols import push_t_published, read_protocol
from flows.evaluation.agents import (
    Entrant,
    checkpoint_agent,
    instruction_of,
    make_agent,
)
from flows.evaluation.evaluate import evaluate_until_decided, named_formulas
from flows.runner.artifact import seal
from policies.card import PolicyCard
from policies.checkpoint import save_policy
from policies.families.diffusion import DiffusionPolicy
from policies.load import new_module
from policies.networks.config import BackboneConfig, MlpConfig, ResnetEncoderConfig
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    BesoConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from robots.errors import HandoffError
from robots.interfaces import Step
from robots.spec import FieldSpec
from sim.evaluation.adastop import AdaStopConfig
from sim.evaluation.agent import ReplayAgent
from sim.evaluation.comparison import compare
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import (
    ChunkRule,
    Protocol,
    Sampling,
    ScoreRule,
    digest,
    protocol_statement,
)
from tests.real import onnx_models
from tests.sim.line import Line

SHORT = """
name: short
engine: gym
task: gym_pusht/PushT-v0
packages: [gym-pusht, pymunk]
episodes: 10
max_steps: 6
score: {of: reward, over: max}
"""


PLAIN = DiffusionPolicyConfig(
    train_timesteps=20, inference_steps=2, network=MlpConfig(width=16, blocks=1, time_embedding=8)
)


@pytest.fixture
def protocol(tmp_path: Path) -> str:
    path = tmp_path / "short.yaml"
    path.write_text(SHORT)
    return str(path)


@pytest.fixture
def policies(tmp_path: Path) -> list[str]:
    """Two checkpoints of small untrained push-T policies."""
    sizes = PLAIN
    card = PolicyCard(
        task="push_t",
        rate_hz=10.0,
        observation={"keypoints": FieldSpec(shape=(9, 2)), "agent": FieldSpec(shape=(2,))},
        action=FieldSpec(shape=(2,)),
        model=sizes,
    )
    folders = []
    for seed, step in enumerate((100, 200)):
        torch.manual_seed(seed)
        module = DiffusionPolicy(sizes, card.shapes)
        folders.append(tmp_path / "training" / f"step-{step}")
        folders[-1].mkdir(parents=True)
        save_policy(folders[-1], card, module.state_dict())
    return [str(folder) for folder in folders]


def save_untrained(folder: Path, model: PolicyConfig) -> Path:
    """A checkpoint in `folder` of an untrained push-T policy."""
    specs = {"keypoints": FieldSpec(shape=(9, 2)), "agent": FieldSpec(shape=(2,))}
    camera = FieldSpec(shape=(48, 48, 3), dtype="uint8", unit="u8")
    card = PolicyCard(
        task="push_t",
        rate_hz=10.0,
        observation={name: specs[name] for name in model.observation_fields},
        sensors=dict.fromkeys(model.image_fields, camera),
        action=FieldSpec(shape=(2,)),
        model=model,
    )
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    save_policy(folder, card, new_module(model, card.shapes).state_dict())
    return folder


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 1
    return capsys.readouterr().err


def test_one_policy_gives_a_result_with_videos_and_a_page(
    tmp_path: Path, protocol: str, policies: list[str]
) -> None:
    out = tmp_path / "out"
    assert (
        main(["evaluate", protocol, "--policy", policies[0], "--out", str(out), "--videos", "1"])
        == 0
    )
    result = json.loads((out / "episodes.json").read_text())
    assert len(result["episodes"]) == 10
    assert result["execution"]["denoising_steps"] == 2
    assert (out / result["videos"][0]["file"]).is_file()
    assert result["protocol_digest"] in (out / "report.html").read_text()


def test_several_policies_are_paired_in_the_order_they_were_named(
    tmp_path: Path, protocol: str, policies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    named = [
        argument for spec in (*policies, "random", "random") for argument in ("--policy", spec)
    ]
    assert main(["evaluate", protocol, *named, "--out", str(out), "--videos", "0"]) == 0
    assert sorted(path.parent.name for path in out.glob("*/episodes.json")) == [
        "random",
        "random-2",
        "step-100",
        "step-200",
    ]
    assert "against step-100" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "against step-100" in page
    assert "Learning curve" in page


def test_compare_reads_what_evaluate_wrote_and_refuses_another_protocol(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (
        ("first", SHORT),
        ("second", SHORT),
        ("other", SHORT.replace("max_steps: 6", "max_steps: 5")),
    ):
        Path(protocol).write_text(text)
        assert (
            main(
                [
                    "evaluate",
                    protocol,
                    "--policy",
                    "random",
                    "--out",
                    str(tmp_path / name),
                    "--videos",
                    "0",
                ]
            )
            == 0
        )
    first, second, other = (str(tmp_path / name) for name in ("first", "second", "other"))
    page = tmp_path / "pairs.html"
    assert main(["compare", first, second, "--out", str(page)]) == 0
    assert "against first" in page.read_text()
    assert "first and other differ in ['max_steps']" in failure(capsys, "compare", first, other)


class Echo(Line):
    """The reward is the action."""

    def step(self, action: np.ndarray) -> Step:
        return super().step(action)._replace(reward=action[:, 0])


def constant(name: str, protocol: Protocol, instruction: str | None, device: str) -> Entrant:
    """An agent called `2.5-a` does 2.5 all the time."""
    value = float(name.partition("-")[0])
    return Entrant(
        name, lambda: lambda env: ReplayAgent([np.full((2, 1), value)] * env.num_envs), {}
    )


def test_adastop_runs_an_agent_no_longer_than_it_takes_to_tell_it_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.evaluation.evaluate, "make_agent", constant)
    monkeypatch.setattr(
        flows.evaluation.evaluate,
        "make_env",
        lambda protocol, num_envs, pictures=False: Echo(num_envs),
    )
    protocol = Protocol(
        name="echo",
        engine="gym",
        task="echo",
        episodes=40,
        max_steps=2,
        score=ScoreRule(of="reward", over="last"),
    )
    # Eight episodes that differ by 1 each: 2 of 256 sign changes are as extreme, 1.6 % in either of
    # two comparisons. That is over 1 %, the level of the first of five stages; sixteen episodes are
    # far under the second's 2 %.
    test = AdaStopConfig(n=8, stages=5, permute="pairs")
    results, outcome, decisions = evaluate_until_decided(
        protocol, ["0-a", "0-b", "1-c"], tmp_path, EvaluateConfig(videos=0), test
    )
    found = {(d.better, d.worse, d.stage, d.difference) for d in decisions}
    assert found == {("1-c", "0-a", 1, 1.0), ("1-c", "0-b", 1, 1.0)}
    assert outcome.undecided == (("0-a", "0-b"),)
    assert [(r.name, len(r.table["episodes"]), r.table["score"]) for r in results] == [
        ("0-a", 40, 0.0),
        ("0-b", 40, 0.0),
        ("1-c", 16, 1.0),
    ]
    assert [episode["seed"] for episode in results[0].table["episodes"]] == list(protocol.seeds)
    with pytest.raises(HandoffError, match=r"0-a and 1-c differ in \['episodes'\]"):
        compare(results[0], results[2])


def test_adastop_from_the_command_line_says_what_it_could_not_tell_apart(
    tmp_path: Path, protocol: str
) -> None:
    out = tmp_path / "out"
    arguments = [
        "--policy",
        "random",
        "--policy",
        "random",
        "--out",
        str(out),
        "--videos",
        "0",
        "--adastop",
    ]
    assert main(["evaluate", protocol, *arguments]) == 0
    assert "not significant" in (out / "report.html").read_text()


def test_the_command_plays_the_protocol_or_changed_entries_of_it(
    tmp_path: Path, protocol: str
) -> None:
    given = ["--policy", "random", "--out", str(tmp_path / "out"), "--videos", "0"]

    def played(*overrides: str) -> dict:
        assert main(["evaluate", protocol, *overrides, *given]) == 0
        return json.loads((tmp_path / "out" / "episodes.json").read_text())

    whole, few = played(), played("protocol.episodes=2")
    assert whole["protocol_digest"] == digest(protocol_statement(read_protocol(protocol)))
    assert whole["episodes"][:2] == few["episodes"]
    assert len(few["episodes"]) == few["protocol"]["episodes"] == 2
    assert few["protocol_digest"] != whole["protocol_digest"]


def test_adastop_needs_stages_that_divide_the_episodes(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--policy",
        "random",
        "--policy",
        "random",
        "--out",
        str(tmp_path),
        "--adastop",
        "--stages",
        "3",
    ]
    assert "3 stages of 3 episodes do not add up to the 10" in failure(
        capsys, "evaluate", protocol, *arguments
    )


def test_onnx_file_is_executed_as_its_contract_says(tmp_path: Path) -> None:
    path = tmp_path / "bundle" / "policy.onnx"
    path.parent.mkdir()
    onnx_models.save_policy(path)
    entrant = make_agent(str(path), push_t_published())
    assert entrant.name == "bundle"
    assert (entrant.execution["horizon"], entrant.execution["n_obs_steps"]) == (16, 2)
    entrant.load()
    assert make_agent(str(path.parent), push_t_published()).execution == entrant.execution


def test_a_changed_file_is_evaluated_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "bundle" / "policy.onnx"
    path.parent.mkdir()
    onnx_models.save_policy(path)
    original = make_agent(str(path), push_t_published())
    model = onnx.load(path)
    model.graph.node[1].op_type = "Sub"
    onnx.save(model, path)
    changed = make_agent(str(path), push_t_published())
    assert (original.name, changed.name) == ("bundle", "bundle-changed")
    assert original.execution["policy"] == "p" * 8
    assert changed.execution["policy"] == f"changed-{changed.execution['file']}"
    with pytest.raises(HandoffError, match="Was it replaced during the evaluation"):
        original.load()


def test_protocol_that_rules_the_sampler_overrides_or_refuses(
    policies: list[str], tmp_path: Path
) -> None:
    ruled = replace(
        push_t_published(), sampling=Sampling(denoising_steps=4), chunk=ChunkRule(n_action_steps=1)
    )
    _, execution = checkpoint_agent(Path(policies[0]), ruled)
    assert (execution["denoising_steps"], execution["n_action_steps"]) == (4, 1)
    with pytest.raises(HandoffError, match=r"sampling\.denoising_steps is 4, this agent has 1"):
        checkpoint_agent(Path(policies[0]), ruled, denoising_steps=1)
    onnx_models.save_policy(tmp_path / "policy.onnx", sampler="one-step")
    with pytest.raises(HandoffError, match=r"sampling\.denoising_steps is 4, this agent has 1"):
        make_agent(str(tmp_path / "policy.onnx"), ruled)


def test_a_policy_with_images_is_evaluated_in_environments_that_render_them(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = replace(
        PLAIN,
        observation_fields=("agent",),
        image_fields=("image",),
        n_obs_steps=2,
        image_encoder=ResnetEncoderConfig(
            channels=(16, 16), crop=(40, 40), keypoints=2, features=4
        ),
    )
    policy, out = str(save_untrained(tmp_path / "images", model)), tmp_path / "out"
    error = failure(capsys, "evaluate", protocol, "--policy", policy, "--out", str(out))
    assert "no field ['image']; the environment has ['agent', 'block_pose', 'keypoints']" in error
    Path(protocol).write_text(SHORT + "options: {picture: 48}\n")
    assert main(["evaluate", protocol, "--policy", policy, "--out", str(out), "--videos", "0"]) == 0
    result = json.loads((out / "episodes.json").read_text())
    assert len(result["episodes"]) == 10
    assert result["execution"]["sensors"] == ["image"]
    assert result["protocol"]["options"] == {"picture": 48}
    ruled = read_protocol(protocol)
    assert checkpoint_agent(Path(policy), ruled, blind=True)[1]["blind"] is True


def test_an_option_that_the_benchmark_does_not_have_is_refused(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(protocol).write_text(SHORT + "options: {pictures: 48}\n")
    arguments = ("evaluate", protocol, "--policy", "random", "--out", str(tmp_path / "out"))
    assert "unknown key 'protocol short: options.pictures', did you mean 'picture'" in failure(
        capsys, *arguments
    )


def test_a_policy_that_answers_in_one_pass_is_evaluated(tmp_path: Path, protocol: str) -> None:
    policy, out = (
        save_untrained(tmp_path / "cloned", BehaviourCloningConfig(hidden=(8,))),
        tmp_path / "out",
    )
    assert (
        main(["evaluate", protocol, "--policy", str(policy), "--out", str(out), "--videos", "0"])
        == 0
    )
    assert json.loads((out / "episodes.json").read_text())["execution"]["denoising_steps"] == 1
    ruled = replace(push_t_published(), sampling=Sampling(denoising_steps=1))
    assert checkpoint_agent(policy, ruled)[1]["denoising_steps"] == 1
    with pytest.raises(HandoffError, match=r"sampling\.denoising_steps is 4, this agent has 1"):
        checkpoint_agent(policy, replace(ruled, sampling=Sampling(denoising_steps=4)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(policies: list[str]) -> None:
    load, _ = checkpoint_agent(Path(policies[0]), push_t_published(), device="cuda")
    with pytest.raises(HandoffError, match="torch finds no CUDA device"):
        load()


def test_steps_of_every_family() -> None:
    backbone = BackboneConfig(folder="")
    steps = {
        family.kind: family.sampler_steps
        for family in (
            DiffusionPolicyConfig(inference_steps=5),
            BesoConfig(sampling_steps=3),
            VlaConfig(backbone=backbone, inference_steps=7),
            ActConfig(),
            BehaviourCloningConfig(),
            TokenVlaConfig(backbone=backbone),
        )
    }
    assert steps == {
        "diffusion": 5,
        "beso": 3,
        "vla": 7,
        "act": None,
        "bc": None,
        "token_vla": None,
    }


def test_a_language_conditioned_policy_has_the_given_instruction_or_that_of_its_training(
    tmp_path: Path,
) -> None:
    model = VlaConfig(backbone=BackboneConfig(folder=""))
    card = PolicyCard(
        task="push_t", rate_hz=10.0, observation={}, action=FieldSpec(shape=(2,)), model=model
    )
    trained = replace(card, model=replace(model, instruction="push the T home"))
    assert instruction_of(card) == "push t"
    assert instruction_of(trained) == "push the T home"
    assert instruction_of(trained, "go") == "go"
    plain = replace(card, model=PLAIN)
    assert instruction_of(plain) is None
    with pytest.raises(HandoffError, match="the family 'diffusion' is not language-conditioned"):
        instruction_of(plain, "go")


def test_expert_solves_the_task_it_was_scripted_for(tmp_path: Path) -> None:
    path, out = tmp_path / "reach.yaml", tmp_path / "out"
    path.write_text(
        "{name: r, engine: mujoco, task: reach, packages: [mujoco], episodes: 3, max_steps: 60}"
    )
    assert (
        main(["evaluate", str(path), "--policy", "expert", "--out", str(out), "--videos", "0"]) == 0
    )
    assert json.loads((out / "episodes.json").read_text())["success"]["k"] == 3


def test_expert_is_refused_where_there_is_none_and_those_with_one_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("evaluate", "push_t_published", "--policy", "expert", "--out", str(tmp_path))
    assert "tasks with one, on mujoco, warp, maniskill and Isaac Lab: reach, " in failure(
        capsys, *arguments
    )


def test_unknown_policy_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = (
        "evaluate",
        "push_t_published",
        "--policy",
        "no/such",
        "--out",
        str(tmp_path / "out"),
    )
    assert "neither a directory nor an .onnx file" in failure(capsys, *arguments)


def test_the_artifact_of_a_stage_without_a_policy_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gate.partial").mkdir()
    record = {
        "stage": "gate",
        "uses": "gate",
        "inputs": {},
        "config": {},
        "code": "",
        "metrics": {},
        "seconds": 1.0,
        "finished": "2026-11-01T00:00:00Z",
        "environment": {},
    }
    seal(tmp_path / "gate.partial", tmp_path / "gate", "gate", record)
    gate, out = str(tmp_path / "gate"), str(tmp_path / "out")
    said = failure(capsys, "evaluate", "reach", "--policy", gate, "--out", out)
    assert "is the gate of the stage 'gate', expected the artifact of a stage that makes" in said


def test_a_formula_of_the_command_line_has_a_name():
    assert named_formulas(["near=always (x <= 1)", "far = x > 2"]) == {
        "near": "always (x <= 1)",
        "far": " x > 2",
    }
    for given, message in (
        (["always x < 1"], "expected NAME=FORMULA"),
        (["a b=x < 1"], "expected NAME=FORMULA"),
        (["near=x < 1", "near=x < 2"], "there are two called 'near'"),
    ):
        with pytest.raises(HandoffError, match=message):
            named_formulas(given)
