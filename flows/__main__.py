"""Defines the command line:
`handoff
run | plan | profile | explain | record | evaluate | compare | serve | hil | console | deploy`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from robots.errors import HandoffError, describe, error_text
from robots.signals import exit_code, raising_signals

OPERATORS = ("simulated", "keyboard", "spacemouse", "console")
"""Operators of a HIL session; a copy of `flows.session.config.OperatorKind`, which is slow to
import."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. An error is printed as one line, with `--debug`
    followed by a traceback."""
    options = _parse(arguments)
    try:
        with raising_signals():
            options.command(options)
    except HandoffError as error:
        return _fail(error_text(error), error, options.debug)
    except KeyboardInterrupt as error:
        message = f"{error_text(error).removesuffix('.')}."
        if options.command is not _console:
            message += " Finished stages are kept; run the same command to resume."
        return _fail(message, error, options.debug, code=exit_code(error))
    except Exception as error:  # noqa: BLE001  a person gets one line instead of a traceback
        return _fail(describe(error), error, options.debug)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments and accepts overrides anywhere after the name, also after an option."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "overrides") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="handoff", description="Takes a robot skill from demonstrations to a Franka arm."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, command: object, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(command=command)
        sub.add_argument("--debug", action="store_true", help="show tracebacks and Prefect's log")
        return sub

    for name, command, about in (
        ("run", _run, "run a pipeline; cached stages are skipped"),
        ("plan", _plan, "print which stages would run, which are cached, and why"),
    ):
        sub = add(name, command, about)
        sub.add_argument("name", help="a file in configs/ without its ending, e.g. demo")
        sub.add_argument(
            "overrides", nargs="*", help="Hydra overrides, e.g. teacher.training.steps=2000"
        )
    sub = add(
        "profile",
        _profile,
        "predict the speed of each placement of a pipeline's fine-tuning environments",
    )
    sub.add_argument("name", help="a file in configs/ without its ending, e.g. vla_ppo")
    sub.add_argument("overrides", nargs="*", help="Hydra overrides, e.g. teacher.num_envs=200")
    sub.add_argument("--seconds", type=float, default=60.0, help="duration of the measurements [s]")
    sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    sub = add("explain", _explain, "print the lineage of an artifact back to the demonstrations")
    sub.add_argument("artifact", type=Path, help="artifact directory, or a file inside one")
    sub.add_argument(
        "--verify", action="store_true", help="re-hash every file of every artifact in the lineage"
    )
    sub = add(
        "record",
        _record,
        "record the push-T demonstrations that ship with Handoff: rollouts of a trained policy, with provenance",
    )
    sub.add_argument(
        "policy", type=Path, help="artifact directory of the policy, e.g. runs/demo/pretrain"
    )
    sub.add_argument("out", type=Path, help="folder for rollouts.zarr.zip and rollouts.json")
    sub = add(
        "evaluate",
        _evaluate,
        "evaluate policies under a protocol; writes intervals, videos and a report",
    )
    sub.add_argument("protocol", help="a file in configs/protocol/ without its ending, or a path")
    sub.add_argument(
        "--policy",
        action="append",
        required=True,
        help="policy directory, ONNX file, random or expert; may be repeated",
    )
    sub.add_argument("--out", type=Path, required=True, help="folder for results and report.html")
    sub.add_argument(
        "--batch", type=int, default=50, help="number of environments stepped together"
    )
    sub.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes; the result does not depend on their number",
    )
    sub.add_argument(
        "--videos", type=int, default=4, help="episodes rendered as videos, failed ones first"
    )
    sub.add_argument(
        "--instruction",
        help="instruction for language-conditioned policies; default: the environment's, else the policy's",
    )
    sub.add_argument(
        "--device",
        choices=("cpu", "cuda", "auto"),
        default="cpu",
        help="device of saved policies",
    )
    sub.add_argument(
        "--adastop",
        action="store_true",
        help="stop early, once the policies are ranked (AdaStop)",
    )
    sub.add_argument(
        "--stages",
        type=int,
        default=5,
        help="with --adastop: stages into which the protocol's episodes are divided",
    )
    sub = add("compare", _compare, "compare evaluations under one protocol, paired by seed")
    sub.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="output folders of evaluate; the first is the reference",
    )
    sub.add_argument("--out", type=Path, help="HTML page to write")
    sub = add(
        "serve",
        _serve,
        "serve action chunks over a websocket, compatible with openpi's client",
    )
    sub.add_argument("policy", type=Path, help="policy directory, bundle directory or ONNX file")
    sub.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; other addresses than loopback need $HANDOFF_TOKEN",
    )
    sub.add_argument("--port", type=int, default=8000, help="port to listen at; 0 takes a free one")
    sub.add_argument(
        "--clients", type=int, default=16, help="maximum number of simultaneous connections"
    )
    sub.add_argument("--queue", type=int, default=8, help="maximum number of waiting requests")
    sub.add_argument(
        "--seed", type=int, default=0, help="seed of the noise for requests without noise"
    )
    sub.add_argument(
        "--action-interface",
        help="action interface of a policy directory; an ONNX file states its own",
    )
    _add_people(add)
    return parser


def _add_people(add: Callable[[str, object, str], argparse.ArgumentParser]) -> None:
    """Adds the commands with a person in the loop."""
    sub = add(
        "hil",
        _hil,
        "human-in-the-loop training, from demonstrations to a gated policy",
    )
    sub.add_argument("task", help="a file in configs/hil/ without its ending, e.g. pick_cube")
    sub.add_argument("overrides", nargs="*", help="Hydra overrides, e.g. corrected.sac.critics=10")
    sub.add_argument("--operator", choices=OPERATORS, help="operator who demonstrates and corrects")
    sub.add_argument(
        "--console-port",
        type=int,
        default=8700,
        help="port of the console with --operator console; 0 takes a free one",
    )
    sub.add_argument(
        "--person", help="operator name recorded with every episode; default: the login"
    )
    sub.add_argument("--steps", type=int, help="environment steps of training")
    sub.add_argument(
        "--seed", type=int, help="seed of the whole session: demonstrations, exploration, weights"
    )
    sub.add_argument("--until", help="run only this stage and what it needs, e.g. corrected")
    sub.add_argument("--out", type=Path, help="folder of the session; default: runs/hil/<task>")
    sub = add("console", _console, "control a simulated arm from a browser; episodes are recorded")
    sub.add_argument(
        "task", nargs="?", default="pick_cube", help="a task on the FR3, e.g. pick_cube"
    )
    sub.add_argument(
        "--policy",
        default="still",
        help="policy that acts unless a person takes over: still, expert, or a path as for evaluate",
    )
    _add_console(sub)
    sub.add_argument("--out", type=Path, help="folder of the session; default: runs/console/<task>")
    sub = add(
        "deploy",
        _deploy,
        "run a released push-T policy on an arm, supervised by a person at the console",
    )
    sub.add_argument(
        "gate", type=Path, help="gate artifact of the released policy, e.g. runs/demo/gate"
    )
    sub.add_argument(
        "overrides", nargs="*", help="Hydra overrides of configs/deploy, e.g. supervision.speed=0.1"
    )
    sub.add_argument(
        "--arm", help="address of the arm's control unit; default: starts a simulated arm"
    )
    sub.add_argument("--tracker", help="ws:// address of the tracker of the T; required with --arm")
    sub.add_argument(
        "--camera",
        action="append",
        metavar="NAME=SOURCE",
        help="camera shown at the console; may be repeated",
    )
    _add_console(sub)
    sub.add_argument("--out", type=Path, help="folder of the session; default: runs/deploy")


def _add_console(sub: argparse.ArgumentParser) -> None:
    """Adds the options of sessions with a console."""
    sub.add_argument(
        "--person", help="operator name recorded while nobody has control; default: the login"
    )
    sub.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; other addresses than loopback need $HANDOFF_TOKEN",
    )
    sub.add_argument("--port", type=int, default=8700, help="port to listen at; 0 takes a free one")
    sub.add_argument(
        "--spacemouse", action="store_true", help="also read a SpaceMouse at this machine"
    )
    sub.add_argument(
        "--episodes",
        type=int,
        help="end the session when the store holds this many episodes; default: run until the person ends it",
    )


def _run(options: argparse.Namespace) -> None:
    import json

    from rich.console import Console

    from flows.reports.summary import table
    from flows.run import run

    path = run(options.name, options.overrides, debug=options.debug)
    summary = json.loads(path.read_text())
    metrics = summary["metrics"]
    console = Console()
    console.print()
    console.print(table(summary["stages"]))
    console.print(f"\n{summary['source']}", highlight=False)
    console.print(
        f"{metrics['total_seconds']:.1f} s in total, Prefect {100 * metrics['prefect_share']:.1f} %, "
        f"peak memory {metrics['peak_memory_gb']:.2f} GB",
        highlight=False,
    )
    console.print(
        f"summary  {path}\nreport   {path.with_name('report.html')}",
        highlight=False,
        soft_wrap=True,
    )


def _plan(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from flows.recipes.graph import stages
    from flows.recipes.recipe import read_recipe
    from flows.runner.plan import plan

    recipe = read_recipe(options.name, options.overrides)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("stage", "action", "reason"):
        grid.add_column(heading)
    for planned in plan(stages(recipe, fetch=False), Path(recipe.runs)):
        grid.add_row(planned.stage, planned.action, planned.reason)
    Console().print(grid)


def _profile(options: argparse.Namespace) -> None:
    from flows.profile_placement import profile_command

    profile_command(options)


def _explain(options: argparse.Namespace) -> None:
    from flows.reports.explain import explain

    print(explain(options.artifact, verify=options.verify))


def _record(options: argparse.Namespace) -> None:
    from flows.record import record

    print(record(options.policy, options.out))


def _evaluate(options: argparse.Namespace) -> None:
    from flows.evaluation.evaluate import evaluate_command

    evaluate_command(options)


def _compare(options: argparse.Namespace) -> None:
    from flows.evaluation.evaluate import compare_command

    compare_command(options)


def _serve(options: argparse.Namespace) -> None:
    from flows.serve import serve_command

    serve_command(options)


def _console(options: argparse.Namespace) -> None:
    from flows.console import console_command

    console_command(options)


def _deploy(options: argparse.Namespace) -> None:
    from flows.deployment.session import deploy_command

    deploy_command(options)


def _hil(options: argparse.Namespace) -> None:
    from rich.console import Console

    from flows.attended import ConsoleAddress, run_attended

    given = {
        "shared.operator.kind": options.operator,
        "shared.operator.person": options.person,
        "corrected.steps": options.steps,
        "seed": options.seed,
    }
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    if options.out is not None:
        overrides += [f"runs={options.out.parent}", f"name={options.out.name}"]
    name = options.task if options.task.endswith(".yaml") else f"hil/{options.task}"
    path = run_attended(
        name,
        [*options.overrides, *overrides],
        until=options.until,
        address=ConsoleAddress(port=options.console_port),
    )
    Console().print(
        f"summary  {path}\nreport   {path.with_name('report.html')}",
        highlight=False,
        soft_wrap=True,
    )


def _fail(message: str, error: BaseException | None, debug: bool, code: int = 1) -> int:
    print(f"handoff: {message}", file=sys.stderr)
    if debug and error is not None:
        traceback.print_exception(error)
    return code


if __name__ == "__main__":
    sys.exit(main())
