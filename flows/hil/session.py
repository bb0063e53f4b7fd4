"""`handoff hil TASK`: from no data to a policy that a person has corrected, and on to a gated
one-step student.

demonstrations ─┬─> clone ─> classifier ─┐
                └────────────────────────┴─> train ─┬─> evaluate
                                                    └─> rollouts ─> pretrain ─┬─> distil ─┬─> export
                                                    ─────────┬─> gate
                                                                              │           └─>
                                                                              evaluate_student│ └─>
                                                                              export_teacher
                                                                              ─────────────┘

The stages are those of any pipeline, cached by content and resumed where they were killed. They run
one after another in this terminal, without Prefect: a person is at it, and a server has nothing to
schedule.
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
    """`handoff hil`: options `task`, `overrides`, `operator`, `person`, `out`, `steps` and
    `seed`."""
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
        from flows.session.viewer import drawn
        from real.console.process import open_console
        from real.console.server import ConsoleConfig

        settings = ConsoleConfig(port=options.console_port)
        with open_console(settings, out / "console") as opened, drawn(config.world, opened):
            console.print(f"console  {opened.url}", highlight=False, soft_wrap=True)
            summary = run_session(options.task, config, out)
    else:
        _tell_bindings(config, console)
        summary = run_session(options.task, config, out)
    console.print(
        f"summary  {summary}\nreport   {summary.with_name('report.html')}",
        highlight=False,
        soft_wrap=True,
    )


def run_session(name: str, config: HilConfig, out: Path, *, isolate: bool = True) -> Path:
    """Runs the session's stages, those that are finished from the cache; returns the path of
    `summary.json`.

    Args:
        name: of the task's protocol, for evaluations.
        config: the session.
        out: artifacts, links to them by stage, `summary.json` and `report.html`.
        isolate: see `run_stage`.

    Raises:
        HandoffError: a stage failed or the person stopped; finished stages stay, the running one is
            gone on with.
    """
    from flows.hil.report import write_session
    from flows.runner.display import Display

    out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, StageOutcome] = {}
    began = time.time()
    with Display() as display:
        for stage in hil_stages(name, config):
            outcomes[stage.name] = _run_shown(stage, outcomes, out, display, isolate)
            # After every stage: a session that is cut short has a report, too.
            write_session(name, config, outcomes, out, time.time() - began)
    return out / "summary.json"


def hil_stages(name: str, config: HilConfig) -> list[Stage]:
    """The session's stages in their order."""
    from flows.config.protocols import read_protocol
    from flows.evaluation.config import EvaluatePolicyConfig
    from flows.hil.compose import seeded
    from flows.session.worlds import seeing

    config = seeded(config)
    shared: Any = {"world": config.world, "operator": config.operator}
    demos = Stage(
        "demonstrations",
        "episodes",
        "flows.hil.demonstrate",
        replace(config.demonstrations, **shared),
    )
    found, inputs = [demos], {"demos": demos}
    if config.train.reward == "classifier":
        clone = Stage(
            "clone",
            "policy",
            "flows.stages.pretrain",
            seeing(config.world, config.clone),
            {"demos": demos},
        )
        settings = replace(config.classifier, **shared)
        classifier = Stage(
            "classifier", "classifier", "flows.hil.classify", settings, {"clone": clone}
        )
        found += [clone, classifier]
        inputs["classifier"] = classifier
    learned = Stage("train", "policy", "flows.hil.correct", replace(config.train, **shared), inputs)
    protocol = replace(read_protocol(config.protocol or name), episodes=config.evaluation_episodes)

    def evaluate(stage: str, policy: Stage) -> Stage:
        settings = EvaluatePolicyConfig(protocol=protocol, evaluate=config.evaluate)
        return Stage(stage, "evaluation", "flows.stages.evaluate", settings, {"policy": policy})

    found += [learned, evaluate("evaluate", learned)]
    return [*found, *_distilled(config, learned, evaluate)] if config.distilled else found


def _distilled(config: HilConfig, learned: Stage, evaluate: Any) -> list[Stage]:
    """What RLDG adds: a generative policy from the learned one's successes, in one step, exported
    and gated."""
    from flows.session.worlds import seeing

    settings = replace(config.rollouts, world=config.world)
    demos = Stage("rollouts", "episodes", "flows.hil.rollouts", settings, {"policy": learned})
    pretraining = seeing(config.world, config.pretrain)
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
    gated = Stage(
        "gate", "gate", "flows.stages.gate", config.gate, {"bundle": bundle, "reference": reference}
    )
    return [
        demos,
        teacher,
        student,
        bundle,
        reference,
        gated,
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


def _tell_bindings(config: HilConfig, console: Any) -> None:
    """Prints what a person can do, before it matters."""
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
