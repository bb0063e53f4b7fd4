"""Implements `handoff hil TASK`: trains a policy with a person's corrections, and distils it to a
gated one-step student.

demonstrations ─┬─> clone ─> classifier ─┐
                └────────────────────────┴─> train ─┬─> evaluate
                                                    └─> rollouts ─> pretrain

pretrain ─┬─> distil ─┬─> export ─────────┬─> gate
          │           └─> evaluate_student│
          └─> export_teacher ─────────────┘

The stages are cached by content and resume after a kill, as in any pipeline. They run one after
another in this terminal, without Prefect, because a person attends the session.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.hil.config import HilConfig
from flows.runner.stage import Stage, StageOutcome, run_stage
from robots.errors import HandoffError

if TYPE_CHECKING:
    from argparse import Namespace

    from flows.runner.display import Display


def hil_command(options: Namespace) -> None:
    """Runs `handoff hil` with the options `task`, `overrides`, `operator`, `person`, `out`, `steps`
    and `seed`."""
    from rich.console import Console

    from flows.hil.compose import compose_hil

    overrides = list(options.overrides)
    if options.operator is not None:
        overrides.append(f"operator.kind={options.operator}")
    if options.person is not None:
        overrides.append(f"operator.person={options.person}")
    if options.steps is not None:
        overrides.append(f"train.steps={options.steps}")
    if options.seed is not None:
        overrides.append(f"seed={options.seed}")
    config = compose_hil(options.task, overrides)
    out = options.out or Path("runs") / "hil" / options.task
    console = Console()
    if config.operator.kind == "console":
        from flows.session.viewer import scene_viewer
        from real.console.process import open_console
        from real.console.server import ConsoleConfig

        settings = ConsoleConfig(port=options.console_port)
        with open_console(settings, out / "console") as opened, scene_viewer(config.env, opened):
            console.print(f"console  {opened.url}", highlight=False, soft_wrap=True)
            summary = run_session(options.task, config, out)
    else:
        _print_bindings(config, console)
        summary = run_session(options.task, config, out)
    console.print(
        f"summary  {summary}\nreport   {summary.with_name('report.html')}",
        highlight=False,
        soft_wrap=True,
    )


def run_session(name: str, config: HilConfig, out: Path, *, isolate: bool = True) -> Path:
    """Runs the session's stages, or takes them from the cache; returns the path of `summary.json`.

    Args:
        name: name of the task, and of its evaluation protocol.
        config: options of the session.
        out: folder for artifacts, links to them by stage, `summary.json` and `report.html`.
        isolate: see `run_stage`.

    Raises:
        HandoffError: a stage failed or the person stopped; finished stages are kept, the running
            one resumes in the next run.
    """
    from flows.hil.report import write_session
    from flows.runner.display import Display

    out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, StageOutcome] = {}
    started = time.time()
    with Display() as display:
        for stage in hil_stages(name, config):
            outcomes[stage.name] = _run_shown(stage, outcomes, out, display, isolate)
            # Write the report after every stage, so that an interrupted session has one.
            write_session(name, config, outcomes, out, time.time() - started)
    return out / "summary.json"


def hil_stages(name: str, config: HilConfig) -> list[Stage]:
    """Returns the session's stages in order."""
    from flows.config.protocols import read_protocol
    from flows.evaluation.config import EvaluatePolicyConfig
    from flows.hil.compose import seeded
    from flows.session.environment import with_observation_fields

    config = seeded(config)
    shared: Any = {"env": config.env, "operator": config.operator}
    demos = Stage(
        "demonstrations",
        "episodes",
        "flows.hil.demonstrate",
        replace(config.demonstrations, **shared),
    )
    declared, inputs = [demos], {"demos": demos}
    # The success classifier, unless the task provides the reward.
    if config.train.reward == "classifier":
        clone = Stage(
            "clone",
            "policy",
            "flows.stages.pretrain",
            with_observation_fields(config.env, config.clone),
            {"demos": demos},
        )
        settings = replace(config.classifier, **shared)
        classifier = Stage(
            "classifier", "classifier", "flows.hil.classify", settings, {"clone": clone}
        )
        declared += [clone, classifier]
        inputs["classifier"] = classifier
    # Training with corrections, and its evaluation.
    trained = Stage("train", "policy", "flows.hil.correct", replace(config.train, **shared), inputs)
    protocol = replace(read_protocol(config.protocol or name), episodes=config.evaluation_episodes)

    def evaluate(stage: str, policy: Stage) -> Stage:
        settings = EvaluatePolicyConfig(protocol=protocol, evaluate=config.evaluate)
        return Stage(stage, "evaluation", "flows.stages.evaluate", settings, {"policy": policy})

    declared += [trained, evaluate("evaluate", trained)]
    return [*declared, *_distil_stages(config, trained, evaluate)] if config.distilled else declared


def _distil_stages(config: HilConfig, trained: Stage, evaluate: Any) -> list[Stage]:
    """Returns the stages of RLDG: a diffusion policy trained on successful rollouts, distilled to
    one step, exported and gated."""
    from flows.session.environment import with_observation_fields

    settings = replace(config.rollouts, env=config.env)
    demos = Stage("rollouts", "episodes", "flows.hil.rollouts", settings, {"policy": trained})
    pretraining = with_observation_fields(config.env, config.pretrain)
    teacher = Stage("pretrain", "policy", "flows.stages.pretrain", pretraining, {"demos": demos})
    student = Stage(
        "distil",
        "policy",
        "flows.stages.distil",
        config.distil,
        {"demos": demos, "teacher": teacher},
    )

    def export(name: str, policy: Stage) -> Stage:
        return Stage(
            name, "bundle", "flows.stages.export", config.export, {"demos": demos, "policy": policy}
        )

    bundle, reference = export("export", student), export("export_teacher", teacher)
    gate = Stage(
        "gate", "gate", "flows.stages.gate", config.gate, {"bundle": bundle, "reference": reference}
    )
    return [
        demos,
        teacher,
        student,
        bundle,
        reference,
        gate,
        evaluate("evaluate_student", student),
    ]


def _run_shown(
    stage: Stage, outcomes: dict[str, StageOutcome], out: Path, display: Display, isolate: bool
) -> StageOutcome:
    inputs = {name: outcomes[upstream.name].artifact for name, upstream in stage.inputs.items()}
    progress = display.started(stage.name)
    try:
        outcome = run_stage(stage, inputs, out, progress, isolate=isolate)
    except HandoffError:
        display.finished(stage.name, "not finished", "✗")
        raise
    display.finished(stage.name, "cached" if outcome.cached else f"{outcome.seconds:.1f} s")
    return outcome


def _print_bindings(config: HilConfig, console: Any) -> None:
    """Prints the key bindings before the session starts."""
    match config.operator.kind:
        case "simulated" | "console":
            return
        case "keyboard":
            from real.teleop.keyboard import bindings

            rows = bindings(config.operator.keyboard.takeover.view_yaw)
        case "spacemouse":
            from real.teleop.spacemouse import bindings

            rows = bindings()
    for keys, meaning in rows:
        console.print(f"  {keys:<16} {meaning}", highlight=False, markup=False)
